"""Endpoints of jobs."""

from typing import Any, Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import DenialDetail
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.array_views import JobArrays
from wharf.contract.model.jobs.job import Job, JobSummary, Submission
from wharf.contract.model.jobs.step_outputs import JobOutputs
from wharf.contract.model.scaling import JobScaleStatus
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.timelines import JobTimeline
from wharf.contract.wire.endpoint import (
    JOB_ID_PARAMETER,
    Endpoint,
    EndpointKind,
    ListFeatures,
    ScopeSource,
    define_leader_write,
    define_read,
    define_write,
    flag,
    integer,
    text,
    unsigned,
)
from wharf.contract.wire.jobs import messages

JOB_PATH: Final = f"/v1/job/{JOB_ID_PARAMETER}"
TAG_PATH: Final = f"{JOB_PATH}/versions/{{tag}}/tag"
JOB_LIST: Final = ListFeatures(
    record=Job,
    detail_need=permissions.READ_JOB,
    shown_fields=frozenset({
        "ID", "ParentID", "Name", "Namespace", "Datacenters", "NodePool", "Type", "Priority", "Stop", "Status",
        "StatusDescription", "CreateIndex", "ModifyIndex", "JobModifyIndex", "SubmitTime", "Meta",
    }),
    shown_presence_fields=frozenset({"Periodic", "ParameterizedJob"}),
)  # fmt: skip
"""Of lists for callers that may list jobs but not read them. They show a `JobStub` of each job."""
STATUS_LIST: Final = ListFeatures(record=Job)
INCLUDE_CHILDREN_PARAMETER: Final = flag("include_children", "Show children of periodic and parameterized jobs too.")
DEFAULT_TIMELINE_LENGTH: Final = 200
MAX_NEWEST_ALLOCATIONS: Final = 1_000
MAX_TIMELINE_LENGTH: Final = 1_000
"""Limits the time to build a timeline: each allocation has up to ten events a task."""
ALL_INCARNATIONS_PARAMETER: Final = flag("all", "Include earlier jobs with this name that were purged.")

_LISTS: Final = (
    define_read(
        "job.list", "/v1/jobs", need=permissions.LIST_JOBS, summary="List jobs.",
        list_features=JOB_LIST, reply_type=list[messages.JobStub],
        parameters=(
            flag("meta", "Show the meta of each job."),
            flag("progress", "Show the state of each run, and the states of the elements of arrays."),
            text("sort", "`changed`: list the jobs that changed last first, instead of by namespace and ID."),
        ),
    ),
    define_read(
        "job.statuses", "/v1/jobs/statuses", need=permissions.READ_JOB, summary="List the statuses of jobs, the newest change first.",
        list_features=STATUS_LIST, reply_type=list[messages.JobStatusOverview], parameters=(INCLUDE_CHILDREN_PARAMETER,),
    ),
    Endpoint(
        name="job.statuses-of", method="POST", path="/v1/jobs/statuses", kind=EndpointKind.READ, need=permissions.READ_JOB,
        scope_source=ScopeSource.OBJECT, summary="List the statuses of the named jobs.",
        list_features=ListFeatures(record=Job, has_pages=False),  # The request limits the number of records.
        body_type=messages.JobStatusesRequest, is_body_optional=True, reply_type=list[messages.JobStatusOverview],
        parameters=(INCLUDE_CHILDREN_PARAMETER,),
    ),
)  # fmt: skip

_SPECIFICATIONS: Final = (
    define_write(
        "job.register", "/v1/jobs", need=permissions.REGISTER_JOB, scope_source=ScopeSource.OBJECT, summary="Register a job.",
        body_type=messages.JobRegisterRequest, reply_type=messages.JobRegisterResponse,
    ),
    define_write(
        "job.update", JOB_PATH, need=permissions.REGISTER_JOB, scope_source=ScopeSource.OBJECT, summary="Register a job under its name.",
        body_type=messages.JobRegisterRequest, reply_type=messages.JobRegisterResponse,
    ),
    Endpoint(
        name="job.parse", method="PUT", path="/v1/jobs/parse", kind=EndpointKind.LOCAL, need=permissions.PARSE_JOB,
        denial_detail=DenialDetail.AGENT, summary="Convert a job file in HCL to JSON.", body_type=messages.JobParseRequest,
        reply_type=dict[str, Any],
    ),
    Endpoint(
        name="job.validate", method="PUT", path="/v1/validate/job", kind=EndpointKind.LOCAL, need=permissions.VALIDATE_JOB,
        scope_source=ScopeSource.OBJECT, summary="Validate a job without registering it.", body_type=messages.JobValidateRequest,
        reply_type=messages.JobValidateResponse,
    ),
    Endpoint(
        name="job.plan", method="PUT", path=f"{JOB_PATH}/plan", kind=EndpointKind.LOCAL, need=permissions.PLAN_JOB, scope_source=ScopeSource.OBJECT,
        summary="Show what registering a job would change, without registering it.", body_type=messages.JobPlanRequest,
        reply_type=messages.JobPlanResponse,
    ),
)  # fmt: skip

