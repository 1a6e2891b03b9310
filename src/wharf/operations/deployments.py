"""What people do to deployments: fail, pause, resume, promote, unblock, and say how allocations are.

Each is decided by the leader alone, whose counts and statuses these are. A deployment that is over never changes again.
"""

import datetime
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, AllocDeploymentStatus, DesiredTransition
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.deployment import Deployment, DeploymentGroup, DeploymentStatus
from wharf.model.evaluation import Evaluation, EvaluationTrigger
from wharf.model.machine import advance
from wharf.model.moment import Moment, to_time
from wharf.model.refusal import invalid, unknown
from wharf.model.transitions import DEPLOYMENT
from wharf.operations.decision import Decision
from wharf.operations.deployment_counts import after, health_of
from wharf.operations.evaluations import new_evaluation
from wharf.operations.rollback import Rollback, roll_back
from wharf.scheduling.reconcile.rollout import running_text
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS

PAUSED: Final = "Deployment is paused"
UNBLOCKING: Final = "Deployment is unblocking remaining regions"
MARKED_FAILED: Final = "Deployment marked as failed"
OUT_OF_TIME: Final = "Failed due to progress deadline"
UNHEALTHY: Final = "Failed due to unhealthy allocations"

BESIDE_ALLOCATIONS: Final = 2
"""Changes of a write beside the allocations it marks: the deployment and the evaluation."""

VERSIONS_KEPT: Final = 6


class DeploymentWritten(msgspec.Struct, frozen=True):
    """The index of the write and of the deployment as it stands since, what evaluates the job, and the version that the
    job went back to. `is_done` False: there was more to mark than one write takes, so ask again.
    """

    index: int
    deployment_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    reverted_job_version: int | None = None
    is_done: bool = True


Deciding = Decision[DeploymentWritten]


def fail(
    snapshot: Replica, deployment_id: str, moment: Moment, *, versions_kept: int = VERSIONS_KEPT, cause: str = ""
) -> Deciding:
    """It ends here. Where a group reverts by itself, the job goes back to its newest stable version."""
    deployment = _active(snapshot, deployment_id, "fail")
    reverts = any(group.auto_revert for group in _groups(deployment).values())
    rollback = roll_back(snapshot, deployment, moment, versions_kept=versions_kept) if reverts else None
    return _failed(snapshot, deployment, moment, why=MARKED_FAILED, rollback=rollback, cause=cause)


def give_up(
    snapshot: Replica,
    deployment_id: str,
    moment: Moment,
    *,
    why: str,
    groups: Iterable[str],
    versions_kept: int = VERSIONS_KEPT,
) -> Deciding:
    """It fails on account of these groups. Where one of them reverts by itself, the job goes back."""
    deployment = _active(snapshot, deployment_id, "fail")
    known = _groups(deployment)
    reverts = any(known[name].auto_revert for name in groups if name in known)
    rollback = roll_back(snapshot, deployment, moment, versions_kept=versions_kept) if reverts else None
    return _failed(snapshot, deployment, moment, why=why, rollback=rollback, cause="")


def go_on(
    snapshot: Replica, deployment_id: str, moment: Moment, *, retried: Sequence[Allocation] = (), changes_max: int
) -> Deciding:
    """The rollout is evaluated again; what failed in it may be tried again."""
    deployment = _active(snapshot, deployment_id, "go on with")
    marked = [
        replace(
            each,
            desired_transition=replace(each.desired_transition or DesiredTransition(), reschedule=True),
            alloc_modify_index=THIS,
            modify_time=moment.now_ns,
        )
        for each in retried[: max(1, changes_max - BESIDE_ALLOCATIONS)]
    ]
    evaluation = _evaluation(snapshot, deployment, moment, None)
    if evaluation is None:
        return Decision(None, lambda index: DeploymentWritten(index, deployment.modify_index))
    write = Write(
        "deployment-watched",
        Cause(CauseKind.TIMER, deployment.id),
        [*(ALLOCATIONS.put(each) for each in marked), EVALUATIONS.put(evaluation)],
        [snapshot.as_seen(DEPLOYMENTS, deployment.id), *(snapshot.unchanged(ALLOCATIONS, each) for each in marked)],
    )
    return Decision(write, lambda index: DeploymentWritten(index, deployment.modify_index, evaluation.id, index))


