"""Requests that change a deployment: fail, pause, resume, promote, unblock, and set the health of allocations.

Only the leader decides them, because it maintains the counts and statuses of deployments. A deployment in a terminal
status never changes again.
"""

import datetime
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_state import add_duration, get_allocation_health
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.rollback import Rollback, roll_back_job
from wharf.cluster.scheduling.reconcile.deployment import describe_running
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation, AllocDeploymentStatus, DesiredTransition
from wharf.contract.model.body_limits import MAX_REPORTED_PROBLEMS, cut_echo
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import DEPLOYMENT_STATES
from wharf.contract.model.times import DecisionContext, to_datetime

PAUSED_DESCRIPTION: Final = "Deployment is paused"
UNBLOCKING_DESCRIPTION: Final = "Deployment is unblocking remaining regions"
MARKED_FAILED_DESCRIPTION: Final = "Deployment marked as failed"
PROGRESS_DEADLINE_DESCRIPTION: Final = "Failed due to progress deadline"
UNHEALTHY_DESCRIPTION: Final = "Failed due to unhealthy allocations"

CHANGES_BESIDE_ALLOCATIONS: Final = 2
"""Changes that a write needs besides its allocations: the deployment and the evaluation."""


class DeploymentWriteResult(msgspec.Struct, frozen=True):
    """The result of a request that changes a deployment."""

    index: int  # The log index of the write.
    deployment_modify_index: int  # The modify index of the deployment afterwards.
    eval_id: str = ""  # The evaluation of the job that was created, if any.
    eval_create_index: int = 0  # The log index of that evaluation.
    reverted_job_version: int | None = None  # The version to which the job was rolled back, if it was.
    is_done: bool = True  # False: one write could not mark all allocations; the caller repeats the request.


DeploymentDecision = Decision[DeploymentWriteResult]


def fail_deployment(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    max_versions: int,
    cause: str = "",
) -> DeploymentDecision:
    """Return the decision that fails the deployment at a user's request.

    If any of its groups has auto-revert, the job reverts to its newest stable version, and `max_versions` of its
    versions are retained. Raises if the deployment does not exist or has ended.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "fail")
    should_revert = any(group.auto_revert for group in _get_groups(deployment).values())
    rollback = roll_back_job(snapshot, deployment, context, max_versions=max_versions) if should_revert else None
    return _build_failure_decision(
        snapshot, deployment, context, reason=MARKED_FAILED_DESCRIPTION, rollback=rollback, cause=cause
    )


def fail_deployment_for_groups(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    reason: str,
    groups: Iterable[str],
    max_versions: int,
) -> DeploymentDecision:
    """Return the decision that fails the deployment because of these groups, with `reason` as its status description.

    If one of these `groups` has auto-revert, the job reverts to its newest stable version, and `max_versions` of its
    versions are retained.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "fail")
    known_groups = _get_groups(deployment)
    should_revert = any(known_groups[name].auto_revert for name in groups if name in known_groups)
    rollback = roll_back_job(snapshot, deployment, context, max_versions=max_versions) if should_revert else None
    return _build_failure_decision(snapshot, deployment, context, reason=reason, rollback=rollback, cause="")


