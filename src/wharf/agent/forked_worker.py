"""Runs computations in short-lived forks of the brain process, which read the brain's replica without loading it again.

The kernel shares memory pages until a process writes them, so a fork costs little more than copying the page tables.
A permanent worker would need as much memory as the brain. Only one fork runs at a time, with one computation, so that none
delays or ends another one (0201).
"""

import asyncio
import os
import signal
import struct
import traceback
from collections.abc import Hashable
from typing import Final, NoReturn

from wharf.agent.forks import (
    ForkPacer,
    build_death_refusal,
    build_start_refusal,
    enter_fork,
    fork_process,
    kill_and_reap,
)
from wharf.cluster.server.fair_places import FairPlaces
from wharf.cluster.server.worker_process import WorkerFailed, WorkerFunction
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode
from wharf.world import World
from wharf.world.pipes import connect_reading_end

WORKER_TIMEOUT_S: Final = 10.0
"""How long one fork may run."""
QUEUE_TIMEOUT_S: Final = 4.0
"""How long a call waits for its fork. With `WORKER_TIMEOUT_S`, it is shorter than the time that callers wait for the brain."""
MAX_WAITING: Final = 64
"""Limits the memory of waiting calls: each may have a job of 10 MB."""
CALLS_PER_S: Final = 4
"""How many waiting calls are executed in a second, as an estimate for `Retry-After`."""
# The result of a fork is one of these tags, the length of the body, and the body.
RESULT_TAG: Final = b"d"
ERROR_TAG: Final = b"f"
_HEAD: Final = struct.Struct(">cI")


class ForkedWorker:
    """Runs functions in forks of this process. A fork that takes longer than `timeout_s` is killed.

    The owners of the functions take turns.
    """

    def __init__(
        self,
        world: World,
        *,
        timeout_s: float = WORKER_TIMEOUT_S,
        queue_timeout_s: float = QUEUE_TIMEOUT_S,
        state_lock: asyncio.Lock | None = None,
    ) -> None:
        """`state_lock` is held while a thread of this process works on the state that forks read."""
        self._world = world
        self._state_lock = state_lock or asyncio.Lock()
        self._timeout_s = timeout_s
        self._places = FairPlaces(1, MAX_WAITING, _build_queue_refusal, queue_timeout_s=queue_timeout_s)
        self._pacer = ForkPacer(world)

    async def run(self, work: WorkerFunction, owner: Hashable) -> bytes:
        """Run `work` in a fork and return its result.

        Raises `WorkerFailed` if `work` raises, `Overloaded` if too many calls wait or this one waits for too long, and
        `Refusal` if the fork fails or takes too long.
        """
        async with self._places.enter(owner):
            await self._pacer.wait()
            return await self._run_in_fork(work)

    async def _run_in_fork(self, work: WorkerFunction) -> bytes:
        """Run one function in a fork and return its result."""
        try:
            async with self._state_lock:
                began_s = self._world.monotonic_s()
                read_descriptor, pid = _fork(work, timeout_s=self._timeout_s)
                self._pacer.count(self._world.monotonic_s() - began_s)
        except OSError as error:
            raise build_start_refusal(error) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                tag, body = await _read_result(read_descriptor)
        except TimeoutError:
            text = f"the worker process did not reply within {self._timeout_s:g} s; retry later"
            raise Refusal(RefusalCode.UNAVAILABLE, text) from None
        except asyncio.IncompleteReadError:
            raise build_death_refusal() from None
        finally:
            await kill_and_reap(pid)
        if tag == ERROR_TAG:
            raise WorkerFailed(body.decode(errors="replace"))
        return body


def _build_queue_refusal(waiting_count: int) -> Overloaded:
    return Overloaded(
        f"{waiting_count} dry runs, rebalancings and reports of use wait for the scheduler's worker process",
        1 + waiting_count // CALLS_PER_S,
    )


async def _read_result(read_descriptor: int) -> tuple[bytes, bytes]:
    """Return the tag and the body that the fork writes."""
    reader = asyncio.StreamReader()
    transport, _ = await connect_reading_end(lambda: asyncio.StreamReaderProtocol(reader), read_descriptor)
    try:
        tag, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return tag, await reader.readexactly(length)
    finally:
        transport.close()


# -- the fork ----------------------------------------------------------------------------------------------------------


def _fork(work: WorkerFunction, *, timeout_s: float) -> tuple[int, int]:
    """Start a fork. Return the descriptor to read its result from, and its process id. Raises `OSError`."""
    read_descriptor, write_descriptor = os.pipe()
    try:
        pid = fork_process()
    except OSError:
        os.close(read_descriptor)
        os.close(write_descriptor)
        raise
    if pid == 0:
        _work_in_fork(work, write_descriptor, timeout_s=timeout_s)
    os.close(write_descriptor)
    return read_descriptor, pid


def _work_in_fork(work: WorkerFunction, write_descriptor: int, *, timeout_s: float) -> NoReturn:
    """Run the function in the fork, write its result, and exit. Never returns or raises."""
    try:
        enter_fork(write_descriptor)
        # If the brain dies meanwhile, the timer ends this fork.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1)
        try:
            tag, body = RESULT_TAG, work()
        except Exception:  # Top level of a call.
            tag, body = ERROR_TAG, traceback.format_exc().encode()
        _write_all(write_descriptor, _HEAD.pack(tag, len(body)) + body)
    finally:
        os._exit(0)


def _write_all(write_descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(write_descriptor, rest) :]
