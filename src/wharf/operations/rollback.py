"""Taking a job back to its newest stable version, because a deployment of the current one failed.

It decides whether there is something to go back to, and what is written for it. Whether to go back at all is decided
by whoever fails the deployment.
"""

import msgspec
from msgspec.structs import replace

from wharf.model.changes import Condition, Drop, Put
from wharf.model.deployment import Deployment
from wharf.model.job import Job
from wharf.model.moment import Moment
from wharf.operations.scaling_policies import follow_policies, with_policy_ids
from wharf.operations.sources import kept_with
from wharf.operations.versions import new_version, say_the_same, store_version, versions_of
from wharf.state import Replica
from wharf.state.tables import JOBS, SUBMISSIONS


class Rollback(msgspec.Struct, frozen=True):
    """`told` is what the deployment's description says of it. `job` None: the job stays as it is."""

    told: str
    version: int | None = None
    job: Job | None = None
    changes: tuple[Put | Drop, ...] = ()
    conditions: tuple[Condition, ...] = ()


STAYS = Rollback(" - no stable job version to auto revert to")


def roll_back(snapshot: Replica, deployment: Deployment, moment: Moment, *, versions_kept: int) -> Rollback | None:
    """None: the job has moved on since, or is gone; what somebody registered after this version stays."""
    job = snapshot.get(JOBS, deployment.namespace, deployment.job_id)
    if job is None or job.stop:
        return None
    if (job.create_index, job.version) != (deployment.job_create_index, deployment.job_version):
        return None
    stable = next((version for version in versions_of(snapshot, job.namespace, job.id) if version.stable), None)
    if stable is None:
        return STAYS
    again = replace(stable, version_tag=None)  # A tag names one version: it stays with the one that has it.
    if say_the_same(again, replace(job, version_tag=None)):
        return Rollback(
            f" - not rolling back to stable job version {stable.version} as current job has same specification"
        )
    restored = new_version(with_policy_ids(snapshot, again, moment), job, moment)
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    store_version(snapshot, restored, changes, conditions, kept=versions_kept)
    follow_policies(snapshot, restored, changes, conditions)
    source = snapshot.get(SUBMISSIONS, job.namespace, job.id, stable.version)
    if source is not None:
        changes.append(kept_with(source, restored))
    told = f" - rolling back to job version {stable.version}"
    return Rollback(told, stable.version, restored, tuple(changes), tuple(conditions))
