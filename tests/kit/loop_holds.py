"""Measures how long callbacks hold an event loop, by the CPU time of its thread.

CPU time instead of wall time, because other processes of a busy machine must not make a test fail. Works on the
simulated loop and on real ones. Python's garbage collector is paused while measuring: it scans all objects of the test
process, and servers tune it separately.
"""

import asyncio
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

from tests.attempts import CpuLimitExceeded, measure_slowness
from tests.kit.cluster import ACluster
from wharf.cluster.state.codec import RecordDecoder
from wharf.world import SimulatedWorld

T = TypeVar("T")

MAX_HOLD_S: Final = 0.020
"""The longest time that a request may hold an event loop."""
NOISE_FACTOR: Final = 2.0
"""How much longer a hold may be in a test. CPU time grows with cache misses and hyper-threading of a busy machine."""
_USED_BEFORE_S: Final = 1000.0
"""The CPU time that a measured process seems to have used before the test, as a server that runs for days."""


_is_work_of_others: ContextVar[bool] = ContextVar("is_work_of_others", default=False)


@contextmanager
def work_of_others() -> Iterator[None]:
    """Return a context manager for work of the current task that runs in another process of an agent: it is not measured."""
    token = _is_work_of_others.set(True)
    try:
        yield
    finally:
        _is_work_of_others.reset(token)


@dataclass
class LoopHolds:
    """The callbacks that an event loop ran while it was measured."""

    longest_s: float = 0.0
    longest_name: str = ""
    """Describes the callback with the longest hold."""
    longest_causes: str = ""
    """What the kernel did during the longest hold: it shows a machine that is short of memory."""
    total_s: float = 0.0
    """The CPU time of all callbacks."""
    count: int = 0

    def add(self, handle: asyncio.Handle, duration_s: float, began: resource.struct_rusage) -> None:
        """Record one callback and its CPU time. `began`: the resources that the thread had used before."""
        self.count += 1
        self.total_s += duration_s
        if duration_s > self.longest_s:
            self.longest_s, self.longest_name = duration_s, _describe(handle)
            self.longest_causes = _describe_usage(began, resource.getrusage(resource.RUSAGE_THREAD))

    def require_short(self, what: str, limit_s: float = MAX_HOLD_S * NOISE_FACTOR) -> None:
        """Fail if a callback held the loop for longer than permitted, in the best of several attempts (`tests.attempts`).

        The limit includes the factor for noise. On a processor that is slower than that, its slowness takes the factor's place.
        """
        if self.longest_s <= limit_s:
            return
        limit_s *= max(measure_slowness() / NOISE_FACTOR, 1.0)
        if self.longest_s > limit_s:
            raise CpuLimitExceeded(
                f"{what} held the event loop for {self.longest_s * 1e3:.1f} ms of CPU time, more than "
                f"{limit_s * 1e3:.0f} ms: {self.longest_name} ({self.longest_causes})"
            )


def _describe(handle: asyncio.Handle) -> str:
    """Return the task of the callback, or the callback itself."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # Has no public name.
    return f"{task.get_name()}: {task.get_coro()!r}" if isinstance(task, asyncio.Task) else repr(handle)


def _describe_usage(began: resource.struct_rusage, ended: resource.struct_rusage) -> str:
    """Return what the kernel did for this thread between two measurements."""
    kernel_s, faults = ended.ru_stime - began.ru_stime, ended.ru_minflt + ended.ru_majflt
    return (
        f"{kernel_s * 1e3:.1f} ms of it in the kernel, {faults - began.ru_minflt - began.ru_majflt} page faults, "
        f"{ended.ru_nivcsw - began.ru_nivcsw} switches to other programs"
    )


@contextmanager
def measure_holds() -> Iterator[LoopHolds]:
    """Return a context manager that measures each callback of the event loops of this thread."""
    holds = LoopHolds()
    run_handle = asyncio.Handle._run  # The only place that each callback of every loop passes.

    def run_measured(handle: asyncio.Handle) -> None:
        context: Context = handle._context  # type: ignore[attr-defined]  # Has no public name.
        began_as_other = context.get(_is_work_of_others, False)
        began, began_s = resource.getrusage(resource.RUSAGE_THREAD), time.thread_time()
        try:
            run_handle(handle)
        finally:
            if not (began_as_other or context.get(_is_work_of_others, False)):
                holds.add(handle, time.thread_time() - began_s, began)

    was_enabled, verified = gc.isenabled(), RecordDecoder.should_verify_adopted
    gc.disable()
    RecordDecoder.should_verify_adopted = False  # As in an agent.
    asyncio.Handle._run = run_measured  # type: ignore[method-assign,assignment]
    try:
        yield holds
    finally:
        asyncio.Handle._run = run_handle  # type: ignore[method-assign]
        RecordDecoder.should_verify_adopted = verified
        if was_enabled:
            gc.enable()


class MeasuredWorld(SimulatedWorld):
    """A simulated world whose CPU clock is real, and whose work off the loop runs in a real thread.

    The clock says that the process has used more CPU time before than any request may use. The loop waits for the thread, so
    a run stays repeatable. Its own CPU time does not grow meanwhile.
    """

    def cpu_s(self) -> float:
        return _USED_BEFORE_S + time.thread_time()

    async def run_off_loop(self, work: Callable[[], T]) -> T:
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:  # Raised again for the caller.
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        await asyncio.sleep(0)  # On a real loop, too, the caller goes on in a callback of its own.
        if errors:
            raise errors[0]
        return results[0]


class MeasuredCluster(ACluster):
    """A cluster in memory whose servers have a real CPU clock."""

    def world(self, member: str) -> SimulatedWorld:
        return MeasuredWorld(self._seed, asyncio.get_running_loop().time, member=member)
