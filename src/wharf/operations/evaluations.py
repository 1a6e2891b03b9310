"""What happens to evaluations beside being processed."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.model.job import Job
from wharf.model.machine import advance
from wharf.model.moment import Moment
from wharf.model.node import Node
from wharf.model.transitions import EVALUATION
from wharf.state import Replica
from wharf.state.tables import EVALUATIONS, JOBS

DELIVERIES_MAX: Final = 3
"""How often an evaluation is given to the scheduler before it is failed."""


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


def reach_delivery_limit(snapshot: Replica, evaluation: Evaluation, why: str, moment: Moment, *, wait_ns: int) -> Write:
    """It could not be processed, time after time: it ends, and another begins after a while if there is a job still."""
    text = f"evaluation reached delivery limit ({DELIVERIES_MAX}): {why}"
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or evaluation.type is SchedulerType.CORE:
        return fail(snapshot, evaluation, text, moment)
    follow_up = replace(
        new_evaluation(
            job,
            moment,
            EvaluationTrigger.FAILED_FOLLOW_UP,
            priority=evaluation.priority,
            scheduler=evaluation.type,
        ),
        wait=wait_ns,
        previous_eval=evaluation.id,
    )
    failing = fail(snapshot, replace(evaluation, next_eval=follow_up.id), text, moment)
    return replace(failing, changes=[*failing.changes, EVALUATIONS.put(follow_up)])


def give_up_trying(snapshot: Replica, evaluation: Evaluation, attempts: int, moment: Moment) -> Write:
    """Its plans met too many conflicts: it ends, and is followed by one that waits for a quieter time."""
    text = f"maximum attempts reached ({attempts})"
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None:
        return fail(snapshot, evaluation, text, moment)
    trigger = EvaluationTrigger.MAX_PLAN_ATTEMPTS
    blocked = replace(
        new_evaluation(job, moment, trigger, priority=evaluation.priority, scheduler=evaluation.type),
        status=EvaluationStatus.BLOCKED,
        status_description="created due to placement conflicts",
        previous_eval=evaluation.id,
        failed_tg_allocs=evaluation.failed_tg_allocs,
        escaped_computed_class=True,
        snapshot_index=snapshot.index,
    )
    failing = fail(snapshot, replace(evaluation, blocked_eval=blocked.id), text, moment)
    return replace(failing, changes=[*failing.changes, EVALUATIONS.put(blocked)])


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


def reserve(snapshot: Replica, waiting: Evaluation, node_id: str) -> Write:
    """The room of this node is kept for what has waited too long; no node: nothing is kept for it any more."""
    return Write(
        "room-reserved",
        Cause(CauseKind.TIMER, "reserve"),
        [EVALUATIONS.put(replace(waiting, reserved_node_id=node_id))],
        [snapshot.unchanged(EVALUATIONS, waiting)],
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
