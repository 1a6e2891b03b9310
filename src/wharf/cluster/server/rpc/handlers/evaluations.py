"""What the leader answers about evaluations: deleting some moves the statuses of their jobs, which are its own."""

from functools import partial
from typing import Final

import msgspec

from wharf.cluster.operations import evaluations
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.evaluations import EvaluationDeletionResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.contract.model.times import DecisionContext


class DeleteEvaluationsRequest(msgspec.Struct, frozen=True):
    """`passes_over`: those that are unknown or still needed are left where they are, instead of refusing all."""

    ids: tuple[str, ...]
    passes_over: bool = False
    cause: str = ""


DELETE_EVALUATIONS: Final = RpcMethod("delete-evaluations", DeleteEvaluationsRequest, EvaluationDeletionResult)


class EvaluationHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def delete_evaluations(self, wanted: DeleteEvaluationsRequest) -> EvaluationDeletionResult:
        """In as many writes as it takes. All are judged before the first goes; from then on, what has come to be needed
        meanwhile stays."""
        deleted = await self._brain.execute(partial(self._part, wanted.ids, wanted.passes_over, wanted.cause))
        index, count, left = deleted.index, deleted.count, deleted.left
        while left:
            deleted = await self._brain.execute(partial(self._part, left, True, wanted.cause))
            index, count, left = max(index, deleted.index), count + deleted.count, deleted.left
        return EvaluationDeletionResult(index, count)

    def _part(
        self, ids: tuple[str, ...], passes_over: bool, cause: str, snapshot: Replica, moment: DecisionContext
    ) -> Decision[EvaluationDeletionResult]:
        return evaluations.delete_evaluations(
            snapshot, ids, moment, max_changes=self._brain.max_changes, should_skip_undeletable=passes_over, cause=cause
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    return ((DELETE_EVALUATIONS, EvaluationHandlers(brain).delete_evaluations),)
