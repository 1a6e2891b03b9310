"""Watches over quotas that are used up: when there is room again, what waits for it is tried.

One of the leader's duties. Whether there is room is told by `controllers.quotas`.
"""

from wharf.controllers import quotas
from wharf.model.evaluation import EvaluationStatus
from wharf.model.moment import Moment
from wharf.operations.decision import Decision
from wharf.operations.evaluations import unblock
from wharf.server.brain import Brain
from wharf.server.leading.watching import watch
from wharf.state import Replica, Watched, watches
from wharf.state.tables import ALLOCATIONS, EVALUATIONS_BY_STATUS, NAMESPACES, QUOTAS


class QuotaWatch:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        await watch(self._brain, watched=self._watched, look=self._try_all)

    async def _try_all(self) -> None:
        while await self._brain.act(self._try):
            pass

    def _watched(self) -> list[Watched]:
        """Work that ends is of interest only while something waits for it."""
        watched = [
            watches.whole(QUOTAS),
            watches.whole(NAMESPACES),
            watches.those(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED),
        ]
        return [*watched, watches.whole(ALLOCATIONS)] if quotas.waiting(self._brain.follower.replica) else watched

    def _try(self, snapshot: Replica, moment: Moment) -> Decision[bool] | None:
        found = quotas.to_try(snapshot, self._brain.evaluations_max)
        return Decision(unblock(snapshot, found, moment), lambda _index: True) if found else None
