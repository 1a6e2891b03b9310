"""Runs computations in short-lived forks of the brain process, which read the brain's replica without loading it again.

The kernel shares memory pages until a process writes them, so a fork costs little more than copying the page tables.
A permanent worker would need as much memory as the brain. Only one fork runs at a time. Calls that arrive meanwhile
wait and run in the next fork as one batch.
"""

import asyncio
import contextlib
import os
import signal
import struct
import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from wharf.agent.forks import enter_fork, fork_process
from wharf.cluster.server.worker_process import WorkerFailed, WorkerFunction
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

WORKER_TIMEOUT_S: Final = 10.0
"""How long one fork may run. Shorter than the time that callers wait for the brain."""

MAX_JOBS_PER_FORK: Final = 16
"""Limits the computations of one fork, so that they fit into its timeout."""
# Each result of a fork is one of these tags, the length of the body, and the body.
RESULT_TAG: Final = b"d"
ERROR_TAG: Final = b"f"
_HEAD: Final = struct.Struct(">cI")


class _WorkerCall(NamedTuple):
    """A function to run in a fork, and the future of its result."""

    function: WorkerFunction
    result: "asyncio.Future[bytes]"


class ForkedWorker:
    """Runs functions in forks of this process. A fork that takes longer than `timeout_s` is killed."""

    def __init__(
        self, world: World, *, timeout_s: float = WORKER_TIMEOUT_S, state_lock: asyncio.Lock | None = None
    ) -> None:
        """`state_lock` is held while a thread of this process works on the state that forks read."""
        self._world = world
        self._state_lock = state_lock or asyncio.Lock()
        self._timeout_s = timeout_s
        self._pending: list[_WorkerCall] = []
        self._runner: asyncio.Task[None] | None = None

    async def run(self, work: WorkerFunction) -> bytes:
        """Run `work` in a fork and return its result.

        Raises `WorkerFailed` if `work` raises, and `Refusal` if the fork fails or takes too long.
        """
        call = _WorkerCall(work, asyncio.get_running_loop().create_future())
        self._pending.append(call)
        if self._runner is None:
            self._runner = self._world.start_task(self._run_batches(), name="forked worker")
        return await call.result

    async def _run_batches(self) -> None:
        """Run pending calls in one fork after another until none is left."""
        try:
            while self._pending:
                # Skip calls that were canceled while they waited.
                calls = [call for call in self._pending if not call.result.done()]
                batch, self._pending = calls[:MAX_JOBS_PER_FORK], calls[MAX_JOBS_PER_FORK:]
                if batch:
                    await self._run_batch(batch)
        finally:
            self._runner = None

    async def _run_batch(self, batch: Sequence[_WorkerCall]) -> None:
        """Run the calls in one fork and set their results."""
        try:
            async with self._state_lock:
                read_descriptor, pid = _fork([call.function for call in batch], timeout_s=self._timeout_s)
        except OSError as error:
            _fail_calls(batch, f"cannot start a worker process: {error.strerror}; retry in a few seconds")
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await _read_results(read_descriptor, batch)
        except TimeoutError:
            _fail_calls(batch, f"the worker process did not reply within {self._timeout_s:g} s; retry later")
        except asyncio.IncompleteReadError:
            _fail_calls(batch, "the worker process ended before its reply; retry")
        finally:
            # The fork is not reaped yet, so its process id cannot belong to another process.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Wait on a thread: the kernel takes some time to release the memory of the fork.
            await asyncio.shield(asyncio.to_thread(os.waitpid, pid, 0))


async def _read_results(read_descriptor: int, batch: Sequence[_WorkerCall]) -> None:
    """Set the result of each call as soon as the fork writes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_descriptor, "rb", buffering=0)
    )
    try:
        for call in batch:
            tag, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
            _set_result(call, tag, await reader.readexactly(length))
    finally:
        transport.close()


def _set_result(call: _WorkerCall, tag: bytes, body: bytes) -> None:
    """Set the result or the exception of a call, unless it was canceled."""
    if call.result.done():
        return
    if tag == RESULT_TAG:
        call.result.set_result(body)
    else:
        call.result.set_exception(WorkerFailed(body.decode(errors="replace")))


def _fail_calls(batch: Sequence[_WorkerCall], why: str) -> None:
    """Raise a `Refusal` in every call of the batch that has no result yet."""
    for call in batch:
        if not call.result.done():
            call.result.set_exception(Refusal(RefusalCode.UNAVAILABLE, why))


# -- the fork ----------------------------------------------------------------------------------------------------------


def _fork(functions: Sequence[WorkerFunction], *, timeout_s: float) -> tuple[int, int]:
    """Start a fork. Return the descriptor to read its results from, and its process id. Raises `OSError`."""
    read_descriptor, write_descriptor = os.pipe()
    try:
        pid = fork_process()
    except OSError:
        os.close(read_descriptor)
        os.close(write_descriptor)
        raise
    if pid == 0:
        _run_in_fork(functions, write_descriptor, timeout_s=timeout_s)
    os.close(write_descriptor)
    return read_descriptor, pid


def _run_in_fork(functions: Sequence[WorkerFunction], write_descriptor: int, *, timeout_s: float) -> NoReturn:
    """Run the functions in the fork, write their results, and exit. Never returns or raises."""
    try:
        enter_fork(write_descriptor)
        # If the brain dies meanwhile, the timer ends this fork.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1)
        for function in functions:
            try:
                tag, body = RESULT_TAG, function()
            except Exception:  # Top level of a call: the other functions still run.
                tag, body = ERROR_TAG, traceback.format_exc().encode()
            _write_all(write_descriptor, _HEAD.pack(tag, len(body)) + body)
    finally:
        os._exit(0)


def _write_all(write_descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(write_descriptor, rest) :]
