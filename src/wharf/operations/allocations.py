"""What people do to allocations: have one stopped and started anew elsewhere.

Whether and where it starts again is decided by the evaluation that this makes; a request only leaves its marks.
"""

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import DesiredTransition
from wharf.model.changes import THIS, Cause, CauseKind, Drop, Put, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.moment import Moment
from wharf.model.refusal import unknown
from wharf.operations.decision import Decision
from wharf.operations.evaluations import new_evaluation
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, EVALUATIONS, JOBS


class Stopped(msgspec.Struct, frozen=True):
    index: int
    eval_id: str = ""


def stop(
    snapshot: Replica,
    allocation_id: str,
    moment: Moment,
    *,
    no_shutdown_delay: bool = False,
    reschedule: bool = False,
    cause: str = "",
) -> Decision[Stopped]:
    """Mark the allocation to be moved, and have its job evaluated, which stops it and places another.

    `reschedule`: the next one is to be found as after a failure. Of a job that is gone nothing is left to evaluate:
    the allocation is marked all the same.
    """
    allocation = snapshot.get(ALLOCATIONS, allocation_id)
    if allocation is None:
        raise unknown("allocation not found")
    transition = replace(
        allocation.desired_transition or DesiredTransition(),
        migrate=True,
        reschedule=reschedule,
        no_shutdown_delay=no_shutdown_delay,
    )
    # Its node must know: one that is stopping already need wait no longer.
    marked = replace(allocation, desired_transition=transition, alloc_modify_index=THIS, modify_time=moment.now_ns)
    changes: list[Put | Drop] = [ALLOCATIONS.put(marked)]
    job = snapshot.get(JOBS, allocation.namespace, allocation.job_id)
    trigger = EvaluationTrigger.ALLOC_RESCHEDULE if reschedule else EvaluationTrigger.ALLOC_STOP
    evaluation = new_evaluation(job, moment, trigger) if job is not None else None
    if evaluation is not None:
        changes.append(EVALUATIONS.put(evaluation))
    return Decision(
        Write(
            "allocation-stopped",
            Cause(CauseKind.REQUEST, cause),
            changes,
            [snapshot.unchanged(ALLOCATIONS, allocation)],
        ),
        lambda index: Stopped(index, evaluation.id if evaluation is not None else ""),
    )
