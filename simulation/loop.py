"""The event loop of the simulation: virtual time, an order out of the seed, nothing real.

It runs one callback at a time. What may run now stands in lanes: the steps of one task in a lane of their own, other
callbacks in the lane of whoever asked for them. A lane keeps its order, as asyncio promises; which lane goes next is
drawn from the seed, so that a run meets orders that a real loop would show once a year. When nothing may run, the
clock jumps to the next timer. The same seed gives the same run, step by step: `fingerprint` tells.

It never touches sockets, threads, processes or signals: asking for one is refused with a sentence.
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
Context = dict[str, Any]
ExceptionHandler = Callable[[AbstractEventLoop, Context], object]

MAX_STEPS_PER_INSTANT: Final = 1_000_000


class RealResourceRequested(Exception):
    """Something asked the simulation for a thing of the real world."""


class SimulationStuck(Exception):
    """Nothing can ever happen again, or time does not go on any more."""


class RunFailed(Exception):
    """An exception that nobody handled, or a task that was left behind. The message holds all of them."""


class Lane:
    """Callbacks that keep their order among themselves."""

    __slots__ = ("handles", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.handles: deque[Handle] = deque()


class SimulatedFuture(asyncio.Future[T]):
    """A future whose place in a set does not depend on where it lies in memory."""

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
        self.lane = lane  # Before the rest: asyncio asks for the first step, and for the hash, while it makes the task.
        self.process = (context if context is not None else contextvars.copy_context()).get(PROCESS)
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.lane.number

    @property
    def is_dead(self) -> bool:
        return self.process is not None and self.process.is_dead

    def describe(self) -> str:
        """Name, process, and where it waits, from the outermost call to the innermost."""
        places: list[str] = []
        work: object = self.get_coro()
        while work is not None and (frame := getattr(work, "cr_frame", None)) is not None:
            places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            work = getattr(work, "cr_await", None)
        process = f" of {self.process.name}" if self.process is not None else ""
        return f"{self.get_name()}{process}, in {' > '.join(places) or 'nothing'}"


def _refused(what: str) -> Any:
    def refuse(*_args: object, **_options: object) -> None:
        raise RealResourceRequested(
            f"a simulation has nothing real in it, and was asked for {what}. Put a port in between, and play the other "
            "side of it in the simulation."
        )

    return refuse


class SimulatedLoop(AbstractEventLoop):
    """`shuffle=False` runs everything in the order of a real loop, to see whether an order is to blame."""

    def __init__(self, seed: int, *, is_shuffled: bool = True, max_steps: int = 1 << 62) -> None:
        self.steps = 0
        self.max_steps = max_steps
        self.failures: list[str] = []
        self._fatal: Exception | None = None
        self._fingerprint = 0
        self._random = Random(f"{seed}/order") if is_shuffled else None
        self._now_s = 0.0
        self._lanes: list[Lane] = []  # Those that hold something.
        self._outside = Lane(0)
        self._lane = self._outside
        self._numbers = 0
        self._timers: list[tuple[float, int, TimerHandle, Lane]] = []
        self._timer_numbers = 0
        self._halted = 0  # How many processes are dead or held: while there are none, nobody need ask.
        self._held: dict[Process, list[tuple[Handle, Lane]]] = {}
        self._graves: list[Handle] = []
        self._tasks: dict[SimulatedTask[Any], None] = {}
        self._running = False
        self._stopping = False
        self._closed = False
        self._is_buried = False
        self._exception_handler: ExceptionHandler | None = None
        self._asyncgens: dict[int, AsyncGenerator[Any, Any]] = {}

    # -- what is asked of it ---------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """Two runs with the same fingerprint took the same steps in the same order."""
        return f"{self._fingerprint & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def add_to_fingerprint(self, text: str) -> None:
        """Mix a word about what happened into the fingerprint."""
        self._fingerprint = hash((self._fingerprint, zlib.crc32(text.encode())))

    def fail(self, error: Exception) -> None:
        """End the run at the next step with this error: for those who see something wrong where they must not raise."""
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
        if self._is_buried:
            raise RuntimeError("this loop is over")
        self._numbers += 1
        lane = Lane(self._numbers)
        task = SimulatedTask(coro, lane, loop=self, name=str(name or f"task {lane.number}"), context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Handle:
        self._require_open()
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
        ):  # However short, it takes time: or who waits for a moment never gets there.
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
        """Asyncio's timers say so; a cancelled one is dropped when its time has come."""

    # -- lanes -----------------------------------------------------------------------------------------------------

    def _lane_for(self, callback: Callable[..., object]) -> Lane:
        if self._random is None:
            return self._outside  # All in one lane is the order of a real loop.
        owner = getattr(callback, "__self__", None)  # A task's steps are bound to it.
        if type(owner) is SimulatedTask:
            return owner.lane
        return self._lane

    def _enqueue(self, handle: Handle, lane: Lane) -> None:
        if self._is_buried:
            return  # The last words of something that was left behind.
        if not lane.handles:
            self._lanes.append(lane)
        lane.handles.append(handle)

    def _take(self) -> tuple[Handle, Lane]:
        """The next handle, out of a lane that the seed picks."""
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
        """Nothing of it runs ever again: no `finally`, no farewell. Its open ends are for others to notice."""
        if process.is_dead:
            return
        process.is_dead = True
        self._halted += 1
        for handle, _ in self._held.pop(process, ()):
            self._graves.append(handle)

    def pause(self, process: Process) -> None:
        """Nothing of it runs until `release`; then all that has come due meanwhile does."""
        if process.is_dead or process.is_paused:
            return
        process.is_paused = True
        self._halted += 1
        self._held[process] = []

    def resume(self, process: Process) -> None:
        if process.is_dead or not process.is_paused:
            return
        process.is_paused = False
        self._halted -= 1
        for handle, lane in self._held.pop(process):
            self._enqueue(handle, lane)

    def _is_halted(self, handle: Handle, lane: Lane) -> bool:
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]  # asyncio keeps it there
        if process is None:
            return False
        if process.is_dead:
            self._graves.append(handle)  # Kept, so that nothing of it is tidied up before the run is over.
            return True
        if process.is_paused:
            self._held[process].append((handle, lane))
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
        sys.set_asyncgen_hooks(firstiter=self._on_asyncgen_begins, finalizer=self._on_asyncgen_dropped)
        collecting = gc.isenabled()
        gc.disable()  # When garbage is collected must not depend on what ran before in this process.
        asyncio._set_running_loop(self)
        try:
            self._run()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
            self._lane = self._outside
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
                raise SimulationStuck(f"{self.max_steps} steps were taken by {self._now_s} s: something runs hot")
            if self.steps - since > MAX_STEPS_PER_INSTANT:
                if self._now_s == instant:
                    raise SimulationStuck(
                        f"{MAX_STEPS_PER_INSTANT} steps were taken at {instant} s and time does not go on; the last "
                        f"one was {handle!r}"
                    )
                instant, since = self._now_s, self.steps
            self._fingerprint = hash((self._fingerprint, self._now_s, lane.number, count))
            self._lane = lane
            handle._run()

    def _jump(self) -> None:
        """Nothing may run now: go to the next timer, and let all that are due at that instant run."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            waiting = "\n".join(f"  {task.describe()}" for task in self._tasks if not task.is_dead) or "  (no task)"
            raise SimulationStuck(f"at {self._now_s} s nothing can happen any more; these wait for ever:\n{waiting}")
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
            raise RuntimeError("the loop was stopped before what it ran for was complete")
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
        """End it. Tasks that still wait, unless they are a dead process's, are a failure."""
        if self._closed:
            return
        gc.collect()  # A future that was dropped with an exception that nobody looked at says so now.
        for task in self._tasks:
            if not task.is_dead and not task.done():
                self.failures.append(f"at {self._now_s} s the run ended and a task was left behind: {task.describe()}")
        self._bury()
        if self.failures:
            raise RunFailed("\n".join(self.failures))

    def abandon(self) -> None:
        """End it and drop what still runs: the run is over, well or not, and its servers were never told to stop."""
        self._bury()

    def _bury(self) -> None:
        """Let go of all that is left, whatever it says about it: it is over."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        self._is_buried = self._closed = True
        try:
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch
            for work in [task.get_coro() for task in self._tasks if not task.done()]:
                with contextlib.suppress(BaseException):  # What it does at last is no part of the run any more.
                    work.close()
            for gone in (self._tasks, self._lanes, self._timers, self._graves, self._held, self._asyncgens):
                gone.clear()
            gc.collect()
        finally:
            sys.unraisablehook = hook

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(cast(SimulatedTask[Any], task), None)

    def _require_open(self) -> None:
        if self._closed and not self._is_buried:
            raise RuntimeError("this loop is closed")

    # -- what goes wrong -------------------------------------------------------------------------------------------

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
        told = f"at {self._now_s} s: {context.get('message') or 'an exception that nobody handled'}"
        if isinstance(owner, SimulatedTask):
            told += f": {owner.describe()}"
        elif owner is not None:
            told += f": {owner!r}"
        if isinstance(error, BaseException):
            told += "\n" + "".join(traceback.format_exception(error)).rstrip()
        self.failures.append(told)

    def get_task_factory(self) -> None:
        return None

    set_task_factory = _refused("tasks of another make")

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Asyncio's debug mode measures real time: it has no meaning here."""

    # -- asynchronous generators -----------------------------------------------------------------------------------

    def _on_asyncgen_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Nothing to do: they are closed when they are dropped, and a run ends with none that matters."""

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

    # -- what it refuses -------------------------------------------------------------------------------------------

    run_in_executor = _refused("a thread")
    set_default_executor = _refused("threads")
    getaddrinfo = _refused("the address of a host")
    getnameinfo = _refused("the name of a host")
    create_connection = _refused("a socket")
    create_server = _refused("a listening socket")
    create_unix_connection = _refused("a Unix socket")
    create_unix_server = _refused("a listening Unix socket")
    create_datagram_endpoint = _refused("a datagram socket")
    connect_accepted_socket = _refused("a socket")
    start_tls = _refused("a TLS connection")
    sendfile = _refused("a file")
    connect_read_pipe = _refused("a pipe")
    connect_write_pipe = _refused("a pipe")
    subprocess_shell = _refused("a process")
    subprocess_exec = _refused("a process")
    add_reader = _refused("a file descriptor")
    remove_reader = _refused("a file descriptor")
    add_writer = _refused("a file descriptor")
    remove_writer = _refused("a file descriptor")
    sock_recv = _refused("a socket")
    sock_recv_into = _refused("a socket")
    sock_recvfrom = _refused("a socket")
    sock_recvfrom_into = _refused("a socket")
    sock_sendall = _refused("a socket")
    sock_sendto = _refused("a socket")
    sock_connect = _refused("a socket")
    sock_accept = _refused("a socket")
    sock_sendfile = _refused("a socket")
    add_signal_handler = _refused("a signal")
    remove_signal_handler = _refused("a signal")
