"""What people do to allocations: have one stopped and started anew elsewhere.

Whether and where it starts again is decided by the evaluation that this makes; a request only leaves its marks.
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
    index: int
    eval_id: str = ""


def stop_allocation(
    snapshot: Replica,
    allocation_id: str,
    context: DecisionContext,
    *,
    should_skip_shutdown_delay: bool = False,
    should_reschedule: bool = False,
    cause: str = "",
) -> Decision[AllocationStopResult]:
    """Mark the allocation to be moved, and have its job evaluated, which stops it and places another.

    `reschedule`: the next one is to be found as after a failure. Of a job that is gone nothing is left to evaluate:
    the allocation is marked all the same.
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
    # Its node must know: one that is stopping already need wait no longer.
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
