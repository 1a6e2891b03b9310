"""Versions of a job: when a change makes a new one, how many are kept, what they are tagged with, which are stable.

It never registers anything: whoever has a changed job asks here for the records that its new version takes.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_SUBMISSIONS, JOB_VERSIONS, JOBS, VERSIONS_OF_JOB
from wharf.contract.model.jobs.job import Job, JobStatus, JobType, VersionTag
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import Refusal, invalid_request, not_found

MAX_TAG_DESCRIPTION_BYTES: Final = 1_000
MAX_TAG_NAME_BYTES: Final = 256
MAX_DROPPED_VERSIONS: Final = 10
"""So that a write stays small where the server keeps far fewer versions than it did; the rest go with the next ones."""


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
"""Maps in one order, whichever they were given in."""


class VersionTagResult(msgspec.Struct, frozen=True):
    """The tag as it stands now; an empty name: it is gone."""

    index: int
    tag: VersionTag


class VersionStabilityResult(msgspec.Struct, frozen=True):
    index: int


def clear_server_fields(job: Job) -> Job:
    """The job without what only servers set: two jobs are the same when these are (jobs.md 1.1)."""
    return replace(
        job,
        status=JobStatus.PENDING,
        status_description="",
        stable=False,
        version=0,
        submit_time=0,
        create_index=0,
        modify_index=0,
        job_modify_index=0,
    )


def has_same_specification(job: Job, other: Job) -> bool:
    """Whether two jobs differ in nothing that a submitter says. To Python 1 and true are equal; to a driver they are not."""
    one, two = clear_server_fields(job), clear_server_fields(other)
    return one == two and _encode(one) == _encode(two)


def make_next_version(job: Job, stored: Job | None, context: DecisionContext) -> Job:
    """The job as its next version, or as its first."""
    job = replace(
        job,
        version=max(job.version, stored.version + 1) if stored is not None else job.version,
        create_index=stored.create_index if stored is not None else WRITE_INDEX,
        job_modify_index=WRITE_INDEX,
        submit_time=context.now_ns,
        stable=False,
        status=stored.status if stored is not None else JobStatus.PENDING,
        status_description="",
    )
    return replace(job, status=get_initial_status(job, stored))


def get_initial_status(job: Job, stored: Job | None = None) -> JobStatus:
    """What is true as soon as the job is stored, with the evaluation that goes with it; the brain takes it from there."""
    if job.type == JobType.SYSTEM or job.is_periodic or job.is_parameterized:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    if stored is not None and stored.parent_id:
        return stored.status  # Its parent counts it there: only the brain moves it, and the count with it.
    if stored is not None and stored.status is JobStatus.RUNNING:
        return JobStatus.RUNNING
    return JobStatus.PENDING


def store_version(
    snapshot: Replica,
    job: Job,
    changes: list[PutRecord | DeleteRecord],
    conditions: list[Condition],
    *,
    max_versions: int,
) -> None:
    """Store the job as its newest version, and drop what is beyond the versions kept, each with its source."""
    changes += [JOBS.build_put(job), JOB_VERSIONS.build_put(job)]
    conditions.append(snapshot.build_key_condition(JOBS, job.namespace, job.id))
    for version in _list_excess_versions(snapshot, job, max_versions)[-MAX_DROPPED_VERSIONS:]:
        # One that is tagged or found stable meanwhile is in conflict, not gone.
        changes.append(JOB_VERSIONS.build_delete(version.namespace, version.id, version.version))
        conditions.append(snapshot.build_record_condition(JOB_VERSIONS, version))
        if snapshot.get(JOB_SUBMISSIONS, version.namespace, version.id, version.version) is not None:
            changes.append(JOB_SUBMISSIONS.build_delete(version.namespace, version.id, version.version))


def _list_excess_versions(snapshot: Replica, new: Job, max_versions: int) -> Sequence[Job]:
    """The oldest untagged versions; the newest stable one is kept, and the next oldest goes in its place (jobs.md 4)."""
    stored = snapshot.list_by_index(VERSIONS_OF_JOB, new.namespace, new.id)
    versions = sorted(
        (version for version in stored if version.create_index == new.create_index),
        key=lambda version: -version.version,
    )
    untagged = [version for version in versions if version.version_tag is None and version.version != new.version]
    room = max_versions - (1 if new.version_tag is None else 0)
    beyond = untagged[room:]
    stable = next((version for version in versions if version.stable), None)
    if stable not in beyond:
        return beyond
    return [version for version in untagged[max(0, room - 1) :] if version is not stable]


def list_versions(snapshot: Replica, namespace: str, job_id: str) -> list[Job]:
    """Every version that is kept of the job's present life, the newest first; none where there is no job."""
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        return []
    versions = [
        # The present version lives in the table of jobs: there its status is kept.
        job if version.version == job.version else version
        for version in snapshot.list_by_index(VERSIONS_OF_JOB, namespace, job_id)
        if version.create_index == job.create_index
    ]
    return sorted(versions, key=lambda version: -version.version)


