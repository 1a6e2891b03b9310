"""What happens to evaluations beside being processed.

Deleting evaluations that nobody needs any more, before their time.

Only while the broker rests, so that none is taken away under the scheduler's hands. An evaluation is still needed as
long as it explains allocations that run, or that may yet be placed again.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS_OF_EVALUATION,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import EVALUATION_STATES
from wharf.contract.model.times import DecisionContext

MAX_DELIVERIES: Final = 3
"""How often an evaluation is given to the scheduler before it is failed."""


def fail_evaluation(snapshot: Replica, evaluation: Evaluation, reason: str, context: DecisionContext) -> Write:
    """It cannot be processed: it ends, and says so, instead of standing in the way of all others."""
    failed = replace(
        evaluation,
        status=advance_state(EVALUATION_STATES, evaluation.status, EvaluationStatus.FAILED, record_id=evaluation.id),
        status_description=reason,
        modify_time=max(context.now_ns, evaluation.create_time + 1),
    )
    return Write(
        "evaluation-failed",
        Cause(CauseKind.EVALUATION, evaluation.id),
        [EVALUATIONS.build_put(failed)],
        [snapshot.build_record_condition(EVALUATIONS, evaluation)],
    )


def fail_at_delivery_limit(
    snapshot: Replica, evaluation: Evaluation, reason: str, context: DecisionContext, *, delay_ns: int
) -> Write:
    """It could not be processed, time after time: it ends, and another begins after a while if there is a job still."""
    text = f"evaluation reached delivery limit ({MAX_DELIVERIES}): {reason}"
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or evaluation.type is SchedulerType.CORE:
        return fail_evaluation(snapshot, evaluation, text, context)
    follow_up = replace(
        make_evaluation(
            job,
            context,
            EvaluationTrigger.FAILED_FOLLOW_UP,
            priority=evaluation.priority,
            scheduler=evaluation.type,
        ),
        wait=delay_ns,
        previous_eval=evaluation.id,
    )
    failing = fail_evaluation(snapshot, replace(evaluation, next_eval=follow_up.id), text, context)
    return replace(failing, changes=[*failing.changes, EVALUATIONS.build_put(follow_up)])


def block_after_conflicts(snapshot: Replica, evaluation: Evaluation, attempts: int, context: DecisionContext) -> Write:
    """Its plans met too many conflicts: it ends, and is followed by one that waits for a quieter time."""
    text = f"maximum attempts reached ({attempts})"
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None:
        return fail_evaluation(snapshot, evaluation, text, context)
    trigger = EvaluationTrigger.MAX_PLAN_ATTEMPTS
    blocked = replace(
        make_evaluation(job, context, trigger, priority=evaluation.priority, scheduler=evaluation.type),
        status=EvaluationStatus.BLOCKED,
        status_description="created due to placement conflicts",
        previous_eval=evaluation.id,
        failed_tg_allocs=evaluation.failed_tg_allocs,
        escaped_computed_class=True,
        snapshot_index=snapshot.index,
    )
    failing = fail_evaluation(snapshot, replace(evaluation, blocked_eval=blocked.id), text, context)
    return replace(failing, changes=[*failing.changes, EVALUATIONS.build_put(blocked)])


def unblock_evaluations(snapshot: Replica, blocked: Sequence[Evaluation], context: DecisionContext) -> Write:
    """Room came free: these are tried again, under their own ids."""
    pending = [
        replace(
            each,
            status=advance_state(EVALUATION_STATES, each.status, EvaluationStatus.PENDING, record_id=each.id),
            modify_time=max(context.now_ns, each.create_time + 1),
        )
        for each in blocked
    ]
    return Write(
        "evaluations-unblocked",
        Cause(CauseKind.TIMER, "unblock"),
        [EVALUATIONS.build_put(evaluation) for evaluation in pending],
        [snapshot.build_record_condition(EVALUATIONS, evaluation) for evaluation in blocked],
    )


def reserve_node(snapshot: Replica, evaluation: Evaluation, node_id: str) -> Write:
    """The room of this node is kept for what has waited too long; no node: nothing is kept for it any more."""
    return Write(
        "room-reserved",
        Cause(CauseKind.TIMER, "reserve"),
        [EVALUATIONS.build_put(replace(evaluation, reserved_node_id=node_id))],
        [snapshot.build_record_condition(EVALUATIONS, evaluation)],
    )


def make_evaluation(
    job: Job,
    context: DecisionContext,
    trigger: EvaluationTrigger,
    *,
    priority: int | None = None,
    scheduler: SchedulerType | None = None,
    node: Node | None = None,
) -> Evaluation:
    """An open evaluation of the job: at its own priority and by its own scheduler, where nothing else is said."""
    return Evaluation(
        id=context.new_id(),
        namespace=job.namespace,
        priority=job.priority if priority is None else priority,
        type=SchedulerType(job.type) if scheduler is None else scheduler,
        triggered_by=trigger,
        job_id=job.id,
        job_modify_index=job.job_modify_index,
        node_id=node.id if node else "",
        node_modify_index=WRITE_INDEX if node else 0,
        status=EvaluationStatus.PENDING,
        create_index=WRITE_INDEX,
        create_time=context.now_ns,
        modify_time=context.now_ns,
    )


MAX_EVALUATION_IDS: Final = 7_281
CHANGES_PER_JOB: Final = 3
"""What settling a job may change that lost an evaluation: its status, its summary, its parent's."""


