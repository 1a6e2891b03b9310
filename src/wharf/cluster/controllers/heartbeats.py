"""Heartbeat deadlines of nodes. Only the leader has them; they are not in the log."""

import heapq
from random import Random
from typing import Final

import msgspec


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat times in seconds. The defaults are Nomad's (scheduling.md 9.1)."""

    min_ttl_s: float = 10.0
    grace_s: float = 10.0
    failover_ttl_s: float = 300.0
    max_per_second: float = 50.0


NEVER_S: Final = float("inf")
"""The deadline if no node is expected."""
MAX_STALE_ENTRIES_RATIO: Final = 8
"""Limits memory: the heap is rebuilt if it has more entries than this many times the deadlines."""
MIN_STALE_ENTRIES: Final = 64
"""Stale heap entries that are always tolerated."""


class HeartbeatDeadlines:
    """The next heartbeat deadline of every node that is not down. Times are of the leader's monotonic clock."""

    def __init__(self, settings: HeartbeatSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._deadlines: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def record_heartbeat(self, node_id: str, now_s: float) -> float:
        """Record a heartbeat and return the TTL in seconds, by which the next one must arrive.

        The TTL is random, and longer in large clusters, so that heartbeats spread over time.
        """
        shortest = max(self._settings.min_ttl_s, len(self._deadlines) / self._settings.max_per_second)
        ttl_s = shortest + self._random.random() * shortest
        self._set_deadline(node_id, now_s + ttl_s + self._settings.grace_s)
        return ttl_s

    def grant_failover_ttl(self, node_id: str, now_s: float) -> None:
        """Give the node time to find a new leader."""
        self._set_deadline(node_id, now_s + self._settings.failover_ttl_s)

    def is_expected(self, node_id: str) -> bool:
        """Return whether a heartbeat of the node is awaited."""
        return node_id in self._deadlines

    @property
    def entry_count(self) -> int:
        """The number of heap entries, including stale ones."""
        return len(self._heap)

    @property
    def expected_count(self) -> int:
        """The number of nodes whose heartbeat is awaited."""
        return len(self._deadlines)

    def remove(self, node_id: str) -> None:
        """Stop waiting for the node."""
        self._deadlines.pop(node_id, None)

    def next_deadline_s(self) -> float:
        """Return when the next node may be late."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # The node has sent a heartbeat since, or was removed.
        return self._heap[0][0] if self._heap else NEVER_S

    def take_late(self, now_s: float) -> list[str]:
        """Return the nodes that missed their deadline.

        Each is returned once and then removed until its next heartbeat.
        """
        late = []
        while self.next_deadline_s() <= now_s:
            _, node_id = heapq.heappop(self._heap)
            del self._deadlines[node_id]
            late.append(node_id)
        return late

    def _set_deadline(self, node_id: str, deadline_s: float) -> None:
        """Set the deadline of the node."""
        self._deadlines[node_id] = deadline_s
        heapq.heappush(self._heap, (deadline_s, node_id))
        if len(self._heap) > MAX_STALE_ENTRIES_RATIO * len(self._deadlines) + MIN_STALE_ENTRIES:
            # Frequent heartbeats leave stale entries behind.
            self._heap = [(deadline_s, node_id) for node_id, deadline_s in self._deadlines.items()]
            heapq.heapify(self._heap)
