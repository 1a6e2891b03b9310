"""The event loop of the simulation: virtual time, an order that is drawn from the seed, and no real resources.

The loop runs one callback at a time. Callbacks that can run wait in lanes: the steps of each task in a separate lane, other
callbacks in the lane that scheduled them. A lane keeps its order, as asyncio promises. The next lane is drawn from the
seed, so a run has orders that a real loop shows once a year. If nothing can run, the clock jumps to the next timer. The same
seed gives the same run, step by step; `fingerprint` shows that.

The loop never uses sockets, threads, processes or signals. A request for one raises `RealResourceRequested`.
"""

import asyncio
import contextlib
import contextvars
import gc
import heapq
import math
import sys
import traceback
import zlib
from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, cast

from simulation.process import PROCESS, Process

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

END_OF_TIMEOUT: Final = asyncio.Timeout._on_timeout  # type: ignore[attr-defined]  # private in asyncio
"""What `asyncio.timeout` schedules. Its end must take time, like every delay: see `SimulatedLoop.call_later`."""
Context = dict[str, Any]
ExceptionHandler = Callable[[AbstractEventLoop, Context], object]

MAX_STEPS_PER_INSTANT: Final = 1_000_000


class RealResourceRequested(Exception):
    """Code in the simulation requested a real resource, such as a socket or a thread."""


class SimulationStuck(Exception):
    """No callback can ever run again, or time does not advance any more."""


class RunFailed(Exception):
    """Unhandled exceptions, or tasks that were not awaited. The message lists all of them."""


