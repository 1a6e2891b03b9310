"""Expiry deadlines of variable locks. Only the leader has them; they are not in the log."""

from typing import NamedTuple

from wharf.cluster.controllers.deadlines import DeadlineHeap
from wharf.contract.model.times import SECOND


class HeldLock(NamedTuple):
    """A lock of a variable, as one holder acquired it. When another holder acquires the lock, its id changes."""

    namespace: str
    path: str  # The path of the variable.
    lock_id: str


class LockDeadlines:
    """When each held lock of a variable expires, in seconds of the leader's monotonic clock.

    A new leader gives each lock its whole TTL.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], HeldLock] = {}  # The current lock by namespace and path of the variable.
        self._deadlines: DeadlineHeap[HeldLock] = DeadlineHeap()

    @property
    def entry_count(self) -> int:
        """The number of entries in the heap of deadlines, including stale ones."""
        return self._deadlines.entry_count

    def update_lock(self, namespace: str, path: str, lock_id: str, ttl_ns: int, now_s: float) -> None:
        """Record that a lock was acquired or renewed for `ttl_ns` nanoseconds, or, if `lock_id` is empty, released."""
        previous = self._held.pop((namespace, path), None)
        if previous is not None:
            self._deadlines.remove(previous)
        if not lock_id:
            return
        held = self._held[namespace, path] = HeldLock(namespace, path, lock_id)
        self._deadlines.set_deadline(held, now_s + ttl_ns / SECOND)

    def next_deadline_s(self) -> float:
        """Return when the next lock expires, in seconds of the monotonic clock, or infinity if no lock is held."""
        return self._deadlines.next_deadline_s()

    def list_expired(self, now_s: float) -> list[HeldLock]:
        """Return the expired locks. They are returned again by later calls until their release is recorded."""
        return self._deadlines.list_late(now_s)

    def is_expired(self, held: HeldLock, now_s: float) -> bool:
        """Return whether the lock has passed its deadline."""
        return self._deadlines.is_late(held, now_s)
