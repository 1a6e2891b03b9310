"""What people do to jobs: register and deregister them."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import Evaluation, EvaluationTrigger, SchedulerType
from wharf.model.job import Job, JobStatus, JobType
from wharf.model.job_settings import JobSettings
from wharf.model.refusal import invalid
from wharf.model.validation import refuse_update
from wharf.operations.admission import admit, preserving
from wharf.operations.decision import Decision, Moment
from wharf.operations.derived import new_summary
from wharf.operations.evaluations import new_evaluation
from wharf.state import Replica
from wharf.state.tables import EVALUATIONS, JOB_VERSIONS, JOBS, SUMMARIES, VERSIONS_OF_JOB

VERSIONS_KEPT: Final = 6

DEREGISTERED_PRIORITY: Final = 50


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be registered, with the caller's conditions and wishes."""

    job: Job
    enforce_index: bool = False
    job_modify_index: int = 0
    eval_priority: int = 0
    preserve_counts: bool = False
    preserve_resources: bool = False
    submission_warnings: tuple[str, ...] = ()
    cause: str = ""


class Registered(msgspec.Struct, frozen=True):
    """`index` is that of the write."""

    index: int
    job_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    warnings: str = ""


def register(snapshot: Replica, request: Registration, moment: Moment, settings: JobSettings) -> Decision[Registered]:
    """Store the job as a new version, if it differs from what is there, and have it evaluated."""
    _check_eval_priority(request.eval_priority)
    stored = snapshot.get(JOBS, request.job.namespace, request.job.id)
    admitted = admit(snapshot, request.job, settings, warnings_of_reading=request.submission_warnings)
    _enforce_index(request, stored)
    refused = refuse_update(stored, admitted.job) if stored is not None else None
    if refused is not None:
        raise invalid(refused)
    job = preserving(admitted.job, stored, counts=request.preserve_counts, resources=request.preserve_resources)
    changes: list[Put | Drop] = []
    conditions = [snapshot.as_seen(JOBS, job.namespace, job.id)]
    if stored is None or _specification(stored) != _specification(job):
        job = _new_version(job, stored, moment)
        changes += [JOBS.put(job), JOB_VERSIONS.put(job)]
        _drop_old_versions(snapshot, job, changes, conditions)
        if stored is None:
            changes.append(SUMMARIES.put(new_summary(job)))
            conditions.append(snapshot.as_seen(SUMMARIES, job.namespace, job.id))
        job_modify_index = THIS
    else:
        job = stored
        job_modify_index = stored.modify_index
    evaluation: Evaluation | None = None
    if not (job.is_periodic or job.is_parameterized):
        evaluation = new_evaluation(
            job,
            moment,
            EvaluationTrigger.JOB_REGISTER,
            scheduler=SchedulerType(job.type),
            priority=request.eval_priority or job.priority,
        )
        changes.append(EVALUATIONS.put(evaluation))
    if not changes:
        return Decision(None, lambda index: Registered(index, job.modify_index, warnings=admitted.warnings))
    return Decision(
        Write("job-registered", Cause(CauseKind.REQUEST, request.cause), changes, conditions),
        lambda index: Registered(
            index=index,
            job_modify_index=index if job_modify_index == THIS else job_modify_index,
            eval_id=evaluation.id if evaluation else "",
            eval_create_index=index if evaluation else 0,
            warnings=admitted.warnings,
        ),
    )


def deregister(
    snapshot: Replica, namespace: str, job_id: str, moment: Moment, *, eval_priority: int = 0, cause: str = ""
) -> Decision[Registered]:
    """Stop the job; it stays readable until it is collected. A job that nobody knows is stopped already."""
    if eval_priority > 0:
        _check_eval_priority(eval_priority)
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        return Decision(None, lambda _index: Registered(0, 0))
    # A tag names one version: it stays with the one that has it.
    job = _new_version(replace(stored, stop=True, version_tag=None), stored, moment)
    changes: list[Put | Drop] = [JOBS.put(job), JOB_VERSIONS.put(job)]
    conditions = [snapshot.as_seen(JOBS, namespace, job_id)]
    _drop_old_versions(snapshot, job, changes, conditions)
    evaluation = None
    if not (job.is_periodic or job.is_parameterized):
        priority = eval_priority if eval_priority > 0 else job.priority or DEREGISTERED_PRIORITY
        # Always of the services' scheduler, whatever the job's type (jobs.md 1.3).
        evaluation = new_evaluation(
            job, moment, EvaluationTrigger.JOB_DEREGISTER, scheduler=SchedulerType.SERVICE, priority=priority
        )
        changes.append(EVALUATIONS.put(evaluation))
    return Decision(
        Write("job-deregistered", Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: Registered(index, index, evaluation.id if evaluation else "", index),
    )


def _check_eval_priority(priority: int) -> None:
    if priority and not 1 <= priority <= 100:
        raise invalid("Eval priority must be between 1 and 100 inclusively")


def _enforce_index(request: Registration, stored: Job | None) -> None:
    if not request.enforce_index:
        return
    given = request.job_modify_index
    begins = f"Enforcing job modify index {given}:"
    if given == 0 and stored is not None:
        raise invalid(f"{begins} job already exists")
    if given and stored is None:
        raise invalid(f"{begins} job does not exist")
    if given and stored is not None and given != stored.job_modify_index:
        raise invalid(f"{begins} job exists with conflicting job modify index: {stored.job_modify_index}")


def _specification(job: Job) -> Job:
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


def _new_version(job: Job, stored: Job | None, moment: Moment) -> Job:
    job = replace(
        job,
        version=max(job.version, stored.version + 1) if stored is not None else job.version,
        create_index=stored.create_index if stored is not None else THIS,
        job_modify_index=THIS,
        submit_time=moment.now_ns,
        stable=False,
        status=stored.status if stored is not None else JobStatus.PENDING,
        status_description="",
    )
    return replace(job, status=_first_status(job, stored))


def _decides_own_status(job: Job) -> bool:
    return job.type == JobType.SYSTEM or job.is_periodic or job.is_parameterized


def _first_status(job: Job, stored: Job | None) -> JobStatus:
    """What is true as soon as the job is stored, with the evaluation that goes with it; the brain takes it from there."""
    if _decides_own_status(job):
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    if stored is not None and stored.status is JobStatus.RUNNING:
        return JobStatus.RUNNING
    return JobStatus.PENDING


def _drop_old_versions(snapshot: Replica, job: Job, changes: list[Put | Drop], conditions: list[Condition]) -> None:
    """Drop what is beyond the versions kept. One that is tagged or found stable meanwhile is in conflict, not gone."""
    for version in _versions_beyond(snapshot, job):
        changes.append(Drop(JOB_VERSIONS.name, JOB_VERSIONS.key_of(version)))
        conditions.append(snapshot.unchanged(JOB_VERSIONS, version))


def _versions_beyond(snapshot: Replica, new: Job) -> Sequence[Job]:
    """The oldest untagged versions; the newest stable one is kept, and the next oldest goes in its place (jobs.md 4)."""
    versions = sorted(snapshot.those(VERSIONS_OF_JOB, new.namespace, new.id), key=lambda version: -version.version)
    untagged = [version for version in versions if version.version_tag is None]
    room = VERSIONS_KEPT - (1 if new.version_tag is None else 0)
    beyond = untagged[room:]
    stable = next((version for version in versions if version.stable), None)
    if stable not in beyond:
        return beyond
    return [version for version in untagged[room - 1 :] if version is not stable]