def begin_anew(snapshot: Replica, deployment_id: str, moment: Moment) -> Deciding:
    """Every group has its whole time, by the clock that goes now."""
    deployment = _active(snapshot, deployment_id, "go on with")
    timed = replace(deployment, task_groups=_begun_anew(deployment, moment), modify_time=moment.now_ns)
    return _written("deployment-timed-anew", snapshot, timed, moment, cause="", evaluates=False)


def pause(snapshot: Replica, deployment_id: str, moment: Moment, *, cause: str = "") -> Deciding:
    """Nothing more is placed for it, and no deadline ends it, until it is resumed."""
    deployment = _active(snapshot, deployment_id, "pause")
    paused = replace(
        _moved(deployment, DeploymentStatus.PAUSED, PAUSED, moment), task_groups=_begun_anew(deployment, moment)
    )
    return _written("deployment-paused", snapshot, paused, moment, cause=cause, evaluates=False)


def resume(snapshot: Replica, deployment_id: str, moment: Moment, *, cause: str = "") -> Deciding:
    """It goes on, with all of its time."""
    deployment = _active(snapshot, deployment_id, "resume")
    running = replace(
        _moved(deployment, DeploymentStatus.RUNNING, description_while_running(deployment), moment),
        task_groups=_begun_anew(deployment, moment),
    )
    return _written("deployment-resumed", snapshot, running, moment, cause=cause)


def promote(
    snapshot: Replica,
    deployment_id: str,
    moment: Moment,
    *,
    everything: bool,
    groups: Sequence[str] = (),
    changes_max: int,
    cause: str = "",
) -> Deciding:
    """The canaries of these groups, or of all, take over. Refused while too few of them are healthy.

    Canaries lose their mark first, in several writes where they are many: the deployment still lists them, so one that
    is promoted half is promoted whole by asking again.
    """
    deployment = _active(snapshot, deployment_id, "promote")
    promoted = _to_promote(deployment, everything, groups)
    lacking = [text for name in promoted if (text := _lacking(snapshot, name, _groups(deployment)[name]))]
    if lacking:
        raise invalid("\n".join(lacking))
    marked = [each for name in promoted for each in _canaries(snapshot, _groups(deployment)[name]) if _is_marked(each)]
    unmarked = [_without_mark(each, moment) for each in marked]
    if marked and len(marked) + BESIDE_ALLOCATIONS > changes_max:
        return _marks("canaries-promoted", snapshot, deployment, unmarked[:changes_max], cause=cause)
    groups_after = {
        name: replace(group, promoted=True, require_progress_by=_deadline(group, moment)) if name in promoted else group
        for name, group in _groups(deployment).items()
    }
    deployment = replace(deployment, task_groups=groups_after, modify_time=moment.now_ns)
    if deployment.status is DeploymentStatus.RUNNING:
        deployment = replace(deployment, status_description=description_while_running(deployment))
    return _written("deployment-promoted", snapshot, deployment, moment, allocations=unmarked, cause=cause)


def unblock(snapshot: Replica, deployment_id: str, moment: Moment, *, cause: str = "") -> Deciding:
    """The other regions of the job may go on. Where there are none nothing waits, and nothing changes."""
    deployment = _active(snapshot, deployment_id, "unblock")
    if deployment.status is not DeploymentStatus.BLOCKED:
        return Decision(None, lambda index: DeploymentWritten(index, deployment.modify_index))
    unblocking = _moved(deployment, DeploymentStatus.UNBLOCKING, UNBLOCKING, moment)
    return _written("deployment-unblocked", snapshot, unblocking, moment, cause=cause)