class Lane:
    """Callbacks that run in their order of arrival."""

    __slots__ = ("handles", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.handles: deque[Handle] = deque()


class SimulatedFuture(asyncio.Future[T]):
    """A future whose position in a set does not depend on its memory address."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimulatedTask(asyncio.Task[T]):
    """A task with its lane. Its hash is its number, for the same reason as a future's."""

    def __init__(
        self,
        work: Generator[Any, None, T] | Coroutine[Any, Any, T],
        lane: Lane,
        *,
        loop: "SimulatedLoop",
        name: str,
        context: contextvars.Context | None,
    ) -> None:
        self.lane = lane  # Set first: asyncio schedules the first step and uses the hash while it creates the task.
        self.process = (context if context is not None else contextvars.copy_context()).get(PROCESS)
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.lane.number

    @property
    def is_dead(self) -> bool:
        return self.process is not None and self.process.is_dead

    def describe(self) -> str:
        """Return name, process and waiting position of the task, from the outermost call to the innermost."""
        positions: list[str] = []
        work: object = self.get_coro()
        while work is not None and (frame := getattr(work, "cr_frame", None)) is not None:
            positions.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            work = getattr(work, "cr_await", None)
        process = f" of {self.process.name}" if self.process is not None else ""
        return f"{self.get_name()}{process}, in {' > '.join(positions) or 'nothing'}"


def _refuse_resource(name: str) -> Any:
    """Return a method of the loop that raises `RealResourceRequested`."""

    def refuse(*_args: object, **_options: object) -> None:
        raise RealResourceRequested(
            f"a simulation has no real resources, and the code requested {name}: put a port in between, and simulate "
            "its other side"
        )

    return refuse


class SimulatedLoop(AbstractEventLoop):
    """An asyncio event loop with virtual time. `is_shuffled=False` runs callbacks in the order of a real loop, for comparison."""

    def __init__(self, seed: int, *, is_shuffled: bool = True, max_steps: int = 1 << 62) -> None:
        self.steps = 0
        self.max_steps = max_steps
        self.failures: list[str] = []
        self._fatal: Exception | None = None
        self._fingerprint = 0
        self._random = Random(f"{seed}/order") if is_shuffled else None
        self._now_s = 0.0
        self._lanes: list[Lane] = []  # Lanes with callbacks.
        self._default_lane = Lane(0)
        self._lane = self._default_lane
        self._numbers = 0
        self._timers: list[tuple[float, int, TimerHandle, Lane]] = []
        self._timer_numbers = 0
        self._halted = 0  # The number of dead or paused processes. While it is 0, steps need no check.
        self._paused_handles: dict[Process, list[tuple[Handle, Lane]]] = {}
        self._dead_handles: list[Handle] = []
        self._tasks: dict[SimulatedTask[Any], None] = {}
        self._running = False
        self._stopping = False
        self._closed = False
        self._is_discarded = False
        self._exception_handler: ExceptionHandler | None = None
        self._asyncgens: dict[int, AsyncGenerator[Any, Any]] = {}

    # -- scheduling ---------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """A digest of all steps. Two runs with the same fingerprint took the same steps in the same order."""
        return f"{self._fingerprint & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def add_to_fingerprint(self, text: str) -> None:
        """Include an event in the fingerprint."""
        self._fingerprint = hash((self._fingerprint, zlib.crc32(text.encode())))

    def fail(self, error: Exception) -> None:
        """End the run at the next step with this error. For checks that run where an exception would be caught."""
        if self._fatal is None:
            self._fatal = error

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        future: SimulatedFuture[Any] = SimulatedFuture(loop=self)
        self._numbers += 1
        future.number = self._numbers
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        self._require_open()
        if self._is_discarded:
            raise RuntimeError("the run of this loop has ended")
        self._numbers += 1
        lane = Lane(self._numbers)
        task = SimulatedTask(coro, lane, loop=self, name=str(name or f"task {lane.number}"), context=context)
        self._tasks[task] = None
        task.add_done_callback(self._remove_task)
        return task

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Handle:
        self._require_open()
        if getattr(callback, "__func__", None) is END_OF_TIMEOUT:
            # `asyncio.timeout` calls this at once if the delay is too short to change the time.
            return self.call_at(math.nextafter(self._now_s, math.inf), callback, *args, context=context)
        handle = Handle(callback, args, self, context)
        self._enqueue(handle, self._lane_for(callback))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)  # There is one thread.

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> TimerHandle:
        when = self._now_s + delay
        if (
            delay > 0.0 and when == self._now_s
        ):  # Any delay takes time. Otherwise code that polls until a time would never reach it.
            when = math.nextafter(when, math.inf)
        return self.call_at(when, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> TimerHandle:
        self._require_open()
        timer = TimerHandle(when, callback, args, self, context)
        self._timer_numbers += 1
        heapq.heappush(self._timers, (when, self._timer_numbers, timer, self._lane_for(callback)))
        return timer

    def _timer_handle_cancelled(self, _handle: TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it is due."""

    # -- lanes -----------------------------------------------------------------------------------------------------

    def _lane_for(self, callback: Callable[..., object]) -> Lane:
        if self._random is None:
            return self._default_lane  # One lane for all has the order of a real loop.
        owner = getattr(callback, "__self__", None)  # A task's steps are bound to it.
        if type(owner) is SimulatedTask:
            return owner.lane
        return self._lane

    def _enqueue(self, handle: Handle, lane: Lane) -> None:
        if self._is_discarded:
            return  # A callback of a discarded task.
        if not lane.handles:
            self._lanes.append(lane)
        lane.handles.append(handle)

    def _take(self) -> tuple[Handle, Lane]:
        """Return the next callback, from a random lane."""
        lanes = self._lanes
        position = int(self._random.random() * len(lanes)) if self._random is not None else 0
        lane = lanes[position]
        handle = lane.handles.popleft()
        if not lane.handles:
            last = lanes.pop()
            if last is not lane:
                lanes[position] = last
        return handle, lane

    # -- processes -------------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Stop a process for ever: not even its `finally` blocks run. Other processes only notice closed connections."""
        if process.is_dead:
            return
        process.is_dead = True
        self._halted += 1
        for handle, _ in self._paused_handles.pop(process, ()):
            self._dead_handles.append(handle)

    def pause(self, process: Process) -> None:
        """Stop a process until `resume`. Then all callbacks that have become due meanwhile run."""
        if process.is_dead or process.is_paused:
            return
        process.is_paused = True
        self._halted += 1
        self._paused_handles[process] = []

    def resume(self, process: Process) -> None:
        if process.is_dead or not process.is_paused:
            return
        process.is_paused = False
        self._halted -= 1
        for handle, lane in self._paused_handles.pop(process):
            self._enqueue(handle, lane)

    def _is_halted(self, handle: Handle, lane: Lane) -> bool:
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]  # private in asyncio
        if process is None:
            return False
        if process.is_dead:
            self._dead_handles.append(handle)  # Kept, so that its objects are not finalized before the end of the run.
            return True
        if process.is_paused:
            self._paused_handles[process].append((handle, lane))
            return True
        return False

    # -- running ---------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        self._require_open()
        if self._running:
            raise RuntimeError("this loop is running already")
        self._running = True
        self._stopping = False
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._on_asyncgen_started, finalizer=self._on_asyncgen_dropped)
        was_gc_enabled = gc.isenabled()
        gc.disable()  # Garbage collection must not depend on earlier runs in this process.
        asyncio._set_running_loop(self)
        try:
            self._run()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if was_gc_enabled:
                gc.enable()
            self._lane = self._default_lane
            self._running = False

    def _run(self) -> None:
        instant, since = self._now_s, self.steps
        while not self._stopping:
            if self._fatal is not None:
                raise self._fatal
            if self.failures:
                raise RunFailed("\n".join(self.failures))
            if not self._lanes:
                self._jump()
                continue
            count = len(self._lanes)
            handle, lane = self._take()
            if handle.cancelled() or (self._halted and self._is_halted(handle, lane)):
                continue
            self.steps += 1
            if self.steps > self.max_steps:
                raise SimulationStuck(f"{self.max_steps} steps were taken by {self._now_s} s: a task never waits")
            if self.steps - since > MAX_STEPS_PER_INSTANT:
                if self._now_s == instant:
                    raise SimulationStuck(
                        f"{MAX_STEPS_PER_INSTANT} steps were taken at {instant} s and time does not advance; the last "
                        f"step was {handle!r}"
                    )
                instant, since = self._now_s, self.steps
            self._fingerprint = hash((self._fingerprint, self._now_s, lane.number, count))
            self._lane = lane
            handle._run()

    def _jump(self) -> None:
        """Advance the time to the next timer, and enqueue all timers that are due then."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            waiting = "\n".join(f"  {task.describe()}" for task in self._tasks if not task.is_dead) or "  (no task)"
            raise SimulationStuck(f"at {self._now_s} s nothing can run any more; these tasks wait for ever:\n{waiting}")
        self._now_s = max(self._now_s, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now_s:
            _, _, timer, lane = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._enqueue(timer, lane)

    def run_until_complete(self, future: Generator[Any, None, T] | Coroutine[Any, Any, T] | Any) -> T:
        main: asyncio.Future[T] = future if asyncio.isfuture(future) else self.create_task(future)
        main.add_done_callback(self._stop_for)
        try:
            self.run_forever()
        finally:
            main.remove_done_callback(self._stop_for)
        if not main.done():
            raise RuntimeError("the loop was stopped before its main task was complete")
        return main.result()

    def _stop_for(self, _future: asyncio.Future[Any]) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the run. Raises `RunFailed` if a task still waits, except tasks of dead processes."""
        if self._closed:
            return
        gc.collect()  # Report exceptions of futures that were dropped without being read.
        for task in self._tasks:
            if not task.is_dead and not task.done():
                self.failures.append(f"at {self._now_s} s the run ended and a task was not awaited: {task.describe()}")
        self._discard()
        if self.failures:
            raise RunFailed("\n".join(self.failures))

    def abandon(self) -> None:
        """End the run and drop all tasks. For runs whose servers are never stopped."""
        self._discard()

    def _discard(self) -> None:
        """Drop all tasks and callbacks, and ignore their errors."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        self._is_discarded = self._closed = True
        try:
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch
            for work in [task.get_coro() for task in self._tasks if not task.done()]:
                with contextlib.suppress(BaseException):  # Its `finally` blocks do not belong to the run.
                    work.close()
            for collection in (
                self._tasks,
                self._lanes,
                self._timers,
                self._dead_handles,
                self._paused_handles,
                self._asyncgens,
            ):
                collection.clear()
            gc.collect()
        finally:
            sys.unraisablehook = hook

    def _remove_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(cast(SimulatedTask[Any], task), None)

    def _require_open(self) -> None:
        if self._closed and not self._is_discarded:
            raise RuntimeError("this loop is closed")

    # -- errors -------------------------------------------------------------------------------------------

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self._exception_handler

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._exception_handler = handler

    def call_exception_handler(self, context: Context) -> None:
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: Context) -> None:
        if self._closed:
            return
        error = context.get("exception")
        owner = context.get("task") or context.get("future") or context.get("handle")
        text = f"at {self._now_s} s: {context.get('message') or 'unhandled exception'}"
        if isinstance(owner, SimulatedTask):
            text += f": {owner.describe()}"
        elif owner is not None:
            text += f": {owner!r}"
        if isinstance(error, BaseException):
            text += "\n" + "".join(traceback.format_exception(error)).rstrip()
        self.failures.append(text)

    def get_task_factory(self) -> None:
        return None

    set_task_factory = _refuse_resource("a task factory")

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: asyncio's debug mode measures real time."""

    # -- asynchronous generators -----------------------------------------------------------------------------------

    def _on_asyncgen_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Do nothing: generators are closed when they are dropped."""

    def _on_asyncgen_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = PROCESS.get()
        if self._closed or not self._running or (process is not None and process.is_dead):
            self._asyncgens[id(generator)] = generator
            return
        self.create_task(generator.aclose(), name="closing of a dropped generator")

    async def shutdown_asyncgens(self) -> None:
        return

    async def shutdown_default_executor(self) -> None:
        return

    # -- real resources -------------------------------------------------------------------------------------------

    run_in_executor = _refuse_resource("a thread")
    set_default_executor = _refuse_resource("threads")
    getaddrinfo = _refuse_resource("the address of a host")
    getnameinfo = _refuse_resource("the name of a host")
    create_connection = _refuse_resource("a socket")
    create_server = _refuse_resource("a listening socket")
    create_unix_connection = _refuse_resource("a Unix socket")
    create_unix_server = _refuse_resource("a listening Unix socket")
    create_datagram_endpoint = _refuse_resource("a datagram socket")
    connect_accepted_socket = _refuse_resource("a socket")
    start_tls = _refuse_resource("a TLS connection")
    sendfile = _refuse_resource("a file")
    connect_read_pipe = _refuse_resource("a pipe")
    connect_write_pipe = _refuse_resource("a pipe")
    subprocess_shell = _refuse_resource("a process")
    subprocess_exec = _refuse_resource("a process")
    add_reader = _refuse_resource("a file descriptor")
    remove_reader = _refuse_resource("a file descriptor")
    add_writer = _refuse_resource("a file descriptor")
    remove_writer = _refuse_resource("a file descriptor")
    sock_recv = _refuse_resource("a socket")
    sock_recv_into = _refuse_resource("a socket")
    sock_recvfrom = _refuse_resource("a socket")
    sock_recvfrom_into = _refuse_resource("a socket")
    sock_sendall = _refuse_resource("a socket")
    sock_sendto = _refuse_resource("a socket")
    sock_connect = _refuse_resource("a socket")
    sock_accept = _refuse_resource("a socket")
    sock_sendfile = _refuse_resource("a socket")
    add_signal_handler = _refuse_resource("a signal")
    remove_signal_handler = _refuse_resource("a signal")
