"""Reads of jobs, and of a job's allocations, evaluations, deployments, services, actions, source and scale."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.handlers.jobs.statuses import list_by_change
from wharf.cluster.api.index_lists import (
    NewestRecords,
    build_index_list,
    find_newest_in_slices,
    has_many_records,
    read_newest_in_slices,
    visit_in_slices,
)
from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import (
    MissingRecord,
    ReadHandler,
    RecordList,
    SlicedValue,
    find_record,
    get_creation_order,
)
from wharf.cluster.operations.array_views import build_array_progress, build_array_view
from wharf.cluster.operations.explanations.timelines import build_timeline_allocation, build_timeline_evaluation
from wharf.cluster.operations.jobs.scaling import ScaleCounts
from wharf.cluster.operations.jobs.submissions import has_source
from wharf.cluster.operations.jobs.versions import find_submission_time
from wharf.cluster.operations.run_views import build_run_progress
from wharf.cluster.operations.step_outputs import build_outputs_view
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Index, Replica, Table
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
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
    STEP_OUTPUTS,
)
from wharf.cluster.state.watches import watch_index, watch_key, watch_table
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.array_views import JobArrays
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import JobOutputs, list_output_names
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.scaling import JobScaleStatus
from wharf.contract.model.timelines import JobTimeline, TimelineAllocation
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.endpoints import DEFAULT_TIMELINE_LENGTH, MAX_NEWEST_ALLOCATIONS, MAX_TIMELINE_LENGTH
from wharf.contract.wire.jobs.messages import JobAction


def build_job_stub(
    replica: Replica, job: Job, *, has_meta: bool = False, has_progress: bool = False
) -> messages.JobStub:
    """Return the job as lists show it."""
    optional: dict[str, Any] = {"meta": job.meta} if has_meta and job.meta else {}
    if has_progress and not job.is_periodic and not job.is_parameterized:  # The others only launch children.
        if job.has_steps:
            optional["progress"] = build_run_progress(replica, job)
        elif job.has_arrays:
            optional["progress"] = build_array_progress(replica, job)
    if has_progress and job.stop and job.version:
        optional["submission_time"] = find_submission_time(replica, job)
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
        group_count_sum=sum(group.total_count for group in job.groups),
        create_index=job.create_index,
        modify_index=job.modify_index,
        job_modify_index=job.job_modify_index,
        submit_time=job.submit_time,
        **optional,
    )


CHANGED: Final = "changed"
"""The order of a list of jobs in which the last change is the first."""
JOB_NOT_FOUND_TEXT: Final = "job not found"
MAX_INDEX_DIGITS: Final = 20
"""Log indexes have at most 19 digits."""
PROGRESS_TABLES: Final = (ALLOCATIONS, ARRAY_ATTEMPTS, ARRAY_RESULTS)
"""The tables that the progress of jobs is read from, beside those of a list of jobs."""
MAX_TIMELINE_EVALUATIONS: Final = 200
"""Limits the size of a timeline: a job that waits for long is evaluated often."""


def list_jobs(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job]:
    """List jobs as stubs with their summaries."""
    has_meta, has_progress = request.get_flag("meta"), request.get_flag("progress")
    sort = request.get_text("sort")
    if sort not in ("", CHANGED):
        raise invalid_request(f'sort is "{sort[:40]}"; it must be {CHANGED}, or be left out')
    if sort == CHANGED:
        tables = (JOBS, JOB_SUMMARIES, *(PROGRESS_TABLES if has_progress else ()))
        return replace(
            list_by_change(replica, request, options, has_children=True),
            index=replica.get_last_change(*tables),
            watched=[watch_table(table) for table in tables],
            build_view=lambda job: build_job_stub(replica, job, has_meta=has_meta),
            prepare_view=partial(_prepare_progress, replica, has_meta) if has_progress else None,
            large_records=replica.get_table_records(JOBS).large_records,
            get_detail_namespace=attrgetter("namespace"),
        )
    if has_progress:
        return list_by_namespace(
            replica,
            JOBS,
            options,
            JOB_SUMMARIES,
            *PROGRESS_TABLES,
            prepare_view=partial(_prepare_progress, replica, has_meta),
        )
    summaries = replica.get_table_records(JOB_SUMMARIES).records
    return list_by_namespace(
        replica,
        JOBS,
        options,
        JOB_SUMMARIES,
        build_view=lambda job: build_job_stub(replica, job, has_meta=has_meta),
        large_records=replica.get_table_records(JOBS).large_records,
        cache_name="job.list with meta" if has_meta else "job.list",
        get_dependency=lambda job: summaries.get(job.namespace + KEY_SEPARATOR + job.id),
        dependency_table=JOB_SUMMARIES,
    )


async def _prepare_progress(
    replica: Replica, has_meta: bool, jobs: Sequence[Job], work: SlicedWork
) -> Callable[[Job], messages.JobStub]:
    """Build the items of jobs with their progress in slices: that of a run of 500 steps takes milliseconds."""
    stubs = {}
    work.restart()
    for job in jobs:
        if work.is_slice_over():
            await work.pause()
        stubs[job.namespace, job.id] = build_job_stub(replica, job, has_meta=has_meta, has_progress=True)
    return lambda job: stubs[job.namespace, job.id]


def read_job(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    return ReadResult(*find_record(replica, JOBS, *_get_job_key(request, options), missing_text=JOB_NOT_FOUND_TEXT))


def read_job_summary(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    return ReadResult(
        *find_record(replica, JOB_SUMMARIES, *_get_job_key(request, options), missing_text=JOB_NOT_FOUND_TEXT)
    )


def list_job_allocations(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """List the allocations of the job; with `all`, also those of purged jobs with the same id."""
    key = _get_job_key(request, options)
    if newest := request.get_number("newest"):
        return _list_newest_allocations(replica, request, key, newest)
    stubs = build_index_list(
        replica,
        ALLOCATIONS_OF_JOB,
        *key,
        is_selected=_build_allocation_test(replica, request, key),
        build_view=partial(build_allocation_stub, replica),
        is_view_small=True,
    )
    return _build_index_result(replica, ALLOCATIONS, ALLOCATIONS_OF_JOB, stubs, key)


def _build_allocation_test(
    replica: Replica, request: Request, key: tuple[str, str]
) -> Callable[[Allocation], bool] | None:
    """Return the test for the allocations that a request lists; `None`: all of the index."""
    belongs_to_job = None if request.get_flag("all") else _build_job_test(replica, key)
    if not request.get_flag("failed"):
        return belongs_to_job

    def is_selected(allocation: Allocation) -> bool:
        has_failed = allocation.client_status is ClientStatus.FAILED
        return has_failed and (belongs_to_job is None or belongs_to_job(allocation))

    return is_selected


def _list_newest_allocations(replica: Replica, request: Request, key: tuple[str, str], limit: int) -> ReadResult:
    """List only the newest allocations of the job, the newest first. Raises `Refusal` if they are too many."""
    if limit > MAX_NEWEST_ALLOCATIONS:
        raise invalid_request(f"newest is {limit}; it must be at most {MAX_NEWEST_ALLOCATIONS}")
    is_selected = _build_allocation_test(replica, request, key)

    async def build(work: SlicedWork) -> LazyList:
        found = await read_newest_in_slices(
            replica, ALLOCATIONS_OF_JOB, *key, limit=limit, is_selected=is_selected, work=work
        )
        return LazyList(lambda: map(partial(build_allocation_stub, replica), found))

    return _build_index_result(replica, ALLOCATIONS, ALLOCATIONS_OF_JOB, SlicedValue(build), key)


def list_job_evaluations(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """List the evaluations of the job, oldest first."""
    key = _get_job_key(request, options)
    evaluations = build_index_list(replica, EVALUATIONS_OF_JOB, *key, is_view_small=True)
    return _build_index_result(replica, EVALUATIONS, EVALUATIONS_OF_JOB, evaluations, key)


def list_job_deployments(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """List the deployments of the job, oldest first; with `all`, also those of purged jobs with the same id."""
    key = _get_job_key(request, options)
    is_selected = None if request.get_flag("all") else _build_job_test(replica, key)
    deployments = build_index_list(replica, DEPLOYMENTS_OF_JOB, *key, is_selected=is_selected, is_view_small=True)
    return _build_index_result(replica, DEPLOYMENTS, DEPLOYMENTS_OF_JOB, deployments, key)


def read_latest_deployment(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the newest deployment of the job, or null if it has none."""
    key = _get_job_key(request, options)
    watched = [watch_index(DEPLOYMENTS_OF_JOB, *key)]
    belongs_to_job = _build_job_test(replica, key)
    if has_many_records(replica, DEPLOYMENTS_OF_JOB, *key):

        async def find_newest(work: SlicedWork) -> Deployment | None:
            return await find_newest_in_slices(replica, DEPLOYMENTS_OF_JOB, *key, is_selected=belongs_to_job, work=work)

        return ReadResult(SlicedValue(find_newest), replica.get_last_change(DEPLOYMENTS), watched)
    deployments = filter(belongs_to_job, replica.list_by_index(DEPLOYMENTS_OF_JOB, *key))
    newest = max(deployments, key=get_creation_order, default=None)
    index = newest.modify_index if newest is not None else replica.get_last_change(DEPLOYMENTS)
    return ReadResult(newest, index, watched)