def continue_deployment(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    allocations_to_retry: Sequence[Allocation] = (),
    max_changes: int,
) -> DeploymentDecision:
    """Return the decision that evaluates the job of the deployment and lets the scheduler replace failed allocations.

    Of `allocations_to_retry`, the first ones are marked for replacement, as many as fit in one write (`max_changes`).
    Nothing is written if the job no longer exists.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "go on with")
    marked = [
        replace(
            allocation,
            desired_transition=replace(allocation.desired_transition or DesiredTransition(), reschedule=True),
            alloc_modify_index=WRITE_INDEX,
            modify_time=context.now_ns,
        )
        for allocation in allocations_to_retry[: max(1, max_changes - CHANGES_BESIDE_ALLOCATIONS)]
    ]
    evaluation = _make_deployment_evaluation(snapshot, deployment, context, None)
    if evaluation is None:
        return Decision(None, lambda index: DeploymentWriteResult(index, deployment.modify_index))
    write = Write(
        "deployment-watched",
        Cause(CauseKind.TIMER, deployment.id),
        [*(ALLOCATIONS.build_put(allocation) for allocation in marked), EVALUATIONS.build_put(evaluation)],
        [
            snapshot.build_key_condition(DEPLOYMENTS, deployment.id),
            *(snapshot.build_record_condition(ALLOCATIONS, allocation) for allocation in marked),
        ],
    )
    return Decision(write, lambda index: DeploymentWriteResult(index, deployment.modify_index, evaluation.id, index))


def reset_progress_deadlines(snapshot: Replica, deployment_id: str, context: DecisionContext) -> DeploymentDecision:
    """Return the decision that restarts the progress deadline of every group from the current time."""
    deployment = _get_active_deployment(snapshot, deployment_id, "go on with")
    restarted = restart_progress_deadlines(deployment, context)
    return _build_decision("deployment-timed-anew", snapshot, restarted, context, cause="", should_evaluate=False)


def restart_progress_deadlines(deployment: Deployment, context: DecisionContext) -> Deployment:
    """Return the deployment with the progress deadline of every group counted from now."""
    return replace(deployment, task_groups=_restart_groups(deployment, context), modify_time=context.now_ns)


def pause_deployment(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, cause: str = ""
) -> DeploymentDecision:
    """Return the decision that pauses the deployment: nothing is placed for it and no deadline applies until it is
    resumed.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "pause")
    paused = replace(
        _set_status(deployment, DeploymentStatus.PAUSED, PAUSED_DESCRIPTION, context),
        task_groups=_restart_groups(deployment, context),
    )
    return _build_decision("deployment-paused", snapshot, paused, context, cause=cause, should_evaluate=False)


def resume_deployment(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, cause: str = ""
) -> DeploymentDecision:
    """Return the decision that resumes the deployment and restarts the progress deadline of every group."""
    deployment = _get_active_deployment(snapshot, deployment_id, "resume")
    running = replace(
        _set_status(deployment, DeploymentStatus.RUNNING, describe_running_deployment(deployment), context),
        task_groups=_restart_groups(deployment, context),
    )
    return _build_decision("deployment-resumed", snapshot, running, context, cause=cause)


def promote_deployment(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    should_promote_all: bool,
    groups: Sequence[str] = (),
    max_changes: int,
    cause: str = "",
) -> DeploymentDecision:
    """Return the decision that promotes the canaries of these groups, or of all groups.

    Raises if too few canaries are healthy. The canary flag of the allocations is cleared first, in several writes if
    there are many (`max_changes` each). The deployment still lists its canaries, so repeating the request completes a
    promotion that was interrupted.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "promote")
    promoted = _list_groups_to_promote(deployment, should_promote_all, groups)
    problems = [text for name, group in promoted.items() if (text := _describe_missing_canaries(snapshot, name, group))]
    if problems:
        raise invalid_request("\n".join(problems[:MAX_REPORTED_PROBLEMS]))
    marked = [
        allocation
        for group in promoted.values()
        for allocation in _list_canaries(snapshot, group)
        if _is_flagged_canary(allocation)
    ]
    unmarked = [_clear_canary_flag(allocation, context) for allocation in marked]
    if marked and len(marked) + CHANGES_BESIDE_ALLOCATIONS > max_changes:
        return _build_partial_decision("canaries-promoted", snapshot, deployment, unmarked[:max_changes], cause=cause)
    groups_after = {
        name: replace(group, promoted=True, require_progress_by=_compute_progress_deadline(group, context))
        if name in promoted
        else group
        for name, group in _get_groups(deployment).items()
    }
    deployment = replace(deployment, task_groups=groups_after, modify_time=context.now_ns)
    if deployment.status is DeploymentStatus.RUNNING:
        deployment = replace(deployment, status_description=describe_running_deployment(deployment))
    return _build_decision("deployment-promoted", snapshot, deployment, context, allocations=unmarked, cause=cause)


def unblock_deployment(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, cause: str = ""
) -> DeploymentDecision:
    """Return the decision that lets the other regions of the job continue.

    A deployment that is not blocked does not change.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "unblock")
    if deployment.status is not DeploymentStatus.BLOCKED:
        return Decision(None, lambda index: DeploymentWriteResult(index, deployment.modify_index))
    unblocking = _set_status(deployment, DeploymentStatus.UNBLOCKING, UNBLOCKING_DESCRIPTION, context)
    return _build_decision("deployment-unblocked", snapshot, unblocking, context, cause=cause)


