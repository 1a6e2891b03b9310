"""What people do to jobs: register, revert and deregister them."""

from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import Evaluation, EvaluationTrigger, SchedulerType
from wharf.model.job import Job, JobStatus
from wharf.model.job_settings import JobSettings
from wharf.model.moment import to_time
from wharf.model.periodic import PeriodicLaunch
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.submission import Submission
from wharf.model.validation import refuse_update
from wharf.operations.admission import admit, preserving
from wharf.operations.decision import Decision, Moment
from wharf.operations.derived import new_summary
from wharf.operations.evaluations import new_evaluation
from wharf.operations.scaling_policies import follow_policies, with_policy_ids
from wharf.operations.sources import judge_source, kept_with
from wharf.operations.summaries import counted_children
from wharf.operations.versions import new_version, say_the_same, store_version, unknown_version, version_of
from wharf.state import Replica
from wharf.state.tables import (
    CHILDREN_OF_JOB,
    EVALUATIONS,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    PERIODIC_LAUNCHES,
    SCHEDULER_CONFIGURATION,
    SUBMISSIONS,
    SUMMARIES,
)

STANDARD_SETTINGS: Final = JobSettings()
DEREGISTERED_PRIORITY: Final = 50
CHILDREN_WATCHED: Final = 32
"""Of so many children a parent that comes anew is sure that they still are as they were counted: a write has bounds."""
REGISTRATION_DISABLED: Final = "Job registration, dispatch, and scale are disabled by the scheduler configuration"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be registered, with the caller's conditions and wishes."""

    job: Job
    enforce_index: bool = False
    job_modify_index: int = 0
    eval_priority: int = 0
    preserve_counts: bool = False
    preserve_resources: bool = False
    submission: Submission | None = None
    submission_warnings: tuple[str, ...] = ()
    accessor_id: str = ""
    """Of the token that submits it."""
    is_management: bool = True
    """May register also while everybody else may not."""
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
    check_eval_priority(request.eval_priority)
    refuse_while_disabled(snapshot, is_management=request.is_management)
    submitted = replace(request.job, submitter_accessor_id=request.accessor_id)
    stored = snapshot.get(JOBS, submitted.namespace, submitted.id)
    source, warnings_of_source = judge_source(request.submission, settings)
    admitted = admit(
        snapshot,
        of_same_family(submitted, stored),
        settings,
        warnings_of_reading=(*request.submission_warnings, *warnings_of_source),
    )
    if request.enforce_index:
        enforce_index(request.job_modify_index, stored)
    refused = refuse_update(stored, admitted.job) if stored is not None else None
    if refused is not None:
        raise invalid(refused)
    job = preserving(admitted.job, stored, counts=request.preserve_counts, resources=request.preserve_resources)
    job = with_policy_ids(snapshot, job, moment)
    changes: list[Put | Drop] = []
    # What it may be and where it may go was judged by these two: one that is deleted meanwhile takes no job in.
    conditions = [snapshot.as_seen(NAMESPACES, job.namespace), snapshot.as_seen(NODE_POOLS, job.node_pool)]
    job_modify_index = THIS
    if stored is None or not say_the_same(stored, job):
        job = new_version(job, stored, moment)
        store_version(snapshot, job, changes, conditions, kept=settings.versions_kept)
        follow_policies(snapshot, job, changes, conditions)
        if source is not None:
            changes.append(kept_with(source, job))
        if stored is None:
            # Children outlive a parent that is purged, and are those of the one that takes its name.
            children = list(snapshot.those(CHILDREN_OF_JOB, job.namespace, job.id))
            changes.append(SUMMARIES.put(replace(new_summary(job), children=counted_children(children))))
            conditions.append(snapshot.as_seen(SUMMARIES, job.namespace, job.id))
            alive = [child for child in children if child.status is not JobStatus.DEAD]
            conditions += [snapshot.unchanged(JOBS, child) for child in alive[:CHILDREN_WATCHED]]
        follow_launches(snapshot, job, moment, changes)
    else:
        job, job_modify_index = stored, stored.modify_index
        conditions.append(snapshot.as_seen(JOBS, job.namespace, job.id))
    evaluation = evaluation_of(job, moment, EvaluationTrigger.JOB_REGISTER, priority=request.eval_priority)
    if evaluation is not None:
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


