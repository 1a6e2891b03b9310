"""What the leader answers about evaluations: deleting some moves the statuses of their jobs, which are its own."""

from functools import partial
from typing import Final

import msgspec

from wharf.model.moment import Moment
from wharf.operations import evaluation_deletion
from wharf.operations.decision import Decision
from wharf.operations.evaluation_deletion import EvaluationsDeleted
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject
from wharf.state import Replica


class EvaluationsToDelete(msgspec.Struct, frozen=True):
    """`passes_over`: those that are unknown or still needed are left where they are, instead of refusing all."""

    ids: tuple[str, ...]
    passes_over: bool = False
    cause: str = ""


DELETE_EVALUATIONS: Final = Subject("delete-evaluations", EvaluationsToDelete, EvaluationsDeleted)


class Evaluations:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def delete(self, wanted: EvaluationsToDelete) -> EvaluationsDeleted:
        """In as many writes as it takes. All are judged before the first goes; from then on, what has come to be needed
        meanwhile stays."""
        deleted = await self._brain.decide(partial(self._part, wanted.ids, wanted.passes_over, wanted.cause))
        index, count, left = deleted.index, deleted.count, deleted.left
        while left:
            deleted = await self._brain.decide(partial(self._part, left, True, wanted.cause))
            index, count, left = max(index, deleted.index), count + deleted.count, deleted.left
        return EvaluationsDeleted(index, count)

    def _part(
        self, ids: tuple[str, ...], passes_over: bool, cause: str, snapshot: Replica, moment: Moment
    ) -> Decision[EvaluationsDeleted]:
        return evaluation_deletion.delete(
            snapshot, ids, moment, changes_max=self._brain.changes_max, passes_over=passes_over, cause=cause
        )


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    return ((DELETE_EVALUATIONS, Evaluations(brain).delete),)
