"""Messages of job endpoints that are not records: requests, replies and views."""

import datetime
from typing import Any

import msgspec

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.explanations import GroupExplanation
from wharf.contract.model.jobs.job import Job, JobSummary, VersionTag
from wharf.contract.model.jobs.plan import JobDiff, PlanAnnotations
from wharf.contract.model.jobs.run_views import ElementProgress
from wharf.contract.model.record import Record


class JobParseRequest(Record):
    """A request to convert a job file to JSON."""

    job_hcl: str = msgspec.field(name="JobHCL", default="")  # The text of the job file.
    variables: str = ""  # The text of a variables file.
    canonicalize: bool = False  # Whether defaults are filled in.


class JobValidateRequest(Record):
    """A request to validate a job without registering it."""

    job: Job | None = None
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # The region that should run the job; any other than the server's is refused.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Return the submitted request with an empty ID for a job without one.

        Decoding then succeeds, and validation reports the missing ID together with all other problems of the job.
        """
        job = submitted.get("Job")
        return {**submitted, "Job": {"ID": "", **job}} if isinstance(job, dict) else submitted


class JobValidateResponse(Record):
    """The errors and warnings that validation found in a job."""

    driver_config_validated: bool = True  # Always true; expected by Nomad's clients.
    validation_errors: tuple[str, ...] | None = None  # One text for each error; None if the job is valid.
    error: str = ""  # All errors as one text.
    warnings: str = ""  # All warnings as one text.


class JobPlanRequest(Record):
    """A request for a dry run: what registering a job would change."""

    job: Job | None = None
    diff: bool = False  # Whether the reply includes the difference to the stored version.
    sensitive_fields: tuple[str, ...] | None = None  # As in `JobSource`, for the difference.
    policy_override: bool = False  # Needs a further permission; has no other effect.
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # The region that should run the job; any other than the server's is refused.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobPlanResponse(Record):
    """The result of a dry run: what registering a job would change."""

    annotations: PlanAnnotations | None = None  # The allocations that the plan would place, stop or update.
    failed_tg_allocs: dict[str, AllocMetric] | None = None  # By group name: why allocations could not be placed.
    explanations: dict[str, GroupExplanation] | msgspec.UnsetType = msgspec.UNSET
    """By group name: the same in words, with what would help. Only if allocations could not be placed."""
    job_modify_index: int = 0  # That of the stored job; 0 for a new job.
    created_evals: tuple[Evaluation, ...] | None = None
    diff: JobDiff | None = None  # The difference to the stored version, if requested.
    next_periodic_launch: datetime.datetime | None = None
    next_periodic_launches: tuple[datetime.datetime, ...] | msgspec.UnsetType = msgspec.UNSET
    """The next few launches of a periodic job."""
    warnings: str = ""  # All warnings as one text.
    index: int = 0  # The same as `job_modify_index`.


class JobVersions(Record):
    """The stored versions of a job, newest first."""

    versions: tuple[Job, ...] = ()
    diffs: tuple[JobDiff, ...] | None = None  # The differences between the versions, if requested.
    index: int = 0  # Log index of the last change.
    last_contact: int = 0  # Always 0; expected by Nomad's clients.
    known_leader: bool = True  # Always true; expected by Nomad's clients.
    next_token: str = ""  # Always empty; expected by Nomad's clients.


class VersionTagRequest(Record):
    """A request to tag a version of a job. The path contains the tag."""

    version: int = 0  # Ignored if `latest` is set.
    latest: bool = False  # Tag the newest version.
    description: str = ""
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # Accepted and ignored.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class VersionTagResponse(Record):
    """The stored tag of a version of a job."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0  # When the version was tagged, in ns since 1970.
    index: int = 0  # Log index of the write.
    last_contact: int = 0  # Always 0; expected by Nomad's clients.
    known_leader: bool = False  # Always false; expected by Nomad's clients.
    next_token: str = ""  # Always empty; expected by Nomad's clients.

    @classmethod
    def of(cls, tag: VersionTag, index: int) -> "VersionTagResponse":
        """Return the reply for a tag that was stored at this log index."""
        return cls(name=tag.name, description=tag.description, tagged_time=tag.tagged_time, index=index)


class JobRevertRequest(Record):
    """A request to register an earlier version of a job again."""

    job_id: str = ""
    job_version: int = 0  # The version to register.
    enforce_prior_version: int | None = None  # Refuse unless this is the current version.
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # Accepted and ignored.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobStableRequest(Record):
    """A request to mark a version of a job as stable or unstable; auto-revert returns to a stable version."""

    job_id: str = ""
    job_version: int = 0
    stable: bool = False
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # Accepted and ignored.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobIndexReply(Record):
    """The reply to a write that has no other result."""

    index: int = 0  # Log index of the write.


class EvaluateOptions(Record):
    """Options of a request to evaluate a job."""

    force_reschedule: bool = False  # Replace failed allocations now, even if their policy would wait or forbid it.


