"""Jobs as lists show them.

Reads of one job and of what belongs to it.
"""

from typing import Any, Final

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import MissingRecord, ReadHandler, find_record, sort_by_creation
from wharf.cluster.operations.jobs.scaling import build_scale_status
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Index, Replica, Table
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOBS,
    REGISTRATIONS_OF_JOB,
    SCALING_EVENTS,
    SERVICES,
)
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.messages import JobAction


def build_job_stub(replica: Replica, job: Job, *, has_meta: bool = False) -> messages.JobStub:
    meta: dict[str, Any] = {"meta": job.meta} if has_meta and job.meta else {}
    return messages.JobStub(
        id=job.id,
        parent_id=job.parent_id,
        name=job.name,
        namespace=job.namespace,
        datacenters=job.datacenters or (),
        node_pool=job.node_pool,
        type=job.type,
        priority=job.priority,
        periodic=job.is_periodic,
        parameterized_job=job.is_parameterized,
        stop=job.stop,
        status=job.status,
        status_description=job.status_description,
        job_summary=replica.get(JOB_SUMMARIES, job.namespace, job.id),
        create_index=job.create_index,
        modify_index=job.modify_index,
        job_modify_index=job.job_modify_index,
        submit_time=job.submit_time,
        **meta,
    )


JOB_NOT_FOUND_TEXT: Final = "job not found"


def list_jobs(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job]:
    with_meta = request.get_flag("meta")
    summaries = replica.get_table_records(JOB_SUMMARIES).records
    return list_by_namespace(
        replica,
        JOBS,
        options,
        JOB_SUMMARIES,
        build_view=lambda job: build_job_stub(replica, job, has_meta=with_meta),
        cache_name="job.list with meta" if with_meta else "job.list",
        get_dependency=lambda job: summaries.get(job.namespace + KEY_SEPARATOR + job.id),
        dependency_table=JOB_SUMMARIES,
    )


def read_job(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    return ReadResult(*find_record(replica, JOBS, *_key(request, options), missing_text=JOB_NOT_FOUND_TEXT))


def read_job_summary(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    return ReadResult(*find_record(replica, JOB_SUMMARIES, *_key(request, options), missing_text=JOB_NOT_FOUND_TEXT))


def list_job_allocations(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Of the job's present life, or of all its lives."""
    found = _of_this_life(replica, request, options, ALLOCATIONS_OF_JOB, everything=request.get_flag("all"))
    stubs = [build_allocation_stub(replica, allocation) for allocation in found]
    return _belonging(replica, ALLOCATIONS, ALLOCATIONS_OF_JOB, stubs, _key(request, options))


def list_job_evaluations(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    key = _key(request, options)
    found = sort_by_creation(replica.list_by_index(EVALUATIONS_OF_JOB, *key))
    return _belonging(replica, EVALUATIONS, EVALUATIONS_OF_JOB, found, key)


def list_job_deployments(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    found = _of_this_life(replica, request, options, DEPLOYMENTS_OF_JOB, everything=request.get_flag("all"))
    return _belonging(replica, DEPLOYMENTS, DEPLOYMENTS_OF_JOB, found, _key(request, options))


def read_latest_deployment(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """The newest, or nothing."""
    found: list[Deployment] = _of_this_life(replica, request, options, DEPLOYMENTS_OF_JOB, everything=False)
    newest = found[-1] if found else None
    index = newest.modify_index if newest is not None else replica.get_last_change(DEPLOYMENTS)
    return ReadResult(newest, index, [watch.watch_index(DEPLOYMENTS_OF_JOB, *_key(request, options))])


def list_job_services(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    key = _key(request, options)
    if replica.get(JOBS, *key) is None:
        return ReadResult(
            MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), [watch.watch_key(JOBS, *key)]
        )
    found = replica.list_by_index_sorted(REGISTRATIONS_OF_JOB, *key)
    return _belonging(replica, SERVICES, REGISTRATIONS_OF_JOB, found, key)


def list_job_actions(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    key = _key(request, options)
    job = replica.get(JOBS, *key)
    if job is None:
        return ReadResult(
            MissingRecord(f'Unknown job "{key[1]}"'), replica.get_last_change(JOBS), [watch.watch_key(JOBS, *key)]
        )
    actions = [
        JobAction(
            name=action.name,
            command=action.command,
            args=action.args,
            task_name=task.name,
            task_group_name=group.name,
        )
        for group in job.groups
        for task in group.tasks or ()
        for action in task.actions or ()
    ]
    return ReadResult(actions, job.modify_index, [watch.watch_key(JOBS, *key)])


def read_job_submission(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """The source of one version; which one must be said."""
    if not request.query.get("version"):
        raise invalid_request("Unable to parse job submission version parameter")
    key = (*_key(request, options), request.get_number("version"))
    found = replica.get(JOB_SUBMISSIONS, *key)
    index = replica.get_last_change(JOB_SUBMISSIONS) if found is None else found.modify_index
    return ReadResult(found or MissingRecord("job source not found"), index, [watch.watch_key(JOB_SUBMISSIONS, *key)])


def read_job_scale(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    key = _key(request, options)
    job = replica.get(JOBS, *key)
    watched = [
        watch.watch_key(JOBS, *key),
        watch.watch_index(ALLOCATIONS_OF_JOB, *key),
        watch.watch_key(SCALING_EVENTS, *key),
    ]
    if job is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), watched)
    newest = [record.modify_index for record in replica.list_by_index(ALLOCATIONS_OF_JOB, *key)]
    events = replica.get(SCALING_EVENTS, *key)
    index = max(job.modify_index, events.modify_index if events is not None else 0, *newest, 0)
    return ReadResult(build_scale_status(replica, job), index, watched)


def _key(request: Request, options: QueryOptions) -> tuple[str, str]:
    return options.namespace, request.get_path_value("job_id")


def _of_this_life(
    replica: Replica, request: Request, options: QueryOptions, index: Index[Any], *, everything: bool
) -> list[Any]:
    """Allocations or deployments in order of creation. A job that was purged and registered again begins anew."""
    key = _key(request, options)
    found = replica.list_by_index(index, *key)
    job = replica.get(JOBS, *key)
    if job is not None and not everything:
        found = [record for record in found if record.job_create_index == job.create_index]
    return sort_by_creation(found)


def _belonging(
    replica: Replica, table: Table[Any], index: Index[Any], shown: list[Any], key: tuple[str, str]
) -> ReadResult:
    return ReadResult(shown, replica.get_last_change(table), [watch.watch_index(index, *key)])


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "job.list": list_jobs,
    "job.read": read_job,
    "job.summary": read_job_summary,
    "job.allocations": list_job_allocations,
    "job.evaluations": list_job_evaluations,
    "job.deployments": list_job_deployments,
    "job.deployment": read_latest_deployment,
    "job.services": list_job_services,
    "job.actions": list_job_actions,
    "job.submission": read_job_submission,
    "job.scale-status": read_job_scale,
}
