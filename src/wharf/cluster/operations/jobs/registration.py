"""What people do to jobs: register, revert and deregister them."""

from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.admission import admit_job, preserve_stored_values
from wharf.cluster.operations.jobs.submissions import check_submission_size, store_submission
from wharf.cluster.operations.jobs.summaries import count_children, make_job_summary
from wharf.cluster.operations.jobs.versions import (
    find_version,
    has_same_specification,
    make_next_version,
    store_version,
    version_not_found,
)
from wharf.cluster.operations.scaling import assign_policy_ids, sync_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    CHILDREN_OF_JOB,
    EVALUATIONS,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    PERIODIC_LAUNCHES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, JobStatus, Submission
from wharf.contract.model.jobs.periodic import PeriodicLaunch
from wharf.contract.model.jobs.validation import find_update_error
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.times import to_datetime

DEFAULT_JOB_SETTINGS: Final = JobSettings()
DEFAULT_DEREGISTER_PRIORITY: Final = 50
MAX_CHILD_CONDITIONS: Final = 32
"""Of so many children a parent that comes anew is sure that they still are as they were counted: a write has bounds."""
REGISTRATION_DISABLED_ERROR: Final = "Job registration, dispatch, and scale are disabled by the scheduler configuration"


class JobRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be registered, with the caller's conditions and wishes."""

    job: Job
    should_enforce_index: bool = False
    job_modify_index: int = 0
    eval_priority: int = 0
    should_preserve_counts: bool = False
    should_preserve_resources: bool = False
    submission: Submission | None = None
    submission_warnings: tuple[str, ...] = ()
    accessor_id: str = ""
    """Of the token that submits it."""
    is_management: bool = True
    """May register also while everybody else may not."""
    cause: str = ""


class JobWriteResult(msgspec.Struct, frozen=True):
    """`index` is that of the write."""

    index: int
    job_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    warnings: str = ""


