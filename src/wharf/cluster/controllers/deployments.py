"""Decides the next step of a running deployment: continue, retry, promote or fail (scheduling.md 7.4).

It reads only the replica and keeps no state, so a new leader continues where the old one stopped.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from wharf.cluster.operations import deployments
from wharf.cluster.operations.deployments import (
    PROGRESS_DEADLINE_DESCRIPTION,
    UNHEALTHY_DESCRIPTION,
    DeploymentDecision,
)
from wharf.cluster.scheduling.reconcile.rescheduling import can_ever_retry
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS, EVALUATIONS_OF_JOB, JOB_VERSIONS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, SECOND, DecisionContext, to_ns

NO_DEADLINE: Final = None
"""The value of a deadline that does not exist."""

REPORT_TIME_NS: Final = 60 * SECOND
"""How long nodes may need to reach a new leader and report the health of their allocations. A deployment whose deadline
passes within this time could fail although its allocations are healthy."""


def decide_next_step(
    snapshot: Replica, deployment_id: str, context: DecisionContext, *, max_changes: int, max_versions: int
) -> DeploymentDecision | None:
    """Return the decision for the next change of a running deployment: fail, promote, retry allocations or evaluate the
    job.

    Return `None` if nothing has to change until a record changes or a deadline passes. `max_changes` limits the size of
    the write, and `max_versions` the number of job versions that a rollback retains.
    """
    deployment = snapshot.get(DEPLOYMENTS, deployment_id)
    if deployment is None or deployment.status is not DeploymentStatus.RUNNING:
        return None
    job = snapshot.get(JOB_VERSIONS, deployment.namespace, deployment.job_id, deployment.job_version)
    if job is None or job.create_index != deployment.job_create_index:
        return None  # The next evaluation of the job cancels the deployment.
    deployment_allocations = [
        allocation
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)
        if allocation.deployment_id == deployment.id
    ]
    unhealthy = sorted(
        (allocation for allocation in deployment_allocations if _is_unhandled_failure(allocation)), key=attrgetter("id")
    )
    failed_groups = {allocation.task_group for allocation in unhealthy if _cannot_retry(allocation, deployment, job)}
    if failed_groups:
        return deployments.fail_deployment_for_groups(
            snapshot,
            deployment.id,
            context,
            reason=UNHEALTHY_DESCRIPTION,
            groups=sorted(failed_groups),
            max_versions=max_versions,
        )
    if _has_implausible_deadline(deployment, context.now_ns):
        return deployments.reset_progress_deadlines(snapshot, deployment.id, context)
    late_groups = _list_late_groups(deployment, deployment_allocations, context.now_ns)
    if late_groups:
        return deployments.fail_deployment_for_groups(
            snapshot,
            deployment.id,
            context,
            reason=PROGRESS_DEADLINE_DESCRIPTION,
            groups=late_groups,
            max_versions=max_versions,
        )
    if _can_auto_promote(deployment, deployment_allocations):
        return deployments.promote_deployment(
            snapshot, deployment.id, context, should_promote_all=True, max_changes=max_changes
        )
    retried = [allocation for allocation in unhealthy if not _is_marked_for_rescheduling(allocation)]
    if retried or _has_new_healthy(snapshot, deployment, deployment_allocations):
        return deployments.continue_deployment(
            snapshot, deployment.id, context, allocations_to_retry=retried, max_changes=max_changes
        )
    return None


def next_deadline_ns(deployment: Deployment) -> int | None:
    """Return the earliest progress deadline of the deployment's unfinished groups, in Unix nanoseconds, or `None`."""
    if deployment.status is not DeploymentStatus.RUNNING:
        return NO_DEADLINE
    deadlines = [
        to_ns(group.require_progress_by)
        for group in (deployment.task_groups or {}).values()
        if group.require_progress_by is not None and not group.is_rolled_out
    ]
    return min(deadlines, default=NO_DEADLINE)


def must_restart_deadlines(deployment: Deployment, term_began_ns: int, *, is_restored: bool) -> bool:
    """Return whether a new leader restarts the progress deadlines of the deployment, because no leader watched them.

    `is_restored`: the log was restored, so its deadlines are older than the state. Otherwise a deadline that has passed
    shows that there was no leader: it would have failed the deployment.
    """
    if deployment.status is not DeploymentStatus.RUNNING:
        return False
    deadline_ns = next_deadline_ns(deployment)
    return is_restored or (deadline_ns is not None and deadline_ns <= term_began_ns + REPORT_TIME_NS)


