"""Slots of the event loop: a few tasks begin or continue in each iteration, in order of arrival, and the others wait."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Final

MAX_CPU_S_PER_ITERATION: Final = 0.004
"""The CPU time of an iteration after which no further task begins in it (`TimedLoopSlots`). One task follows at most."""
MAX_WOKEN_PER_ITERATION: Final = 8
"""Waiting tasks that are woken in each iteration. Those that find its time used up wait again; that costs microseconds."""


class SlotQueue:
    """Tasks that wait for a slot, in order of arrival."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Wait until `give` gives this task a slot."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def give(self, slots: int) -> int:
        """Give slots to the tasks that have waited longest. Return how many slots are left."""
        while self._waiting and slots:
            future = self._waiting.popleft()
            if not future.done():  # The task may be cancelled.
                slots -= 1
                future.set_result(None)
        return slots


class LoopSlots:
    """Lets a few tasks use each iteration of the event loop. One slot is a few milliseconds at most.

    Without slots, each of N large requests would continue in every iteration, and a short request would wait for all N. No
    time is lost while nobody else has work: the next iteration then begins at once.
    """

    __slots__ = ("_free_slots", "_queue", "_slots_per_iteration")

    def __init__(self, slots_per_iteration: int = 1) -> None:
        self._slots_per_iteration = slots_per_iteration
        self._free_slots = slots_per_iteration
        """The free slots of this iteration. If some are taken, `_begin_iteration` is scheduled for the next one."""
        self._queue = SlotQueue()

    @property
    def waiting_count(self) -> int:
        """How many tasks wait for a slot."""
        return len(self._queue)

    async def begin(self) -> None:
        """Wait for a slot. Returns at once if this iteration has a free one."""
        if self._free_slots:
            self._take()
        else:
            await self._queue.wait()

    async def wait(self) -> None:
        """End the slot of this task and wait for another one. Other tasks run first."""
        if self._free_slots:
            self._take()
        await self._queue.wait()

    def _take(self) -> None:
        if self._free_slots == self._slots_per_iteration:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self._free_slots -= 1

    def _begin_iteration(self) -> None:
        self._free_slots = self._queue.give(self._slots_per_iteration)
        if self._free_slots < self._slots_per_iteration:
            asyncio.get_running_loop().call_soon(self._begin_iteration)


class TimedLoopSlots:
    """Lets tasks begin in each iteration of the event loop until it has used `MAX_CPU_S_PER_ITERATION`. The others wait.

    For tasks that mostly take some tenths of a millisecond, and sometimes a few milliseconds: many short ones begin in one
    iteration. A slot is not held: nothing is given back when a task ends, waits or is cancelled. Owners take turns, and the
    tasks of one owner begin in order of arrival.

    Many tasks may wait for the same event, such as a commit, and then continue in one iteration. So after each such event,
    `continue_in_slot` makes a task that has begun here wait for another slot.
    """

    __slots__ = ("_began_s", "_has_begun", "_late", "_owners", "_read_cpu_s", "_runs", "_were_some_woken")

    def __init__(self, read_cpu_s: Callable[[], float]) -> None:
        """`read_cpu_s` returns the CPU time of this thread. If it always returns 0, as in a simulation, no task waits."""
        self._read_cpu_s = read_cpu_s
        self._owners: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """The waiting tasks of each owner. The owner whose turn is next comes first."""
        self._late: deque[asyncio.Future[None]] = deque()
        """Tasks that were woken in an iteration whose time was used up. They are woken first in the next one."""
        self._runs = False
        """Whether `_begin_iteration` is scheduled for the next iteration."""
        self._began_s = 0.0
        self._has_begun = False
        """Whether a task has begun in this iteration. One begins in each, whatever else has used the loop."""
        self._were_some_woken = False
        """Whether tasks were woken that have not run yet. New ones wait behind them."""

    async def begin(self, owner: Hashable) -> None:
        """Wait until an iteration has time for this task. Returns at once if this one has.

        `continue_in_slot` then waits in the same way, until `leave_slots`.
        """
        _CURRENT.set((self, owner))
        await self.wait(owner)

    async def wait(self, owner: Hashable) -> None:
        """Wait until an iteration has time for the next step of this task."""
        if not self._runs:
            self._began_s = self._read_cpu_s()
            self._has_begun = True
            self._ensure_scheduled()
            return
        if not (self._owners or self._late or self._were_some_woken or self._is_over()):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owners.setdefault(owner, deque()).append(future)
        await future
        while self._has_begun and self._is_over():
            future = asyncio.get_running_loop().create_future()
            self._late.append(future)
            self._ensure_scheduled()
            await future
        self._has_begun = True

    def _is_over(self) -> bool:
        return self._read_cpu_s() - self._began_s >= MAX_CPU_S_PER_ITERATION

    def _ensure_scheduled(self) -> None:
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        """Wake the next tasks, which run in the next iteration."""
        self._began_s = self._read_cpu_s()
        self._has_begun = False
        self._runs = False
        if not (self._owners or self._late or self._were_some_woken):
            return
        self._ensure_scheduled()  # Before the tasks are woken, so that the next iteration begins before they run.
        self._were_some_woken = False
        woken_count = 0
        while woken_count < MAX_WOKEN_PER_ITERATION and (self._late or self._owners):
            future = self._late.popleft() if self._late else self._pop_next()
            if not future.done():  # The task may be cancelled.
                future.set_result(None)
                woken_count += 1
        self._were_some_woken = woken_count > 0

    def _pop_next(self) -> "asyncio.Future[None]":
        """Return the task of the owner whose turn it is, which has waited longest."""
        owner = next(iter(self._owners))
        waiting = self._owners.pop(owner)
        future = waiting.popleft()
        if waiting:
            self._owners[owner] = waiting  # At the end.
        return future


_CURRENT: Final[ContextVar[tuple[TimedLoopSlots, Hashable] | None]] = ContextVar("timed_loop_slots", default=None)
"""The slots in which the current task has begun, and its owner."""


async def continue_in_slot() -> None:
    """Wait for another slot if this task has begun in `TimedLoopSlots`. Call it after waiting for what others wait for too."""
    current = _CURRENT.get()
    if current is not None:
        slots, owner = current
        await slots.wait(owner)


def leave_slots() -> None:
    """Let the current task continue without slots from now on."""
    _CURRENT.set(None)
