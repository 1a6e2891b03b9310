"""Status overviews of many jobs, last changed first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from wharf.cluster.api.index_lists import MAX_RECORDS_TOGETHER, find_newest_in_slices, has_many_records, read_in_slices
from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, parse_token_index
from wharf.cluster.api.lists.sorted_snapshot import SortedSnapshot
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ReadHandler, get_creation_order
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica
from wharf.cluster.state.table_snapshot import TableSnapshot
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    CHILDREN_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    JOBS,
)
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.decoding import DecodingError, decode_record
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.jobs.messages import (
    AllocationDeploymentStatus,
    AllocationStatusView,
    JobStatusesRequest,
    JobStatusOverview,
    LatestDeployment,
)

PACK_META_KEY: Final = "pack.name"
MAX_REQUESTED_JOBS: Final = 10_000
"""Limits the work of one request: the number of jobs that its body names."""

MAX_STATUSES_BUILT_TOGETHER: Final = 500
"""Limits the time of one step: the status of an allocation takes 0.6 µs to build."""

JOBS_PER_CHECK: Final = 50
"""Jobs whose related records are counted before the CPU time is checked: about a tenth of a millisecond."""

STATUS_TABLES: Final = (JOBS, ALLOCATIONS, DEPLOYMENTS)
"""The tables that a status overview reads."""
StatusPosition = tuple[int, str, str]
"""The sort key of a job: its ModifyIndex, then namespace and id, because one write can change several jobs."""


def list_job_statuses(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job]:
    """List status overviews of the jobs in the namespace, last changed first. Child jobs need `include_children`."""
    return _show_statuses(
        replica, list_by_change(replica, request, options, has_children=request.get_flag("include_children"))
    )


def list_by_change(replica: Replica, request: Request, options: QueryOptions, *, has_children: bool) -> Listing[Job]:
    """List the jobs in the namespace, last changed first."""
    is_everywhere = options.namespace == ALL_NAMESPACES
    key_prefix = "" if is_everywhere else options.namespace + KEY_SEPARATOR + options.prefix

    def is_selected(job: Job) -> bool:
        return (has_children or not job.parent_id) and (not is_everywhere or job.id.startswith(options.prefix))

    order = _ChangeOrder()
    listing = _build_listing(
        replica, request, order, lambda: filter(is_selected, replica.iter_by_key(JOBS, prefix=key_prefix))
    )
    if replica.count_records(JOBS) <= MAX_RECORDS_TOGETHER:
        return listing

    def open_sorted(token: str, reverse: bool) -> SortedSnapshot[Job]:
        build_entries = _build_entry_builder(token, reverse=reverse)
        return SortedSnapshot(
            TableSnapshot(replica, JOBS, prefix=key_prefix),
            lambda jobs: build_entries(filter(is_selected, jobs)),
            order.iterate_jobs,
            reverse=not reverse,
        )

    return replace(listing, open_sorted=open_sorted)


def list_named_job_statuses(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job]:
    """List status overviews of the jobs that the body names, in any namespace; unknown jobs are omitted.

    Without a body, list all jobs of the requested namespace.
    """
    if not request.body.strip():
        return list_job_statuses(replica, request, options)
    try:
        body = decode_record(JobStatusesRequest, request.body).value
    except DecodingError as error:
        raise invalid_request(f"error decoding request: {error}") from error
    if not body.jobs:
        raise invalid_request("no jobs in request")
    if len(body.jobs) > MAX_REQUESTED_JOBS:
        raise invalid_request(f"request names {len(body.jobs)} jobs, must be {MAX_REQUESTED_JOBS} or fewer")
    named = {(name.namespace or "default", name.id): None for name in body.jobs}
    has_children = body.include_children or request.get_flag("include_children")
    existing = [job for key in named if (job := replica.get(JOBS, *key)) is not None]
    listing = _build_listing(
        replica, request, _ChangeOrder(), lambda: (job for job in existing if has_children or not job.parent_id)
    )
    return _show_statuses(replica, listing)


def _show_statuses(replica: Replica, listing: Listing[Job]) -> Listing[Job]:
    """Return a listing of jobs that shows their status overviews."""
    return replace(
        listing,
        index=replica.get_last_change(*STATUS_TABLES),
        watched=[watch_table(table) for table in STATUS_TABLES],
        prepare_view=partial(_prepare_overviews, replica),
    )


def _build_listing(
    replica: Replica, request: Request, order: "_ChangeOrder", iterate_jobs: Callable[[], Iterable[Job]]
) -> Listing[Job]:
    """Return the listing of these jobs, last changed first. The jobs are sorted in one step."""

    def iterate(token: str, reverse: bool) -> Iterable[Job]:
        """Return the jobs from the position in the page token on."""
        entries = _build_entry_builder(token, reverse=reverse)(iterate_jobs())
        return order.iterate_jobs(sorted(entries, key=itemgetter(0), reverse=not reverse))

    return Listing(
        iterate,
        order.make_token,
        replica.get_last_change(JOBS),
        [watch_table(JOBS)],
        is_visible=request.build_namespace_test(),
    )


class _ChangeOrder:
    """The page tokens of jobs in the order of their last changes."""

    def __init__(self) -> None:
        self._shared_indexes: set[int] = set()
        """The ModifyIndexes of several jobs, among those that were read so far."""

    def iterate_jobs(self, entries: Iterable[tuple[StatusPosition, Job]]) -> Iterator[Job]:
        """Yield the jobs of sorted entries. Each is compared with the next one before it is yielded."""
        previous: tuple[StatusPosition, Job] | None = None
        for entry in entries:
            if previous is not None:
                if previous[0][0] == entry[0][0]:
                    self._shared_indexes.add(entry[0][0])
                yield previous[1]
            previous = entry
        if previous is not None:
            yield previous[1]

    def make_token(self, job: Job) -> str:
        """Return the page token of a job that was read and is not the first one: its ModifyIndex, with namespace and id if
        other jobs have the same ModifyIndex.
        """
        if job.modify_index in self._shared_indexes:
            return f"{job.modify_index}.{job.namespace}.{job.id}"
        return str(job.modify_index)


def _build_entry_builder(token: str, *, reverse: bool) -> Callable[[Iterable[Job]], list[tuple[StatusPosition, Job]]]:
    """Return the function that returns those of some jobs that the page token names or that follow it, with their positions."""
    start = _parse_position(token) if token else None

    def build_entries(jobs: Iterable[Job]) -> list[tuple[StatusPosition, Job]]:
        entries = [((job.modify_index, job.namespace, job.id), job) for job in jobs]
        if start is None:
            return entries
        if reverse:
            return [entry for entry in entries if entry[0][: len(start)] >= start]
        return [entry for entry in entries if entry[0][: len(start)] <= start]

    return build_entries


def _parse_position(token: str) -> tuple[int] | StatusPosition:
    """Return the sort key in a page token: ModifyIndex, namespace and job id, or the ModifyIndex alone.

    Text that is not a number means ModifyIndex 0. Raises `Refusal` if the number is no log index.
    """
    number, _, name = token.partition(".")
    index = parse_token_index(number)
    namespace, dot, job_id = name.partition(".")
    return (index, namespace, job_id) if dot else (index,)


class _RelatedRecords(msgspec.Struct, frozen=True):
    """The records of a job that its status overview shows."""

    children: Sequence[Job] = ()
    """Sorted by id."""
    allocations: Sequence[Allocation] = ()
    """Sorted by id."""
    latest_deployment: Deployment | None = None


async def _prepare_overviews(
    replica: Replica, jobs: Sequence[Job], work: SlicedWork
) -> Callable[[Job], JobStatusOverview]:
    """Read the related records of jobs that have many, in slices. Return the function that returns the overview of a job."""
    prepared: dict[tuple[str, str], _RelatedRecords] = {}
    work.restart()
    for number, job in enumerate(jobs):
        if not number % JOBS_PER_CHECK and work.is_slice_over():
            await work.pause()
        key = (job.namespace, job.id)
        related = CHILDREN_OF_JOB if _has_children(job) else ALLOCATIONS_OF_JOB
        if has_many_records(replica, related, *key) or has_many_records(replica, DEPLOYMENTS_OF_JOB, *key):
            prepared[key] = await _read_related_in_slices(replica, job, work)

    def build_view(job: Job) -> JobStatusOverview:
        related = prepared.get((job.namespace, job.id))
        return _build_overview(job, _read_related(replica, job) if related is None else related)

    return build_view


async def _read_related_in_slices(replica: Replica, job: Job, work: SlicedWork) -> _RelatedRecords:
    """Return the related records of a job, as `_read_related`, in slices."""
    key, get_id = (job.namespace, job.id), attrgetter("id")
    latest = await find_newest_in_slices(
        replica,
        DEPLOYMENTS_OF_JOB,
        *key,
        is_selected=lambda each: each.job_create_index == job.create_index,
        work=work,
    )
    if _has_children(job):
        children = await read_in_slices(replica, CHILDREN_OF_JOB, *key, get_order=get_id, work=work)
        return _RelatedRecords(children=children, latest_deployment=latest)
    allocations = await read_in_slices(replica, ALLOCATIONS_OF_JOB, *key, get_order=get_id, work=work)
    return _RelatedRecords(allocations=allocations, latest_deployment=latest)


def _read_related(replica: Replica, job: Job) -> _RelatedRecords:
    """Return the related records of a job, in one step."""
    key = (job.namespace, job.id)
    deployments = [
        each for each in replica.list_by_index(DEPLOYMENTS_OF_JOB, *key) if each.job_create_index == job.create_index
    ]
    latest = max(deployments, key=get_creation_order, default=None)
    if _has_children(job):
        return _RelatedRecords(children=replica.list_by_index_sorted(CHILDREN_OF_JOB, *key), latest_deployment=latest)
    return _RelatedRecords(allocations=replica.list_by_index_sorted(ALLOCATIONS_OF_JOB, *key), latest_deployment=latest)


def _has_children(job: Job) -> bool:
    """Return whether the job has child jobs in place of allocations."""
    return job.is_periodic or job.is_parameterized


def _build_overview(job: Job, related: _RelatedRecords) -> JobStatusOverview:
    """Return the status overview of a job.

    A periodic or parameterized job has child jobs instead of allocations, so it shows their statuses.
    """
    is_parent, latest = _has_children(job), related.latest_deployment
    return JobStatusOverview(
        id=job.id,
        namespace=job.namespace,
        name=job.name,
        type=job.type,
        node_pool=job.node_pool,
        datacenters=job.datacenters,
        priority=job.priority,
        version=job.version,
        submit_time=job.submit_time,
        modify_index=job.modify_index,
        allocs=None if is_parent else _build_allocation_statuses(related.allocations, job),
        group_count_sum=sum(group.total_count for group in job.groups),
        child_statuses=_build_child_statuses(related.children) if is_parent else None,
        parent_id=job.parent_id,
        latest_deployment=_build_latest_deployment(latest) if latest is not None else None,
        stop=job.stop,
        is_pack=PACK_META_KEY in (job.meta or {}),
        status=job.status,
    )


def _build_child_statuses(children: Sequence[Job]) -> Any:
    """Return the statuses of these child jobs. Many are read one by one while they are encoded."""

    def iterate() -> Iterator[str]:
        return (child.status.value for child in children)

    return tuple(iterate()) if len(children) <= MAX_STATUSES_BUILT_TOGETHER else LazyList(iterate)


def _build_allocation_statuses(allocations: Sequence[Allocation], job: Job) -> Any:
    """Return the statuses of those allocations that belong to this registration of the job.

    Many statuses are built one by one while they are encoded.
    """

    def iterate() -> Iterator[AllocationStatusView]:
        return (_build_allocation_status(each) for each in allocations if each.job_create_index == job.create_index)

    return tuple(iterate()) if len(allocations) <= MAX_STATUSES_BUILT_TOGETHER else LazyList(iterate)


def _build_allocation_status(allocation: Allocation) -> AllocationStatusView:
    """Return the part of an allocation that a status overview shows."""
    status = allocation.deployment_status
    return AllocationStatusView(
        id=allocation.id,
        group=allocation.task_group,
        client_status=allocation.client_status,
        node_id=allocation.node_id,
        deployment_status=AllocationDeploymentStatus(
            canary=status.canary if status is not None else False,
            healthy=status.healthy if status is not None else None,
        ),
        job_version=allocation.job_version,
        followup_eval_id=allocation.followup_eval_id,
    )


def _build_latest_deployment(deployment: Deployment) -> LatestDeployment:
    """Return the part of a deployment that a status overview shows."""
    groups = (deployment.task_groups or {}).values()
    return LatestDeployment(
        id=deployment.id,
        is_active=deployment.is_active,
        job_version=deployment.job_version,
        status=deployment.status,
        status_description=deployment.status_description,
        all_auto_promote=bool(groups) and all(group.auto_promote for group in groups),
        requires_promotion=deployment.is_awaiting_promotion,
    )


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "job.statuses": list_job_statuses,
    "job.statuses-of": list_named_job_statuses,
}
