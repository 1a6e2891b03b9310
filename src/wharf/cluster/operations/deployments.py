"""What people do to deployments: fail, pause, resume, promote, unblock, and say how allocations are.

Each is decided by the leader alone, whose counts and statuses these are. A deployment that is over never changes again.
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
"""Changes of a write beside the allocations it marks: the deployment and the evaluation."""

DEFAULT_MAX_VERSIONS: Final = 6


class DeploymentWriteResult(msgspec.Struct, frozen=True):
    """The index of the write and of the deployment as it stands since, what evaluates the job, and the version that the
    job went back to. `is_done` False: there was more to mark than one write takes, so ask again.
    """

    index: int
    deployment_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    reverted_job_version: int | None = None
    is_done: bool = True


DeploymentDecision = Decision[DeploymentWriteResult]


def fail_deployment(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    max_versions: int = DEFAULT_MAX_VERSIONS,
    cause: str = "",
) -> DeploymentDecision:
    """It ends here. Where a group reverts by itself, the job goes back to its newest stable version."""
    deployment = _active(snapshot, deployment_id, "fail")
    reverts = any(group.auto_revert for group in _groups(deployment).values())
    rollback = roll_back_job(snapshot, deployment, context, max_versions=max_versions) if reverts else None
    return _fail(snapshot, deployment, context, reason=MARKED_FAILED_DESCRIPTION, rollback=rollback, cause=cause)


def fail_deployment_for_groups(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    reason: str,
    groups: Iterable[str],
    max_versions: int = DEFAULT_MAX_VERSIONS,
) -> DeploymentDecision:
    """It fails on account of these groups. Where one of them reverts by itself, the job goes back."""
    deployment = _active(snapshot, deployment_id, "fail")
    known = _groups(deployment)
    reverts = any(known[name].auto_revert for name in groups if name in known)
    rollback = roll_back_job(snapshot, deployment, context, max_versions=max_versions) if reverts else None
    return _fail(snapshot, deployment, context, reason=reason, rollback=rollback, cause="")


def continue_deployment(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    allocations_to_retry: Sequence[Allocation] = (),
    max_changes: int,
) -> DeploymentDecision:
    """The rollout is evaluated again; what failed in it may be tried again."""
    deployment = _active(snapshot, deployment_id, "go on with")
    marked = [
        replace(
            each,
            desired_transition=replace(each.desired_transition or DesiredTransition(), reschedule=True),
            alloc_modify_index=WRITE_INDEX,
            modify_time=context.now_ns,
        )
        for each in allocations_to_retry[: max(1, max_changes - CHANGES_BESIDE_ALLOCATIONS)]
    ]
    evaluation = _evaluation(snapshot, deployment, context, None)
    if evaluation is None:
        return Decision(None, lambda index: DeploymentWriteResult(index, deployment.modify_index))
    write = Write(
        "deployment-watched",
        Cause(CauseKind.TIMER, deployment.id),
        [*(ALLOCATIONS.build_put(each) for each in marked), EVALUATIONS.build_put(evaluation)],
        [
            snapshot.build_key_condition(DEPLOYMENTS, deployment.id),
            *(snapshot.build_record_condition(ALLOCATIONS, each) for each in marked),
        ],
    )
    return Decision(write, lambda index: DeploymentWriteResult(index, deployment.modify_index, evaluation.id, index))


def reset_progress_deadlines(snapshot: Replica, deployment_id: str, context: DecisionContext) -> DeploymentDecision:
    """Every group has its whole time, by the clock that goes now."""
    deployment = _active(snapshot, deployment_id, "go on with")
    timed = replace(deployment, task_groups=_begun_anew(deployment, context), modify_time=context.now_ns)
    return _build_decision("deployment-timed-anew", snapshot, timed, context, cause="", should_evaluate=False)


def pause_deployment(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, cause: str = ""
) -> DeploymentDecision:
    """Nothing more is placed for it, and no deadline ends it, until it is resumed."""
    deployment = _active(snapshot, deployment_id, "pause")
    paused = replace(
        _moved(deployment, DeploymentStatus.PAUSED, PAUSED_DESCRIPTION, context),
        task_groups=_begun_anew(deployment, context),
    )
    return _build_decision("deployment-paused", snapshot, paused, context, cause=cause, should_evaluate=False)


def resume_deployment(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, cause: str = ""
) -> DeploymentDecision:
    """It goes on, with all of its time."""
    deployment = _active(snapshot, deployment_id, "resume")
    running = replace(
        _moved(deployment, DeploymentStatus.RUNNING, describe_running_deployment(deployment), context),
        task_groups=_begun_anew(deployment, context),
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
    """The canaries of these groups, or of all, take over. Refused while too few of them are healthy.

    Canaries lose their mark first, in several writes where they are many: the deployment still lists them, so one that
    is promoted half is promoted whole by asking again.
    """
    deployment = _active(snapshot, deployment_id, "promote")
    promoted = _to_promote(deployment, should_promote_all, groups)
    lacking = [text for name in promoted if (text := _lacking(snapshot, name, _groups(deployment)[name]))]
    if lacking:
        raise invalid_request("\n".join(lacking))
    marked = [each for name in promoted for each in _canaries(snapshot, _groups(deployment)[name]) if _is_marked(each)]
    unmarked = [_without_mark(each, context) for each in marked]
    if marked and len(marked) + CHANGES_BESIDE_ALLOCATIONS > max_changes:
        return _marks("canaries-promoted", snapshot, deployment, unmarked[:max_changes], cause=cause)
    groups_after = {
        name: replace(group, promoted=True, require_progress_by=_deadline(group, context))
        if name in promoted
        else group
        for name, group in _groups(deployment).items()
    }
    deployment = replace(deployment, task_groups=groups_after, modify_time=context.now_ns)
    if deployment.status is DeploymentStatus.RUNNING:
        deployment = replace(deployment, status_description=describe_running_deployment(deployment))
    return _build_decision("deployment-promoted", snapshot, deployment, context, allocations=unmarked, cause=cause)


def unblock_deployment(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, cause: str = ""
) -> DeploymentDecision:
    """The other regions of the job may go on. Where there are none nothing waits, and nothing changes."""
    deployment = _active(snapshot, deployment_id, "unblock")
    if deployment.status is not DeploymentStatus.BLOCKED:
        return Decision(None, lambda index: DeploymentWriteResult(index, deployment.modify_index))
    unblocking = _moved(deployment, DeploymentStatus.UNBLOCKING, UNBLOCKING_DESCRIPTION, context)
    return _build_decision("deployment-unblocked", snapshot, unblocking, context, cause=cause)


def set_allocation_health(
    snapshot: Replica,
    deployment_id: str,
    context: DecisionContext,
    *,
    healthy: Sequence[str] = (),
    unhealthy: Sequence[str] = (),
    max_changes: int,
    max_versions: int = DEFAULT_MAX_VERSIONS,
    cause: str = "",
) -> DeploymentDecision:
    """A person says how allocations are. One that is not well fails the deployment.

    Where they are more than a write takes, the first are marked alone: each mark is true by itself.
    """
    deployment = _active(snapshot, deployment_id, "set health of allocations for a")
    told = _told_health(snapshot, deployment, healthy, unhealthy)
    marks = [
        _with_health(allocation, is_healthy, context)
        for allocation, is_healthy in told
        if get_allocation_health(allocation) is not is_healthy
    ]
    groups = _groups(deployment)
    sick = {allocation.task_group for allocation, is_healthy in told if not is_healthy}
    reverts = any(name in sick and group.auto_revert for name, group in groups.items())
    rollback = roll_back_job(snapshot, deployment, context, max_versions=max_versions) if reverts else None
    beside = CHANGES_BESIDE_ALLOCATIONS + (len(rollback.changes) if rollback is not None else 0)
    if marks and len(marks) + beside > max_changes:
        return _marks("allocation-health", snapshot, deployment, marks[:max_changes], cause=cause)
    if not sick:
        return _build_decision("allocation-health", snapshot, deployment, context, allocations=marks, cause=cause)
    return _fail(
        snapshot, deployment, context, reason=UNHEALTHY_DESCRIPTION, rollback=rollback, allocations=marks, cause=cause
    )


def describe_running_deployment(deployment: Deployment) -> str:
    """What it waits for, if for anything."""
    return describe_running(_groups(deployment).values())


# -- what is asked about -------------------------------------------------------------------------------------------


def _active(snapshot: Replica, deployment_id: str, verb: str) -> Deployment:
    deployment = snapshot.get(DEPLOYMENTS, deployment_id)
    if deployment is None:
        raise not_found("deployment not found")
    if not deployment.is_active:
        raise invalid_request(f"can't {verb} terminal deployment")
    return deployment


def _groups(deployment: Deployment) -> dict[str, DeploymentGroup]:
    return deployment.task_groups or {}


def _to_promote(deployment: Deployment, everything: bool, names: Sequence[str]) -> list[str]:
    groups = _groups(deployment)
    if not everything and not names:
        raise invalid_request("nothing to promote: say All, or name the Groups")
    strangers = [] if everything else [name for name in dict.fromkeys(names) if name not in groups]
    if strangers:
        known = ", ".join(f'"{name}"' for name in groups)
        raise invalid_request(f'deployment has no task group "{strangers[0]}"; its groups are {known}')
    chosen = groups if everything else dict.fromkeys(names)
    promoted = [name for name in chosen if groups[name].is_awaiting_promotion]
    if not promoted:
        raise invalid_request("nothing to promote: no canaries of these groups wait for it")
    return promoted


def _lacking(snapshot: Replica, name: str, group: DeploymentGroup) -> str:
    well = [each for each in _canaries(snapshot, group) if get_allocation_health(each) and not each.is_terminal]
    if len(well) >= group.desired_canaries:
        return ""
    return f'Task group "{name}" has {len(well)}/{group.desired_canaries} healthy allocations'


def _canaries(snapshot: Replica, group: DeploymentGroup) -> list[Allocation]:
    found = (snapshot.get(ALLOCATIONS, allocation_id) for allocation_id in group.placed_canaries or ())
    return [allocation for allocation in found if allocation is not None]


def _told_health(
    snapshot: Replica, deployment: Deployment, healthy: Sequence[str], unhealthy: Sequence[str]
) -> list[tuple[Allocation, bool]]:
    if not healthy and not unhealthy:
        raise invalid_request("must specify at least one healthy/unhealthy allocation ID")
    both = set(healthy) & set(unhealthy)
    if both:
        raise invalid_request(f'allocation "{min(both)}" cannot be healthy and unhealthy at once')
    told = []
    for allocation_id, is_healthy in dict.fromkeys((*_said(healthy, True), *_said(unhealthy, False))):
        allocation = snapshot.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            raise invalid_request(f'unknown alloc "{allocation_id}"')
        if allocation.deployment_id != deployment.id:
            raise invalid_request(f'alloc "{allocation_id}" not part of deployment "{deployment.id}"')
        told.append((allocation, is_healthy))
    return told


def _said(ids: Iterable[str], is_healthy: bool) -> list[tuple[str, bool]]:
    return [(allocation_id, is_healthy) for allocation_id in ids]


# -- what becomes of it --------------------------------------------------------------------------------------------


def _moved(deployment: Deployment, status: DeploymentStatus, description: str, context: DecisionContext) -> Deployment:
    return replace(
        deployment,
        status=advance_state(DEPLOYMENT_STATES, deployment.status, status, record_id=deployment.id),
        status_description=description,
        modify_time=context.now_ns,
    )


def _deadline(group: DeploymentGroup, context: DecisionContext) -> datetime.datetime | None:
    """By when the group must have come on, counted from now; None: it has no deadline."""
    return add_duration(to_datetime(context.now_ns), group.progress_deadline) if group.progress_deadline else None


def _begun_anew(deployment: Deployment, context: DecisionContext) -> dict[str, DeploymentGroup] | None:
    """Every group has its whole time again, as it does whenever it is paused or resumed."""
    if deployment.task_groups is None:
        return None
    return {
        name: replace(group, require_progress_by=_deadline(group, context))
        for name, group in deployment.task_groups.items()
    }


def _is_marked(canary: Allocation) -> bool:
    return canary.deployment_status is not None and canary.deployment_status.canary


def _without_mark(canary: Allocation, context: DecisionContext) -> Allocation:
    status = replace(canary.deployment_status or AllocDeploymentStatus(), canary=False, modify_index=WRITE_INDEX)
    # Its node must know: its services change their tags.
    return replace(canary, deployment_status=status, alloc_modify_index=WRITE_INDEX, modify_time=context.now_ns)


def _with_health(allocation: Allocation, is_healthy: bool, context: DecisionContext) -> Allocation:
    status = replace(
        allocation.deployment_status or AllocDeploymentStatus(),
        healthy=is_healthy,
        timestamp=to_datetime(context.now_ns),
        modify_index=WRITE_INDEX,
    )
    return replace(allocation, deployment_status=status, modify_time=context.now_ns)


def _fail(
    snapshot: Replica,
    deployment: Deployment,
    context: DecisionContext,
    *,
    reason: str,
    rollback: Rollback | None,
    allocations: Sequence[Allocation] = (),
    cause: str,
) -> DeploymentDecision:
    description = reason + (rollback.description if rollback is not None else "")
    failed = _moved(deployment, DeploymentStatus.FAILED, description, context)
    return _build_decision(
        "deployment-failed", snapshot, failed, context, allocations=allocations, rollback=rollback, cause=cause
    )


def _marks(
    kind: str, snapshot: Replica, deployment: Deployment, allocations: Sequence[Allocation], *, cause: str
) -> DeploymentDecision:
    """A part of what is asked: allocations alone."""
    write = Write(
        kind,
        Cause(CauseKind.REQUEST, cause),
        [ALLOCATIONS.build_put(each) for each in allocations],
        [snapshot.build_record_condition(ALLOCATIONS, each) for each in allocations],
    )
    return Decision(write, lambda index: DeploymentWriteResult(index, deployment.modify_index, is_done=False))


def _build_decision(
    kind: str,
    snapshot: Replica,
    deployment: Deployment,
    context: DecisionContext,
    *,
    allocations: Sequence[Allocation] = (),
    rollback: Rollback | None = None,
    should_evaluate: bool = True,
    cause: str,
) -> DeploymentDecision:
    """The deployment, what was marked of its allocations, the job where it goes back, and the evaluation of it all."""
    changes: list[PutRecord | DeleteRecord] = [
        DEPLOYMENTS.build_put(deployment),
        *(ALLOCATIONS.build_put(each) for each in allocations),
    ]
    conditions: list[Condition] = [
        snapshot.build_key_condition(DEPLOYMENTS, deployment.id),
        *(snapshot.build_record_condition(ALLOCATIONS, each) for each in allocations),
    ]
    reverted: int | None = None
    if rollback is not None:
        changes += rollback.changes
        conditions += rollback.conditions
        reverted = rollback.version
    evaluation = _evaluation(snapshot, deployment, context, rollback) if should_evaluate else None
    if evaluation is not None:
        changes.append(EVALUATIONS.build_put(evaluation))
    return Decision(
        Write(kind, Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: DeploymentWriteResult(
            index=index,
            deployment_modify_index=index,
            eval_id=evaluation.id if evaluation is not None else "",
            eval_create_index=index if evaluation is not None else 0,
            reverted_job_version=reverted,
        ),
    )


def _evaluation(
    snapshot: Replica, deployment: Deployment, context: DecisionContext, rollback: Rollback | None
) -> Evaluation | None:
    job = snapshot.get(JOBS, deployment.namespace, deployment.job_id)
    if rollback is not None and rollback.job is not None:
        job = rollback.job
    if job is None:
        return None
    made = make_evaluation(
        job, context, EvaluationTrigger.DEPLOYMENT_WATCHER, priority=deployment.eval_priority or job.priority
    )
    return replace(made, deployment_id=deployment.id)
