"""Pacing of replies that cause further requests, so that they never delay the requests of others.

A plan may place allocations on a thousand nodes at once. Each node whose blocking query is answered sends three further
requests. If all were answered in the same moment, a heartbeat would wait behind thousands of requests.
"""

import asyncio
from collections import deque
from typing import Final

SLOTS_PER_STEP: Final = 5
"""Replies that are sent in each step. With their further requests, they take less than a step of processor time."""
STEP_S: Final = 0.01
"""The shortest time between two steps. A step waits for one iteration of the event loop, so a slow server takes longer
steps and the work that waits in its loop stays limited."""


class ReplyPacer:
    """Gives callers their slots in order of arrival: at most `SLOTS_PER_STEP` in each step of the event loop."""

    def __init__(self) -> None:
        self._free_slots = SLOTS_PER_STEP
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        """How many callers wait for their slot."""
        return len(self._waiting)

    async def wait_for_slot(self) -> None:
        """Wait until the caller has a slot. Returns at once unless many callers arrive at the same time."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(STEP_S, self._begin_step)
        if self._free_slots:
            self._free_slots -= 1
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        await future

    def _begin_step(self) -> None:
        """Give the next callers their slots. Without any, the next caller has its slot at once."""
        self._timer = None
        self._free_slots = SLOTS_PER_STEP
        while self._waiting and self._free_slots:
            future = self._waiting.popleft()
            if not future.done():  # The caller may be cancelled.
                self._free_slots -= 1
                future.set_result(None)
        if self._free_slots < SLOTS_PER_STEP:
            self._timer = asyncio.get_running_loop().call_later(STEP_S, self._begin_step)