def set_allocation_health(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    healthy: Sequence[str] = (),
    unhealthy: Sequence[str] = (),
    max_changes: int,
    max_versions: int,
    cause: str = "",
) -> DeploymentDecision:
    """Return the decision that sets the health of allocations as the user reports it.

    An unhealthy allocation fails the deployment. If the allocations exceed one write (`max_changes`), only the first
    ones are marked, without failing the deployment; the caller then repeats the request.
    """
    deployment = _get_active_deployment(snapshot, deployment_id, "set health of allocations for a")
    reported_health = _list_reported_health(snapshot, deployment, healthy, unhealthy)
    changed_health = [
        (allocation, is_healthy)
        for allocation, is_healthy in reported_health
        if get_allocation_health(allocation) is not is_healthy
    ]
    # A request may name 10,000 allocations, of which this write changes the first ones.
    changed_allocations = [_set_health(*changed, context) for changed in changed_health[:max_changes]]
    groups = _get_groups(deployment)
    unhealthy_groups = {allocation.task_group for allocation, is_healthy in reported_health if not is_healthy}
    should_revert = any(name in unhealthy_groups and group.auto_revert for name, group in groups.items())
    rollback = roll_back_job(snapshot, deployment, context, max_versions=max_versions) if should_revert else None
    other_change_count = CHANGES_BESIDE_ALLOCATIONS + (len(rollback.changes) if rollback is not None else 0)
    if changed_health and len(changed_health) + other_change_count > max_changes:
        return _build_partial_decision("allocation-health", snapshot, deployment, changed_allocations, cause=cause)
    if not unhealthy_groups:
        return _build_decision(
            "allocation-health", snapshot, deployment, context, allocations=changed_allocations, cause=cause
        )
    return _build_failure_decision(
        snapshot,
        deployment,
        context,
        reason=UNHEALTHY_DESCRIPTION,
        rollback=rollback,
        allocations=changed_allocations,
        cause=cause,
    )


def describe_running_deployment(deployment: Deployment) -> str:
    """Return the status description of a running deployment, which says whether it waits for promotion."""
    return describe_running(_get_groups(deployment).values())


# -- checks of the request -------------------------------------------------------------------------------------------


def _get_active_deployment(snapshot: Replica, deployment_id: str, verb: str) -> Deployment:
    """Return the deployment. Raises if it does not exist or is terminal; `verb` names the request in the error."""
    deployment = snapshot.get(DEPLOYMENTS, deployment_id)
    if deployment is None:
        raise not_found("deployment not found")
    if not deployment.is_active:
        raise invalid_request(f"can't {verb} terminal deployment")
    return deployment


def _get_groups(deployment: Deployment) -> dict[str, DeploymentGroup]:
    """Return the state of each group in the deployment, by group name."""
    return deployment.task_groups or {}


def _list_groups_to_promote(
    deployment: Deployment, should_promote_all: bool, names: Sequence[str]
) -> dict[str, DeploymentGroup]:
    """Return the groups whose canaries to promote, by name. Raises if a name is unknown or no group awaits promotion."""
    groups = _get_groups(deployment)
    if not should_promote_all and not names:
        raise invalid_request("nothing to promote: set All, or list the Groups")
    unknown_names = [] if should_promote_all else [name for name in dict.fromkeys(names) if name not in groups]
    if unknown_names:
        known_groups = ", ".join(f'"{name}"' for name in groups)
        raise invalid_request(
            f'deployment has no task group "{cut_echo(unknown_names[0])}"; its groups are {cut_echo(known_groups)}'
        )
    chosen = groups if should_promote_all else dict.fromkeys(names)
    promoted = {name: groups[name] for name in chosen if groups[name].is_awaiting_promotion}
    if not promoted:
        raise invalid_request("nothing to promote: no canaries of these groups await promotion")
    return promoted