def _is_unhandled_failure(allocation: Allocation) -> bool:
    """Return whether the allocation is reported unhealthy and was neither stopped nor replaced."""
    return allocation.is_unhealthy and not allocation.is_server_terminal and not allocation.next_allocation


def _is_marked_for_rescheduling(allocation: Allocation) -> bool:
    """Return whether a mark on the allocation already requests its replacement from the scheduler."""
    transition = allocation.desired_transition
    return transition is not None and bool(transition.reschedule)


def _cannot_retry(allocation: Allocation, deployment: Deployment, job: Job) -> bool:
    """Return whether the unhealthy allocation fails its deployment.

    It does if its reschedule policy allows no further attempt, or if the group has a progress deadline of 0. It does
    not if the deployment or the job no longer has its group.
    """
    state = (deployment.task_groups or {}).get(allocation.task_group)
    group = job.find_group(allocation.task_group)
    if state is None or group is None:
        return False
    return state.progress_deadline == 0 or not can_ever_retry(allocation, group)


def _has_implausible_deadline(deployment: Deployment, now_ns: int) -> bool:
    """Return whether a group's deadline is further away than its `progress_deadline`: the clock was set back.

    The normal difference between the clocks of servers is tolerated.
    """
    return any(
        group.require_progress_by is not None
        and to_ns(group.require_progress_by) > now_ns + group.progress_deadline + MAX_CLOCK_SKEW_NS
        for group in (deployment.task_groups or {}).values()
    )


def _list_late_groups(deployment: Deployment, deployment_allocations: Iterable[Allocation], now_ns: int) -> list[str]:
    """Return the names of the groups that missed their progress deadline.

    A group that waits for promotion is late if fewer of its canaries are healthy than desired; other healthy
    allocations do not count. Any other group is late if it has fewer healthy allocations than desired.
    """
    late_groups = []
    for name, group in (deployment.task_groups or {}).items():
        if group.require_progress_by is None or to_ns(group.require_progress_by) > now_ns:
            continue
        healthy = [
            allocation.id
            for allocation in deployment_allocations
            if allocation.task_group == name and not allocation.is_terminal and _is_healthy(allocation)
        ]
        if group.is_awaiting_promotion:
            is_late = len(set(healthy) & set(group.placed_canaries or ())) < group.desired_canaries
        else:
            is_late = len(healthy) < group.desired_total
        if is_late:
            late_groups.append(name)
    return late_groups


def _can_auto_promote(deployment: Deployment, deployment_allocations: Iterable[Allocation]) -> bool:
    """Return whether all groups that await promotion allow automatic promotion and have as many healthy canaries as
    desired.

    False if no group awaits promotion.
    """
    unpromoted = {name: group for name, group in (deployment.task_groups or {}).items() if group.is_awaiting_promotion}
    if not unpromoted or not all(group.auto_promote for group in unpromoted.values()):
        return False
    by_id = {allocation.id: allocation for allocation in deployment_allocations}
    for group in unpromoted.values():
        canaries = [by_id[key] for key in group.placed_canaries or () if key in by_id]
        if sum(not canary.is_terminal and _is_healthy(canary) for canary in canaries) != group.desired_canaries:
            return False
    return True


def _is_healthy(allocation: Allocation) -> bool:
    """Return whether the allocation was reported healthy, by its node or by a user."""
    status = allocation.deployment_status
    return status is not None and status.healthy is True


def _has_new_healthy(snapshot: Replica, deployment: Deployment, deployment_allocations: Iterable[Allocation]) -> bool:
    """Return whether an allocation was reported healthy after the newest evaluation of the job read the state.

    Evaluations that are scheduled for a later time do not count.
    """
    newest_health_index = max(
        (
            allocation.deployment_status.modify_index
            for allocation in deployment_allocations
            if allocation.deployment_status and _is_healthy(allocation)
        ),
        default=0,
    )
    if not newest_health_index:
        return False
    evaluated_index = 0
    for evaluation in snapshot.list_by_index(EVALUATIONS_OF_JOB, deployment.namespace, deployment.job_id):
        is_scheduled = evaluation.wait_until is not None and evaluation.status is EvaluationStatus.PENDING
        if not is_scheduled:
            evaluated_index = max(evaluated_index, evaluation.create_index, evaluation.snapshot_index)
    return newest_health_index > evaluated_index
