"""What happens to evaluations beside being processed."""

from collections.abc import Sequence

from msgspec.structs import replace

from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.model.job import Job
from wharf.model.machine import advance
from wharf.model.moment import Moment
from wharf.model.node import Node
from wharf.model.transitions import EVALUATION
from wharf.state import Replica
from wharf.state.tables import EVALUATIONS


def fail(snapshot: Replica, evaluation: Evaluation, why: str, moment: Moment) -> Write:
    """It cannot be processed: it ends, and says so, instead of standing in the way of all others."""
    failed = replace(
        evaluation,
        status=advance(EVALUATION, evaluation.status, EvaluationStatus.FAILED, record_id=evaluation.id),
        status_description=why,
        modify_time=max(moment.now_ns, evaluation.create_time + 1),
    )
    return Write(
        "evaluation-failed",
        Cause(CauseKind.EVALUATION, evaluation.id),
        [EVALUATIONS.put(failed)],
        [snapshot.unchanged(EVALUATIONS, evaluation)],
    )


def unblock(snapshot: Replica, blocked: Sequence[Evaluation], moment: Moment) -> Write:
    """Room came free: these are tried again, under their own ids."""
    pending = [
        replace(
            each,
            status=advance(EVALUATION, each.status, EvaluationStatus.PENDING, record_id=each.id),
            modify_time=max(moment.now_ns, each.create_time + 1),
        )
        for each in blocked
    ]
    return Write(
        "evaluations-unblocked",
        Cause(CauseKind.TIMER, "unblock"),
        [EVALUATIONS.put(evaluation) for evaluation in pending],
        [snapshot.unchanged(EVALUATIONS, evaluation) for evaluation in blocked],
    )


def new_evaluation(
    job: Job,
    moment: Moment,
    trigger: EvaluationTrigger,
    *,
    priority: int | None = None,
    scheduler: SchedulerType | None = None,
    node: Node | None = None,
) -> Evaluation:
    """An open evaluation of the job: at its own priority and by its own scheduler, where nothing else is said."""
    return Evaluation(
        id=moment.new_id(),
        namespace=job.namespace,
        priority=job.priority if priority is None else priority,
        type=SchedulerType(job.type) if scheduler is None else scheduler,
        triggered_by=trigger,
        job_id=job.id,
        job_modify_index=job.job_modify_index,
        node_id=node.id if node else "",
        node_modify_index=THIS if node else 0,
        status=EvaluationStatus.PENDING,
        create_index=THIS,
        create_time=moment.now_ns,
        modify_time=moment.now_ns,
    )
