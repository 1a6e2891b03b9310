"""How many files and sockets a process may have open. Everybody who waits in a blocking query holds one.

The soft limit that processes begin with is often 1,024, for the sake of old programs; the hard one is what the
machine's owner allows, and may be taken without asking. Processes that start other people's programs keep the soft one.
"""

import resource
from typing import Final

MOST: Final = 1_048_576
"""Where the owner sets no limit, some systems still refuse a larger one."""


def allow_open_files() -> None:
    """As many as the owner allows. Where even that is refused, the limit stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return
