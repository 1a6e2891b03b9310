"""Roll back a job to its newest stable version because a deployment failed.

Decides which version to restore and what to write. Whether to roll back is decided by the caller that fails the
deployment.
"""

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import WriteBuilder
from wharf.cluster.operations.jobs.submissions import make_submission
from wharf.cluster.operations.jobs.versions import (
    has_same_specification,
    list_versions,
    make_next_version,
    store_version,
)
from wharf.cluster.operations.scaling import assign_policy_ids, sync_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_SUBMISSIONS, JOBS
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Condition, DeleteRecord, PutRecord
from wharf.contract.model.times import DecisionContext


class Rollback(msgspec.Struct, frozen=True):
    """The records that restore the newest stable version of a job."""

    description: str  # Appended to the deployment's status description.
    version: int | None = None  # The version that is restored.
    job: Job | None = None  # The job afterwards. `None`: the job stays as it is.
    changes: tuple[PutRecord | DeleteRecord, ...] = ()  # To be added to the write that fails the deployment.
    conditions: tuple[Condition, ...] = ()  # To be added to the same write.


NO_STABLE_VERSION = Rollback(" - no stable job version to auto revert to")
"""The result if the job has no stable version: nothing changes."""


def roll_back_job(
    snapshot: Replica, deployment: Deployment, context: DecisionContext, *, max_versions: int
) -> Rollback | None:
    """Return the changes that restore the newest stable version of the deployment's job, as a new version.

    Return `None` if the job was changed, stopped or deleted since the deployment started. `max_versions` is how many
    versions are stored.
    """
    job = snapshot.get(JOBS, deployment.namespace, deployment.job_id)
    if job is None or job.stop:
        return None
    if (job.create_index, job.version) != (deployment.job_create_index, deployment.job_version):
        return None
    stable = next((version for version in list_versions(snapshot, job.namespace, job.id) if version.stable), None)
    if stable is None:
        return NO_STABLE_VERSION
    candidate = replace(stable, version_tag=None)  # A tag belongs to one version.
    if has_same_specification(candidate, replace(job, version_tag=None)):
        return Rollback(
            f" - not rolling back to stable job version {stable.version} as current job has same specification"
        )
    restored = make_next_version(assign_policy_ids(snapshot, candidate, context), job, context)
    builder = WriteBuilder(snapshot)
    store_version(builder, restored, max_versions=max_versions)
    sync_policies(builder, restored)
    source = snapshot.get(JOB_SUBMISSIONS, job.namespace, job.id, stable.version)
    if source is not None:
        builder.put(JOB_SUBMISSIONS, make_submission(source, restored))
    description = f" - rolling back to job version {stable.version}"
    return Rollback(description, stable.version, restored, tuple(builder.changes), tuple(builder.conditions))