class JobEvaluateRequest(Record):
    """A request to create an evaluation of a job."""

    job_id: str = ""
    eval_options: EvaluateOptions = EvaluateOptions()
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # Accepted and ignored.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobDispatchRequest(Record):
    """A request to run a parameterized job: it creates a child job with this payload and metadata."""

    job_id: str = ""
    payload: bytes | None = None  # Bytes that a task of the child receives as a file.
    meta: dict[str, str] | None = None  # Metadata of the child, by key.
    id_prefix_template: str = msgspec.field(name="IdPrefixTemplate", default="")
    """Template for the beginning of the child's ID."""
    priority: int = 0  # The child's priority; 0: that of the parent.
    idempotency_token: str = ""  # While a child with the same token exists, no second one is created.
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # Accepted and ignored.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobDispatchResponse(Record):
    """The reply to a dispatch of a parameterized job."""

    dispatched_job_id: str = ""  # The ID of the child job.
    eval_id: str = ""  # The evaluation that the request created; empty if none.
    eval_create_index: int = 0  # Log index of the evaluation.
    job_create_index: int = 0  # Log index of the child's creation.
    index: int = 0  # Log index of the write.


class PeriodicForceResponse(Record):
    """The reply to a forced launch of a periodic job."""

    eval_id: str = ""  # The evaluation that the request created; empty if none.
    eval_create_index: int = 0  # Log index of the evaluation.
    index: int = 0  # Log index of the write.


class ScalingRequest(Record):
    """A request to set the count of a group, or only to record a scaling event."""

    count: int | None = None  # The new count; None: only record an event.
    target: dict[str, str] | None = None  # `Job` and `Group`: the job's ID and the group's name.
    message: str = ""  # Stored in the scaling event.
    error: bool = False  # Whether the event reports an error of the autoscaler.
    # Data of the autoscaler, stored unchanged.
    meta: dict[str, Any] | None = None
    policy_override: bool = False  # Needs a further permission; has no other effect.
    job_modify_index: int = 0  # Above 0: refuse unless the stored job has this JobModifyIndex.
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # Accepted and ignored.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobAction(Record):
    """A named command that users may run inside a task of a job."""

    name: str = ""
    command: str = ""  # The program to run.
    args: tuple[str, ...] | None = None  # Its arguments.
    task_name: str = ""
    task_group_name: str = ""


class JobName(Record):
    """The ID of a job and its namespace."""

    id: str = ""
    namespace: str = ""


class JobStatusesRequest(Record):
    """A request for the statuses of jobs."""

    jobs: tuple[JobName, ...] | None = None  # At least one job; unknown jobs are omitted from the reply.
    include_children: bool = False  # Whether to list children of periodic and parameterized jobs too.


class AllocationDeploymentStatus(Record):
    """The health of an allocation in its deployment."""

    canary: bool = False  # Whether it is a canary.
    healthy: bool | None = None  # None: not determined yet.


class AllocationStatusView(Record):
    """The status of one allocation in the status overview of a job."""

    id: str
    group: str = ""  # The name of its task group.
    client_status: str = ""  # Such as `running`; reported by its node.
    node_id: str = ""
    deployment_status: AllocationDeploymentStatus = AllocationDeploymentStatus()
    job_version: int = 0
    followup_eval_id: str = ""  # The delayed evaluation that will replace it; empty if none.
    has_paused_task: bool = False  # Always false: task schedules are not supported.


class LatestDeployment(Record):
    """The newest deployment in the status overview of a job."""

    id: str
    is_active: bool = False  # Whether it has not ended yet.
    job_version: int = 0
    status: str = ""
    status_description: str = ""
    all_auto_promote: bool = False  # Whether every group promotes its canaries automatically.
    requires_promotion: bool = False  # Whether it waits for an operator's promotion.


class JobStatusOverview(Record):
    """The status of one job, as a web interface lists it."""

    id: str
    namespace: str = ""
    name: str = ""
    type: str = ""  # Such as `service` or `batch`.
    node_pool: str = ""
    datacenters: tuple[str, ...] | None = None
    priority: int = 0
    version: int = 0
    submit_time: int = 0  # When this version was registered, in ns since 1970.
    modify_index: int = 0  # Log index of its last change.
    allocs: tuple[AllocationStatusView, ...] | None = None
    """None for a periodic or parameterized job, which has children instead."""
    group_count_sum: int = 0  # The number of allocations that the groups request together.
    child_statuses: tuple[str, ...] | None = None  # The statuses of the children; None for other jobs.
    parent_id: str = ""  # The periodic or parameterized job that created it.
    latest_deployment: LatestDeployment | None = None
    stop: bool = False  # Whether it was stopped.
    is_pack: bool = False  # Whether Nomad Pack created it.
    status: str = ""


class JobSource(Record):
    """The source text of a job, with the variables of its file."""

    source: str = ""
    format: str = ""  # `hcl2` or `json`.
    variable_flags: dict[str, str] | None = None  # Variables from command line flags, by name.
    variables: str = ""  # The text of a variables file.
    # JSON pointers of the fields of the job whose values come from sensitive variables. Differences do not show them.
    sensitive_fields: tuple[str, ...] | None = None


