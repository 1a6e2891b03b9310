"""Heartbeat deadlines of nodes. Only the leader has them; they are not in the log.

The longest TTL that nodes may have is in the log, because the next leader must wait at least as long (decision record 0197).
"""

import math
from random import Random
from typing import Final

import msgspec

from wharf.cluster.controllers.deadlines import DeadlineHeap

MIN_GRACE_PART: Final = 0.2
"""The grace is at least this part of the TTL. A large fleet has long TTLs, and after a fault many of its nodes send their
heartbeats at the same time, so each of them needs more time."""
FAILOVER_GRACES: Final = 2
"""A new leader waits for the longest TTL and this many times the grace. Some nodes first wait for a server that does not
reply, and all others may send their heartbeats at the same time."""
UNSTORED_TTL_S: Final = 20.0
"""TTLs up to this length are not stored. Clusters of up to 500 nodes with the default settings never have longer ones."""
TTL_STEP: Final = 1.1
"""The stored TTL is this many times what the cluster needs, so that a growing fleet does not change the record all the time."""
TTL_LOWERING_PART: Final = 0.75
"""The stored TTL is lowered if the cluster needs less than this part of it."""


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat times in seconds (scheduling.md 9.1)."""

    min_ttl_s: float  # The shortest time in which a node must send its next heartbeat.
    grace_s: float  # How much later a heartbeat may arrive, at least, before the node counts as lost.
    failover_ttl_s: float  # The time that nodes get to find a new leader, at least.
    max_per_second: float
    """Limits load: in large clusters TTLs grow until heartbeats arrive at this rate."""

    def compute_shortest_ttl_s(self, node_count: int) -> float:
        """Return the shortest TTL that a node gets in a cluster of this size. The longest one is twice as long."""
        return max(self.min_ttl_s, node_count / self.max_per_second)

    def compute_longest_ttl_s(self, node_count: int) -> float:
        """Return the longest TTL that a node gets in a cluster of this size."""
        return 2.0 * self.compute_shortest_ttl_s(node_count)

    def compute_grace_s(self, ttl_s: float) -> float:
        """Return how much later than its TTL the next heartbeat of a node may arrive."""
        return max(self.grace_s, ttl_s * MIN_GRACE_PART)

    def compute_failover_ttl_s(self, longest_ttl_s: float) -> float:
        """Return the time that nodes get to find a new leader, if former leaders granted TTLs of up to `longest_ttl_s`.

        A node that has just received the longest TTL sends nothing until it ends.
        """
        return max(self.failover_ttl_s, longest_ttl_s + FAILOVER_GRACES * self.compute_grace_s(longest_ttl_s))

    def compute_stored_ttl_s(self, stored_s: float, node_count: int) -> float:
        """Return the longest TTL to store for a cluster of this size. `stored_s` is stored now; 0: none.

        It is a little longer than the cluster needs, and it stays unless it is too short or much too long.
        """
        needed_s = self.compute_longest_ttl_s(node_count)
        next_s = 0.0 if needed_s <= UNSTORED_TTL_S else needed_s * TTL_STEP
        is_too_short = needed_s > max(stored_s, UNSTORED_TTL_S)
        is_too_long = next_s < stored_s * TTL_LOWERING_PART
        return next_s if is_too_short or is_too_long else stored_s


class HeartbeatDeadlines:
    """By when each node that is not down must send its next heartbeat. All times are those of the `ReceptionClock`."""

    def __init__(self, settings: HeartbeatSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._deadlines: DeadlineHeap[str] = DeadlineHeap()
        self.longest_ttl_s = math.inf
        """No TTL is longer. In a growing fleet it limits the TTLs until a longer one is stored."""

    def record_heartbeat(self, node_id: str, now_s: float) -> float:
        """Record a heartbeat of the node and return its TTL: the next heartbeat must arrive within this many seconds.

        The TTL is random, and longer in large clusters, so that heartbeats spread over time. The grace time is added to
        the deadline: `grace_s`, or a fifth of the TTL if that is longer.

        The deadline never becomes earlier. The node may have got a longer TTL before: a heartbeat may arrive late or twice,
        for example by a server that was frozen, and then the node never gets this TTL.
        """
        shortest_ttl_s = min(self._settings.compute_shortest_ttl_s(len(self._deadlines)), self.longest_ttl_s / 2.0)
        ttl_s = shortest_ttl_s + self._random.random() * shortest_ttl_s
        deadline_s = self._compute_deadline_s(now_s, ttl_s)
        earlier_s = self._deadlines.get_deadline_s(node_id)
        if earlier_s is not None and earlier_s > deadline_s:
            # A deadline after a failover may be much later than the end of any TTL that a former leader granted.
            deadline_s = max(deadline_s, min(earlier_s, self._compute_deadline_s(now_s, self.longest_ttl_s)))
        self._deadlines.set_deadline(node_id, deadline_s)
        return ttl_s

    def _compute_deadline_s(self, now_s: float, ttl_s: float) -> float:
        """Return by when a node that gets this TTL now must send its next heartbeat."""
        return now_s + ttl_s + self._settings.compute_grace_s(ttl_s)

    def grant_failover_ttl(self, node_id: str, now_s: float, ttl_s: float) -> None:
        """Set the node's deadline to `ttl_s` from now, so that it has time to find a new leader."""
        self._deadlines.set_deadline(node_id, now_s + ttl_s)

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
