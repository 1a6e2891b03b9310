"""Measures for how long the event loop was paused while calls of a store waited: the process was busy, or the machine ran others.

During a pause no reply can be read. So a pause says nothing about the store.
"""

import asyncio
from collections import deque
from typing import Final

INTERVAL_S: Final = 0.005
"""The interval of measurements while calls wait: short against the timeout of a call, and cheap."""
TIMER_PRECISION_S: Final = 0.002
"""Shorter delays of a measurement are no pause: event loops round times to milliseconds."""
MAX_PAUSES: Final = 1_000
"""Pauses in memory. They cover at least 7 seconds, longer than calls wait with usual settings."""


class LoopPauses:
    """The pauses of the running event loop. They are measured only while a call waits."""

    def __init__(self) -> None:
        self._waiting_count = 0
        self._due_s: float | None = None
        """When the next measurement is due; `None` if none is."""
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_PAUSES)
        """End and length of each pause, the oldest first."""

    def begin_wait(self) -> None:
        """Measure until `end_wait` was called as often as this method."""
        self._waiting_count += 1
        if self._due_s is None:
            self._schedule()

    def end_wait(self) -> None:
        """End a wait. The next measurement, which costs less than to cancel it each time, is the last one if no call waits."""
        self._waiting_count -= 1

    def get_paused_s(self, duration_s: float) -> float:
        """Return for how long the event loop was paused within the last `duration_s`."""
        now_s = asyncio.get_running_loop().time()
        since_s = now_s - duration_s
        paused_s = max(0.0, now_s - max(self._due_s, since_s)) if self._due_s is not None else 0.0
        for end_s, length_s in reversed(self._pauses):
            if end_s <= since_s:
                break
            paused_s += min(length_s, end_s - since_s)
        return paused_s

    def _schedule(self) -> None:
        """Plan the next measurement."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + INTERVAL_S
        loop.call_at(self._due_s, self._measure)

    def _measure(self) -> None:
        """Store the delay of this measurement as a pause, and plan the next one if a call waits."""
        assert self._due_s is not None, "a measurement was due"
        now_s = asyncio.get_running_loop().time()
        if now_s - self._due_s > TIMER_PRECISION_S:
            self._pauses.append((now_s, now_s - self._due_s))
        self._due_s = None
        if self._waiting_count:
            self._schedule()
