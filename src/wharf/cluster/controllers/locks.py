"""Which locks of variables are renewed, and which have been silent for too long. Leader only; not in the log."""

import heapq
from typing import Final, NamedTuple

NEVER_S: Final = float("inf")
SECOND_NS: Final = 1_000_000_000
MAX_STALE_ENTRIES_RATIO: Final = 8
MIN_STALE_ENTRIES: Final = 64


class HeldLock(NamedTuple):
    """A lock as it was taken; one that is taken by somebody else is another."""

    namespace: str
    path: str
    lock_id: str


class LockDeadlines:
    """A deadline for every lock. Instants are of the leader's monotonic clock; a new leader gives each its whole TTL."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], HeldLock] = {}
        self._deadlines: dict[HeldLock, float] = {}
        self._heap: list[tuple[float, HeldLock]] = []

    def update_lock(self, namespace: str, path: str, lock_id: str, ttl_ns: int, now_s: float) -> None:
        """The variable was written or its lock renewed: its holder is alive. An empty id: nobody holds it."""
        was = self._held.pop((namespace, path), None)
        if was is not None:
            self._deadlines.pop(was, None)
        if not lock_id:
            return
        held = self._held[namespace, path] = HeldLock(namespace, path, lock_id)
        deadline_s = self._deadlines[held] = now_s + ttl_ns / SECOND_NS
        heapq.heappush(self._heap, (deadline_s, held))
        if len(self._heap) > MAX_STALE_ENTRIES_RATIO * len(self._deadlines) + MIN_STALE_ENTRIES:
            self._heap = [(deadline_s, held) for held, deadline_s in self._deadlines.items()]
            heapq.heapify(self._heap)

    def next_deadline_s(self) -> float:
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # It was renewed since, or is gone.
        return self._heap[0][0] if self._heap else NEVER_S

    def list_expired(self, now_s: float) -> list[HeldLock]:
        """LockDeadlines whose time is over. They are told again until they are heard of as gone."""
        return (
            [held for held in self._deadlines if self.is_expired(held, now_s)]
            if self.next_deadline_s() <= now_s
            else []
        )

    def is_expired(self, held: HeldLock, now_s: float) -> bool:
        return self._deadlines.get(held, NEVER_S) <= now_s