def list_job_services(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """List the service registrations of the job, or return a missing record if the job does not exist."""
    key = _get_job_key(request, options)
    if replica.get(JOBS, *key) is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), [watch_key(JOBS, *key)])
    registrations = build_index_list(
        replica, REGISTRATIONS_OF_JOB, *key, get_order=attrgetter("id"), is_view_small=True
    )
    return _build_index_result(replica, SERVICES, REGISTRATIONS_OF_JOB, registrations, key)


def list_job_actions(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """List the actions of the job with their tasks and groups."""
    key = _get_job_key(request, options)
    job = replica.get(JOBS, *key)
    if job is None:
        return ReadResult(
            MissingRecord(f'Unknown job "{key[1]}"'), replica.get_last_change(JOBS), [watch_key(JOBS, *key)]
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
    return ReadResult(actions, job.modify_index, [watch_key(JOBS, *key)])


def read_job_submission(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the source text of one job version. Raises `Refusal` if the parameter `version` is missing."""
    if not request.query.get("version"):
        raise invalid_request("Unable to parse job submission version parameter")
    key = (*_get_job_key(request, options), request.get_number("version"))
    submission = replica.get(JOB_SUBMISSIONS, *key)
    index = replica.get_last_change(JOB_SUBMISSIONS) if submission is None else submission.modify_index
    source = submission if submission is not None and has_source(submission) else MissingRecord("job source not found")
    return ReadResult(source, index, [watch_key(JOB_SUBMISSIONS, *key)])


def read_job_scale(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the scale status of the job: for each group its count, its allocations and its scaling events."""
    key = _get_job_key(request, options)
    job = replica.get(JOBS, *key)
    watched = [
        watch_key(JOBS, *key),
        watch_index(ALLOCATIONS_OF_JOB, *key),
        watch_key(SCALING_EVENTS, *key),
    ]
    if job is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), watched)
    events = replica.get(SCALING_EVENTS, *key)
    index = max(job.modify_index, events.modify_index if events is not None else 0)
    counts = ScaleCounts(job)
    if has_many_records(replica, ALLOCATIONS_OF_JOB, *key):

        async def build_status(work: SlicedWork) -> JobScaleStatus:
            await visit_in_slices(replica, ALLOCATIONS_OF_JOB, *key, visit=counts.add, work=work)
            return counts.build_status(events)

        return ReadResult(SlicedValue(build_status), max(index, replica.get_last_change(ALLOCATIONS)), watched)
    for allocation in replica.list_by_index(ALLOCATIONS_OF_JOB, *key):
        counts.add(allocation)
        index = max(index, allocation.modify_index)
    return ReadResult(counts.build_status(events), index, watched)


def read_job_arrays(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the state of each element of the arrays of the job, and their attempts."""
    key = _get_job_key(request, options)
    job = replica.get(JOBS, *key)
    watched = [
        watch_key(JOBS, *key),
        watch_index(ALLOCATIONS_OF_JOB, *key),
        watch_index(ATTEMPTS_OF_JOB, *key),
    ]
    if job is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), watched)
    attempt = request.get_number("attempt")
    groups = [group for group in job.groups if group.array is not None]

    async def build(work: SlicedWork) -> JobArrays:
        arrays = []
        for group in groups:
            arrays.append(build_array_view(replica, job, group, shown_attempt=attempt))
            if work.is_slice_over():
                await work.pause()
        return JobArrays(arrays=tuple(arrays))

    index = max(job.modify_index, replica.get_last_change(ALLOCATIONS, ARRAY_ATTEMPTS, ARRAY_RESULTS))
    return ReadResult(SlicedValue(build), index, watched)


def read_job_outputs(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the text outputs of the steps of the job that have ended, or those of one step."""
    key = _get_job_key(request, options)
    job = replica.get(JOBS, *key)
    watched = [watch_key(JOBS, *key), watch_index(ALLOCATIONS_OF_JOB, *key), watch_index(ATTEMPTS_OF_JOB, *key)]
    if job is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), watched)
    only = request.get_text("group")
    groups = [each.name for each in job.groups if list_output_names(each) and only in ("", each.name)]

    async def build(work: SlicedWork) -> JobOutputs:
        steps = []
        for name in groups:
            steps.append(build_outputs_view(replica, job, name))
            if work.is_slice_over():
                await work.pause()
        return JobOutputs(steps=tuple(steps))

    index = max(job.modify_index, replica.get_last_change(ALLOCATIONS, ARRAY_ATTEMPTS, STEP_OUTPUTS))
    return ReadResult(SlicedValue(build), index, watched)