def set_health(
    snapshot: Replica,
    deployment_id: str,
    moment: Moment,
    *,
    healthy: Sequence[str] = (),
    unhealthy: Sequence[str] = (),
    changes_max: int,
    versions_kept: int = VERSIONS_KEPT,
    cause: str = "",
) -> Deciding:
    """A person says how allocations are. One that is not well fails the deployment.

    Where they are more than a write takes, the first are marked alone: each mark is true by itself.
    """
    deployment = _active(snapshot, deployment_id, "set health of allocations for a")
    told = _told_health(snapshot, deployment, healthy, unhealthy)
    marks = [
        _with_health(allocation, is_healthy, moment)
        for allocation, is_healthy in told
        if health_of(allocation) is not is_healthy
    ]
    groups = _groups(deployment)
    sick = {allocation.task_group for allocation, is_healthy in told if not is_healthy}
    reverts = any(name in sick and group.auto_revert for name, group in groups.items())
    rollback = roll_back(snapshot, deployment, moment, versions_kept=versions_kept) if reverts else None
    beside = BESIDE_ALLOCATIONS + (len(rollback.changes) if rollback is not None else 0)
    if marks and len(marks) + beside > changes_max:
        return _marks("allocation-health", snapshot, deployment, marks[:changes_max], cause=cause)
    if not sick:
        return _written("allocation-health", snapshot, deployment, moment, allocations=marks, cause=cause)
    return _failed(snapshot, deployment, moment, why=UNHEALTHY, rollback=rollback, allocations=marks, cause=cause)


def description_while_running(deployment: Deployment) -> str:
    """What it waits for, if for anything."""
    return running_text(_groups(deployment).values())


# -- what is asked about -------------------------------------------------------------------------------------------


def _active(snapshot: Replica, deployment_id: str, verb: str) -> Deployment:
    deployment = snapshot.get(DEPLOYMENTS, deployment_id)
    if deployment is None:
        raise unknown("deployment not found")
    if not deployment.is_active:
        raise invalid(f"can't {verb} terminal deployment")
    return deployment


def _groups(deployment: Deployment) -> dict[str, DeploymentGroup]:
    return deployment.task_groups or {}


def _to_promote(deployment: Deployment, everything: bool, names: Sequence[str]) -> list[str]:
    groups = _groups(deployment)
    if not everything and not names:
        raise invalid("nothing to promote: say All, or name the Groups")
    strangers = [] if everything else [name for name in dict.fromkeys(names) if name not in groups]
    if strangers:
        known = ", ".join(f'"{name}"' for name in groups)
        raise invalid(f'deployment has no task group "{strangers[0]}"; its groups are {known}')
    chosen = groups if everything else dict.fromkeys(names)
    promoted = [name for name in chosen if groups[name].awaits_promotion]
    if not promoted:
        raise invalid("nothing to promote: no canaries of these groups wait for it")
    return promoted


def _lacking(snapshot: Replica, name: str, group: DeploymentGroup) -> str:
    well = [each for each in _canaries(snapshot, group) if health_of(each) and not each.is_terminal]
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
        raise invalid("must specify at least one healthy/unhealthy allocation ID")
    both = set(healthy) & set(unhealthy)
    if both:
        raise invalid(f'allocation "{min(both)}" cannot be healthy and unhealthy at once')
    told = []
    for allocation_id, is_healthy in dict.fromkeys((*_said(healthy, True), *_said(unhealthy, False))):
        allocation = snapshot.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            raise invalid(f'unknown alloc "{allocation_id}"')
        if allocation.deployment_id != deployment.id:
            raise invalid(f'alloc "{allocation_id}" not part of deployment "{deployment.id}"')
        told.append((allocation, is_healthy))
    return told


def _said(ids: Iterable[str], is_healthy: bool) -> list[tuple[str, bool]]:
    return [(allocation_id, is_healthy) for allocation_id in ids]


# -- what becomes of it --------------------------------------------------------------------------------------------


def _moved(deployment: Deployment, status: DeploymentStatus, description: str, moment: Moment) -> Deployment:
    return replace(
        deployment,
        status=advance(DEPLOYMENT, deployment.status, status, record_id=deployment.id),
        status_description=description,
        modify_time=moment.now_ns,
    )


def _deadline(group: DeploymentGroup, moment: Moment) -> datetime.datetime | None:
    """By when the group must have come on, counted from now; None: it has no deadline."""
    return after(to_time(moment.now_ns), group.progress_deadline) if group.progress_deadline else None


