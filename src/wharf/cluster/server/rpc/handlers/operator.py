"""What people ask of the leader about all that is there: to tidy up at once, to count anew.

Both go step by step, each step a write of its own, so that the leader does other things in between and nothing is half
done where it is broken off.
"""

from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs.summaries import SummaryReconciliation, reconcile_summaries
from wharf.cluster.operations.operator.collection import CollectionKind, CollectionResult, collect_garbage
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.leader.term import CHANGES_PER_JOB
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import DecisionContext

CHANGES_PER_SUMMARY: Final = 2
"""The conditions of one: that job and summary are still those that were counted."""


class MaintenanceRequest(msgspec.Struct, frozen=True):
    """`cause`: the request that asks for it."""

    cause: str = ""


class MaintenanceResult(msgspec.Struct, frozen=True):
    """How many records went or were written anew, and the index of the last write."""

    index: int
    records: int


COLLECT_GARBAGE: Final = RpcMethod("collect", MaintenanceRequest, MaintenanceResult)
RECONCILE_SUMMARIES: Final = RpcMethod("reconcile-summaries", MaintenanceRequest, MaintenanceResult)


class OperatorHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def collect_garbage(self, asked: MaintenanceRequest) -> MaintenanceResult:
        """Whatever is over, regardless of its age."""
        taken, index = 0, 0
        for kind in CollectionKind:
            while (step := await self._collect_some(kind, Cause(CauseKind.REQUEST, asked.cause))).deleted_count:
                taken, index = taken + step.deleted_count, step.index
        return MaintenanceResult(index, taken)

    async def _collect_some(self, kind: CollectionKind, cause: Cause) -> CollectionResult:
        # Each record may take the status and the summary of a job with it.
        most = max(1, self._brain.max_changes // CHANGES_PER_JOB)
        return await self._brain.execute(
            lambda snapshot, moment: collect_garbage(
                snapshot, kind, moment, retention_ns=0, max_changes=most, cause=cause
            )
        )

    async def reconcile_summaries(self, asked: MaintenanceRequest) -> MaintenanceResult:
        after, written, index = "", 0, 0
        most = max(1, self._brain.max_changes // CHANGES_PER_SUMMARY)

        def count(snapshot: Replica, _moment: DecisionContext) -> Decision[SummaryReconciliation]:
            return reconcile_summaries(snapshot, after_key=after, max_summaries=most, cause=asked.cause)

        while True:
            step = await self._brain.execute(count)
            written, index, after = written + step.written_count, step.index, step.next_key
            if not after:
                return MaintenanceResult(index, written)


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    system = OperatorHandlers(brain)
    return ((COLLECT_GARBAGE, system.collect_garbage), (RECONCILE_SUMMARIES, system.reconcile_summaries))
