"""Copies of a running process that compute and exit: what both kinds of worker processes have in common."""

import contextlib
import gc
import logging
import os
import signal
import warnings
from typing import Final

_FIRST_OWN_DESCRIPTOR: Final = 3
"""Descriptors 0 to 2 are the standard streams."""


def disable_grpc_fork_support() -> None:
    """Disable fork support of gRPC, which the etcd client uses. Call before that client is imported.

    gRPC would otherwise restart its threads in every fork and abort the fork when `enter_fork` closes their
    connections. Forks never use etcd, so they do not need gRPC.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def fork_process() -> int:
    """Fork this process. Return the process id of the copy, and 0 in the copy. Raises `OSError`."""
    with warnings.catch_warnings():
        # Newer Pythons warn if the process has other threads. The warning does not apply: the copy takes no lock that
        # another thread may hold, because it only computes and ends with `_exit`.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def enter_fork(kept_descriptor: int) -> None:
    """Detach a copy from the process that it was made from: garbage collection, logging, signals and descriptors."""
    gc.disable()
    logging.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(kept_descriptor)


def _close_all_but(kept_descriptor: int) -> None:
    """Close all descriptors except the standard streams and `kept_descriptor`.

    If the copy kept connections open, their other ends would not notice that the process died.
    """
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor >= _FIRST_OWN_DESCRIPTOR and descriptor != kept_descriptor:
            with contextlib.suppress(OSError):  # The descriptor of the listing itself is closed already.
                os.close(descriptor)
