"""The job's deployment during an evaluation: which one applies, how it starts, and how the evaluation changes it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.outcome import GroupOutcome
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import DEPLOYMENT_STATES
from wharf.contract.model.times import DecisionContext

RUNNING_TEXT: Final = "Deployment is running"
RUNNING_UNPROMOTED_TEXT: Final = "Deployment is running but requires manual promotion"
RUNNING_AUTO_PROMOTE_TEXT: Final = "Deployment is running pending automatic promotion"
SUCCESSFUL_TEXT: Final = "Deployment completed successfully"
JOB_STOPPED_TEXT: Final = "Cancelled because job is stopped"
SUPERSEDED_TEXT: Final = "Cancelled due to newer version of job"


class JobDeployments(msgspec.Struct, frozen=True):
    """The deployments of a job that matter to one evaluation."""

    current: Deployment | None = None  # The deployment of this job version, active or failed.
    previous: Deployment | None = None  # The newest deployment, if it is of another version or has ended.
    cancelled: Deployment | None = None  # The changed record of a deployment that this evaluation cancels.


def find_job_deployments(
    job: Job | None, deployments: Iterable[Deployment], context: DecisionContext
) -> JobDeployments:
    """Return the job's newest deployment, as the current or the previous one.

    If the job is stopped, deleted or newer than an active deployment, also return the canceled record of the
    deployment.
    """
    latest = max(deployments, key=lambda deployment: (deployment.create_index, deployment.id), default=None)
    if latest is None:
        return JobDeployments()
    if job is None or job.stop:
        return JobDeployments(None, latest, _cancel_if_active(latest, JOB_STOPPED_TEXT, context))
    if (latest.job_create_index, latest.job_version) != (job.create_index, job.version):
        return JobDeployments(None, latest, _cancel_if_active(latest, SUPERSEDED_TEXT, context))
    if latest.status in (DeploymentStatus.SUCCESSFUL, DeploymentStatus.CANCELLED):
        return JobDeployments(None, latest)
    return JobDeployments(latest)


def find_stable_version(
    deployments: Iterable[Deployment], group: str, find_version: Callable[[Deployment], Job | None]
) -> tuple[Job, str] | None:
    """Return the newest stable job version for this group, and the id of the deployment that rolled it out.

    A version is stable for the group if its deployment was promoted there or required no canaries. `find_version` returns
    the stored version of a deployment. Return `None` if no such deployment and version are stored.
    """
    for deployment in sorted(deployments, key=attrgetter("create_index"), reverse=True):
        group_state = (deployment.task_groups or {}).get(group)
        if group_state is not None and (group_state.promoted or not group_state.desired_canaries):
            version = find_version(deployment)
            if version is not None and version.create_index == deployment.job_create_index:
                return version, deployment.id
    return None


def list_needed_deployments(
    job: Job, deployments: Collection[Deployment], find_version: Callable[[Deployment], Job | None]
) -> set[str]:
    """Return the ids of the ended deployments on which the next evaluation of the job relies.

    Without the failed deployment of the current version, it would place that version again. Without the deployment of a
    stable version, it would replace a lost allocation beside canaries by one of their version.
    """
    if job.stop:
        return set()
    current = job.create_index, job.version
    stable = [find_stable_version(deployments, group.name, find_version) for group in job.groups]
    return {deployment_id for _, deployment_id in filter(None, stable)} | {
        each.id
        for each in deployments
        if each.status is DeploymentStatus.FAILED and (each.job_create_index, each.job_version) == current
    }


def _cancel_if_active(deployment: Deployment, description: str, context: DecisionContext) -> Deployment | None:
    """Return the deployment as canceled with this description, or `None` if it has ended already."""
    return (
        _change_status(deployment, DeploymentStatus.CANCELLED, description, context) if deployment.is_active else None
    )


def _change_status(
    deployment: Deployment, status: DeploymentStatus, description: str, context: DecisionContext
) -> Deployment:
    """Return the deployment with this status and description.

    Raises `InvalidTransition` if the state table forbids it.
    """
    return replace(
        deployment,
        status=advance_state(DEPLOYMENT_STATES, deployment.status, status, record_id=deployment.id),
        status_description=description,
        modify_time=max(context.now_ns, deployment.modify_time),
    )


def start_deployment(
    job: Job, evaluation: Evaluation, groups: Mapping[str, DeploymentGroup], context: DecisionContext
) -> Deployment:
    """Return a new running deployment of the job's current version with these group states."""
    return Deployment(
        id=context.new_id(),
        namespace=job.namespace,
        job_id=job.id,
        job_version=job.version,
        job_modify_index=job.modify_index,
        job_spec_modify_index=job.job_modify_index,
        job_create_index=job.create_index,
        task_groups=dict(groups),
        status=DeploymentStatus.RUNNING,
        status_description=describe_running(groups.values()),
        eval_priority=evaluation.priority,
        create_index=WRITE_INDEX,
        create_time=context.now_ns,
        modify_time=context.now_ns,
    )


def list_undecided_allocations(deployment: Deployment, allocations: Iterable[Allocation]) -> list[Allocation] | None:
    """Return the allocations of the deployment without a reported health, or `None` if one of them is unhealthy."""
    undecided = []
    for allocation in allocations:
        if allocation.deployment_id == deployment.id:
            health = allocation.deployment_status.healthy if allocation.deployment_status is not None else None
            if health is False:
                return None
            if health is None:
                undecided.append(allocation)
    return undecided


def describe_running(groups: Iterable[DeploymentGroup]) -> str:
    """Return the status description of a running deployment with these groups: whether it awaits promotion."""
    waiting = [group for group in groups if group.is_awaiting_promotion]
    if not waiting:
        return RUNNING_TEXT
    return RUNNING_AUTO_PROMOTE_TEXT if all(group.auto_promote for group in waiting) else RUNNING_UNPROMOTED_TEXT


def update_deployment(
    deployment: Deployment, outcomes: Iterable[GroupOutcome], context: DecisionContext
) -> Deployment | None:
    """Return the deployment with the changes of this evaluation, or `None` if it does not change.

    It succeeds when all groups are complete. Otherwise it gets the groups' new states.
    """
    outcomes = list(outcomes)
    groups = dict(deployment.task_groups or {})
    for outcome in outcomes:
        if outcome.deployment is not None and outcome.name in groups:
            groups[outcome.name] = outcome.deployment
    outcome_by_group = {outcome.name: outcome for outcome in outcomes}
    is_complete = all(name in outcome_by_group and outcome_by_group[name].is_complete for name in groups) and all(
        outcome.is_complete for outcome in outcomes
    )
    if is_complete and deployment.status is DeploymentStatus.RUNNING:
        successful = _change_status(deployment, DeploymentStatus.SUCCESSFUL, SUCCESSFUL_TEXT, context)
        return replace(successful, task_groups=groups)
    if groups == (deployment.task_groups or {}):
        return None
    text = describe_running(groups.values()) if deployment.status is DeploymentStatus.RUNNING else ""
    return replace(
        deployment,
        task_groups=groups,
        status_description=text or deployment.status_description,
        modify_time=max(context.now_ns, deployment.modify_time),
    )
