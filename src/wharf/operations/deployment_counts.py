"""How far a deployment has come, counted from what its allocations become (scheduling.md 7.3).

It only counts. Whether a deployment goes on, fails or is done is decided elsewhere.
"""

import datetime
from collections.abc import Sequence

from msgspec.structs import replace

from wharf.model.allocation import Allocation
from wharf.model.deployment import Deployment, DeploymentGroup
from wharf.model.moment import to_time

Moved = tuple[Allocation | None, Allocation]
"""An allocation as it stood, if it did, and as it will stand."""


def counted(deployment: Deployment, moved: Sequence[Moved]) -> Deployment:
    """The deployment with these changes of its allocations counted in."""
    groups = dict(deployment.task_groups or {})
    for old, new in moved:
        group = groups.get(new.task_group)
        if group is not None:
            groups[new.task_group] = _with_health(_with_placement(group, deployment.id, old, new), old, new)
    if groups == (deployment.task_groups or {}):
        return deployment
    latest = max(new.modify_time for _, new in moved)
    return replace(deployment, task_groups=groups, modify_time=max(deployment.modify_time, latest))


def _with_placement(
    group: DeploymentGroup, deployment_id: str, old: Allocation | None, new: Allocation
) -> DeploymentGroup:
    if old is not None and old.deployment_id == deployment_id:
        return group
    group = replace(group, placed_allocs=group.placed_allocs + 1)
    if _is_canary(new):
        group = replace(group, placed_canaries=(*(group.placed_canaries or ()), new.id))
    if group.progress_deadline and group.require_progress_by is None:
        begun = to_time(new.modify_time)  # What is updated in place was created long ago.
        group = replace(group, require_progress_by=after(begun, group.progress_deadline))
    return group


def _with_health(group: DeploymentGroup, old: Allocation | None, new: Allocation) -> DeploymentGroup:
    was, now = health_of(old), health_of(new)
    if now is None or was is now or was is False:
        return group  # What was unhealthy once stays counted as such.
    if not now:
        return replace(
            group,
            healthy_allocs=group.healthy_allocs - (1 if was else 0),
            unhealthy_allocs=group.unhealthy_allocs + 1,
        )
    group = replace(group, healthy_allocs=group.healthy_allocs + 1)
    told = new.deployment_status.timestamp if new.deployment_status is not None else None
    if not group.progress_deadline or told is None:
        return group
    # A node whose clock is ahead gives its rollout no more time.
    until = after(min(told, to_time(new.modify_time)), group.progress_deadline)
    is_later = group.require_progress_by is None or until > group.require_progress_by
    return replace(group, require_progress_by=until) if is_later else group


def health_of(allocation: Allocation | None) -> bool | None:
    """None: nobody has decided it yet."""
    if allocation is None or allocation.deployment_status is None:
        return None
    return allocation.deployment_status.healthy


def _is_canary(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.canary


def after(time: datetime.datetime, duration_ns: int) -> datetime.datetime:
    """The instant so many nanoseconds later, to the microsecond."""
    return time + datetime.timedelta(microseconds=duration_ns // 1_000)