def revert(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    version: int,
    moment: Moment,
    settings: JobSettings,
    *,
    enforced_version: int | None = None,
    accessor_id: str = "",
    is_management: bool = True,
    cause: str = "",
) -> Decision[Registered]:
    """Register a copy of an earlier version, with the source that it came from. It is a new version, not yet stable."""
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        raise unknown(f'job "{job_id}" not found')
    if enforced_version is not None and enforced_version != stored.version:
        raise invalid(f"Current job has version {stored.version}; enforcing version {enforced_version}")
    if version == stored.version:
        raise invalid("can't revert to current version")
    wanted = version_of(snapshot, namespace, job_id, version) if version >= 0 else None
    if wanted is None:
        raise unknown_version(namespace, job_id, version)
    registration = Registration(
        job=replace(wanted, version=0, version_tag=None),
        submission=snapshot.get(SUBMISSIONS, namespace, job_id, version),
        accessor_id=accessor_id,
        is_management=is_management,
        cause=cause,
    )
    return register(snapshot, registration, moment, settings)


def deregister(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    moment: Moment,
    *,
    eval_priority: int = 0,
    cause: str = "",
    settings: JobSettings = STANDARD_SETTINGS,
) -> Decision[Registered]:
    """Stop the job; it stays readable until it is collected. A job that nobody knows is stopped already."""
    if eval_priority > 0:
        check_eval_priority(eval_priority)
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        return Decision(None, lambda _index: Registered(0, 0))
    # A tag names one version: it stays with the one that has it.
    job = new_version(replace(stored, stop=True, version_tag=None), stored, moment)
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    store_version(snapshot, job, changes, conditions, kept=settings.versions_kept)
    follow_policies(snapshot, job, changes, conditions)
    evaluation = stopping_evaluation(job, moment, eval_priority=eval_priority)
    if evaluation is not None:
        changes.append(EVALUATIONS.put(evaluation))
    return Decision(
        Write("job-deregistered", Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: Registered(index, index, evaluation.id if evaluation else "", index),
    )


def evaluation_of(job: Job, moment: Moment, trigger: EvaluationTrigger, *, priority: int = 0) -> Evaluation | None:
    """The evaluation that follows a job's change; none of one that waits for its time or for a dispatch."""
    if job.is_periodic or job.is_parameterized:
        return None
    return new_evaluation(job, moment, trigger, scheduler=SchedulerType(job.type), priority=priority or job.priority)


def stopping_evaluation(job: Job, moment: Moment, *, eval_priority: int) -> Evaluation | None:
    """Always of the services' scheduler, whatever the job's type (jobs.md 1.3)."""
    if job.is_periodic or job.is_parameterized:
        return None
    priority = eval_priority if eval_priority > 0 else job.priority or DEREGISTERED_PRIORITY
    return new_evaluation(
        job, moment, EvaluationTrigger.JOB_DEREGISTER, scheduler=SchedulerType.SERVICE, priority=priority
    )


def of_same_family(job: Job, stored: Job | None) -> Job:
    """A child that is registered over stays the child that it is: what only servers set is not the submitter's to lose."""
    if stored is None or not stored.parent_id:
        return replace(job, parent_id="", dispatched=False, dispatch_idempotency_token="")
    return replace(
        job,
        parent_id=stored.parent_id,
        dispatched=stored.dispatched,
        dispatch_idempotency_token=stored.dispatch_idempotency_token,
    )


def follow_launches(snapshot: Replica, job: Job, moment: Moment, changes: list[Put | Drop]) -> None:
    """From now on launches are due: a parent's times count from its first registration (scheduling.md 8.1)."""
    if job.is_periodic and snapshot.get(PERIODIC_LAUNCHES, job.namespace, job.id) is None:
        launch = PeriodicLaunch(namespace=job.namespace, id=job.id, launch=to_time(moment.now_ns), create_index=THIS)
        changes.append(PERIODIC_LAUNCHES.put(launch))


def refuse_while_disabled(snapshot: Replica, *, is_management: bool) -> None:
    """Operators can keep new work out of the cluster."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is not None and configuration.reject_job_registration and not is_management:
        raise Refusal(Code.FORBIDDEN, REGISTRATION_DISABLED)


def check_eval_priority(priority: int) -> None:
    if priority and not 1 <= priority <= 100:
        raise invalid("Eval priority must be between 1 and 100 inclusively")


def enforce_index(given: int, stored: Job | None) -> None:
    """The caller's word on how the job stands (jobs.md 5)."""
    begins = f"Enforcing job modify index {given}:"
    if given == 0 and stored is not None:
        raise invalid(f"{begins} job already exists")
    if given and stored is None:
        raise invalid(f"{begins} job does not exist")
    if given and stored is not None and given != stored.job_modify_index:
        raise invalid(f"{begins} job exists with conflicting job modify index: {stored.job_modify_index}")
