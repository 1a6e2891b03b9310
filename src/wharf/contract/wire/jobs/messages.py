"""Messages of job endpoints that are not records: requests, replies and views."""

import datetime
from typing import Any

import msgspec

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job, JobSummary, VersionTag
from wharf.contract.model.jobs.plan import JobDiff, PlanAnnotations
from wharf.contract.model.record import Record


class JobParseRequest(Record):
    """`job_hcl` is the text of a job file; `variables` is the text of a variables file."""

    job_hcl: str = msgspec.field(name="JobHCL", default="")
    variables: str = ""
    canonicalize: bool = False


class JobValidateRequest(Record):
    """A job to validate."""

    job: Job | None = None
    namespace: str = ""
    region: str = ""
    secret_id: str = ""

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Add an empty ID to a job without one, so that validation reports it together with the other problems."""
        job = submitted.get("Job")
        return {**submitted, "Job": {"ID": "", **job}} if isinstance(job, dict) else submitted


class JobValidateResponse(Record):
    """The problems and warnings of a job."""

    driver_config_validated: bool = True
    validation_errors: tuple[str, ...] | None = None
    error: str = ""
    warnings: str = ""


class JobPlanRequest(Record):
    """A job to plan. `diff`: include the difference to the registered version."""

    job: Job | None = None
    diff: bool = False
    policy_override: bool = False
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobPlanResponse(Record):
    """What registering a job would change."""

    annotations: PlanAnnotations | None = None
    failed_tg_allocs: dict[str, AllocMetric] | None = None
    job_modify_index: int = 0
    created_evals: tuple[Evaluation, ...] | None = None
    diff: JobDiff | None = None
    next_periodic_launch: datetime.datetime | None = None
    next_periodic_launches: tuple[datetime.datetime, ...] | msgspec.UnsetType = msgspec.UNSET
    warnings: str = ""
    index: int = 0


class JobVersions(Record):
    """Versions of a job, newest first."""

    versions: tuple[Job, ...] = ()
    diffs: tuple[JobDiff, ...] | None = None
    index: int = 0
    last_contact: int = 0
    known_leader: bool = True
    next_token: str = ""


class VersionTagRequest(Record):
    """A tag for a version of a job."""

    version: int = 0
    latest: bool = False
    description: str = ""
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class VersionTagResponse(Record):
    """The tag as it was stored."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""

    @classmethod
    def of(cls, tag: VersionTag, index: int) -> "VersionTagResponse":
        """Return the reply for a stored tag."""
        return cls(name=tag.name, description=tag.description, tagged_time=tag.tagged_time, index=index)


class JobRevertRequest(Record):
    """A version of a job to register again. `enforce_prior_version`: only if this is the current version."""

    job_id: str = ""
    job_version: int = 0
    enforce_prior_version: int | None = None
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobStableRequest(Record):
    """Whether a version of a job is stable."""

    job_id: str = ""
    job_version: int = 0
    stable: bool = False
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobIndexReply(Record):
    index: int = 0


class EvaluateOptions(Record):
    force_reschedule: bool = False


class JobEvaluateRequest(Record):
    """A job to evaluate."""

    job_id: str = ""
    eval_options: EvaluateOptions = EvaluateOptions()
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobDispatchRequest(Record):
    """The payload and the metadata of a child of a parameterized job."""

    job_id: str = ""
    payload: bytes | None = None
    meta: dict[str, str] | None = None
    id_prefix_template: str = msgspec.field(name="IdPrefixTemplate", default="")
    priority: int = 0
    idempotency_token: str = ""
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobDispatchResponse(Record):
    """The ID of the created child, and its evaluation."""

    dispatched_job_id: str = ""
    eval_id: str = ""
    eval_create_index: int = 0
    job_create_index: int = 0
    index: int = 0


class PeriodicForceResponse(Record):
    eval_id: str = ""
    eval_create_index: int = 0
    index: int = 0