def find_version(snapshot: Replica, namespace: str, job_id: str, version: int) -> Job | None:
    """That version of the job's present life."""
    found = snapshot.get(JOB_VERSIONS, namespace, job_id, version)
    job = snapshot.get(JOBS, namespace, job_id)
    return found if found is not None and job is not None and found.create_index == job.create_index else None


def set_version_tag(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    tag: VersionTag,
    context: DecisionContext,
    *,
    version: int = 0,
    is_latest: bool = False,
    cause: str = "",
) -> Decision[VersionTagResult]:
    """Give a version a name. The same name on the same version gets the new description."""
    if not tag.name:
        raise invalid_request("version tag name must not be empty")
    if len(tag.name.encode()) > MAX_TAG_NAME_BYTES:
        raise invalid_request(f"version tag name must be at most {MAX_TAG_NAME_BYTES} bytes long")
    if len(tag.description.encode()) > MAX_TAG_DESCRIPTION_BYTES:
        raise invalid_request(f"version tag description must be under {MAX_TAG_DESCRIPTION_BYTES} characters")
    if is_latest and version > 0:
        raise invalid_request(f"version must be zero when tagging latest, got: {version}")
    job = snapshot.get(JOBS, namespace, job_id)
    number = job.version if job is not None and is_latest else version
    found = find_version(snapshot, namespace, job_id, number) if number >= 0 else None
    if job is None or found is None:
        raise not_found(f'job "{job_id}" version {number} not found')
    holder = _tagged(snapshot, namespace, job_id, tag.name)
    if holder is not None and holder.version != number:
        raise invalid_request(f'tag "{tag.name}" already exists on a different version of job "{job_id}"')
    tag = replace(tag, tagged_time=context.now_ns)
    return Decision(
        _changed(snapshot, job, found, kind="job-version-tagged", cause=cause, version_tag=tag),
        lambda index: VersionTagResult(index, tag),
    )


def delete_version_tag(
    snapshot: Replica, namespace: str, job_id: str, name: str, *, cause: str = ""
) -> Decision[VersionTagResult]:
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found(f'job "{job_id}" not found')
    found = _tagged(snapshot, namespace, job_id, name)
    if found is None:
        raise not_found(f'tag "{name}" not found on job "{job_id}"')
    return Decision(
        _changed(snapshot, job, found, kind="job-version-untagged", cause=cause, version_tag=None),
        lambda index: VersionTagResult(index, VersionTag()),
    )


def set_version_stability(
    snapshot: Replica, namespace: str, job_id: str, version: int, *, is_stable: bool, cause: str = ""
) -> Decision[VersionStabilityResult]:
    """Whether a version may be gone back to. Only the version that is named changes."""
    job = snapshot.get(JOBS, namespace, job_id)
    found = find_version(snapshot, namespace, job_id, version) if version >= 0 else None
    if job is None or found is None:
        raise version_not_found(namespace, job_id, version)
    if found.stable == is_stable:
        return Decision(None, VersionStabilityResult)
    return Decision(
        _changed(snapshot, job, found, kind="job-version-marked", cause=cause, stable=is_stable), VersionStabilityResult
    )


def version_not_found(namespace: str, job_id: str, version: int) -> Refusal:
    return not_found(f'job "{job_id}" in namespace "{namespace}" at version {version} not found')


def _tagged(snapshot: Replica, namespace: str, job_id: str, name: str) -> Job | None:
    found = (
        each
        for each in list_versions(snapshot, namespace, job_id)
        if each.version_tag is not None and each.version_tag.name == name
    )
    holder = next(found, None)
    return None if holder is None else snapshot.get(JOB_VERSIONS, namespace, job_id, holder.version)


def _changed(snapshot: Replica, job: Job, version: Job, *, kind: str, cause: str, **fields: object) -> Write:
    """The version with these fields. The present version stands in two tables, and changes in both.

    The job's own record moves in any case: so two who give one name to two versions are in conflict.
    """
    job = replace(job, **fields) if version.version == job.version else job
    changes = [JOB_VERSIONS.build_put(replace(version, **fields)), JOBS.build_put(job)]
    conditions = [snapshot.build_record_condition(JOB_VERSIONS, version), snapshot.build_record_condition(JOBS, job)]
    return Write(kind, Cause(CauseKind.REQUEST, cause), changes, conditions)
