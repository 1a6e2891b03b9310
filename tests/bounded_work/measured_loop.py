"""An event loop that measures how much CPU time each of its iterations takes, and which callback took most of it."""

import asyncio
import functools
import gc
import resource
import time
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

T = TypeVar("T")
P = ParamSpec("P")

SCHEDULER_TASK: Final = "brain"
"""The name of the task that schedules, and makes all other decisions of the leader."""
NOTED_S: Final = 0.000_5
"""Shorter callbacks of the scheduler count as those of the api process."""


class Measurement(msgspec.Struct):
    """The CPU time of the loop's thread since the measurement began."""

    longest_hold_s: float = 0.0
    """The longest iteration of the loop: all that ran before another request could be served, without the scheduler."""
    scheduler_hold_s: float = 0.0
    """The longest time for which the scheduler held the loop. In an agent it runs in a process of its own, the brain."""
    holder: str = ""
    """The callback that took most of that iteration."""
    total_s: float = 0.0


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that measures the CPU time of its thread, which other processes of the machine do not change."""

    def __init__(self) -> None:
        super().__init__()
        self.measurement = Measurement()
        self._longest_callback_s = 0.0
        self._longest_callback: events.Handle | None = None
        self._scheduler_s = 0.0

    def begin(self) -> None:
        """Begin a new measurement."""
        self.measurement = Measurement()

    def _run_once(self) -> None:
        self._longest_callback_s, self._longest_callback = 0.0, None
        self._scheduler_s = 0.0
        began_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # A private method, which has no stub.
        hold_s = time.thread_time() - began_s
        measured = self.measurement
        measured.total_s += hold_s
        measured.scheduler_hold_s = max(measured.scheduler_hold_s, self._scheduler_s)
        hold_s -= self._scheduler_s
        if hold_s > measured.longest_hold_s:
            measured.longest_hold_s = hold_s
            measured.holder = f"{self._longest_callback_s * 1_000:.1f} ms in {describe_handle(self._longest_callback)}"

    def call_soon(  # type: ignore[override]  # The stub's type variables cannot be passed on.
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        handle._callback = _MeasuredCallback(self, handle, handle._callback)  # type: ignore[attr-defined]
        return handle

    def note_callback(self, handle: asyncio.Handle, cpu_s: float) -> None:
        """Remember the callback if it is the longest of this iteration."""
        if cpu_s > NOTED_S and describe_handle(handle) == f"task {SCHEDULER_TASK}":
            self._scheduler_s += cpu_s
        elif cpu_s > self._longest_callback_s:
            self._longest_callback_s, self._longest_callback = cpu_s, handle


class _MeasuredCallback:
    """A callback of the loop that reports its CPU time."""

    def __init__(self, loop: MeasuredLoop, handle: asyncio.Handle, callback: Any) -> None:
        self._loop = loop
        self._handle = handle
        self.callback = callback

    def __call__(self, *args: Any) -> None:
        began_s = time.thread_time()
        try:
            self.callback(*args)
        finally:
            self._loop.note_callback(self._handle, time.thread_time() - began_s)


def describe_handle(handle: asyncio.Handle | None) -> str:
    """Return the name of the task or function that the handle ran."""
    callback = getattr(handle, "_callback", None)
    if isinstance(callback, _MeasuredCallback):
        callback = callback.callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"task {task.get_name()}"
    return repr(callback)


def get_children_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_measured(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the scenario on a measured loop. The garbage collector does not scan the test's own modules, as in an agent."""
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            return runner.run(scenario())
    finally:
        gc.unfreeze()


def run_measured_alone(scenario: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the scenario, a function of a module, on a measured loop in a process of its own, and return its result.

    A fork takes 2.2 ms for each 100 MB of a process. The process of the scenario is as large as a real api process, because
    it is a copy of one that has only imported modules. A process that has run many tests is larger.
    """
    return _start_importing_process().submit(_run_in_copy, scenario, args, kwargs).result()


@contextmanager
def importing_process() -> Iterator[None]:
    """End the process that `run_measured_alone` copies. Its imports take two seconds, so scenarios share it."""
    try:
        yield
    finally:
        _start_importing_process().shutdown()
        _start_importing_process.cache_clear()


@functools.cache
def _start_importing_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))


def _run_in_copy(scenario: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Run the scenario in a copy of this process, which has imported the modules that are needed to receive `scenario`."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("fork")) as pool:
        return pool.submit(_run_scenario, scenario, args, kwargs).result()


def _run_scenario(scenario: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return run_measured(lambda: scenario(*args, **kwargs))
