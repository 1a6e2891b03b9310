"""Endpoints of jobs."""

from typing import Final

from wharf.model import need
from wharf.model.allocation import AllocationStub
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.model.summary import JobSummary
from wharf.wire import shapes
from wharf.wire.endpoints.endpoint import JOB_ID, Decides, Endpoint, Lists, flag, integer, reads, writes

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "job.list", "/v1/jobs", need=need.LIST_JOBS, summary="List jobs.",
        lists=Lists(record=Job), returns=list[shapes.JobStub],
    ),
    writes(
        "job.register", "/v1/jobs", need=need.REGISTER_JOB, decides=Decides.OBJECT, summary="Register a job.",
        body=shapes.JobRegisterRequest, returns=shapes.JobRegisterResponse,
    ),
    reads("job.read", f"/v1/job/{JOB_ID}", need=need.READ_JOB, summary="Read a job.", returns=Job),
    writes(
        "job.update", f"/v1/job/{JOB_ID}", need=need.REGISTER_JOB, decides=Decides.OBJECT,
        summary="Register a job under its name.",
        body=shapes.JobRegisterRequest, returns=shapes.JobRegisterResponse,
    ),
    writes(
        "job.deregister", f"/v1/job/{JOB_ID}", method="DELETE", need=need.STOP_JOB, summary="Stop a job.",
        returns=shapes.JobDeregisterResponse,
        parameters=(
            integer("eval_priority", "The priority of the evaluation; the job's own where it is not given."),
            flag("purge", "Remove the job at once instead of leaving it to be collected."),
            flag("global", "Of a job of several regions: stop it in all of them."),
            flag("no_shutdown_delay", "Pass over the delays that groups and tasks ask for."),
        ),
    ),
    reads(
        "job.allocations", f"/v1/job/{JOB_ID}/allocations", need=need.READ_JOB, summary="List the allocations of a job.",
        returns=list[AllocationStub],
    ),
    reads(
        "job.evaluations", f"/v1/job/{JOB_ID}/evaluations", need=need.READ_JOB, summary="List the evaluations of a job.",
        returns=list[Evaluation],
    ),
    reads(
        "job.summary", f"/v1/job/{JOB_ID}/summary", need=need.READ_JOB,
        summary="Count the allocations of a job by their states.", returns=JobSummary,
    ),
)  # fmt: skip
