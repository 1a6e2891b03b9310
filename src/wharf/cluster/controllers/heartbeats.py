"""Heartbeat deadlines of nodes. Only the leader has them; they are not in the log."""

from random import Random

import msgspec

from wharf.cluster.controllers.deadlines import DeadlineHeap


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat times in seconds. The defaults are Nomad's (scheduling.md 9.1)."""

    min_ttl_s: float = 10.0
    grace_s: float = 10.0
    failover_ttl_s: float = 300.0
    max_per_second: float = 50.0


class HeartbeatDeadlines:
    """The next heartbeat deadline of every node that is not down. Times are of the leader's monotonic clock."""

    def __init__(self, settings: HeartbeatSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._deadlines: DeadlineHeap[str] = DeadlineHeap()

    def record_heartbeat(self, node_id: str, now_s: float) -> float:
        """Record a heartbeat and return the TTL in seconds, by which the next one must arrive.

        The TTL is random, and longer in large clusters, so that heartbeats spread over time.
        """
        shortest = max(self._settings.min_ttl_s, len(self._deadlines) / self._settings.max_per_second)
        ttl_s = shortest + self._random.random() * shortest
        self._deadlines.set_deadline(node_id, now_s + ttl_s + self._settings.grace_s)
        return ttl_s

    def grant_failover_ttl(self, node_id: str, now_s: float) -> None:
        """Set the node's deadline to `failover_ttl_s` from now, so that it has time to find a new leader."""
        self._deadlines.set_deadline(node_id, now_s + self._settings.failover_ttl_s)

    def is_expected(self, node_id: str) -> bool:
        """Return whether a heartbeat of the node is awaited."""
        return node_id in self._deadlines

    @property
    def expected_count(self) -> int:
        """The number of nodes whose heartbeat is awaited."""
        return len(self._deadlines)

    def remove(self, node_id: str) -> None:
        """Stop waiting for the node."""
        self._deadlines.remove(node_id)

    def next_deadline_s(self) -> float:
        """Return when the next node may be late."""
        return self._deadlines.next_deadline_s()

    def take_late(self, now_s: float) -> list[str]:
        """Return the nodes that missed their deadline.

        Each is returned once and then removed until its next heartbeat.
        """
        return self._deadlines.take_late(now_s)