def register_job(
    snapshot: Replica, request: JobRegistration, context: DecisionContext, settings: JobSettings
) -> Decision[JobWriteResult]:
    """Store the job as a new version, if it differs from what is there, and have it evaluated."""
    check_eval_priority(request.eval_priority)
    check_registration_enabled(snapshot, is_management=request.is_management)
    submitted = replace(request.job, submitter_accessor_id=request.accessor_id)
    stored = snapshot.get(JOBS, submitted.namespace, submitted.id)
    source, warnings_of_source = check_submission_size(request.submission, settings)
    admitted = admit_job(
        snapshot,
        inherit_server_fields(submitted, stored),
        settings,
        parser_warnings=(*request.submission_warnings, *warnings_of_source),
    )
    if request.should_enforce_index:
        check_modify_index(request.job_modify_index, stored)
    refused = find_update_error(stored, admitted.job) if stored is not None else None
    if refused is not None:
        raise invalid_request(refused)
    job = preserve_stored_values(
        admitted.job,
        stored,
        should_preserve_counts=request.should_preserve_counts,
        should_preserve_resources=request.should_preserve_resources,
    )
    job = assign_policy_ids(snapshot, job, context)
    changes: list[PutRecord | DeleteRecord] = []
    # What it may be and where it may go was judged by these two: one that is deleted meanwhile takes no job in.
    conditions = [
        snapshot.build_key_condition(NAMESPACES, job.namespace),
        snapshot.build_key_condition(NODE_POOLS, job.node_pool),
    ]
    job_modify_index = WRITE_INDEX
    if stored is None or not has_same_specification(stored, job):
        job = make_next_version(job, stored, context)
        store_version(snapshot, job, changes, conditions, max_versions=settings.versions_kept)
        sync_policies(snapshot, job, changes, conditions)
        if source is not None:
            changes.append(store_submission(source, job))
        if stored is None:
            # Children outlive a parent that is purged, and are those of the one that takes its name.
            children = list(snapshot.list_by_index(CHILDREN_OF_JOB, job.namespace, job.id))
            changes.append(JOB_SUMMARIES.build_put(replace(make_job_summary(job), children=count_children(children))))
            conditions.append(snapshot.build_key_condition(JOB_SUMMARIES, job.namespace, job.id))
            alive = [child for child in children if child.status is not JobStatus.DEAD]
            conditions += [snapshot.build_record_condition(JOBS, child) for child in alive[:MAX_CHILD_CONDITIONS]]
        add_periodic_launch(snapshot, job, context, changes)
    else:
        job, job_modify_index = stored, stored.modify_index
        conditions.append(snapshot.build_key_condition(JOBS, job.namespace, job.id))
    evaluation = make_job_evaluation(job, context, EvaluationTrigger.JOB_REGISTER, priority=request.eval_priority)
    if evaluation is not None:
        changes.append(EVALUATIONS.build_put(evaluation))
    if not changes:
        return Decision(None, lambda index: JobWriteResult(index, job.modify_index, warnings=admitted.warnings))
    return Decision(
        Write("job-registered", Cause(CauseKind.REQUEST, request.cause), changes, conditions),
        lambda index: JobWriteResult(
            index=index,
            job_modify_index=index if job_modify_index == WRITE_INDEX else job_modify_index,
            eval_id=evaluation.id if evaluation else "",
            eval_create_index=index if evaluation else 0,
            warnings=admitted.warnings,
        ),
    )


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
    """Register a copy of an earlier version, with the source that it came from. It is a new version, not yet stable."""
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        raise not_found(f'job "{job_id}" not found')
    if expected_version is not None and expected_version != stored.version:
        raise invalid_request(f"Current job has version {stored.version}; enforcing version {expected_version}")
    if version == stored.version:
        raise invalid_request("can't revert to current version")
    wanted = find_version(snapshot, namespace, job_id, version) if version >= 0 else None
    if wanted is None:
        raise version_not_found(namespace, job_id, version)
    registration = JobRegistration(
        job=replace(wanted, version=0, version_tag=None),
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
    eval_priority: int = 0,
    cause: str = "",
    settings: JobSettings = DEFAULT_JOB_SETTINGS,
) -> Decision[JobWriteResult]:
    """Stop the job; it stays readable until it is collected. A job that nobody knows is stopped already."""
    if eval_priority > 0:
        check_eval_priority(eval_priority)
    stored = snapshot.get(JOBS, namespace, job_id)
    if stored is None:
        return Decision(None, lambda _index: JobWriteResult(0, 0))
    # A tag names one version: it stays with the one that has it.
    job = make_next_version(replace(stored, stop=True, version_tag=None), stored, context)
    changes: list[PutRecord | DeleteRecord] = []
    conditions: list[Condition] = []
    store_version(snapshot, job, changes, conditions, max_versions=settings.versions_kept)
    sync_policies(snapshot, job, changes, conditions)
    evaluation = make_deregister_evaluation(job, context, eval_priority=eval_priority)
    if evaluation is not None:
        changes.append(EVALUATIONS.build_put(evaluation))
    return Decision(
        Write("job-deregistered", Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: JobWriteResult(index, index, evaluation.id if evaluation else "", index),
    )


def make_job_evaluation(
    job: Job, context: DecisionContext, trigger: EvaluationTrigger, *, priority: int = 0
) -> Evaluation | None:
    """The evaluation that follows a job's change; none of one that waits for its time or for a dispatch."""
    if job.is_periodic or job.is_parameterized:
        return None
    return make_evaluation(job, context, trigger, scheduler=SchedulerType(job.type), priority=priority or job.priority)


def make_deregister_evaluation(job: Job, context: DecisionContext, *, eval_priority: int) -> Evaluation | None:
    """Always of the services' scheduler, whatever the job's type (jobs.md 1.3)."""
    if job.is_periodic or job.is_parameterized:
        return None
    priority = eval_priority if eval_priority > 0 else job.priority or DEFAULT_DEREGISTER_PRIORITY
    return make_evaluation(
        job, context, EvaluationTrigger.JOB_DEREGISTER, scheduler=SchedulerType.SERVICE, priority=priority
    )


def inherit_server_fields(job: Job, stored: Job | None) -> Job:
    """A child that is registered over stays the child that it is: what only servers set is not the submitter's to lose."""
    if stored is None or not stored.parent_id:
        return replace(job, parent_id="", dispatched=False, dispatch_idempotency_token="")
    return replace(
        job,
        parent_id=stored.parent_id,
        dispatched=stored.dispatched,
        dispatch_idempotency_token=stored.dispatch_idempotency_token,
    )


def add_periodic_launch(
    snapshot: Replica, job: Job, context: DecisionContext, changes: list[PutRecord | DeleteRecord]
) -> None:
    """From now on launches are due: a parent's times count from its first registration (scheduling.md 8.1)."""
    if job.is_periodic and snapshot.get(PERIODIC_LAUNCHES, job.namespace, job.id) is None:
        launch = PeriodicLaunch(
            namespace=job.namespace, id=job.id, launch=to_datetime(context.now_ns), create_index=WRITE_INDEX
        )
        changes.append(PERIODIC_LAUNCHES.build_put(launch))


def check_registration_enabled(snapshot: Replica, *, is_management: bool) -> None:
    """Operators can keep new work out of the cluster."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is not None and configuration.reject_job_registration and not is_management:
        raise Refusal(RefusalCode.FORBIDDEN, REGISTRATION_DISABLED_ERROR)


def check_eval_priority(priority: int) -> None:
    if priority and not 1 <= priority <= 100:
        raise invalid_request("Eval priority must be between 1 and 100 inclusively")


def check_modify_index(expected_index: int, stored: Job | None) -> None:
    """The caller's word on how the job stands (jobs.md 5)."""
    begins = f"Enforcing job modify index {expected_index}:"
    if expected_index == 0 and stored is not None:
        raise invalid_request(f"{begins} job already exists")
    if expected_index and stored is None:
        raise invalid_request(f"{begins} job does not exist")
    if expected_index and stored is not None and expected_index != stored.job_modify_index:
        raise invalid_request(f"{begins} job exists with conflicting job modify index: {stored.job_modify_index}")


def evaluate_job(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, *, cause: str = ""
) -> Decision[JobWriteResult]:
    """Have the job looked at again."""
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
            [snapshot.build_record_condition(JOBS, job)],
        ),
        lambda index: JobWriteResult(index, job.modify_index, evaluation.id, index),
    )
