"""Status overviews of many jobs, last changed first."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from operator import attrgetter
from typing import Any, Final

from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, parse_token_index
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ReadHandler
from wharf.cluster.state import Replica
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

StatusPosition = tuple[int, str, str]
"""The sort key of a job: its ModifyIndex, then namespace and id, because one write can change several jobs."""


def list_job_statuses(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job]:
    """List status overviews of the jobs in the namespace, last changed first. Child jobs need `include_children`."""
    prefix = options.prefix
    jobs: Iterable[Job]
    if options.namespace == ALL_NAMESPACES:
        jobs = (job for job in replica.iter_by_key(JOBS, reverse=True) if not prefix or job.id.startswith(prefix))
    else:
        jobs = replica.iter_by_key(JOBS, prefix=options.namespace + KEY_SEPARATOR + prefix, reverse=True)
    if not request.get_flag("include_children"):
        jobs = (job for job in jobs if not job.parent_id)
    return _build_listing(replica, request, jobs)


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
    existing = (job for key in sorted(named, reverse=True) if (job := replica.get(JOBS, *key)) is not None)
    has_children = body.include_children or request.get_flag("include_children")
    return _build_listing(replica, request, (job for job in existing if has_children or not job.parent_id))


def _build_listing(replica: Replica, request: Request, jobs: Iterable[Job]) -> Listing[Job]:
    """Return the listing of status overviews, last changed first.

    `jobs` must be in descending key order: the sort is stable, so jobs with equal ModifyIndex keep this order.
    """
    ordered = sorted(jobs, key=attrgetter("modify_index"), reverse=True)

    def iterate(token: str, reverse: bool) -> Iterable[Job]:
        """Return the jobs from the position in the page token on."""
        if not token:
            return reversed(ordered) if reverse else ordered
        start = _parse_position(token)
        if reverse:
            return dropwhile(lambda job: _get_position(job)[: len(start)] < start, reversed(ordered))
        return dropwhile(lambda job: _get_position(job)[: len(start)] > start, ordered)

    def make_token(job: Job) -> str:
        """Return the page token of a job: its ModifyIndex, with namespace and id if other jobs have the same
        ModifyIndex.
        """
        if any(each.modify_index == job.modify_index for each in ordered if each is not job):
            return f"{job.modify_index}.{job.namespace}.{job.id}"
        return str(job.modify_index)

    return Listing(
        iterate,
        make_token,
        replica.get_last_change(JOBS, ALLOCATIONS, DEPLOYMENTS),
        [watch_table(JOBS), watch_table(ALLOCATIONS), watch_table(DEPLOYMENTS)],
        build_view=lambda job: build_status_overview(replica, job),
        is_visible=lambda job: request.has_permission(namespace=job.namespace),
    )


def _get_position(job: Job) -> StatusPosition:
    """Return the sort key of a job in the list."""
    return job.modify_index, job.namespace, job.id


def _parse_position(token: str) -> tuple[int] | StatusPosition:
    """Return the sort key in a page token: ModifyIndex, namespace and job id, or the ModifyIndex alone.

    Text that is not a number means ModifyIndex 0. Raises `Refusal` if the number is no log index.
    """
    number, _, name = token.partition(".")
    index = parse_token_index(number)
    namespace, dot, job_id = name.partition(".")
    return (index, namespace, job_id) if dot else (index,)


def build_status_overview(replica: Replica, job: Job) -> JobStatusOverview:
    """Return the status overview of a job.

    A periodic or parameterized job has child jobs instead of allocations, so it shows their statuses.
    """
    is_parent = job.is_periodic or job.is_parameterized
    key = (job.namespace, job.id)
    children = replica.list_by_index_sorted(CHILDREN_OF_JOB, *key) if is_parent else []
    allocations = [] if is_parent else replica.list_by_index_sorted(ALLOCATIONS_OF_JOB, *key)
    deployments = [
        each for each in replica.list_by_index(DEPLOYMENTS_OF_JOB, *key) if each.job_create_index == job.create_index
    ]
    latest = max(deployments, key=lambda each: (each.create_index, each.id), default=None)
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
        allocs=None if is_parent else _build_allocation_statuses(allocations, job),
        group_count_sum=sum(group.count for group in job.groups),
        child_statuses=tuple(child.status.value for child in children) if is_parent else None,
        parent_id=job.parent_id,
        latest_deployment=_build_latest_deployment(latest) if latest is not None else None,
        stop=job.stop,
        is_pack=PACK_META_KEY in (job.meta or {}),
        status=job.status,
    )


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
