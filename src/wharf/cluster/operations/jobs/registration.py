"""Register, revert, deregister and evaluate jobs."""

from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.admission import admit_job, preserve_stored_values
from wharf.cluster.operations.jobs.submissions import check_submission_size, make_submission
from wharf.cluster.operations.jobs.summaries import count_children, make_job_summary
from wharf.cluster.operations.jobs.versions import (
    find_version,
    has_same_specification,
    make_next_version,
    make_switched_version,
    store_version,
    version_not_found,
)
from wharf.cluster.operations.references import build_parent_conditions
from wharf.cluster.operations.scaling import assign_policy_ids, sync_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    CHILDREN_OF_JOB,
    EVALUATIONS,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOBS,
    PERIODIC_LAUNCHES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, JobStatus, Submission
from wharf.contract.model.jobs.periodic import PeriodicLaunch
from wharf.contract.model.jobs.step_states import StepCause
from wharf.contract.model.jobs.validation import find_update_error
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.times import to_datetime

DEFAULT_DEREGISTER_PRIORITY: Final = 50
"""The priority of the evaluation of a stopped job that has no priority."""
MAX_CHILD_CONDITIONS: Final = 32
"""Limits the size of a write: when a new parent counts its existing children, at most this many of them become
conditions.
"""
REGISTRATION_WRITE_KIND: Final = "job-registered"
REGISTRATION_DISABLED_ERROR: Final = "Job registration, dispatch, and scale are disabled by the scheduler configuration"


class JobRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A request to register a job, with its options."""

    job: Job
    should_enforce_index: bool = False
    """Refuse the request unless the stored job has the modify index `job_modify_index`."""
    job_modify_index: int = 0  # The expected modify index; 0: the job must not exist.
    eval_priority: int = 0  # The priority of the evaluation; 0: that of the job.
    should_preserve_counts: bool = False  # Keep the group counts of the stored job.
    should_preserve_resources: bool = False  # Keep the task resources of the stored job.
    submission: Submission | None = None  # The source text of the job, to be stored with the version.
    submission_warnings: tuple[str, ...] = ()  # Warnings of the parser, for the reply.
    accessor_id: str = ""
    """The accessor id of the token that submits the job."""
    is_management: bool = True
    """The caller may register jobs even while registration is disabled."""
    cause: str = ""  # The origin of the request, for the log.


class JobWriteResult(msgspec.Struct, frozen=True):
    """The result of a write of a job."""

    index: int  # The log index of the write.
    job_modify_index: int  # The modify index of the job afterwards.
    eval_id: str = ""  # The evaluation that was created; empty if none was.
    eval_create_index: int = 0  # The log index of that evaluation.
    warnings: str = ""  # Warnings for the submitter, as one text.


def register_job(
    snapshot: Replica, request: JobRegistration, context: DecisionContext, settings: JobSettings
) -> Decision[JobWriteResult]:
    """Return the decision that stores the job as a new version if its specification differs from the stored one, and
    evaluates it.

    Raises if the job is invalid, if registration is disabled, or if an enforced index does not match.
    """
    check_eval_priority(request.eval_priority)
    check_registration_enabled(snapshot, is_management=request.is_management)
    submitted = replace(request.job, submitter_accessor_id=request.accessor_id)
    stored = snapshot.get(JOBS, submitted.namespace, submitted.id)
    source, source_warnings = check_submission_size(request.submission, settings)
    admitted = admit_job(
        snapshot,
        inherit_server_fields(submitted, stored),
        settings,
        parser_warnings=(*request.submission_warnings, *source_warnings),
    )
    if request.should_enforce_index:
        check_modify_index(request.job_modify_index, stored)
    update_error = find_update_error(stored, admitted.job) if stored is not None else None
    if update_error is not None:
        raise invalid_request(update_error)
    job = preserve_stored_values(
        admitted.job,
        stored,
        should_preserve_counts=request.should_preserve_counts,
        should_preserve_resources=request.should_preserve_resources,
    )
    job = assign_policy_ids(snapshot, job, context)
    builder = WriteBuilder(snapshot)
    # The job was validated against its namespace and node pool: if one of them is deleted meanwhile, the write conflicts.
    builder.require_unchanged_parents(JOBS, job)
    job_modify_index = WRITE_INDEX
    if stored is None or not has_same_specification(stored, job):
        job = make_next_version(job, stored, context)
        store_version(builder, job, max_versions=settings.versions_kept)
        sync_policies(builder, job)
        if source is not None:
            builder.put(JOB_SUBMISSIONS, make_submission(source, job))
        if stored is None:
            _add_first_summary(builder, job)
        add_periodic_launch(builder, job, context)
    else:
        job, job_modify_index = stored, stored.modify_index
        builder.require_unchanged_key(JOBS, job.namespace, job.id)
        _update_sensitive_fields(builder, source, job)
    evaluation = make_job_evaluation(job, context, EvaluationTrigger.JOB_REGISTER, priority=request.eval_priority)
    if evaluation is not None:
        builder.put(EVALUATIONS, evaluation)
    if not builder.changes:
        return Decision(None, lambda index: JobWriteResult(index, job.modify_index, warnings=admitted.warnings))
    return Decision(
        builder.build(REGISTRATION_WRITE_KIND, Cause(CauseKind.REQUEST, request.cause)),
        lambda index: JobWriteResult(
            index=index,
            job_modify_index=index if job_modify_index == WRITE_INDEX else job_modify_index,
            eval_id=evaluation.id if evaluation else "",
            eval_create_index=index if evaluation else 0,
            warnings=admitted.warnings,
        ),
    )


def _update_sensitive_fields(builder: WriteBuilder, source: Submission | None, job: Job) -> None:
    """Store the sensitive fields of a job that did not change otherwise: a variable of its file has become sensitive."""
    if source is None or not source.sensitive_fields:
        return
    stored = builder.snapshot.get(JOB_SUBMISSIONS, job.namespace, job.id, job.version)
    if stored is None:
        builder.put(JOB_SUBMISSIONS, make_submission(source, job))
    elif stored.sensitive_fields != source.sensitive_fields:
        builder.put(JOB_SUBMISSIONS, replace(stored, sensitive_fields=source.sensitive_fields))


def _add_first_summary(builder: WriteBuilder, job: Job) -> None:
    """Add the summary of a new job to the write, with the counts of its children.

    A new job may have children already: they outlive a purged parent and then belong to the next job with its name.
    """
    children = list(builder.snapshot.list_by_index(CHILDREN_OF_JOB, job.namespace, job.id))
    builder.put(JOB_SUMMARIES, replace(make_job_summary(job), children=count_children(children)))
    builder.require_unchanged_key(JOB_SUMMARIES, job.namespace, job.id)
    live_children = [child for child in children if child.status is not JobStatus.DEAD]
    for child in live_children[:MAX_CHILD_CONDITIONS]:
        builder.require_unchanged_record(JOBS, child)


def revert_job(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    version: int,
    context: DecisionContext,
    settings: JobSettings,
    *,
    expected_version: int | None = None,
    accessor_id: str = "",
    is_management: bool = True,
    cause: str = "",
) -> Decision[JobWriteResult]:
    """Return the decision that registers a copy of an earlier version, with its source text, as a new version.

    The copy is not marked stable. Raises if the version does not exist or is the current one, or if the current version
    is not `expected_version`.
    """
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        raise not_found(f'job "{job_id}" not found')
    if expected_version is not None and expected_version != stored.version:
        raise invalid_request(f"Current job has version {stored.version}; enforcing version {expected_version}")
    target = find_version(snapshot, namespace, job_id, version) if version >= 0 else None
    if version == stored.version and (target is None or target.stop == stored.stop):
        raise invalid_request("can't revert to current version")
    if target is None:
        raise version_not_found(namespace, job_id, version)
    registration = JobRegistration(
        job=replace(target, version=0, version_tag=None),
        submission=snapshot.get(JOB_SUBMISSIONS, namespace, job_id, version),
        accessor_id=accessor_id,
        is_management=is_management,
        cause=cause,
    )
    return register_job(snapshot, registration, context, settings)


def deregister_job(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    context: DecisionContext,
    *,
    settings: JobSettings,
    eval_priority: int = 0,
    cause: str = "",
    stop_cause: StepCause | None = None,
) -> Decision[JobWriteResult]:
    """Return the decision that stops the job. It stays readable until it is garbage-collected.

    A job that does not exist changes nothing. `eval_priority` is the priority of the evaluation; 0: that of the job.
    `stop_cause` is who stops a run with its final steps; `None`: nobody is recorded.
    """
    if eval_priority > 0:
        check_eval_priority(eval_priority)
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        return Decision(None, lambda _index: JobWriteResult(0, 0))
    job = make_switched_version(stored, context, stop=True)
    builder = WriteBuilder(snapshot)
    store_version(builder, job, max_versions=settings.versions_kept, stop_cause=stop_cause)
    sync_policies(builder, job)
    evaluation = make_deregister_evaluation(job, context, eval_priority=eval_priority)
    if evaluation is not None:
        builder.put(EVALUATIONS, evaluation)
    return Decision(
        builder.build("job-deregistered", Cause(CauseKind.REQUEST, cause)),
        lambda index: JobWriteResult(index, index, evaluation.id if evaluation else "", index),
    )


def make_job_evaluation(
    job: Job, context: DecisionContext, trigger: EvaluationTrigger, *, priority: int = 0
) -> Evaluation | None:
    """Return the evaluation of a changed job; `None` for periodic and parameterized jobs, because only their children
    run.

    A `priority` of 0 selects that of the job.
    """
    if job.is_periodic or job.is_parameterized:
        return None
    return make_evaluation(job, context, trigger, scheduler=SchedulerType(job.type), priority=priority or job.priority)


def make_deregister_evaluation(job: Job, context: DecisionContext, *, eval_priority: int) -> Evaluation | None:
    """Return the evaluation that stops the allocations of a stopped job; `None` for periodic and parameterized jobs.

    Its type is always service, whatever the job's type (jobs.md 1.3).
    """
    if job.is_periodic or job.is_parameterized:
        return None
    priority = eval_priority if eval_priority > 0 else job.priority or DEFAULT_DEREGISTER_PRIORITY
    return make_evaluation(
        job, context, EvaluationTrigger.JOB_DEREGISTER, scheduler=SchedulerType.SERVICE, priority=priority
    )


def inherit_server_fields(job: Job, stored: Job | None) -> Job:
    """Return the job with the fields that mark it as a child (its parent and dispatch) taken from the stored job.

    A child that is registered again stays a child. A submitter cannot set these fields: without a stored child they are
    cleared.
    """
    if stored is None or not stored.parent_id:
        return replace(job, parent_id="", dispatched=False, dispatch_idempotency_token="")
    return replace(
        job,
        parent_id=stored.parent_id,
        dispatched=stored.dispatched,
        dispatch_idempotency_token=stored.dispatch_idempotency_token,
    )


def add_periodic_launch(builder: WriteBuilder, job: Job, context: DecisionContext) -> None:
    """Add the first launch record of a new periodic job to the write.

    Its time is now, because launches count from the first registration (scheduling.md 8.1).
    """
    if job.is_periodic and builder.snapshot.get(PERIODIC_LAUNCHES, job.namespace, job.id) is None:
        launch = PeriodicLaunch(
            namespace=job.namespace, id=job.id, launch=to_datetime(context.now_ns), create_index=WRITE_INDEX
        )
        builder.put(PERIODIC_LAUNCHES, launch)


def check_registration_enabled(snapshot: Replica, *, is_management: bool) -> None:
    """Raise if operators disabled job registration and the caller has no management token."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is not None and configuration.reject_job_registration and not is_management:
        raise Refusal(RefusalCode.FORBIDDEN, REGISTRATION_DISABLED_ERROR)


