"""Create, fail, block, unblock and delete evaluations. How the scheduler processes an evaluation is not part of this.

Deletion requires that the broker is paused, so that no evaluation disappears while the scheduler works on it. An
evaluation is kept while its allocations run or may be rescheduled, because it explains them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import (
    ALLOCATIONS_OF_EVALUATION,
    EVALUATIONS,
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
from wharf.contract.model.times import DecisionContext, has_passed

MAX_DELIVERIES: Final = 3
"""Number of times an evaluation is handed to the scheduler before it is failed: a defect must not retry forever."""


def fail_evaluation(snapshot: Replica, evaluation: Evaluation, reason: str, context: DecisionContext) -> Write:
    """Return the write that marks an evaluation as failed, for this reason, so that it no longer blocks the queue."""
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
    """Return the write that fails an evaluation that was handed to the scheduler `MAX_DELIVERIES` times without
    success.

    If its job still exists, the write also creates a follow-up evaluation that becomes due after `delay_ns`.
    """
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
    failure_write = fail_evaluation(snapshot, replace(evaluation, next_eval=follow_up.id), text, context)
    return replace(failure_write, changes=[*failure_write.changes, EVALUATIONS.build_put(follow_up)])


def block_after_conflicts(snapshot: Replica, evaluation: Evaluation, attempts: int, context: DecisionContext) -> Write:
    """Return the write that fails an evaluation whose plans met too many conflicts, and creates a blocked one in its
    place.

    `attempts` is the number of plans, for the error text. If the job no longer exists, no other evaluation is created.
    """
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
    failure_write = fail_evaluation(snapshot, replace(evaluation, blocked_eval=blocked.id), text, context)
    return replace(failure_write, changes=[*failure_write.changes, EVALUATIONS.build_put(blocked)])


def unblock_evaluations(snapshot: Replica, blocked: Sequence[Evaluation], context: DecisionContext) -> Write:
    """Return the write that makes blocked evaluations pending again, under their own ids: capacity was freed."""
    pending = [
        replace(
            evaluation,
            status=advance_state(
                EVALUATION_STATES, evaluation.status, EvaluationStatus.PENDING, record_id=evaluation.id
            ),
            modify_time=max(context.now_ns, evaluation.create_time + 1),
        )
        for evaluation in blocked
    ]
    return Write(
        "evaluations-unblocked",
        Cause(CauseKind.TIMER, "unblock"),
        [EVALUATIONS.build_put(evaluation) for evaluation in pending],
        [snapshot.build_record_condition(EVALUATIONS, evaluation) for evaluation in blocked],
    )


def reserve_node(snapshot: Replica, evaluation: Evaluation, node_id: str) -> Write:
    """Return the write that reserves a node for a blocked evaluation that has waited too long.

    An empty `node_id` ends the reservation.
    """
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
    """Return a new pending evaluation of the job. Priority and scheduler default to those of the job.

    `node` is the node whose change causes the evaluation, if any.
    """
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
"""Maximum number of ids in one request, as in Nomad."""
CHANGES_PER_JOB: Final = 3
"""Derived changes for one job that loses an evaluation: its status, its summary, its parent's summary."""


class EvaluationDeletionResult(msgspec.Struct, frozen=True):
    """The result of a request to delete evaluations."""

    index: int  # The log index of the write; 0 if nothing was deleted.
    count: int  # How many evaluations were deleted.
    left: tuple[str, ...] = ()  # Ids that did not fit in the write.


