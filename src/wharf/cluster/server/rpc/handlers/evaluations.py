"""RPC handlers for evaluations. Deleting evaluations can change job statuses, which only the leader writes."""

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
    """A request to delete evaluations by id."""

    ids: tuple[str, ...]
    passes_over: bool = False
    """Whether to skip evaluations that are unknown or still needed, instead of refusing the whole request."""
    cause: str = ""
    """The id of the HTTP request."""


DELETE_EVALUATIONS: Final = RpcMethod("delete-evaluations", DeleteEvaluationsRequest, EvaluationDeletionResult)


MAX_EVALUATIONS_ON_LOOP: Final = 500
"""Deletions of more evaluations are decided off the event loop."""


class EvaluationHandlers:
    """Handles the calls of other servers and processes that concern evaluations."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def delete_evaluations(self, request: DeleteEvaluationsRequest) -> EvaluationDeletionResult:
        """Delete the evaluations, in as many writes as needed. Return their number and the index of the last write.

        All of them are checked before the first write. In later writes, evaluations that are needed again are skipped.
        """
        delete_first = partial(self._delete_some, request.ids, request.passes_over, request.cause)
        deleted = await self._brain.execute(delete_first, is_long=len(request.ids) > MAX_EVALUATIONS_ON_LOOP)
        index, count, remaining = deleted.index, deleted.count, deleted.left
        while remaining:
            delete_next = partial(self._delete_some, remaining, True, request.cause)
            deleted = await self._brain.execute(delete_next, is_long=len(remaining) > MAX_EVALUATIONS_ON_LOOP)
            index, count, remaining = max(index, deleted.index), count + deleted.count, deleted.left
        return EvaluationDeletionResult(index, count)

    def _delete_some(
        self, ids: tuple[str, ...], passes_over: bool, cause: str, snapshot: Replica, context: DecisionContext
    ) -> Decision[EvaluationDeletionResult]:
        """Return the decision to delete as many of the evaluations as fit in one write."""
        return evaluations.delete_evaluations(
            snapshot,
            ids,
            context,
            max_changes=self._brain.max_changes,
            should_skip_undeletable=passes_over,
            cause=cause,
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of evaluations with their handlers."""
    return ((DELETE_EVALUATIONS, EvaluationHandlers(brain).delete_evaluations),)
