"""User requests about one allocation: stop it and let the scheduler replace it.

The request only sets the desired transition; the evaluation that it creates decides whether and where to place a
replacement.
"""

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import DesiredTransition
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import not_found
from wharf.contract.model.times import DecisionContext


class AllocationStopResult(msgspec.Struct, frozen=True):
    """The result of a request to stop an allocation."""

    index: int  # The log index of the write.
    eval_id: str = ""  # The evaluation that the write created; empty if the job no longer exists.


def stop_allocation(
    snapshot: Replica,
    allocation_id: str,
    context: DecisionContext,
    *,
    should_skip_shutdown_delay: bool = False,
    should_reschedule: bool = False,
    cause: str = "",
) -> Decision[AllocationStopResult]:
    """Return the decision that marks the allocation for migration and evaluates its job, so that the scheduler replaces
    it.

    With `should_reschedule`, the replacement is placed as after a failure. If the job no longer exists, the allocation
    is marked and nothing is evaluated. Raises not-found if the allocation does not exist.
    """
    allocation = snapshot.get(ALLOCATIONS, allocation_id)
    if allocation is None:
        raise not_found("allocation not found")
    transition = replace(
        allocation.desired_transition or DesiredTransition(),
        migrate=True,
        reschedule=should_reschedule,
        no_shutdown_delay=should_skip_shutdown_delay,
    )
    # The node must see this change too: an allocation that is already stopping can skip its shutdown delay.
    marked = replace(
        allocation, desired_transition=transition, alloc_modify_index=WRITE_INDEX, modify_time=context.now_ns
    )
    changes: list[PutRecord | DeleteRecord] = [ALLOCATIONS.build_put(marked)]
    job = snapshot.get(JOBS, allocation.namespace, allocation.job_id)
    trigger = EvaluationTrigger.ALLOC_RESCHEDULE if should_reschedule else EvaluationTrigger.ALLOC_STOP
    evaluation = make_evaluation(job, context, trigger) if job is not None else None
    if evaluation is not None:
        changes.append(EVALUATIONS.build_put(evaluation))
    return Decision(
        Write(
            "allocation-stopped",
            Cause(CauseKind.REQUEST, cause),
            changes,
            [snapshot.build_record_condition(ALLOCATIONS, allocation)],
        ),
        lambda index: AllocationStopResult(index, evaluation.id if evaluation is not None else ""),
    )
