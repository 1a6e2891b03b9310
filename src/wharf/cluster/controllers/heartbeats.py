"""Which nodes are heard of, and which have been silent for too long. Leader only; not in the log."""

import heapq
from random import Random
from typing import Final

import msgspec


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; the reference's defaults (scheduling.md 9.1)."""

    min_ttl_s: float = 10.0
    grace_s: float = 10.0
    failover_ttl_s: float = 300.0
    max_per_second: float = 50.0


NEVER_S: Final = float("inf")
MAX_STALE_ENTRIES_RATIO: Final = 8
MIN_STALE_ENTRIES: Final = 64


class HeartbeatDeadlines:
    """A deadline for every node that is not down. Instants are of the leader's monotonic clock."""

    def __init__(self, settings: HeartbeatSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._deadlines: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def record_heartbeat(self, node_id: str, now_s: float) -> float:
        """A node said that it is alive. Answers for how many seconds it is now believed."""
        shortest = max(self._settings.min_ttl_s, len(self._deadlines) / self._settings.max_per_second)
        ttl_s = shortest + self._random.random() * shortest
        self._expect(node_id, now_s + ttl_s + self._settings.grace_s)
        return ttl_s

    def grant_failover_ttl(self, node_id: str, now_s: float) -> None:
        """A new leader has not heard of the node yet, and gives it time to find the new leader."""
        self._expect(node_id, now_s + self._settings.failover_ttl_s)

    def is_expected(self, node_id: str) -> bool:
        """Whether it was heard of since it was last told late."""
        return node_id in self._deadlines

    @property
    def entry_count(self) -> int:
        """How many deadlines are kept, those included that no longer count."""
        return len(self._heap)

    @property
    def expected_count(self) -> int:
        """Of how many nodes the next heartbeat is waited for."""
        return len(self._deadlines)

    def remove(self, node_id: str) -> None:
        self._deadlines.pop(node_id, None)

    def next_deadline_s(self) -> float:
        """When the next node may be late."""
        while self._heap and self._deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # It was heard of again since, or is forgotten.
        return self._heap[0][0] if self._heap else NEVER_S

    def take_late(self, now_s: float) -> list[str]:
        """Nodes whose time is over; each is told once, and then forgotten until it is heard of again."""
        late = []
        while self.next_deadline_s() <= now_s:
            _, node_id = heapq.heappop(self._heap)
            del self._deadlines[node_id]
            late.append(node_id)
        return late

    def _expect(self, node_id: str, deadline_s: float) -> None:
        self._deadlines[node_id] = deadline_s
        heapq.heappush(self._heap, (deadline_s, node_id))
        if len(self._heap) > MAX_STALE_ENTRIES_RATIO * len(self._deadlines) + MIN_STALE_ENTRIES:
            # A node that beats too often leaves its older deadlines behind.
            self._heap = [(deadline_s, node_id) for node_id, deadline_s in self._deadlines.items()]
            heapq.heapify(self._heap)
