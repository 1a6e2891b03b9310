"""A job's deployment as an evaluation finds it, and what the evaluation makes of it."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.changes import THIS
from wharf.model.deployment import Deployment, DeploymentGroup, DeploymentStatus
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.model.machine import advance
from wharf.model.moment import Moment
from wharf.model.transitions import DEPLOYMENT
from wharf.scheduling.reconcile.outcome import GroupOutcome

RUNNING: Final = "Deployment is running"
RUNNING_UNPROMOTED: Final = "Deployment is running but requires manual promotion"
RUNNING_AUTO: Final = "Deployment is running pending automatic promotion"
SUCCESSFUL: Final = "Deployment completed successfully"
STOPPED: Final = "Cancelled because job is stopped"
SUPERSEDED: Final = "Cancelled due to newer version of job"


class Rollout(msgspec.Struct, frozen=True):
    """`current`: the deployment of this version, active or failed. `old`: one that is of another, or done.
    `cancelled`: the one that ends because of what the job is now, as it shall be.
    """

    current: Deployment | None = None
    old: Deployment | None = None
    cancelled: Deployment | None = None


def rollout_of(job: Job | None, deployments: Iterable[Deployment], moment: Moment) -> Rollout:
    latest = max(deployments, key=lambda each: (each.create_index, each.id), default=None)
    if latest is None:
        return Rollout()
    if job is None or job.stop:
        return Rollout(None, latest, _cancelled(latest, STOPPED, moment))
    if (latest.job_create_index, latest.job_version) != (job.create_index, job.version):
        return Rollout(None, latest, _cancelled(latest, SUPERSEDED, moment))
    if latest.status in (DeploymentStatus.SUCCESSFUL, DeploymentStatus.CANCELLED):
        return Rollout(None, latest)
    return Rollout(latest)


def _cancelled(deployment: Deployment, why: str, moment: Moment) -> Deployment | None:
    return _moved(deployment, DeploymentStatus.CANCELLED, why, moment) if deployment.is_active else None


def _moved(deployment: Deployment, status: DeploymentStatus, why: str, moment: Moment) -> Deployment:
    return replace(
        deployment,
        status=advance(DEPLOYMENT, deployment.status, status, record_id=deployment.id),
        status_description=why,
        modify_time=max(moment.now_ns, deployment.modify_time),
    )


def begun(job: Job, evaluation: Evaluation, groups: Mapping[str, DeploymentGroup], moment: Moment) -> Deployment:
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
        status_description=running_text(groups.values()),
        eval_priority=evaluation.priority,
        create_index=THIS,
        create_time=moment.now_ns,
        modify_time=moment.now_ns,
    )


def running_text(groups: Iterable[DeploymentGroup]) -> str:
    waiting = [group for group in groups if group.awaits_promotion]
    if not waiting:
        return RUNNING
    return RUNNING_AUTO if all(group.auto_promote for group in waiting) else RUNNING_UNPROMOTED


def gone_on(deployment: Deployment, outcomes: Iterable[GroupOutcome], moment: Moment) -> Deployment | None:
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
        done = _moved(deployment, DeploymentStatus.SUCCESSFUL, SUCCESSFUL, moment)
        return replace(done, task_groups=groups)
    if groups == (deployment.task_groups or {}):
        return None
    text = running_text(groups.values()) if deployment.status is DeploymentStatus.RUNNING else ""
    return replace(
        deployment,
        task_groups=groups,
        status_description=text or deployment.status_description,
        modify_time=max(moment.now_ns, deployment.modify_time),
    )
