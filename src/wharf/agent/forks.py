"""Copies of a running process that compute and exit: what both kinds of worker processes have in common."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import warnings
from typing import Final

from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

SHORT_FORK_S: Final = 0.010
"""A fork that holds the process for at most this long is not counted: one of 400 MB."""
MAX_FORK_SHARE: Final = 0.2
"""The largest part of its time for which long forks hold the process: 8 forks a second of a process of 1 GB."""
_FIRST_OWN_DESCRIPTOR: Final = 3
"""Descriptors 0 to 2 are the standard streams."""


class ForkPacer:
    """Limits the share of its time for which a large process is held by forks of itself.

    A fork copies the page tables of the process: 2.4 ms of CPU time for each 100 MB.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._next_s = 0.0

    async def wait(self) -> None:
        """Wait until the next fork is permitted."""
        delay_s = self._next_s - self._world.monotonic_s()
        while delay_s > 0:
            await asyncio.sleep(delay_s)
            delay_s = self._next_s - self._world.monotonic_s()  # Another request may have forked first.

    def count(self, held_s: float) -> None:
        """Count a fork that has just held the process for this long."""
        if held_s > SHORT_FORK_S:
            self._next_s = self._world.monotonic_s() + held_s * (1 / MAX_FORK_SHARE - 1)


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


def build_start_refusal(error: OSError) -> Refusal:
    """Return the refusal of a request for which no copy can be made."""
    text = f"cannot start a worker process: {error.strerror}; retry in a few seconds"
    return Refusal(RefusalCode.UNAVAILABLE, text)


def build_death_refusal() -> Refusal:
    """Return the refusal of a request whose copy has changed nothing and ended without a result."""
    return Refusal(RefusalCode.UNAVAILABLE, "the worker process ended before its reply; retry")


async def kill_and_reap(pid: int) -> tuple[int, float]:
    """End a copy that is not reaped yet. Return its exit code and its CPU time, as `reap` does."""
    # The kernel gives the process id to no other process before the copy is reaped.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return await reap(pid)


async def reap(pid: int) -> tuple[int, float]:
    """Wait for the end of a copy. Return its exit code, negative for a signal, and its CPU time in seconds."""
    # Wait on a thread: the kernel takes some time to release the memory of the copy.
    _, status, usage = await asyncio.shield(asyncio.to_thread(os.wait4, pid, 0))
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


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
