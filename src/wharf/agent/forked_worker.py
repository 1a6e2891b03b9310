"""The sideline as processes: a copy of the brain for a moment, which has the replica and the fleet without their memory.

The kernel shares all pages until somebody writes them, so a copy costs the time to copy the page tables and little else;
a worker with a replica of its own would cost as much memory again as the brain. One copy lives at a time. Whoever asks
meanwhile is answered by the next, all together.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import struct
import traceback
import warnings
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from wharf.cluster.server.worker_process import WorkerFailed, WorkerFunction
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

WORKER_TIMEOUT_S: Final = 10.0
"""Less than whoever asks waits for the brain."""

MAX_JOBS_PER_FORK: Final = 16
RESULT_TAG: Final = b"d"
ERROR_TAG: Final = b"f"
_HEAD: Final = struct.Struct(">cI")
_FIRST_OF_OURS: Final = 3
"""Below are the standard streams."""


def disable_grpc_fork_support() -> None:
    """Call before the log's client is loaded. The library under etcd's would start its threads anew in every copy, and
    abort the copy where their connections are closed; it needs no care, as no copy ever speaks to etcd.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


class _Waiting(NamedTuple):
    work: WorkerFunction
    answer: "asyncio.Future[bytes]"


class ForkedWorker:
    """A `Sideline`. `answered_within_s`: a copy that takes longer is ended."""

    def __init__(self, world: World, *, timeout_s: float = WORKER_TIMEOUT_S) -> None:
        self._world = world
        self._answered_within_s = timeout_s
        self._waiting: list[_Waiting] = []
        self._turning: asyncio.Task[None] | None = None

    async def run(self, work: WorkerFunction) -> bytes:
        waiting = _Waiting(work, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._turning is None:
            self._turning = self._world.start_task(self._turn(), name="sideline")
        return await waiting.answer

    async def _turn(self) -> None:
        try:
            while self._waiting:
                # Those who hung up while they waited are worth no work.
                standing = [each for each in self._waiting if not each.answer.done()]
                batch, self._waiting = standing[:MAX_JOBS_PER_FORK], standing[MAX_JOBS_PER_FORK:]
                if batch:
                    await self._answer(batch)
        finally:
            self._turning = None

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            reading, pid = _copy([each.work for each in batch], within_s=self._answered_within_s)
        except OSError as error:
            _refuse(batch, f"this server cannot think it through just now: {error.strerror}")
            return
        try:
            async with asyncio.timeout(self._answered_within_s):
                await _read(reading, batch)
        except TimeoutError:
            _refuse(batch, f"it could not be thought through within {self._answered_within_s:g} s; ask again later")
        except asyncio.IncompleteReadError:
            _refuse(batch, "the process that thought it through ended before it was done; ask again")
        finally:
            # Nobody has waited for it yet, so the id is still its own.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # To take down its memory takes the kernel a moment.
            await asyncio.shield(asyncio.to_thread(os.waitpid, pid, 0))


async def _read(reading: int, batch: Sequence[_Waiting]) -> None:
    """Hand each its answer as it comes."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
    )
    try:
        for each in batch:
            kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
            _take(each, kind, await reader.readexactly(length))
    finally:
        transport.close()


def _take(waiting: _Waiting, kind: bytes, body: bytes) -> None:
    if waiting.answer.done():
        return
    if kind == RESULT_TAG:
        waiting.answer.set_result(body)
    else:
        waiting.answer.set_exception(WorkerFailed(body.decode(errors="replace")))


def _refuse(batch: Sequence[_Waiting], why: str) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(Refusal(RefusalCode.UNAVAILABLE, why))


# -- the copy ----------------------------------------------------------------------------------------------------------


def _copy(works: Sequence[WorkerFunction], *, within_s: float) -> tuple[int, int]:
    """Where its answers can be read, and its id. Raises OSError."""
    reading, writing = os.pipe()
    try:
        with warnings.catch_warnings():
            # Newer Pythons warn where there are other threads. Of ours none holds a lock that the copy takes: it only
            # reads, and leaves by `_exit`.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        _work(works, writing, within_s=within_s)
    os.close(writing)
    return reading, pid


def _work(works: Sequence[WorkerFunction], writing: int, *, within_s: float) -> NoReturn:
    """The life of the copy. It has no loop, logs nothing, and comes back to nobody, whatever happens."""
    try:
        gc.disable()
        logging.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        # Should the brain die meanwhile, nobody is left to end this.
        signal.setitimer(signal.ITIMER_REAL, within_s + 1)
        _close_all_but(writing)
        for work in works:
            try:
                kind, body = RESULT_TAG, work()
            except Exception:  # The top of a task: the others are worked on all the same.
                kind, body = ERROR_TAG, traceback.format_exc().encode()
            _write_all(writing, _HEAD.pack(kind, len(body)) + body)
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    """The brain's connections are not ours: as long as we hold them too, their other ends do not hear that it died."""
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor >= _FIRST_OF_OURS and descriptor != kept:
            with contextlib.suppress(OSError):  # The folder's own is closed already.
                os.close(descriptor)


def _write_all(writing: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(writing, left) :]
