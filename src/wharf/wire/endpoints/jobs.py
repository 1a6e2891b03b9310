"""Endpoints of jobs."""

from typing import Final

from wharf.model import need
from wharf.model.allocation import AllocationStub
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.model.need import Manner
from wharf.model.registration import ServiceRegistration
from wharf.model.scale_status import JobScale
from wharf.model.submission import Submission
from wharf.model.summary import JobSummary
from wharf.wire import job_bodies, shapes
from wharf.wire.endpoints.endpoint import (
    JOB_ID,
    Decides,
    Endpoint,
    Kind,
    Lists,
    asks,
    flag,
    integer,
    reads,
    text,
    unsigned,
    writes,
)

JOB: Final = f"/v1/job/{JOB_ID}"
TAG: Final = f"{JOB}/versions/{{tag}}/tag"
STATUSES: Final = Lists(record=Job)
WITH_CHILDREN: Final = flag("include_children", "Show children of periodic and parameterized jobs too.")
EVERY_LIFE: Final = flag("all", "Also of earlier jobs of this name, that were purged.")

_LISTS: Final = (
    reads(
        "job.list", "/v1/jobs", need=need.LIST_JOBS, summary="List jobs.",
        lists=Lists(record=Job), returns=list[shapes.JobStub],
        parameters=(flag("meta", "Show the meta of each job."),),
    ),
    reads(
        "job.statuses", "/v1/jobs/statuses", need=need.READ_JOB, summary="Show how jobs stand, the newest change first.",
        lists=STATUSES, returns=list[job_bodies.JobStatusOverview], parameters=(WITH_CHILDREN,),
    ),
    Endpoint(
        name="job.statuses-of", method="POST", path="/v1/jobs/statuses", kind=Kind.READ, need=need.READ_JOB,
        decides=Decides.OBJECT, summary="Show how the jobs that are named stand.",
        lists=Lists(record=Job, pages=False),  # As many as are named.
        body=job_bodies.JobStatusesRequest, body_optional=True, returns=list[job_bodies.JobStatusOverview],
        parameters=(WITH_CHILDREN,),
    ),
)  # fmt: skip

_SPECIFICATIONS: Final = (
    writes(
        "job.register", "/v1/jobs", need=need.REGISTER_JOB, decides=Decides.OBJECT, summary="Register a job.",
        body=shapes.JobRegisterRequest, returns=shapes.JobRegisterResponse,
    ),
    writes(
        "job.update", JOB, need=need.REGISTER_JOB, decides=Decides.OBJECT, summary="Register a job under its name.",
        body=shapes.JobRegisterRequest, returns=shapes.JobRegisterResponse,
    ),
    Endpoint(
        name="job.parse", method="PUT", path="/v1/jobs/parse", kind=Kind.LOCAL, need=need.PARSE_JOB,
        manner=Manner.AGENT, summary="Read a job file.", body=job_bodies.JobParseRequest, returns=Job,
        refuses=(501,),
    ),
    Endpoint(
        name="job.validate", method="PUT", path="/v1/validate/job", kind=Kind.LOCAL, need=need.VALIDATE_JOB,
        decides=Decides.OBJECT, summary="Tell what is wrong with a job.", body=job_bodies.JobValidateRequest,
        returns=job_bodies.JobValidateResponse,
    ),
    Endpoint(
        name="job.plan", method="PUT", path=f"{JOB}/plan", kind=Kind.LOCAL, need=need.PLAN_JOB, decides=Decides.OBJECT,
        summary="Tell what registering a job would change, without doing it.", body=job_bodies.JobPlanRequest,
        returns=job_bodies.JobPlanResponse,
    ),
)  # fmt: skip

_ONE: Final = (
    reads("job.read", JOB, need=need.READ_JOB, summary="Read a job.", returns=Job),
    reads(
        "job.summary", f"{JOB}/summary", need=need.READ_JOB,
        summary="Count the allocations of a job by their states.", returns=JobSummary,
    ),
    reads(
        "job.allocations", f"{JOB}/allocations", need=need.READ_JOB, summary="List the allocations of a job.",
        returns=list[AllocationStub], parameters=(EVERY_LIFE,),
    ),
    reads(
        "job.evaluations", f"{JOB}/evaluations", need=need.READ_JOB, summary="List the evaluations of a job.",
        returns=list[Evaluation],
    ),
    reads(
        "job.deployments", f"{JOB}/deployments", need=need.READ_JOB, summary="List the deployments of a job.",
        returns=list[Deployment], parameters=(EVERY_LIFE,),
    ),
    reads(
        "job.deployment", f"{JOB}/deployment", need=need.READ_JOB, summary="Read the newest deployment of a job, or null.",
        returns=Deployment | None,
    ),
    reads(
        "job.services", f"{JOB}/services", need=need.READ_JOB, summary="List the services that a job has registered.",
        returns=list[ServiceRegistration],
    ),
    reads(
        "job.submission", f"{JOB}/submission", need=need.READ_JOB, summary="Read the source of a version of a job.",
        returns=Submission,
        parameters=(
            unsigned("version", "Of which version; required.", refusal="Unable to parse job submission version parameter: "),
        ),
    ),
    reads(
        "job.actions", f"{JOB}/actions", need=need.READ_JOB, summary="List the commands that a job offers.",
        returns=list[job_bodies.JobAction],
    ),
    Endpoint(
        name="job.action", method="GET", path=f"{JOB}/action", kind=Kind.LOCAL, need=need.EXEC,
        summary="Run a command that a job offers beside one of its tasks, over a websocket.",
        parameters=(
            text("action", "The name of the command, as `actions` lists it."),
            text("allocID", "Beside which allocation; by default the newest that runs and has it."),
            text("group", "Only of this group."),
            text("task", "Of which task, where several offer a command of this name."),
            flag("tty", "Whether the command gets a terminal."),
            flag("ws_handshake", "Whether the token comes as the first message."),
        ),
    ),
)  # fmt: skip

