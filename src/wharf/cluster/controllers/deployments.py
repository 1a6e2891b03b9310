"""What a running deployment needs next: go on, try something again, be promoted, or fail (scheduling.md 7.4).

Read from the state alone, so that a new leader goes on where the old one was. It holds nothing.
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
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import DecisionContext, to_ns

NO_DEADLINE: Final = None
MAX_CLOCK_SKEW_NS: Final = 1_000_000_000
"""By how much the clocks of servers may well differ."""


def decide_next_step(
    snapshot: Replica, deployment_id: str, moment: DecisionContext, *, max_changes: int
) -> DeploymentDecision | None:
    """One thing that is to be done for the deployment now; None: nothing, until something changes or time passes."""
    deployment = snapshot.get(DEPLOYMENTS, deployment_id)
    if deployment is None or deployment.status is not DeploymentStatus.RUNNING:
        return None
    job = snapshot.get(JOB_VERSIONS, deployment.namespace, deployment.job_id, deployment.job_version)
    if job is None or job.create_index != deployment.job_create_index:
        return None  # The next evaluation of the job ends it.
    mine = [
        allocation
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)
        if allocation.deployment_id == deployment.id
    ]
    sick = sorted((each for each in mine if _is_sick(each)), key=attrgetter("id"))
    hopeless = {each.task_group for each in sick if _is_hopeless(each, deployment, job)}
    if hopeless:
        return deployments.fail_deployment_for_groups(
            snapshot, deployment.id, moment, reason=UNHEALTHY_DESCRIPTION, groups=sorted(hopeless)
        )
    if _is_of_another_clock(deployment, moment.now_ns):
        return deployments.reset_progress_deadlines(snapshot, deployment.id, moment)
    late = _late(deployment, mine, moment.now_ns)
    if late:
        return deployments.fail_deployment_for_groups(
            snapshot, deployment.id, moment, reason=PROGRESS_DEADLINE_DESCRIPTION, groups=late
        )
    if _may_be_promoted(deployment, mine):
        return deployments.promote_deployment(
            snapshot, deployment.id, moment, should_promote_all=True, max_changes=max_changes
        )
    retried = [each for each in sick if not _is_marked(each)]
    if retried or _came_on(snapshot, deployment, mine):
        return deployments.continue_deployment(
            snapshot, deployment.id, moment, allocations_to_retry=retried, max_changes=max_changes
        )
    return None


def next_deadline_ns(deployment: Deployment) -> int | None:
    """When its progress is to be judged; None: time alone decides nothing."""
    if deployment.status is not DeploymentStatus.RUNNING:
        return NO_DEADLINE
    deadlines = [
        to_ns(group.require_progress_by)
        for group in (deployment.task_groups or {}).values()
        if group.require_progress_by is not None and not _is_done(group)
    ]
    return min(deadlines, default=NO_DEADLINE)


def _is_sick(allocation: Allocation) -> bool:
    """It is not well, and nobody has done anything about it yet."""
    status = allocation.deployment_status
    is_unwell = status is not None and status.healthy is False
    return is_unwell and not allocation.is_server_terminal and not allocation.next_allocation


def _is_marked(allocation: Allocation) -> bool:
    transition = allocation.desired_transition
    return transition is not None and bool(transition.reschedule)


def _is_hopeless(allocation: Allocation, deployment: Deployment, job: Job) -> bool:
    state = (deployment.task_groups or {}).get(allocation.task_group)
    group = job.find_group(allocation.task_group)
    if state is None or group is None:
        return False
    return state.progress_deadline == 0 or not can_ever_retry(allocation, group)


def _is_done(group: DeploymentGroup) -> bool:
    return group.healthy_allocs >= group.desired_total and not group.is_awaiting_promotion


def _is_of_another_clock(deployment: Deployment, now_ns: int) -> bool:
    """Whether a deadline is further away than all the time that its group has: the clock was set back after it was made."""
    return any(
        group.require_progress_by is not None
        and to_ns(group.require_progress_by) > now_ns + group.progress_deadline + MAX_CLOCK_SKEW_NS
        for group in (deployment.task_groups or {}).values()
    )


def _late(deployment: Deployment, mine: Iterable[Allocation], now_ns: int) -> list[str]:
    """The groups whose time is over before they came on. One that only waits for a person is not late: all canaries that
    it wants are well. Others of it that are well do not stand for them, nor is it enough that the group wants no more.
    """
    found = []
    for name, group in (deployment.task_groups or {}).items():
        if group.require_progress_by is None or to_ns(group.require_progress_by) > now_ns:
            continue
        well = [each.id for each in mine if each.task_group == name and not each.is_terminal and _is_healthy(each)]
        if group.is_awaiting_promotion:
            is_late = len(set(well) & set(group.placed_canaries or ())) < group.desired_canaries
        else:
            is_late = len(well) < group.desired_total
        if is_late:
            found.append(name)
    return found


def _may_be_promoted(deployment: Deployment, mine: Iterable[Allocation]) -> bool:
    waiting = {name: group for name, group in (deployment.task_groups or {}).items() if group.is_awaiting_promotion}
    if not waiting or not all(group.auto_promote for group in waiting.values()):
        return False
    by_id = {each.id: each for each in mine}
    for group in waiting.values():
        canaries = [by_id[key] for key in group.placed_canaries or () if key in by_id]
        if sum(not each.is_terminal and _is_healthy(each) for each in canaries) != group.desired_canaries:
            return False
    return True


def _is_healthy(allocation: Allocation) -> bool:
    status = allocation.deployment_status
    return status is not None and status.healthy is True


def _came_on(snapshot: Replica, deployment: Deployment, mine: Iterable[Allocation]) -> bool:
    """Whether something became healthy that no evaluation has seen."""
    newest = max(
        (each.deployment_status.modify_index for each in mine if each.deployment_status and _is_healthy(each)),
        default=0,
    )
    seen = 0
    for evaluation in snapshot.list_by_index(EVALUATIONS_OF_JOB, deployment.namespace, deployment.job_id):
        waits = evaluation.wait_until is not None and evaluation.status is EvaluationStatus.PENDING
        if not waits:
            seen = max(seen, evaluation.create_index, evaluation.snapshot_index)
    return newest > seen