def check_eval_priority(priority: int) -> None:
    """Raise unless the priority is 0 (the job's own is used) or 1 to 100."""
    if priority and not 1 <= priority <= 100:
        raise invalid_request("Eval priority must be between 1 and 100 inclusively")


def check_modify_index(expected_index: int, stored: Job | None) -> None:
    """Raise unless the stored job has the job modify index that the caller expects (jobs.md 5).

    0 means that the job must not exist.
    """
    error_start = f"Enforcing job modify index {expected_index}:"
    if expected_index == 0 and stored is not None:
        raise invalid_request(f"{error_start} job already exists")
    if expected_index and stored is None:
        raise invalid_request(f"{error_start} job does not exist")
    if expected_index and stored is not None and expected_index != stored.job_modify_index:
        raise invalid_request(f"{error_start} job exists with conflicting job modify index: {stored.job_modify_index}")


def evaluate_job(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, *, cause: str = ""
) -> Decision[JobWriteResult]:
    """Return the decision that creates an evaluation of the job.

    Raises if the job does not exist, or is periodic or parameterized.
    """
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found("job not found")
    if job.is_periodic:
        raise invalid_request("can't evaluate periodic job")
    if job.is_parameterized:
        raise invalid_request("can't evaluate parameterized job")
    evaluation = make_evaluation(job, context, EvaluationTrigger.JOB_REGISTER)
    return Decision(
        Write(
            "job-evaluated",
            Cause(CauseKind.REQUEST, cause),
            [EVALUATIONS.build_put(evaluation)],
            # The job may be dead, so that its namespace could be deleted before the evaluation makes it active again.
            [snapshot.build_record_condition(JOBS, job), *build_parent_conditions(snapshot, JOBS, job)],
        ),
        lambda index: JobWriteResult(index, job.modify_index, evaluation.id, index),
    )
