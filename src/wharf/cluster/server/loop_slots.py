"""Slots of the event loop: a few tasks begin or continue in each iteration, in order of arrival, and the others wait."""

import asyncio
from collections import deque


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