class JobRegisterRequest(Record):
    """A request to register a job."""

    job: Job | None = None
    submission: JobSource | None = None  # The source text, stored with the version.
    enforce_index: bool = False  # Whether to refuse unless the stored job has the JobModifyIndex `job_modify_index`.
    job_modify_index: int = 0  # With `enforce_index`: 0 refuses if the job exists.
    policy_override: bool = False  # Needs a further permission; has no other effect.
    preserve_counts: bool = False  # Keep the counts of groups that exist already.
    preserve_resources: bool = False  # Keep the resources of tasks that exist already.
    eval_priority: int = 0  # Priority of the evaluation; 0: that of the job.
    namespace: str = ""  # The job's namespace, unless the query names one.
    region: str = ""  # The region that should run the job; any other than the server's is refused.
    secret_id: str = ""  # Ignored: the token comes from a header of the request.


class JobRerunRequest(Record):
    """A request to run elements of the arrays of a job again. Either `failed` or `indexes` selects them."""

    job_id: str = ""
    group: str = ""  # Only elements of this group; empty: of all groups with an array.
    failed: bool = False  # The elements that failed or were canceled.
    indexes: str = ""  # These elements, such as `3,7-9`.


class JobRerunResponse(Record):
    """The reply to a rerun."""

    eval_id: str = ""  # The evaluation that the request created; empty if no element matches.
    eval_create_index: int = 0  # Log index of the evaluation.
    job_modify_index: int = 0  # Log index of the stored version.
    attempt: int = 0  # The number of the new attempt; 0 if no element matches.
    element_count: int = 0  # How many elements run again.
    index: int = 0  # Log index of the write.


class JobStopElementsRequest(Record):
    """A request to stop elements of an array of a job."""

    job_id: str = ""
    group: str = ""  # Needed if the job has several arrays.
    indexes: str = ""  # These elements, such as `3,7-9`.


class JobStopElementsResponse(Record):
    """The reply to a request to stop elements of an array."""

    eval_id: str = ""  # The evaluation that the request created; empty if all of the elements had ended.
    eval_create_index: int = 0  # Log index of the evaluation.
    job_modify_index: int = 0  # Log index of the stored version.
    element_count: int = 0  # How many elements were canceled.
    index: int = 0  # Log index of the write.


class JobRegisterResponse(Record):
    """The reply to a registration of a job."""

    eval_id: str = ""  # The evaluation that the request created; empty if none.
    eval_create_index: int = 0  # Log index of the evaluation.
    job_modify_index: int = 0  # Log index of the stored version.
    warnings: str = ""  # All warnings as one text.
    index: int = 0  # Log index of the write.
    last_contact: int = 0  # Always 0; expected by Nomad's clients.
    known_leader: bool = False  # Whether the cluster has a leader.
    next_token: str = ""  # Always empty; expected by Nomad's clients.
    next_periodic_launches: tuple[datetime.datetime, ...] | msgspec.UnsetType = msgspec.UNSET
    """The next few launch times of a periodic job."""


class JobDeregisterResponse(Record):
    """The reply to a request to stop a job."""

    eval_id: str = ""  # The evaluation that the request created; empty if none.
    eval_create_index: int = 0  # Log index of the evaluation.
    job_modify_index: int = 0  # Log index of the change of the job.
    volume_eval_id: str = ""  # Always empty; expected by Nomad's clients.
    volume_eval_index: int = 0  # Always 0; expected by Nomad's clients.
    index: int = 0  # Log index of the write.
    last_contact: int = 0  # Always 0; expected by Nomad's clients.
    known_leader: bool = False  # Always false; expected by Nomad's clients.
    next_token: str = ""  # Always empty; expected by Nomad's clients.


class JobStub(Record):
    """A job in a list."""

    id: str
    parent_id: str = ""  # The periodic or parameterized job that created it.
    name: str = ""
    namespace: str = ""
    datacenters: tuple[str, ...] = ()
    node_pool: str = ""
    multiregion: None = None  # Always null: multi-region jobs are not supported.
    type: str = ""  # Such as `service` or `batch`.
    priority: int = 0
    periodic: bool = False  # Whether it is a periodic job.
    parameterized_job: bool = False  # Whether it is a parameterized job.
    stop: bool = False  # Whether it was stopped.
    status: str = ""
    status_description: str = ""
    job_summary: JobSummary | None = None  # The number of allocations by group and state.
    group_count_sum: int = 0  # The number of allocations that the groups request together.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.
    job_modify_index: int = 0  # Log index of its newest version.
    submit_time: int = 0  # When this version was registered, in ns since 1970.
    meta: dict[str, str] | msgspec.UnsetType = msgspec.UNSET  # Present only if requested.
    progress: ElementProgress | msgspec.UnsetType = msgspec.UNSET  # Of a run or a job with arrays, if requested.
    submission_time: int | msgspec.UnsetType = msgspec.UNSET
    """When the version of a stopped job before the stop was registered, in ns since 1970. Present only with `progress`."""

    @property
    def submitted_ns(self) -> int:
        """When the job was submitted, in ns since 1970. A stop makes a new version, with the time of the stop."""
        return self.submission_time if isinstance(self.submission_time, int) else self.submit_time
