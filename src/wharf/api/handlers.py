"""Every handler under the name of its endpoint: the one place that knows all rooms of the API."""

from collections.abc import Callable
from typing import Any, Final

from wharf.api import allocations, jobs, nodes
from wharf.api.answers import Reading
from wharf.api.cluster import Locals
from wharf.api.request import Request
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {**jobs.READS, **allocations.READS, **nodes.READS}


def acts_of(server: Server) -> dict[str, Callable[[Request], Any]]:
    """The handlers that do more than read the replica."""
    return {
        **jobs.JobWrites(server).table(),
        **nodes.NodeWrites(server).table(),
        **Locals(server).table(),
    }