_VERSIONS: Final = (
    reads(
        "job.versions", f"{JOB}/versions", need=need.READ_JOB, summary="List the versions of a job that are kept.",
        returns=job_bodies.JobVersions,
        parameters=(
            flag("diffs", "Tell what differs between them."),
            unsigned("diff_version", "Compare all with this version."),
            text("diff_tag", "Compare all with the version of this tag."),
        ),
    ),
    writes(
        "job.tag", TAG, need=need.TAG_VERSION, decides=Decides.OBJECT, summary="Give a version of a job a name.",
        body=job_bodies.TagRequest, returns=job_bodies.TagResponse,
    ),
    writes(
        "job.untag", TAG, method="DELETE", need=need.TAG_VERSION, summary="Take the name off a version of a job.",
        returns=job_bodies.TagResponse,
    ),
    writes(
        "job.revert", f"{JOB}/revert", need=need.REVERT_JOB, decides=Decides.OBJECT,
        summary="Register an earlier version of a job again.",
        body=job_bodies.JobRevertRequest, returns=shapes.JobRegisterResponse,
    ),
    writes(
        "job.stable", f"{JOB}/stable", need=need.MARK_STABLE, decides=Decides.OBJECT,
        summary="Say whether a version of a job may be gone back to.",
        body=job_bodies.JobStableRequest, returns=job_bodies.IndexReply,
    ),
)  # fmt: skip

_COMMANDS: Final = (
    asks(
        "job.deregister", JOB, method="DELETE", need=need.STOP_JOB, summary="Stop a job.",
        returns=shapes.JobDeregisterResponse,
        parameters=(
            integer("eval_priority", "The priority of the evaluation; the job's own where it is not given."),
            flag("purge", "Remove the job at once instead of leaving it to be collected."),
            flag("global", "Of a job of several regions: stop it in all of them."),
            flag("no_shutdown_delay", "Pass over the delays that groups and tasks ask for."),
        ),
    ),
    asks(
        "job.evaluate", f"{JOB}/evaluate", need=need.EVALUATE_JOB, decides=Decides.OBJECT,
        summary="Have a job looked at again.", body=job_bodies.JobEvaluateRequest, body_optional=True,
        returns=shapes.JobRegisterResponse,
    ),
    asks(
        "job.force-periodic", f"{JOB}/periodic/force", need=need.FORCE_PERIODIC, summary="Launch a periodic job now.",
        returns=job_bodies.PeriodicForceResponse,
    ),
    asks(
        "job.dispatch", f"{JOB}/dispatch", need=need.DISPATCH_JOB, decides=Decides.OBJECT,
        summary="Run a parameterized job with a payload and meta.",
        body=job_bodies.JobDispatchRequest, returns=job_bodies.JobDispatchResponse,
        parameters=(text("idempotency_token", "The same token again makes no second child."),),
    ),
    asks(
        "job.dispatch-payload", f"{JOB}/dispatch/payload", need=need.DISPATCH_JOB,
        summary="Run a parameterized job with the body as its payload.", returns=job_bodies.JobDispatchResponse,
        parameters=(text("idempotency_token", "The same token again makes no second child."),),
    ),
    reads(
        "job.scale-status", f"{JOB}/scale", need=need.READ_JOB_SCALE, summary="Show how the groups of a job are scaled.",
        returns=JobScale,
    ),
    writes(
        "job.scale", f"{JOB}/scale", need=need.SCALE_JOB, decides=Decides.OBJECT, summary="Scale a group of a job.",
        body=job_bodies.ScalingRequest, returns=shapes.JobRegisterResponse,
    ),
)  # fmt: skip

ROWS: Final[tuple[Endpoint, ...]] = (*_LISTS, *_SPECIFICATIONS, *_ONE, *_VERSIONS, *_COMMANDS)