_JOB_READS: Final = (
    define_read("job.read", JOB_PATH, need=permissions.READ_JOB, summary="Read a job.", reply_type=Job),
    define_read(
        "job.summary", f"{JOB_PATH}/summary", need=permissions.READ_JOB,
        summary="Count the allocations of a job by their states.", reply_type=JobSummary,
    ),
    define_read(
        "job.allocations", f"{JOB_PATH}/allocations", need=permissions.READ_JOB, summary="List the allocations of a job.",
        reply_type=list[AllocationStub],
        parameters=(
            ALL_INCARNATIONS_PARAMETER,
            unsigned("newest", f"List only this number of the newest allocations, the newest first; at most {MAX_NEWEST_ALLOCATIONS}."),
            flag("failed", "List only allocations that failed."),
        ),
    ),
    define_read(
        "job.timeline", f"{JOB_PATH}/timeline", need=permissions.READ_JOB,
        summary="Read when the allocations of a job waited, started and ended, the newest first.", reply_type=JobTimeline,
        parameters=(
            unsigned("limit", f"How many allocations to return, at most {MAX_TIMELINE_LENGTH}; {DEFAULT_TIMELINE_LENGTH} by default."),
            text("before", "The `NextToken` of the previous page."),
        ),
    ),
    define_read(
        "job.evaluations", f"{JOB_PATH}/evaluations", need=permissions.READ_JOB, summary="List the evaluations of a job.",
        reply_type=list[Evaluation],
    ),
    define_read(
        "job.deployments", f"{JOB_PATH}/deployments", need=permissions.READ_JOB, summary="List the deployments of a job.",
        reply_type=list[Deployment], parameters=(ALL_INCARNATIONS_PARAMETER,),
    ),
    define_read(
        "job.deployment", f"{JOB_PATH}/deployment", need=permissions.READ_JOB, summary="Read the newest deployment of a job, or null.",
        reply_type=Deployment | None,
    ),
    define_read(
        "job.services", f"{JOB_PATH}/services", need=permissions.READ_JOB, summary="List the services that a job has registered.",
        reply_type=list[ServiceRegistration],
    ),
    define_read(
        "job.submission", f"{JOB_PATH}/submission", need=permissions.READ_JOB, summary="Read the source of a version of a job.",
        reply_type=Submission,
        parameters=(
            unsigned("version", "The version; required.", refusal_prefix="Unable to parse job submission version parameter: "),
        ),
    ),
    define_read(
        "job.actions", f"{JOB_PATH}/actions", need=permissions.READ_JOB, summary="List the actions of a job.",
        reply_type=list[messages.JobAction],
    ),
    Endpoint(
        name="job.action", method="GET", path=f"{JOB_PATH}/action", kind=EndpointKind.LOCAL, need=permissions.EXEC_IN_TASK,
        summary="Run an action of a job inside one of its tasks, over a websocket.",
        parameters=(
            text("action", "The name of the action, as `actions` lists it."),
            text("allocID", "The allocation; by default the newest running one that has the action."),
            text("group", "Only actions of this group."),
            text("task", "The task, if several have an action with this name."),
            flag("tty", "Whether the command gets a terminal."),
            flag("ws_handshake", "Whether the client sends the token as the first message."),
        ),
    ),
)  # fmt: skip