class ScalingRequest(Record):
    """A new count for a group, or only a scaling event."""

    count: int | None = None
    target: dict[str, str] | None = None
    message: str = ""
    error: bool = False
    # Data of the autoscaler, stored unchanged.
    meta: dict[str, Any] | None = None
    policy_override: bool = False
    job_modify_index: int = 0
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobAction(Record):
    """A named command that users may run inside a task."""

    name: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None
    task_name: str = ""
    task_group_name: str = ""


class JobName(Record):
    id: str = ""
    namespace: str = ""


class JobStatusesRequest(Record):
    """The jobs whose statuses are requested."""

    jobs: tuple[JobName, ...] | None = None
    include_children: bool = False


class AllocationDeploymentStatus(Record):
    """An allocation's health in its deployment."""

    canary: bool = False
    healthy: bool | None = None


class AllocationStatusView(Record):
    """The status of one allocation in the overview of a job."""

    id: str
    group: str = ""
    client_status: str = ""
    node_id: str = ""
    deployment_status: AllocationDeploymentStatus = AllocationDeploymentStatus()
    job_version: int = 0
    followup_eval_id: str = ""
    has_paused_task: bool = False


class LatestDeployment(Record):
    """The latest deployment in the overview of a job."""

    id: str
    is_active: bool = False
    job_version: int = 0
    status: str = ""
    status_description: str = ""
    all_auto_promote: bool = False
    requires_promotion: bool = False


class JobStatusOverview(Record):
    """The status of one job, as a web interface lists it."""

    id: str
    namespace: str = ""
    name: str = ""
    type: str = ""
    node_pool: str = ""
    datacenters: tuple[str, ...] | None = None
    priority: int = 0
    version: int = 0
    submit_time: int = 0
    modify_index: int = 0
    allocs: tuple[AllocationStatusView, ...] | None = None
    group_count_sum: int = 0
    child_statuses: tuple[str, ...] | None = None
    parent_id: str = ""
    latest_deployment: LatestDeployment | None = None
    stop: bool = False
    is_pack: bool = False
    status: str = ""


class JobSource(Record):
    """The source text of a job, with its variables."""

    source: str = ""
    format: str = ""
    variable_flags: dict[str, str] | None = None
    variables: str = ""


class JobRegisterRequest(Record):
    """A job to register. `enforce_index`: only if the stored job has the ModifyIndex `job_modify_index`."""

    job: Job | None = None
    submission: JobSource | None = None
    enforce_index: bool = False
    job_modify_index: int = 0
    policy_override: bool = False
    preserve_counts: bool = False
    preserve_resources: bool = False
    eval_priority: int = 0
    namespace: str = ""
    region: str = ""
    secret_id: str = ""


class JobRegisterResponse(Record):
    """The reply to a registration, with the evaluation that it created."""

    eval_id: str = ""
    eval_create_index: int = 0
    job_modify_index: int = 0
    warnings: str = ""
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""
    next_periodic_launches: tuple[datetime.datetime, ...] | msgspec.UnsetType = msgspec.UNSET
    """The next few launch times of a periodic job."""


class JobDeregisterResponse(Record):
    """The reply to a stop of a job, with the evaluation that it created."""

    eval_id: str = ""
    eval_create_index: int = 0
    job_modify_index: int = 0
    volume_eval_id: str = ""
    volume_eval_index: int = 0
    index: int = 0
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class JobStub(Record):
    """A job in a list."""

    id: str
    parent_id: str = ""
    name: str = ""
    namespace: str = ""
    datacenters: tuple[str, ...] = ()
    node_pool: str = ""
    multiregion: None = None
    type: str = ""
    priority: int = 0
    periodic: bool = False
    parameterized_job: bool = False
    stop: bool = False
    status: str = ""
    status_description: str = ""
    job_summary: JobSummary | None = None
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0
    submit_time: int = 0
    meta: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
