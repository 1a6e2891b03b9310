"""A duty of the leader: records which servers belong to the cluster, and which of them ended without leaving it.

A member record expires with its lease. `operations.agents` decides what the records of known servers contain.
"""

import logging
from typing import Final

from wharf.cluster.operations import agents
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.operator.configuration import get_autopilot_configuration
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.watch_loop import run_watch_loop
from wharf.cluster.state import Replica, watches
from wharf.cluster.state.tables import AUTOPILOT_CONFIGURATION, CLUSTER_FORMAT, KNOWN_SERVERS, MEMBERS
from wharf.contract.model.times import DecisionContext

WATCHED_TABLES: Final = (MEMBERS, KNOWN_SERVERS, AUTOPILOT_CONFIGURATION, CLUSTER_FORMAT)

log = logging.getLogger(__name__)


class KnownServersDuty:
    """Keeps the records of known servers up to date. A log that only one server can use needs none."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Update the records while the brain leads, whenever a server joins, leaves or ends."""
        targets = [watches.watch_table(table) for table in WATCHED_TABLES]
        await run_watch_loop(self._brain, list_watched=lambda: targets, run_pass=self._update_all)

    async def _update_all(self) -> None:
        """Update the records, one write at a time, until they are complete."""
        while (update := await self._brain.execute_if_due(self._update)) is not None:
            for server in update.failed:
                log.warning(
                    "server ended without leaving server=%s address=%s", server.name or server.id, server.address
                )
            for server in update.removed:
                log.info("failed server removed server=%s address=%s", server.name or server.id, server.address)

    def _update(self, snapshot: Replica, context: DecisionContext) -> Decision[agents.KnownServersUpdate] | None:
        return agents.update_known_servers(
            snapshot,
            now_ns=context.now_ns,
            max_changes=self._brain.max_changes,
            should_expire=get_autopilot_configuration(snapshot).cleanup_dead_servers,
        )
