"""Watches over quotas that are used up: when there is room again, what waits for it is tried.

One of the leader's duties. Whether there is room is told by `controllers.quotas`.
"""

from wharf.cluster.controllers import quotas
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.evaluations import unblock_evaluations
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.watch_loop import run_watch_loop
from wharf.cluster.state import Replica, WatchTarget, watches
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS_BY_STATUS, NAMESPACES, QUOTAS
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.times import DecisionContext


class QuotaDuty:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """As long as the brain leads."""
        await run_watch_loop(self._brain, list_watched=self._watched, run_pass=self._try_all)

    async def _try_all(self) -> None:
        while await self._brain.execute_if_due(self._try):
            pass

    def _watched(self) -> list[WatchTarget]:
        """Work that ends is of interest only while something waits for it."""
        watched = [
            watches.watch_table(QUOTAS),
            watches.watch_table(NAMESPACES),
            watches.watch_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED),
        ]
        return (
            [*watched, watches.watch_table(ALLOCATIONS)]
            if quotas.list_waiting_evaluations(self._brain.follower.replica)
            else watched
        )

    def _try(self, snapshot: Replica, moment: DecisionContext) -> Decision[bool] | None:
        found = quotas.select_retries(snapshot, self._brain.max_evaluations)
        return Decision(unblock_evaluations(snapshot, found, moment), lambda _index: True) if found else None
