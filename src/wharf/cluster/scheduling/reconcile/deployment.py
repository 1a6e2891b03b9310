"""A job's deployment as an evaluation finds it, and what the evaluation makes of it."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.outcome import GroupOutcome
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
    """`current`: the deployment of this version, active or failed. `old`: one that is of another, or done.
    `cancelled`: the one that ends because of what the job is now, as it shall be.
    """

    current: Deployment | None = None
    previous: Deployment | None = None
    cancelled: Deployment | None = None


def find_job_deployments(job: Job | None, deployments: Iterable[Deployment], moment: DecisionContext) -> JobDeployments:
    latest = max(deployments, key=lambda each: (each.create_index, each.id), default=None)
    if latest is None:
        return JobDeployments()
    if job is None or job.stop:
        return JobDeployments(None, latest, _cancelled(latest, JOB_STOPPED_TEXT, moment))
    if (latest.job_create_index, latest.job_version) != (job.create_index, job.version):
        return JobDeployments(None, latest, _cancelled(latest, SUPERSEDED_TEXT, moment))
    if latest.status in (DeploymentStatus.SUCCESSFUL, DeploymentStatus.CANCELLED):
        return JobDeployments(None, latest)
    return JobDeployments(latest)


def _cancelled(deployment: Deployment, why: str, moment: DecisionContext) -> Deployment | None:
    return _moved(deployment, DeploymentStatus.CANCELLED, why, moment) if deployment.is_active else None


def _moved(deployment: Deployment, status: DeploymentStatus, why: str, moment: DecisionContext) -> Deployment:
    return replace(
        deployment,
        status=advance_state(DEPLOYMENT_STATES, deployment.status, status, record_id=deployment.id),
        status_description=why,
        modify_time=max(moment.now_ns, deployment.modify_time),
    )


def start_deployment(
    job: Job, evaluation: Evaluation, groups: Mapping[str, DeploymentGroup], moment: DecisionContext
) -> Deployment:
    """A new deployment of the job's version."""
    return Deployment(
        id=moment.new_id(),
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
        create_time=moment.now_ns,
        modify_time=moment.now_ns,
    )


def describe_running(groups: Iterable[DeploymentGroup]) -> str:
    waiting = [group for group in groups if group.is_awaiting_promotion]
    if not waiting:
        return RUNNING_TEXT
    return RUNNING_AUTO_PROMOTE_TEXT if all(group.auto_promote for group in waiting) else RUNNING_UNPROMOTED_TEXT


def update_deployment(
    deployment: Deployment, outcomes: Iterable[GroupOutcome], moment: DecisionContext
) -> Deployment | None:
    """The deployment as this evaluation leaves it: done, or with canaries wanted; None: as it was."""
    outcomes = list(outcomes)
    groups = dict(deployment.task_groups or {})
    for outcome in outcomes:
        if outcome.deployment is not None and outcome.name in groups:
            groups[outcome.name] = outcome.deployment
    told = {outcome.name: outcome for outcome in outcomes}
    is_done = all(name in told and told[name].is_complete for name in groups) and all(
        outcome.is_complete for outcome in outcomes
    )
    if is_done and deployment.status is DeploymentStatus.RUNNING:
        done = _moved(deployment, DeploymentStatus.SUCCESSFUL, SUCCESSFUL_TEXT, moment)
        return replace(done, task_groups=groups)
    if groups == (deployment.task_groups or {}):
        return None
    text = describe_running(groups.values()) if deployment.status is DeploymentStatus.RUNNING else ""
    return replace(
        deployment,
        task_groups=groups,
        status_description=text or deployment.status_description,
        modify_time=max(moment.now_ns, deployment.modify_time),
    )