class EvaluationDeletionResult(msgspec.Struct, frozen=True):
    """`left`: those that did not fit in the write."""

    index: int
    count: int
    left: tuple[str, ...] = ()


def delete_evaluations(
    snapshot: Replica,
    ids: Sequence[str],
    context: DecisionContext,
    *,
    max_changes: int,
    should_skip_undeletable: bool = False,
    cause: str = "",
) -> Decision[EvaluationDeletionResult]:
    """Delete as many of these as one write takes.

    One that is unknown or still needed refuses them all. `passes_over`: it is left where it is instead.
    """
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None or not configuration.pause_eval_broker:
        raise invalid_request("eval broker is enabled; eval broker must be paused to delete evals")
    if len(ids) > MAX_EVALUATION_IDS:
        raise invalid_request(f"request includes {len(ids)} evaluation IDs, must be {MAX_EVALUATION_IDS} or fewer")
    found = _deletable(snapshot, ids, context) if should_skip_undeletable else _all_deletable(snapshot, ids, context)
    taken = _take_fitting(found, max_changes)
    if not taken:
        return Decision(None, lambda _index: EvaluationDeletionResult(0, 0))
    changes: list[PutRecord | DeleteRecord] = [EVALUATIONS.build_delete(evaluation.id) for evaluation in taken]
    conditions: list[Condition] = [snapshot.build_record_condition(EVALUATIONS, evaluation) for evaluation in taken]
    # A broker that is let go on meanwhile is in conflict.
    conditions.append(snapshot.build_record_condition(SCHEDULER_CONFIGURATION, configuration))
    left = tuple(evaluation.id for evaluation in found[len(taken) :])
    return Decision(
        Write("evaluations-deleted", Cause(CauseKind.OPERATOR, cause), changes, conditions),
        lambda index: EvaluationDeletionResult(index, len(taken), left),
    )


def is_evaluation_needed(snapshot: Replica, evaluation: Evaluation, now_ns: int) -> bool:
    """Whether something of it still runs, or may be placed again."""
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.stop or job.status is JobStatus.DEAD:
        return False
    placed = snapshot.list_by_index(ALLOCATIONS_OF_EVALUATION, evaluation.id)
    return any(
        allocation.client_status in (ClientStatus.RUNNING, ClientStatus.UNKNOWN)
        or can_be_rescheduled(snapshot, allocation, now_ns)
        for allocation in placed
    )


def can_be_rescheduled(snapshot: Replica, allocation: Allocation, now_ns: int) -> bool:
    """A failed one that has no successor yet, and whose group allows another try."""
    if allocation.client_status is not ClientStatus.FAILED or allocation.next_allocation:
        return False
    if allocation.is_server_terminal:
        return False
    job: Job | None = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    group = job.find_group(allocation.task_group) if job is not None else None
    policy = group.reschedule_policy if group is not None else None
    if policy is None or not policy.is_enabled:
        return False
    if policy.unlimited:
        return True
    events = allocation.reschedule_tracker.events if allocation.reschedule_tracker is not None else None
    if not events:
        return True
    return events[-1].reschedule_time + policy.interval > now_ns


def _all_deletable(snapshot: Replica, ids: Sequence[str], context: DecisionContext) -> list[Evaluation]:
    found = []
    for eval_id in dict.fromkeys(ids):
        evaluation = snapshot.get(EVALUATIONS, eval_id)
        if evaluation is None:
            raise not_found("eval not found")
        if is_evaluation_needed(snapshot, evaluation, context.now_ns):
            raise invalid_request(f"eval {eval_id} is not safe to delete: its allocations run, or may be placed again")
        found.append(evaluation)
    return found


def _deletable(snapshot: Replica, ids: Sequence[str], context: DecisionContext) -> list[Evaluation]:
    found = (snapshot.get(EVALUATIONS, eval_id) for eval_id in dict.fromkeys(ids))
    return [each for each in found if each is not None and not is_evaluation_needed(snapshot, each, context.now_ns)]


def _take_fitting(found: Sequence[Evaluation], max_changes: int) -> list[Evaluation]:
    """As many as fit in a write with what follows for their jobs."""
    taken: list[Evaluation] = []
    jobs: dict[tuple[str, str], None] = {}
    for evaluation in found:
        jobs[evaluation.namespace, evaluation.job_id] = None
        # One condition more: the scheduler's configuration.
        if len(taken) + 2 + CHANGES_PER_JOB * len(jobs) > max_changes:
            break
        taken.append(evaluation)
    return taken