def _describe_missing_canaries(snapshot: Replica, name: str, group: DeploymentGroup) -> str:
    """Return an error text if fewer canaries of the group are healthy than desired, else an empty text."""
    healthy_canaries = [
        allocation
        for allocation in _list_canaries(snapshot, group)
        if get_allocation_health(allocation) and not allocation.is_terminal
    ]
    if len(healthy_canaries) >= group.desired_canaries:
        return ""
    return f'Task group "{name}" has {len(healthy_canaries)}/{group.desired_canaries} healthy allocations'


def _list_canaries(snapshot: Replica, group: DeploymentGroup) -> list[Allocation]:
    """Return the canaries of the group whose allocations still exist."""
    found = (snapshot.get(ALLOCATIONS, allocation_id) for allocation_id in group.placed_canaries or ())
    return [allocation for allocation in found if allocation is not None]


def _list_reported_health(
    snapshot: Replica, deployment: Deployment, healthy: Sequence[str], unhealthy: Sequence[str]
) -> list[tuple[Allocation, bool]]:
    """Return the allocations of these ids, each with the health that the user reports: `True` is healthy.

    Raises if there are no ids, if an id is in both lists, or if it is not an allocation of this deployment.
    """
    if not healthy and not unhealthy:
        raise invalid_request("must specify at least one healthy/unhealthy allocation ID")
    contradictory_ids = set(healthy) & set(unhealthy)
    if contradictory_ids:
        raise invalid_request(
            f'allocation "{cut_echo(min(contradictory_ids))}" cannot be healthy and unhealthy at once'
        )
    reported_health = []
    for allocation_id, is_healthy in dict.fromkeys(
        (*_pair_with_health(healthy, True), *_pair_with_health(unhealthy, False))
    ):
        allocation = snapshot.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            raise invalid_request(f'unknown alloc "{cut_echo(allocation_id)}"')
        if allocation.deployment_id != deployment.id:
            raise invalid_request(f'alloc "{allocation_id}" not part of deployment "{deployment.id}"')
        reported_health.append((allocation, is_healthy))
    return reported_health


def _pair_with_health(ids: Iterable[str], is_healthy: bool) -> list[tuple[str, bool]]:
    """Return a pair (allocation id, `is_healthy`) for each id."""
    return [(allocation_id, is_healthy) for allocation_id in ids]


# -- building the changes --------------------------------------------------------------------------------------------


def _set_status(
    deployment: Deployment, status: DeploymentStatus, description: str, context: DecisionContext
) -> Deployment:
    """Return the deployment with this status and description.

    Raises `InvalidTransition` if the state table does not allow the change.
    """
    return replace(
        deployment,
        status=advance_state(DEPLOYMENT_STATES, deployment.status, status, record_id=deployment.id),
        status_description=description,
        modify_time=context.now_ns,
    )


def _compute_progress_deadline(group: DeploymentGroup, context: DecisionContext) -> datetime.datetime | None:
    """Return the time by which the group must make progress, counted from now, or `None` if it has no deadline."""
    return add_duration(to_datetime(context.now_ns), group.progress_deadline) if group.progress_deadline else None


def _restart_groups(deployment: Deployment, context: DecisionContext) -> dict[str, DeploymentGroup] | None:
    """Return the groups of the deployment with their progress deadlines counted from now, or `None` if it has none."""
    if deployment.task_groups is None:
        return None
    return {
        name: replace(group, require_progress_by=_compute_progress_deadline(group, context))
        for name, group in deployment.task_groups.items()
    }


def _is_flagged_canary(canary: Allocation) -> bool:
    """Return whether the allocation has the canary flag, which it loses when it is promoted."""
    return canary.deployment_status is not None and canary.deployment_status.canary


def _clear_canary_flag(canary: Allocation, context: DecisionContext) -> Allocation:
    """Return the canary without its canary flag, as it is after promotion."""
    status = replace(canary.deployment_status or AllocDeploymentStatus(), canary=False, modify_index=WRITE_INDEX)
    # The node must see this change: the tags of the allocation's services differ without the canary flag.
    return replace(canary, deployment_status=status, alloc_modify_index=WRITE_INDEX, modify_time=context.now_ns)