def read_job_timeline(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return a page of the job's allocations with their phases, the newest first, and its newest evaluations."""
    key = _get_job_key(request, options)
    watched = [watch_key(JOBS, *key), watch_index(ALLOCATIONS_OF_JOB, *key), watch_index(EVALUATIONS_OF_JOB, *key)]
    if replica.get(JOBS, *key) is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), watched)
    limit = request.get_number("limit", default=DEFAULT_TIMELINE_LENGTH)
    if not 0 < limit <= MAX_TIMELINE_LENGTH:
        raise invalid_request(f"limit is {limit}; it must be a number from 1 to {MAX_TIMELINE_LENGTH}")
    build = partial(_build_timeline, replica, key, limit, _parse_timeline_token(request.get_text("before")))
    return ReadResult(SlicedValue(build), replica.get_last_change(ALLOCATIONS, EVALUATIONS), watched)


def _parse_timeline_token(token: str) -> tuple[int, str] | None:
    """Return the creation order of the last allocation of the previous page; `None` for the first page."""
    if not token:
        return None
    index, separator, allocation_id = token.partition(".")
    if not (separator and index.isascii() and index.isdigit() and len(index) < MAX_INDEX_DIGITS):
        raise invalid_request("before is not valid: take the NextToken of the previous page, or leave it out")
    return int(index), allocation_id


