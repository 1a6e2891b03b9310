"""Pacing of nodes, so that thousands of them never delay heartbeats and the requests of users.

A plan may place allocations on a thousand nodes at once. Each node whose blocking query is answered sends three further
requests. If all were answered in the same moment, a heartbeat would wait behind thousands of requests. After an outage,
the requests of all nodes arrive at once. They begin a few at a time, and other requests begin in between.
"""

import asyncio
from typing import Final

from wharf.cluster.server.loop_slots import LoopSlots, SlotQueue

SLOTS_PER_STEP: Final = 5
"""Replies that are sent in each step. With their further requests, they take less than a step of processor time."""
STEP_S: Final = 0.01
"""The shortest time between two steps. A step waits for one iteration of the event loop, so a slow server takes longer
steps and the work that waits in its loop stays limited."""
MAX_WAITING_REQUESTS: Final = 3 * SLOTS_PER_STEP
"""While more requests of nodes than this wait until they may begin, no node is answered whose reply would cause more of them."""
REQUESTS_PER_ITERATION: Final = 2
"""Requests of nodes that begin in each iteration of the event loop: less than a millisecond of processor time. Limits how long
another request waits for the iteration in which it begins."""


class ReplyPacer:
    """Gives callers their slots in order of arrival: at most `SLOTS_PER_STEP` in each step of the event loop.

    Without any while requests of nodes wait that earlier replies have caused.
    """

    def __init__(self, requests: LoopSlots) -> None:
        self._requests = requests
        self._free_slots = SLOTS_PER_STEP
        self._queue = SlotQueue()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        """How many callers wait for their slot."""
        return len(self._queue)

    async def wait_for_slot(self) -> None:
        """Wait until the caller has a slot. Returns at once unless many callers arrive at the same time."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STEP_S, self._begin_step)
        if self._free_slots:
            self._free_slots -= 1
        else:
            await self._queue.wait()

    def _begin_step(self) -> None:
        """Give the next callers their slots. Without any, the next caller has its slot at once."""
        self._timer = None
        must_wait = self._queue and self._requests.waiting_count > MAX_WAITING_REQUESTS
        self._free_slots = 0 if must_wait else self._queue.give(SLOTS_PER_STEP)
        if self._free_slots < SLOTS_PER_STEP:
            self._timer = asyncio.get_running_loop().call_later(STEP_S, self._begin_step)
