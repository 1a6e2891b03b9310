"""A duty of the leader: retries evaluations that are blocked by a quota once the quota has capacity again.

`controllers.quotas` decides which evaluations to retry.
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
    """Retries evaluations that a quota blocked."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Retry evaluations that a quota blocked, while the brain leads, whenever a quota may have capacity again."""
        await run_watch_loop(self._brain, list_watched=self._list_watched, run_pass=self._retry_all)

    async def _retry_all(self) -> None:
        """Unblock evaluations whose quota has capacity, one write at a time, until none is left."""
        while await self._brain.execute_if_due(
            self._retry_evaluations, is_long=True
        ):  # Reads all allocations of a namespace.
            pass

    def _list_watched(self) -> list[WatchTarget]:
        """Return what to watch. Allocations are watched only while an evaluation waits for a quota."""
        watched = [
            watches.watch_table(QUOTAS),
            watches.watch_table(NAMESPACES),
            watches.watch_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED),
        ]
        return (
            [*watched, watches.watch_table(ALLOCATIONS)]
            if quotas.list_waiting_evaluations(self._brain.replica)
            else watched
        )

    def _retry_evaluations(self, snapshot: Replica, context: DecisionContext) -> Decision[bool] | None:
        """Return the decision to unblock the evaluations whose quota has capacity; `None` if there are none."""
        evaluations = quotas.select_retries(snapshot, self._brain.max_evaluations)
        return (
            Decision(unblock_evaluations(snapshot, evaluations, context), lambda _index: True) if evaluations else None
        )
