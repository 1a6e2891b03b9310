"""What people ask of the leader about all that is there: to tidy up at once, to count anew.

Both go step by step, each step a write of its own, so that the leader does other things in between and nothing is half
done where it is broken off.
"""

from typing import Final

import msgspec

from wharf.model.changes import Cause, CauseKind
from wharf.model.moment import Moment
from wharf.operations.collection import Collected, CollectionDone, collect
from wharf.operations.decision import Decision
from wharf.operations.summaries import SummariesReconciled, reconcile
from wharf.server.brain import Brain
from wharf.server.leading.term import CHANGES_A_JOB
from wharf.server.subject import AnsweredBy, Subject
from wharf.state import Replica

CHANGES_A_SUMMARY: Final = 2
"""The conditions of one: that job and summary are still those that were counted."""


class Tidying(msgspec.Struct, frozen=True):
    """`cause`: the request that asks for it."""

    cause: str = ""


class Tidied(msgspec.Struct, frozen=True):
    """How many records went or were written anew, and the index of the last write."""

    index: int
    records: int


COLLECT: Final = Subject("collect", Tidying, Tidied)
RECONCILE: Final = Subject("reconcile-summaries", Tidying, Tidied)


class System:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def collect(self, asked: Tidying) -> Tidied:
        """Whatever is over, regardless of its age."""
        taken, index = 0, 0
        for kind in Collected:
            while (step := await self._collect_some(kind, Cause(CauseKind.REQUEST, asked.cause))).taken:
                taken, index = taken + step.taken, step.index
        return Tidied(index, taken)

    async def _collect_some(self, kind: Collected, cause: Cause) -> CollectionDone:
        # Each record may take the status and the summary of a job with it.
        most = max(1, self._brain.changes_max // CHANGES_A_JOB)
        return await self._brain.decide(
            lambda snapshot, moment: collect(snapshot, kind, moment, older_than_ns=0, changes_max=most, cause=cause)
        )

    async def reconcile(self, asked: Tidying) -> Tidied:
        after, written, index = "", 0, 0
        most = max(1, self._brain.changes_max // CHANGES_A_SUMMARY)

        def count(snapshot: Replica, _moment: Moment) -> Decision[SummariesReconciled]:
            return reconcile(snapshot, after=after, summaries_max=most, cause=asked.cause)

        while True:
            step = await self._brain.decide(count)
            written, index, after = written + step.written, step.index, step.after
            if not after:
                return Tidied(index, written)


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    system = System(brain)
    return ((COLLECT, system.collect), (RECONCILE, system.reconcile))
