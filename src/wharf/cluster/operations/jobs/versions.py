"""Versions of a job: when a change creates one, how many are stored, their tags, and which are stable.

Registers nothing itself: operations that change a job get the records of the new version here.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.jobs.arrays import add_attempt
from wharf.cluster.operations.jobs.overlap import get_overlap
from wharf.cluster.operations.jobs.summaries import move_child
from wharf.cluster.operations.run_changes import must_begin_run
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_SUBMISSIONS, JOB_SUMMARIES, JOB_VERSIONS, JOBS, VERSIONS_OF_JOB
from wharf.contract.model.body_limits import find_name_problem
from wharf.contract.model.jobs.job import Job, JobStatus, JobType, VersionTag
from wharf.contract.model.jobs.step_states import StepCause
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, invalid_request, not_found

MAX_TAG_DESCRIPTION_BYTES: Final = 1_000
MAX_TAG_NAME_BYTES: Final = 256
MAX_DROPPED_VERSIONS: Final = 10
"""Limits the size of a write: how many old versions it deletes, for example after `versions_kept` was lowered."""


MAX_COPIED_JOB_BYTES: Final = 256 * 1024
"""The size of a job up to which writes may have it three times. A write to etcd has at most 1.4 MB, and a job that was registered
may fill nearly half of it (record 0339).
"""


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
"""Maps are encoded in sorted key order, so that equal jobs have equal encodings."""


class VersionTagResult(msgspec.Struct, frozen=True):
    """The result of a request to set or delete a version tag."""

    index: int  # The log index of the write.
    tag: VersionTag  # The tag after the write; its name is empty if it was deleted.


class VersionStabilityResult(msgspec.Struct, frozen=True):
    """The result of a request to mark a version as stable or not."""

    index: int  # The log index of the write.


def clear_server_fields(job: Job) -> Job:
    """Return the job without the fields that servers set, such as indexes and status.

    Two jobs that are equal then have the same specification (jobs.md 1.1).
    """
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
    """Return whether two jobs differ only in fields that servers set.

    The encoded jobs are compared too, because Python treats 1 and True as equal and task drivers do not.
    """
    first, second = clear_server_fields(job), clear_server_fields(other)
    return first == second and _encode(first) == _encode(second)


def make_next_version(job: Job, stored: Job | None, context: DecisionContext) -> Job:
    """Return the job with the fields of its next version, or of its first version if there is no stored job.

    It gets the next version number, a new submission time and its initial status.
    """
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


def make_switched_version(stored: Job, context: DecisionContext, *, stop: bool) -> Job:
    """Return the stored job as a user stops it or starts it again: its next version.

    A large job keeps its version, so that the write has it only once (record 0339).
    """
    # A tag belongs to one version, so a new version does not inherit it.
    switched = make_next_version(replace(stored, stop=stop, version_tag=None), stored, context)
    if not is_large(stored):
        return switched
    return replace(switched, version=stored.version, version_tag=stored.version_tag, stable=stored.stable)


def is_large(job: Job) -> bool:
    """Return whether a job is too large for a write that has several copies of it."""
    return len(_encode(job)) > MAX_COPIED_JOB_BYTES


def get_initial_status(job: Job, stored: Job | None = None) -> JobStatus:
    """Return the status with which the job is stored; `stored` is the job that it replaces.

    After that only the leader's scheduler process changes the status.
    """
    if job.type == JobType.SYSTEM or job.is_periodic or job.is_parameterized:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    if stored is not None and stored.parent_id:
        return stored.status  # The parent counts the child by this status: only the scheduler process changes both.
    if stored is not None and stored.status is JobStatus.RUNNING:
        return JobStatus.RUNNING
    return JobStatus.PENDING


def store_version(
    builder: WriteBuilder,
    job: Job,
    *,
    max_versions: int,
    starts_arrays: bool = True,
    stop_cause: StepCause | None = None,
) -> None:
    """Add to the write the changes that store the job as its newest version and delete versions beyond `max_versions`.

    At most `MAX_DROPPED_VERSIONS` are deleted; later writes delete the rest. The version that was current until now gets
    the last status of the job, unless it is large. A large job that is only stopped or started keeps its version, and no version
    is stored (record 0339). The write conflicts if the job changes before the commit. `starts_arrays`: the elements of new and
    changed arrays run. `stop_cause` is who stops a run with its final steps; `None`: nobody is recorded.
    """
    stored = builder.snapshot.get(JOBS, job.namespace, job.id)
    if starts_arrays:
        add_attempt(builder, job, stored, stop_cause=stop_cause)
        job = _count_begun_run(builder, job, stored)
    builder.put(JOBS, job)
    builder.require_unchanged_key(JOBS, job.namespace, job.id)
    if stored is not None and job.version == stored.version:
        return
    builder.put(JOB_VERSIONS, job)
    excess = _list_excess_versions(builder.snapshot, job, max_versions)[-MAX_DROPPED_VERSIONS:]
    former = _find_current_version(builder.snapshot, job)
    if former is not None and former.version not in (version.version for version in excess):
        builder.put(JOB_VERSIONS, former)
        builder.require_unchanged_key(JOB_VERSIONS, former.namespace, former.id, former.version)
    for version in excess:
        key = (version.namespace, version.id, version.version)
        builder.delete(JOB_VERSIONS, *key)
        # If the version is tagged or marked stable meanwhile, the write conflicts.
        builder.require_unchanged_record(JOB_VERSIONS, version)
        if builder.snapshot.get(JOB_SUBMISSIONS, *key) is not None:
            builder.delete(JOB_SUBMISSIONS, *key)


def _count_begun_run(builder: WriteBuilder, job: Job, stored: Job | None) -> Job:
    """Return a run of a flow with `Overlap` that begins again after its end as one that has not ended, and count it as such.

    Launches count the runs that have not ended, and change the counts of the flow. So neither they nor other runs that begin
    again miss this run: they see it, or one of the writes conflicts (record 0345).
    """
    is_ended_run = stored is not None and stored.parent_id and stored.status is JobStatus.DEAD and get_overlap(job)
    if not is_ended_run or job.stop or not must_begin_run(stored, job):
        return job
    flow = builder.snapshot.get(JOB_SUMMARIES, job.namespace, job.parent_id)
    if flow is not None:
        builder.put(JOB_SUMMARIES, move_child(flow, JobStatus.DEAD, JobStatus.PENDING))
    builder.require_unchanged_key(JOB_SUMMARIES, job.namespace, job.parent_id)
    return replace(job, status=JobStatus.PENDING)


def _find_current_version(snapshot: Replica, new: Job) -> Job | None:
    """Return the version that `new` replaces as the current one, with the status of the job.

    Return `None` if there is none, if its stored status is that of the job already, or if it is large.
    """
    current = snapshot.get(JOBS, new.namespace, new.id)
    if current is None or current.version == new.version or current.create_index != new.create_index:
        return None
    version = snapshot.get(JOB_VERSIONS, current.namespace, current.id, current.version)
    if version is None or version.create_index != current.create_index or version.status is current.status:
        return None
    if is_large(version):
        return None
    return replace(version, status=current.status, status_description=current.status_description)


def _list_excess_versions(snapshot: Replica, new: Job, max_versions: int) -> Sequence[Job]:
    """Return the versions to delete, newest first, after `new` becomes the newest version of the job.

    Tagged versions are kept. The newest stable version is kept too, and the next oldest version is deleted instead
    (jobs.md 4).
    """
    stored = snapshot.list_by_index(VERSIONS_OF_JOB, new.namespace, new.id)
    versions = sorted(
        (version for version in stored if version.create_index == new.create_index),
        key=lambda version: -version.version,
    )
    untagged = [version for version in versions if version.version_tag is None and version.version != new.version]
    max_untagged = max_versions - (1 if new.version_tag is None else 0)
    excess = untagged[max_untagged:]
    stable = next((version for version in versions if version.stable), None)
    if stable not in excess:
        return excess
    return [version for version in untagged[max(0, max_untagged - 1) :] if version is not stable]


def list_versions(snapshot: Replica, namespace: str, job_id: str) -> list[Job]:
    """Return the stored versions of the job, newest first. Empty if the job does not exist.

    Versions of an earlier job of the same name that was purged are left out.
    """
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        return []
    versions = [
        # The status of the current version is stored in the table of jobs only.
        job if version.version == job.version else version
        for version in snapshot.list_by_index(VERSIONS_OF_JOB, namespace, job_id)
        if version.create_index == job.create_index
    ]
    return sorted(versions, key=lambda version: -version.version)


def find_submission_time(snapshot: Replica, job: Job) -> int:
    """Return when a job was submitted, in ns. A stop makes a new version, whose time is that of the stop."""
    if not job.stop:
        return job.submit_time
    submitted = (each.submit_time for each in list_versions(snapshot, job.namespace, job.id) if not each.stop)
    return max(submitted, default=job.submit_time)


def find_version(snapshot: Replica, namespace: str, job_id: str, version: int) -> Job | None:
    """Return this version of the job, or `None`.

    A version of an earlier job of the same name that was purged does not count.
    """
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
    """Return the decision that sets the tag of a job version, or replaces the description of the same tag.

    `is_latest` selects the current version. Raises if the tag is invalid, if the version does not exist, or if another
    version has the tag.
    """
    if not tag.name:
        raise invalid_request("version tag name must not be empty")
    if len(tag.name.encode()) > MAX_TAG_NAME_BYTES:
        raise invalid_request(f"version tag name must be at most {MAX_TAG_NAME_BYTES} bytes long")
    if name_problem := find_name_problem(tag.name):
        raise invalid_request(f"version tag name {name_problem}")
    if len(tag.description.encode()) > MAX_TAG_DESCRIPTION_BYTES:
        raise invalid_request(f"version tag description must be under {MAX_TAG_DESCRIPTION_BYTES} characters")
    if is_latest and version > 0:
        raise invalid_request(f"version must be zero when tagging latest, got: {version}")
    job = snapshot.get(JOBS, namespace, job_id)
    number = job.version if job is not None and is_latest else version
    found = find_version(snapshot, namespace, job_id, number) if number >= 0 else None
    if job is None or found is None:
        raise not_found(f'job "{job_id}" version {number} not found')
    holder = _find_tagged_version(snapshot, namespace, job_id, tag.name)
    if holder is not None and holder.version != number:
        raise invalid_request(f'tag "{tag.name}" already exists on a different version of job "{job_id}"')
    tag = replace(tag, tagged_time=context.now_ns)
    return Decision(
        _build_version_write(snapshot, job, found, write_kind="job-version-tagged", cause=cause, version_tag=tag),
        lambda index: VersionTagResult(index, tag),
    )


def delete_version_tag(
    snapshot: Replica, namespace: str, job_id: str, name: str, *, cause: str = ""
) -> Decision[VersionTagResult]:
    """Return the decision that deletes the tag with this name. Raises not-found if no version has it."""
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found(f'job "{job_id}" not found')
    found = _find_tagged_version(snapshot, namespace, job_id, name)
    if found is None:
        raise not_found(f'tag "{name}" not found on job "{job_id}"')
    return Decision(
        _build_version_write(snapshot, job, found, write_kind="job-version-untagged", cause=cause, version_tag=None),
        lambda index: VersionTagResult(index, VersionTag()),
    )


def set_version_stability(
    snapshot: Replica, namespace: str, job_id: str, version: int, *, is_stable: bool, cause: str = ""
) -> Decision[VersionStabilityResult]:
    """Return the decision that marks a version as stable or not stable. Raises if the version does not exist.

    Rollbacks restore stable versions only.
    """
    job = snapshot.get(JOBS, namespace, job_id)
    found = find_version(snapshot, namespace, job_id, version) if version >= 0 else None
    if job is None or found is None:
        raise version_not_found(namespace, job_id, version)
    if found.stable == is_stable:
        return Decision(None, VersionStabilityResult)
    return Decision(
        _build_version_write(snapshot, job, found, write_kind="job-version-marked", cause=cause, stable=is_stable),
        VersionStabilityResult,
    )


def version_not_found(namespace: str, job_id: str, version: int) -> Refusal:
    """Return the error for a version that does not exist."""
    return not_found(f'job "{job_id}" in namespace "{namespace}" at version {version} not found')


def _find_tagged_version(snapshot: Replica, namespace: str, job_id: str, name: str) -> Job | None:
    """Return the version of the job with this tag, or `None`."""
    found = (
        each
        for each in list_versions(snapshot, namespace, job_id)
        if each.version_tag is not None and each.version_tag.name == name
    )
    holder = next(found, None)
    return None if holder is None else snapshot.get(JOB_VERSIONS, namespace, job_id, holder.version)


def _build_version_write(
    snapshot: Replica, job: Job, version: Job, *, write_kind: str, cause: str, **fields: object
) -> Write:
    """Return the write that sets these fields of one version of a job.

    The current version is stored in two tables, of versions and of jobs; then both records change. The record in the
    table of jobs is always written, so that two requests that give one tag name to two versions conflict.
    """
    job = replace(job, **fields) if version.version == job.version else job
    changes = [JOB_VERSIONS.build_put(replace(version, **fields)), JOBS.build_put(job)]
    conditions = [snapshot.build_record_condition(JOB_VERSIONS, version), snapshot.build_record_condition(JOBS, job)]
    return Write(write_kind, Cause(CauseKind.REQUEST, cause), changes, conditions)
