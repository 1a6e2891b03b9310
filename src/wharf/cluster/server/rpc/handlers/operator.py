"""RPC handlers for maintenance: garbage collection and recomputing job summaries.

Both use many small writes, so that the leader can do other work in between and an interruption leaves a consistent
state.
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
from wharf.contract.model.refusal import no_leader
from wharf.contract.model.times import DecisionContext

SCANNED_JOBS_PER_STEP: Final = 500
"""Limits how long one step of recomputing summaries holds the event loop of the leader."""

CHANGES_PER_SUMMARY: Final = 2
"""Conditions of one summary: the job and the summary have not changed since they were read."""


class MaintenanceRequest(msgspec.Struct, frozen=True):
    """A request to start maintenance work on the leader."""

    cause: str = ""
    """The id of the HTTP request, stored with each write."""


class MaintenanceResult(msgspec.Struct, frozen=True):
    """What a maintenance request did."""

    index: int
    """Log index of the last write; 0 if nothing was written."""
    records: int
    """Number of deleted or rewritten records."""


COLLECT_GARBAGE: Final = RpcMethod("collect", MaintenanceRequest, MaintenanceResult)
RECONCILE_SUMMARIES: Final = RpcMethod("reconcile-summaries", MaintenanceRequest, MaintenanceResult)


class OperatorHandlers:
    """Handles the calls of other servers and processes that maintain the cluster, such as garbage collection."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def collect_garbage(self, request: MaintenanceRequest) -> MaintenanceResult:
        """Delete all finished jobs, evaluations, deployments and nodes, regardless of their age."""
        deleted_count, index = 0, 0
        for kind in CollectionKind:
            while step := await self._collect_some(kind, Cause(CauseKind.REQUEST, request.cause)):
                deleted_count, index = deleted_count + step.deleted_count, step.index
        if not self._brain.is_leading:
            raise no_leader()  # What this server found in its replica may be outdated.
        return MaintenanceResult(index, deleted_count)

    async def _collect_some(self, kind: CollectionKind, cause: Cause) -> CollectionResult | None:
        """Delete as many finished records of this kind, such as jobs, as fit in one write. Return their count and index, or
        `None` if there are none."""
        # Each deleted record may change the status and the summary of a job.
        limit = max(1, self._brain.max_changes // CHANGES_PER_JOB)
        return await self._brain.execute_if_due(
            lambda snapshot, context: collect_garbage(
                snapshot, kind, context, retention_ns=0, max_changes=limit, cause=cause
            ),
            is_long=True,  # It reads a whole table.
        )

    async def reconcile_summaries(self, request: MaintenanceRequest) -> MaintenanceResult:
        """Recompute all job summaries and rewrite those that are wrong, in as many writes as needed."""
        next_key, written_count, index = "", 0, 0
        limit = max(1, self._brain.max_changes // CHANGES_PER_SUMMARY)
        scanned_key = ""

        def reconcile_some(snapshot: Replica, _context: DecisionContext) -> Decision[SummaryReconciliation]:
            nonlocal scanned_key
            decision = reconcile_summaries(
                snapshot,
                after_key=next_key,
                max_summaries=limit,
                max_scanned_jobs=SCANNED_JOBS_PER_STEP,
                cause=request.cause,
            )
            scanned_key = decision.build_reply(0).next_key
            return decision

        while True:
            # Long, because a job may have 50,000 allocations.
            step = await self._brain.execute_if_due(reconcile_some, is_long=True)
            next_key = scanned_key
            if step is not None:
                written_count, index = written_count + step.written_count, step.index
            if not next_key:
                break
        if not self._brain.is_leading:
            raise no_leader()  # What this server found in its replica may be outdated.
        return MaintenanceResult(index, written_count)


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of maintenance with their handlers."""
    handlers = OperatorHandlers(brain)
    return ((COLLECT_GARBAGE, handlers.collect_garbage), (RECONCILE_SUMMARIES, handlers.reconcile_summaries))
