"""Heartbeat deadlines of nodes. Only the leader has them; they are not in the log."""

from random import Random
from typing import Final

import msgspec

from wharf.cluster.controllers.deadlines import DeadlineHeap

MIN_GRACE_PART: Final = 0.2
"""The grace is at least this part of the TTL. A large fleet has long TTLs, and after a fault many of its nodes send their
heartbeats at the same time, so each of them needs more time."""


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat times in seconds. The defaults are Nomad's (scheduling.md 9.1)."""

    min_ttl_s: float = 10.0  # The shortest time in which a node must send its next heartbeat.
    grace_s: float = 10.0  # How much later a heartbeat may arrive, at least, before the node counts as lost.
    failover_ttl_s: float = 300.0  # The time that nodes get to find a new leader.
    max_per_second: float = 50.0
    """Limits load: in large clusters TTLs grow until heartbeats arrive at this rate."""


class HeartbeatDeadlines:
    """By when each node that is not down must send its next heartbeat. All times are those of the `ReceptionClock`."""

    def __init__(self, settings: HeartbeatSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._deadlines: DeadlineHeap[str] = DeadlineHeap()

    def record_heartbeat(self, node_id: str, now_s: float) -> float:
        """Record a heartbeat of the node and return its TTL: the next heartbeat must arrive within this many seconds.

        The TTL is random, and longer in large clusters, so that heartbeats spread over time. The grace time is added to
        the deadline: `grace_s`, or a fifth of the TTL if that is longer.
        """
        min_ttl_s = max(self._settings.min_ttl_s, len(self._deadlines) / self._settings.max_per_second)
        ttl_s = min_ttl_s + self._random.random() * min_ttl_s
        self._deadlines.set_deadline(node_id, now_s + ttl_s + max(self._settings.grace_s, ttl_s * MIN_GRACE_PART))
        return ttl_s

    def grant_failover_ttl(self, node_id: str, now_s: float) -> None:
        """Set the node's deadline to `failover_ttl_s` from now, so that it has time to find a new leader."""
        self._deadlines.set_deadline(node_id, now_s + self._settings.failover_ttl_s)

    def is_expected(self, node_id: str) -> bool:
        """Return whether the leader waits for a heartbeat of the node."""
        return node_id in self._deadlines

    @property
    def expected_count(self) -> int:
        """The number of nodes whose heartbeat the leader waits for."""
        return len(self._deadlines)

    def remove(self, node_id: str) -> None:
        """Stop waiting for heartbeats of the node."""
        self._deadlines.remove(node_id)

    def next_deadline_s(self) -> float:
        """Return the earliest heartbeat deadline of a node in seconds, or infinity if no node is expected."""
        return self._deadlines.next_deadline_s()

    def take_late(self, now_s: float) -> list[str]:
        """Return the ids of the nodes that missed their deadline, and stop waiting for them until their next heartbeat."""
        return self._deadlines.take_late(now_s)