_VERSIONS: Final = (
    define_read(
        "job.versions", f"{JOB_PATH}/versions", need=permissions.READ_JOB, summary="List the retained versions of a job.",
        reply_type=messages.JobVersions,
        parameters=(
            flag("diffs", "Include the differences between consecutive versions."),
            unsigned("diff_version", "Compare all versions with this version."),
            text("diff_tag", "Compare all versions with the version that has this tag."),
        ),
    ),
    define_write(
        "job.tag", TAG_PATH, need=permissions.TAG_JOB_VERSION, scope_source=ScopeSource.OBJECT, summary="Tag a version of a job.",
        body_type=messages.VersionTagRequest, reply_type=messages.VersionTagResponse,
    ),
    define_write(
        "job.untag", TAG_PATH, method="DELETE", need=permissions.TAG_JOB_VERSION, summary="Remove the tag of a version of a job.",
        reply_type=messages.VersionTagResponse,
    ),
    define_write(
        "job.revert", f"{JOB_PATH}/revert", need=permissions.REVERT_JOB, scope_source=ScopeSource.OBJECT,
        summary="Register an earlier version of a job again.",
        body_type=messages.JobRevertRequest, reply_type=messages.JobRegisterResponse,
    ),
    define_write(
        "job.stable", f"{JOB_PATH}/stable", need=permissions.MARK_JOB_STABLE, scope_source=ScopeSource.OBJECT,
        summary="Set whether a version of a job is stable, so that auto-revert may return to it.",
        body_type=messages.JobStableRequest, reply_type=messages.JobIndexReply,
    ),
)  # fmt: skip

_COMMANDS: Final = (
    define_leader_write(
        "job.deregister", JOB_PATH, method="DELETE", need=permissions.STOP_JOB, summary="Stop a job.",
        reply_type=messages.JobDeregisterResponse,
        parameters=(
            integer("eval_priority", "The priority of the evaluation; by default the job's."),
            flag("purge", "Delete the job at once instead of waiting for garbage collection."),
            flag("global", "Stop a multi-region job in all regions."),
            flag("no_shutdown_delay", "Skip the shutdown delays of groups and tasks."),
        ),
    ),
    define_leader_write(
        "job.evaluate", f"{JOB_PATH}/evaluate", need=permissions.EVALUATE_JOB, scope_source=ScopeSource.OBJECT,
        summary="Create an evaluation of a job.", body_type=messages.JobEvaluateRequest, is_body_optional=True,
        reply_type=messages.JobRegisterResponse,
    ),
    define_leader_write(
        "job.force-periodic", f"{JOB_PATH}/periodic/force", need=permissions.FORCE_PERIODIC_LAUNCH, summary="Launch a periodic job now.",
        reply_type=messages.PeriodicForceResponse,
    ),
    define_leader_write(
        "job.dispatch", f"{JOB_PATH}/dispatch", need=permissions.DISPATCH_JOB, scope_source=ScopeSource.OBJECT,
        summary="Run a parameterized job with a payload and meta.",
        body_type=messages.JobDispatchRequest, reply_type=messages.JobDispatchResponse,
        parameters=(text("idempotency_token", "A second dispatch with the same token creates no second child."),),
    ),
    define_leader_write(
        "job.dispatch-payload", f"{JOB_PATH}/dispatch/payload", need=permissions.DISPATCH_JOB,
        summary="Run a parameterized job with the body as its payload.", reply_type=messages.JobDispatchResponse,
        parameters=(text("idempotency_token", "A second dispatch with the same token creates no second child."),),
    ),
    define_read(
        "job.scale-status", f"{JOB_PATH}/scale", need=permissions.READ_JOB_SCALING, summary="Show the desired and actual counts of a job's groups, and their scaling events.",
        reply_type=JobScaleStatus,
    ),
    define_write(
        "job.scale", f"{JOB_PATH}/scale", need=permissions.SCALE_JOB, scope_source=ScopeSource.OBJECT, summary="Scale a group of a job.",
        body_type=messages.ScalingRequest, reply_type=messages.JobRegisterResponse,
    ),
    define_read(
        "job.arrays", f"{JOB_PATH}/arrays", need=permissions.READ_JOB, summary="Show the state of each element of a job's arrays, and their attempts.",
        reply_type=JobArrays,
        parameters=(integer("attempt", "Include the states of the elements in this attempt."),),
    ),
    define_read(
        "job.outputs", f"{JOB_PATH}/outputs", need=permissions.READ_JOB, summary="Show the text outputs of the steps of a job that have ended.",
        reply_type=JobOutputs, parameters=(text("group", "Only those of this step."),),
    ),
    define_write(
        "job.rerun", f"{JOB_PATH}/rerun", need=permissions.EVALUATE_JOB, summary="Run elements of a job's arrays again.",
        body_type=messages.JobRerunRequest, reply_type=messages.JobRerunResponse,
    ),
    define_write(
        "job.stop-elements", f"{JOB_PATH}/stop-elements", need=permissions.STOP_JOB, summary="Stop elements of an array of a job.",
        body_type=messages.JobStopElementsRequest, reply_type=messages.JobStopElementsResponse,
    ),
)  # fmt: skip

ROWS: Final[tuple[Endpoint, ...]] = (*_LISTS, *_SPECIFICATIONS, *_JOB_READS, *_VERSIONS, *_COMMANDS)
