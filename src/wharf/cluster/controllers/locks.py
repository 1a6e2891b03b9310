"""Expiry deadlines of variable locks. Only the leader has them; they are not in the log."""

import heapq
from typing import Final, NamedTuple

from wharf.contract.model.times import SECOND

NEVER_S: Final = float("inf")
"""The deadline if no lock is held."""
MAX_STALE_ENTRIES_RATIO: Final = 8
"""Limits memory: the heap is rebuilt if it has more entries than this many times the deadlines."""
MIN_STALE_ENTRIES: Final = 64
"""Stale heap entries that are always tolerated."""


class HeldLock(NamedTuple):
    """A lock as one holder took it. A lock that is taken by another holder has another id."""

    namespace: str
    path: str
    lock_id: str


class LockDeadlines:
    """The expiry of every held lock.

    Times are of the leader's monotonic clock. A new leader gives each lock its whole TTL.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], HeldLock] = {}
        self._deadlines: dict[HeldLock, float] = {}
        self._heap: list[tuple[float, HeldLock]] = []

    def update_lock(self, namespace: str, path: str, lock_id: str, ttl_ns: int, now_s: float) -> None:
        """Record that the lock was taken or renewed. An empty id: the lock was released."""
        previous = self._held.pop((namespace, path), None)
        if previous is not None:
            self._deadlines.pop(previous, None)
        if not lock_id:
            return
        held = self._held[namespace, path] = HeldLock(namespace, path, lock_id)
        deadline_s = self._deadlines[held] = now_s + ttl_ns / SECOND
        heapq.heappush(self._heap, (deadline_s, held))
        if len(self._heap) > MAX_STALE_ENTRIES_RATIO * len(self._deadlines) + MIN_STALE_ENTRIES:
            self._heap = [(deadline_s, held) for held, deadline_s in self._deadlines.items()]
            heapq.heapify(self._heap)

    def next_deadline_s(self) -> float:
        """Return when the next lock expires."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # The lock was renewed or released since.
        return self._heap[0][0] if self._heap else NEVER_S

    def list_expired(self, now_s: float) -> list[HeldLock]:
        """Return the expired locks. They are returned again until their release is recorded."""
        return (
            [held for held in self._deadlines if self.is_expired(held, now_s)]
            if self.next_deadline_s() <= now_s
            else []
        )

    def is_expired(self, held: HeldLock, now_s: float) -> bool:
        """Return whether the lock has passed its deadline."""
        return self._deadlines.get(held, NEVER_S) <= now_s