def _set_health(allocation: Allocation, is_healthy: bool, context: DecisionContext) -> Allocation:
    """Return the allocation with this health, with the current time as the time of the report."""
    status = replace(
        allocation.deployment_status or AllocDeploymentStatus(),
        healthy=is_healthy,
        timestamp=to_datetime(context.now_ns),
        modify_index=WRITE_INDEX,
    )
    return replace(allocation, deployment_status=status, modify_time=context.now_ns)


def _build_failure_decision(
    snapshot: Replica,
    deployment: Deployment,
    context: DecisionContext,
    *,
    reason: str,
    rollback: Rollback | None,
    allocations: Sequence[Allocation] = (),
    cause: str,
) -> DeploymentDecision:
    """Return the decision that fails the deployment and applies the rollback of its job, if there is one."""
    description = reason + (rollback.description if rollback is not None else "")
    failed = _set_status(deployment, DeploymentStatus.FAILED, description, context)
    return _build_decision(
        "deployment-failed", snapshot, failed, context, allocations=allocations, rollback=rollback, cause=cause
    )


def _build_partial_decision(
    write_kind: str, snapshot: Replica, deployment: Deployment, allocations: Sequence[Allocation], *, cause: str
) -> DeploymentDecision:
    """Return the decision that writes only these allocations, as one part of a request that exceeds one write.

    Its reply has `is_done=False`.
    """
    write = Write(
        write_kind,
        Cause(CauseKind.REQUEST, cause),
        [ALLOCATIONS.build_put(allocation) for allocation in allocations],
        [snapshot.build_record_condition(ALLOCATIONS, allocation) for allocation in allocations],
    )
    return Decision(write, lambda index: DeploymentWriteResult(index, deployment.modify_index, is_done=False))


def _build_decision(
    write_kind: str,
    snapshot: Replica,
    deployment: Deployment,
    context: DecisionContext,
    *,
    allocations: Sequence[Allocation] = (),
    rollback: Rollback | None = None,
    should_evaluate: bool = True,
    cause: str,
) -> DeploymentDecision:
    """Return the decision that stores this deployment with everything that changes along with it.

    These are `allocations`, the rollback of the job, and, with `should_evaluate`, an evaluation of the job.
    """
    changes: list[PutRecord | DeleteRecord] = [
        DEPLOYMENTS.build_put(deployment),
        *(ALLOCATIONS.build_put(allocation) for allocation in allocations),
    ]
    conditions: list[Condition] = [
        snapshot.build_key_condition(DEPLOYMENTS, deployment.id),
        *(snapshot.build_record_condition(ALLOCATIONS, allocation) for allocation in allocations),
    ]
    reverted_version: int | None = None
    if rollback is not None:
        changes += rollback.changes
        conditions += rollback.conditions
        reverted_version = rollback.version
    evaluation = _make_deployment_evaluation(snapshot, deployment, context, rollback) if should_evaluate else None
    if evaluation is not None:
        changes.append(EVALUATIONS.build_put(evaluation))
    return Decision(
        Write(write_kind, Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: DeploymentWriteResult(
            index=index,
            deployment_modify_index=index,
            eval_id=evaluation.id if evaluation is not None else "",
            eval_create_index=index if evaluation is not None else 0,
            reverted_job_version=reverted_version,
        ),
    )


def _make_deployment_evaluation(
    snapshot: Replica, deployment: Deployment, context: DecisionContext, rollback: Rollback | None
) -> Evaluation | None:
    """Return a new evaluation of the deployment's job, after the rollback if there is one, or `None` if the job is
    gone.
    """
    job = snapshot.get(JOBS, deployment.namespace, deployment.job_id)
    if rollback is not None and rollback.job is not None:
        job = rollback.job
    if job is None:
        return None
    evaluation = make_evaluation(
        job, context, EvaluationTrigger.DEPLOYMENT_WATCHER, priority=deployment.eval_priority or job.priority
    )
    return replace(evaluation, deployment_id=deployment.id)
