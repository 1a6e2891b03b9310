"""The longest heartbeat TTL that nodes may have. The leader stores it before it grants longer TTLs than stored.

A new leader waits at least as long for the first heartbeat of each node, whatever TTLs former leaders granted: with more
nodes, or with other settings. The rules are in `controllers.heartbeats`.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from wharf.cluster.controllers.heartbeats import UNSTORED_TTL_S, HeartbeatSettings
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes.status import store_longest_ttl
from wharf.cluster.server.leader.term import LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import CLUSTER_FORMAT, NODES
from wharf.contract.model.times import SECOND, DecisionContext
from wharf.world import World

CHECK_INTERVAL_S: Final = 1.0
"""How often the leader compares the stored TTL with the size of the fleet."""


class LongestTtl:
    """The longest TTL that is stored. Used by the leader; every server observes it, because a restore can replace it."""

    def __init__(self, world: World, follower: Follower, term: LeaderTerm, settings: HeartbeatSettings) -> None:
        self._world = world
        self._follower = follower
        self._term = term
        self._settings = settings
        self._observed_s = 0.0
        """The longest TTL that nodes may have, as far as this server knows. A restored log may contain a shorter one."""
        self._last_seen = (0, 0.0)
        """The epoch of the log and the stored TTL that were observed last. Other fields of the record change too."""
        self._excess_since_s = math.inf
        """The time at which the stored TTL became much too long in this term; infinity if it is not."""
        follower.load_listeners.append(self._observe)
        follower.batch_listeners.append(lambda _batch: self._observe())

    def start_term(self) -> None:
        """Measure again for how long the stored TTL is too long, because nodes may have the TTLs of former leaders."""
        self._excess_since_s = math.inf

    @property
    def granted_s(self) -> float:
        """The longest TTL that may be granted now."""
        return max(self._get_stored_s(), UNSTORED_TTL_S)

    def compute_failover_ttl_s(self) -> float:
        """Return the time that every node has for its first heartbeat in a new term.

        The number of nodes counts too, because leaders of older versions stored nothing.
        """
        needed_s = self._settings.compute_longest_ttl_s(self._follower.replica.count_records(NODES))
        return self._settings.compute_failover_ttl_s(max(self._observed_s, needed_s))

    async def run(self, count_expected: Callable[[], int], on_change: Callable[[], None]) -> None:
        """Store a longer or shorter TTL whenever the fleet requires it, until cancelled.

        `count_expected` returns the number of nodes whose heartbeat the leader expects. `on_change` is called after each
        change of the stored TTL, and once at the start.
        """
        on_change()
        while True:
            if await self._term.execute_if_due(
                lambda snapshot, context: self._decide(snapshot, context, count_expected())
            ):
                on_change()
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _decide(self, snapshot: Replica, _context: DecisionContext, node_count: int) -> Decision[bool] | None:
        """Return the decision that stores the TTL that the fleet requires; `None` if it is stored already."""
        stored_s = self._get_stored_s()
        ttl_s = self._settings.compute_stored_ttl_s(self._observed_s, node_count)
        if ttl_s >= self._observed_s:
            self._excess_since_s = math.inf
        elif not self._has_outlasted_former_ttls():
            ttl_s = self._observed_s
        return store_longest_ttl(snapshot, round(ttl_s * SECOND)) if ttl_s != stored_s else None

    def _has_outlasted_former_ttls(self) -> bool:
        """Return whether the stored TTL has been too long for a time in which every node had to send a heartbeat."""
        now_s = self._world.monotonic_s()
        self._excess_since_s = min(self._excess_since_s, now_s)
        return now_s - self._excess_since_s > self.compute_failover_ttl_s()

    def _get_stored_s(self) -> float:
        record = self._follower.replica.get(CLUSTER_FORMAT)
        return record.longest_heartbeat_ttl / SECOND if record is not None else 0.0

    def _observe(self) -> None:
        """Observe the stored TTL after each change. If the log was replaced by a copy, a longer one from before still counts."""
        epoch, stored_s = self._follower.replica.epoch, self._get_stored_s()
        if (epoch, stored_s) != self._last_seen:
            is_replaced = epoch != self._last_seen[0]
            self._observed_s = max(self._observed_s if is_replaced else 0.0, stored_s)
            self._last_seen = epoch, stored_s
