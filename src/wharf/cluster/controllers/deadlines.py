"""A heap of deadlines by key, for the leader's timers. Deadlines are not in the log; a new leader computes its own."""

import heapq
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT", bound="str | tuple[str, ...]")

NEVER_S: Final = float("inf")
"""The time that stands for "no deadline"."""
MAX_STALE_ENTRIES_RATIO: Final = 8
"""Limits memory: the heap is rebuilt when its entries exceed this many times the number of deadlines."""
MIN_STALE_ENTRIES: Final = 64
"""This many stale heap entries are tolerated in addition, so that a small heap is not rebuilt all the time."""


class DeadlineHeap(Generic[KeyT]):
    """A deadline for each key, in seconds, or any other unit, of one clock of the leader. A heap finds the earliest one."""

    def __init__(self) -> None:
        self._deadlines: dict[KeyT, float] = {}  # The valid deadlines by key.
        self._heap: list[tuple[float, KeyT]] = []
        """Pairs (deadline, key).

        Stale ones remain: a changed deadline adds a pair, and the old one is skipped later.
        """

    def __contains__(self, key: KeyT) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def entry_count(self) -> int:
        """The number of heap entries, including stale ones that a changed or removed deadline left."""
        return len(self._heap)

    def get_deadline_s(self, key: KeyT) -> float | None:
        """Return the deadline of the key, or `None` if it has none."""
        return self._deadlines.get(key)

    def set_deadline(self, key: KeyT, deadline_s: float) -> None:
        """Set the deadline of the key, in place of any previous one.

        Rebuild the heap if it has too many stale entries.
        """
        self._deadlines[key] = deadline_s
        heapq.heappush(self._heap, (deadline_s, key))
        if len(self._heap) > MAX_STALE_ENTRIES_RATIO * len(self._deadlines) + MIN_STALE_ENTRIES:
            self._heap = [(deadline_s, key) for key, deadline_s in self._deadlines.items()]
            heapq.heapify(self._heap)

    def remove(self, key: KeyT) -> None:
        """Remove the deadline of the key, if it has one."""
        self._deadlines.pop(key, None)

    def next_deadline_s(self) -> float:
        """Return the earliest deadline, or `NEVER_S` if there is none."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # The deadline was changed or removed since.
        return self._heap[0][0] if self._heap else NEVER_S

    def is_late(self, key: KeyT, now_s: float) -> bool:
        """Return whether the deadline of the key has passed. False if the key has no deadline."""
        return self._deadlines.get(key, NEVER_S) <= now_s

    def list_late(self, now_s: float) -> list[KeyT]:
        """Return the keys whose deadline has passed, in no particular order. Their deadlines stay set."""
        if self.next_deadline_s() > now_s:
            return []
        return [key for key, deadline_s in self._deadlines.items() if deadline_s <= now_s]

    def take_late(self, now_s: float) -> list[KeyT]:
        """Remove and return the keys whose deadline has passed, earliest first."""
        late = []
        while self.next_deadline_s() <= now_s:
            _, key = heapq.heappop(self._heap)
            del self._deadlines[key]
            late.append(key)
        return late