def delete_evaluations(
    snapshot: Replica,
    ids: Sequence[str],
    context: DecisionContext,
    *,
    max_changes: int,
    should_skip_undeletable: bool = False,
    cause: str = "",
) -> Decision[EvaluationDeletionResult]:
    """Return the decision that deletes as many of these evaluations as fit in one write of `max_changes` changes.

    Raises if the broker is not paused, or if an evaluation is unknown or still needed. With `should_skip_undeletable`,
    such evaluations are skipped instead.
    """
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None or not configuration.pause_eval_broker:
        raise invalid_request("eval broker is enabled; eval broker must be paused to delete evals")
    if len(ids) > MAX_EVALUATION_IDS:
        raise invalid_request(f"request includes {len(ids)} evaluation IDs, must be {MAX_EVALUATION_IDS} or fewer")
    candidates = (
        _select_deletable(snapshot, ids, context)
        if should_skip_undeletable
        else _require_deletable(snapshot, ids, context)
    )
    deletable = _take_fitting(candidates, max_changes)
    if not deletable:
        return Decision(None, lambda _index: EvaluationDeletionResult(0, 0))
    changes: list[PutRecord | DeleteRecord] = [EVALUATIONS.build_delete(evaluation.id) for evaluation in deletable]
    conditions: list[Condition] = [snapshot.build_record_condition(EVALUATIONS, evaluation) for evaluation in deletable]
    # If the broker is resumed meanwhile, the write conflicts and deletes nothing.
    conditions.append(snapshot.build_record_condition(SCHEDULER_CONFIGURATION, configuration))
    left = tuple(evaluation.id for evaluation in candidates[len(deletable) :])
    return Decision(
        Write("evaluations-deleted", Cause(CauseKind.OPERATOR, cause), changes, conditions),
        lambda index: EvaluationDeletionResult(index, len(deletable), left),
    )


def is_evaluation_needed(snapshot: Replica, evaluation: Evaluation, now_ns: int) -> bool:
    """Return whether an allocation of this evaluation runs or may be rescheduled.

    False if the job is stopped or dead.
    """
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
    """Return whether garbage collection must retain this failed allocation, because it may still be replaced.

    It must not be stopped or replaced, and its group must have a reschedule policy. With unlimited attempts it may always
    be replaced. With limited attempts it may be replaced until the interval of the policy has passed since the last
    attempt; the attempts themselves are not counted here.
    """
    if allocation.client_status is not ClientStatus.FAILED or allocation.next_allocation:
        return False
    if allocation.is_server_terminal:
        return False
    job = find_allocation_job(snapshot, allocation)
    group = job.find_group(allocation.task_group) if job is not None else None
    policy = group.reschedule_policy if group is not None else None
    if policy is None or not policy.is_enabled:
        return False
    if policy.unlimited:
        return True
    events = allocation.reschedule_tracker.events if allocation.reschedule_tracker is not None else None
    if not events:
        return True
    return not has_passed(events[-1].reschedule_time + policy.interval, policy.interval, now_ns)


def _require_deletable(snapshot: Replica, ids: Sequence[str], context: DecisionContext) -> list[Evaluation]:
    """Return the evaluations with these ids. Raises if one of them does not exist or is still needed."""
    candidates = []
    for eval_id in dict.fromkeys(ids):
        evaluation = snapshot.get(EVALUATIONS, eval_id)
        if evaluation is None:
            raise not_found("eval not found")
        if is_evaluation_needed(snapshot, evaluation, context.now_ns):
            raise invalid_request(f"eval {eval_id} is not safe to delete: its allocations run, or may be rescheduled")
        candidates.append(evaluation)
    return candidates


def _select_deletable(snapshot: Replica, ids: Sequence[str], context: DecisionContext) -> list[Evaluation]:
    """Return the evaluations with these ids that exist and are no longer needed."""
    candidates = (snapshot.get(EVALUATIONS, eval_id) for eval_id in dict.fromkeys(ids))
    return [
        evaluation
        for evaluation in candidates
        if evaluation is not None and not is_evaluation_needed(snapshot, evaluation, context.now_ns)
    ]


def _take_fitting(candidates: Sequence[Evaluation], max_changes: int) -> list[Evaluation]:
    """Return the first of these evaluations whose deletion fits in `max_changes`, including the derived changes of
    their jobs.
    """
    deletable: list[Evaluation] = []
    jobs: dict[tuple[str, str], None] = {}
    for evaluation in candidates:
        jobs[evaluation.namespace, evaluation.job_id] = None
        # The write has one more condition: the scheduler configuration.
        if len(deletable) + 2 + CHANGES_PER_JOB * len(jobs) > max_changes:
            break
        deletable.append(evaluation)
    return deletable