async def _build_timeline(
    replica: Replica, key: tuple[str, str], limit: int, before: tuple[int, str] | None, work: SlicedWork
) -> JobTimeline:
    """Read the newest allocations before a creation order, and the newest evaluations, in slices."""
    belongs_to_job = _build_job_test(replica, key) or (lambda _: True)
    newest, total = NewestRecords[Allocation](limit + 1), 0

    def visit(allocation: Allocation) -> None:
        nonlocal total
        if belongs_to_job(allocation):
            total += 1
            if newest.may_contain(allocation) and (before is None or get_creation_order(allocation) < before):
                newest.add(allocation)

    await visit_in_slices(replica, ALLOCATIONS_OF_JOB, *key, visit=visit, work=work, prefers_new=True)
    found = newest.take_sorted()
    evaluations = await read_newest_in_slices(
        replica, EVALUATIONS_OF_JOB, *key, limit=MAX_TIMELINE_EVALUATIONS, work=work
    )
    shown: list[TimelineAllocation] = []
    for allocation in found[:limit]:
        shown.append(build_timeline_allocation(allocation, replica.get(EVALUATIONS, allocation.eval_id)))
        if work.is_slice_over():
            await work.pause()
    last = found[limit - 1] if len(found) > limit else None
    return JobTimeline(
        allocations=tuple(shown),
        evaluations=tuple(map(build_timeline_evaluation, evaluations)),
        total=total,
        next_token=f"{last.create_index}.{last.id}" if last is not None else "",
    )


def _get_job_key(request: Request, options: QueryOptions) -> tuple[str, str]:
    return options.namespace, request.get_path_value("job_id")


def _build_job_test(replica: Replica, key: tuple[str, str]) -> Callable[[Any], bool] | None:
    """Return the test of whether an allocation or deployment belongs to the job, not to a purged one with the same id.

    `None` if the job does not exist: all records of its id pass then.
    """
    job = replica.get(JOBS, *key)
    if job is None:
        return None
    create_index = job.create_index
    return lambda record: record.job_create_index == create_index


def _build_index_result(
    replica: Replica, table: Table[Any], index: Index[Any], views: RecordList | SlicedValue, key: tuple[str, str]
) -> ReadResult:
    """Return `views` as the result of a read that depends on the records of one job in `index`.

    A blocking query waits until such a record changes.
    """
    return ReadResult(views, replica.get_last_change(table), [watch_index(index, *key)])


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
    "job.timeline": read_job_timeline,
    "job.arrays": read_job_arrays,
    "job.outputs": read_job_outputs,
}
