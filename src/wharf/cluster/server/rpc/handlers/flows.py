"""RPC handlers for flows and runs. The leader decides about them, because it counts the runs of a flow."""

from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs import backfill
from wharf.cluster.operations.jobs.backfill import BackfillRequest, BackfillSlot
from wharf.cluster.operations.jobs.children import ChildJobResult, has_large_children
from wharf.cluster.operations.jobs.overlap import require_no_other_run
from wharf.cluster.operations.jobs.run_retry import RetryResult, RunRetry, retry_run
from wharf.cluster.operations.jobs.runs import GateAnswer, RunCancellation, RunResult, answer_gate, cancel_run
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.times import DecisionContext


class LaunchSlotRequest(msgspec.Struct, frozen=True):
    """A request to create the run of one slot of a backfill."""

    backfill: BackfillRequest
    slot: BackfillSlot
    settings: JobSettings


class CancelRunRequest(msgspec.Struct, frozen=True):
    """A request to cancel a run."""

    cancellation: RunCancellation
    settings: JobSettings


class RetryRunRequest(msgspec.Struct, frozen=True):
    """A request to run steps of a run again."""

    retry: RunRetry
    settings: JobSettings


CANCEL_RUN: Final = RpcMethod("cancel-run", CancelRunRequest, RunResult)
ANSWER_GATE: Final = RpcMethod("answer-gate", GateAnswer, RunResult)
RETRY_RUN: Final = RpcMethod("retry-run", RetryRunRequest, RetryResult)
LAUNCH_SLOT: Final = RpcMethod("launch-slot", LaunchSlotRequest, ChildJobResult)


class FlowHandlers:
    """Handles the calls of other servers and processes that concern flows."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def cancel_run(self, request: CancelRunRequest) -> RunResult:
        """Cancel a run."""
        return await self._brain.execute(
            lambda snapshot, context: cancel_run(snapshot, request.cancellation, context, request.settings)
        )

    async def answer_gate(self, request: GateAnswer) -> RunResult:
        """Approve or reject the gate of a step."""
        return await self._brain.execute(lambda snapshot, context: answer_gate(snapshot, request, context))

    async def retry_run(self, request: RetryRunRequest) -> RetryResult:
        """Run steps of a run again, unless that would overlap with another run of its flow."""

        def retry(snapshot: Replica, context: DecisionContext) -> Decision[RetryResult]:
            require_no_other_run(snapshot, request.retry.namespace, request.retry.job_id)
            return retry_run(snapshot, request.retry, context, request.settings)

        return await self._brain.execute(retry)

    async def launch_slot(self, request: LaunchSlotRequest) -> ChildJobResult:
        """Create the run of a slot, unless it exists."""
        return await self._brain.execute(
            lambda snapshot, context: backfill.launch_slot(
                snapshot, request.backfill, request.slot, context, request.settings
            ),
            is_long=has_large_children(self._brain.replica, request.backfill.namespace, request.backfill.job_id),
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of flows with their handlers."""
    handlers = FlowHandlers(brain)
    return (
        (CANCEL_RUN, handlers.cancel_run),
        (ANSWER_GATE, handlers.answer_gate),
        (RETRY_RUN, handlers.retry_run),
        (LAUNCH_SLOT, handlers.launch_slot),
    )