def _begun_anew(deployment: Deployment, moment: Moment) -> dict[str, DeploymentGroup] | None:
    """Every group has its whole time again, as it does whenever it is paused or resumed."""
    if deployment.task_groups is None:
        return None
    return {
        name: replace(group, require_progress_by=_deadline(group, moment))
        for name, group in deployment.task_groups.items()
    }


def _is_marked(canary: Allocation) -> bool:
    return canary.deployment_status is not None and canary.deployment_status.canary


def _without_mark(canary: Allocation, moment: Moment) -> Allocation:
    status = replace(canary.deployment_status or AllocDeploymentStatus(), canary=False, modify_index=THIS)
    # Its node must know: its services change their tags.
    return replace(canary, deployment_status=status, alloc_modify_index=THIS, modify_time=moment.now_ns)


def _with_health(allocation: Allocation, is_healthy: bool, moment: Moment) -> Allocation:
    status = replace(
        allocation.deployment_status or AllocDeploymentStatus(),
        healthy=is_healthy,
        timestamp=to_time(moment.now_ns),
        modify_index=THIS,
    )
    return replace(allocation, deployment_status=status, modify_time=moment.now_ns)


def _failed(
    snapshot: Replica,
    deployment: Deployment,
    moment: Moment,
    *,
    why: str,
    rollback: Rollback | None,
    allocations: Sequence[Allocation] = (),
    cause: str,
) -> Deciding:
    description = why + (rollback.told if rollback is not None else "")
    failed = _moved(deployment, DeploymentStatus.FAILED, description, moment)
    return _written(
        "deployment-failed", snapshot, failed, moment, allocations=allocations, rollback=rollback, cause=cause
    )


def _marks(
    kind: str, snapshot: Replica, deployment: Deployment, allocations: Sequence[Allocation], *, cause: str
) -> Deciding:
    """A part of what is asked: allocations alone."""
    write = Write(
        kind,
        Cause(CauseKind.REQUEST, cause),
        [ALLOCATIONS.put(each) for each in allocations],
        [snapshot.unchanged(ALLOCATIONS, each) for each in allocations],
    )
    return Decision(write, lambda index: DeploymentWritten(index, deployment.modify_index, is_done=False))


def _written(
    kind: str,
    snapshot: Replica,
    deployment: Deployment,
    moment: Moment,
    *,
    allocations: Sequence[Allocation] = (),
    rollback: Rollback | None = None,
    evaluates: bool = True,
    cause: str,
) -> Deciding:
    """The deployment, what was marked of its allocations, the job where it goes back, and the evaluation of it all."""
    changes: list[Put | Drop] = [DEPLOYMENTS.put(deployment), *(ALLOCATIONS.put(each) for each in allocations)]
    conditions: list[Condition] = [
        snapshot.as_seen(DEPLOYMENTS, deployment.id),
        *(snapshot.unchanged(ALLOCATIONS, each) for each in allocations),
    ]
    reverted: int | None = None
    if rollback is not None:
        changes += rollback.changes
        conditions += rollback.conditions
        reverted = rollback.version
    evaluation = _evaluation(snapshot, deployment, moment, rollback) if evaluates else None
    if evaluation is not None:
        changes.append(EVALUATIONS.put(evaluation))
    return Decision(
        Write(kind, Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: DeploymentWritten(
            index=index,
            deployment_modify_index=index,
            eval_id=evaluation.id if evaluation is not None else "",
            eval_create_index=index if evaluation is not None else 0,
            reverted_job_version=reverted,
        ),
    )


def _evaluation(
    snapshot: Replica, deployment: Deployment, moment: Moment, rollback: Rollback | None
) -> Evaluation | None:
    job = snapshot.get(JOBS, deployment.namespace, deployment.job_id)
    if rollback is not None and rollback.job is not None:
        job = rollback.job
    if job is None:
        return None
    made = new_evaluation(
        job, moment, EvaluationTrigger.DEPLOYMENT_WATCHER, priority=deployment.eval_priority or job.priority
    )
    return replace(made, deployment_id=deployment.id)
