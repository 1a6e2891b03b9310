"""The first page."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from wharf.contract.client.errors import Forbidden, RequestRefused
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.run_views import RunStub
from wharf.contract.model.waiting_queue import QueueEntry, QueueReasons
from wharf.contract.wire.flows import RunSort, RunState
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.limits import LimiterStatus
from wharf.contract.wire.nodes.messages import NodeListStub
from wharf.web.page import ALL_NAMESPACES, Page, PageRequest, Redirect, Route
from wharf.web.pages.people import find_names
from wharf.web.views.overview import MAX_RECENT_JOBS, MAX_RECORDS, MAX_TROUBLES_OF_A_KIND, build_overview
from wharf.web.views.quotas import QuotaRow, build_quota_list

T = TypeVar("T")
MAX_MISSING_PARTS: Final = 5
"""How many parts of the page a refusal can leave out."""
MAX_FAILED_ROLLOUTS: Final = 20
"""How many of the newest failed rollouts are compared with their jobs. Each is a read of a key in this process."""


async def show_overview(request: PageRequest) -> Page | Redirect:
    """Show what needs a person, and the jobs that changed last."""
    parts = _Parts(must_sign_in=request.visitor.can_sign_in and not request.visitor.is_signed_in)
    (
        (waiting, reasons, queue),
        rollouts,
        jobs,
        (troubled, has_ready),
        leader,
        ((limits, quotas), gated_runs),
    ) = await asyncio.gather(
        parts.read("jobs that wait", _list_waiting(request), ([], QueueReasons(), ())),
        parts.read("rollouts", _list_rollouts(request), []),
        parts.read("jobs", _list_jobs(request), ListedJobs([], [], [])),
        parts.read("nodes", _list_troubled_nodes(request), ([], True)),
        parts.read("the leader", request.client.status.leader(), "unknown"),
        asyncio.gather(_read_amounts(request), _list_gated_runs(request)),
    )
    if isinstance(parts.refusal, Forbidden) and len(parts.missing) >= MAX_MISSING_PARTS:
        raise parts.refusal  # The person may see nothing of the page.
    view = build_overview(
        waiting,
        rollouts,
        troubled,
        jobs.ended,
        jobs.recent,
        leader,
        limits,
        quotas,
        request.now_ns,
        has_ready_nodes=has_ready,
        reasons=reasons,
        queue=queue,
        unfinished_jobs=jobs.unfinished,
        gated_runs=gated_runs,
        names=await find_names(request, (each.last_drain.accessor_id for each in troubled if each.last_drain)),
        missing=f"Not shown: {', '.join(parts.missing)}. {parts.refusal.text}" if parts.refusal else "",
    )
    return Page(
        "overview.html",
        "Overview",
        view,
        section="overview",
        topics=("Job", "Node", "Deployment", "Evaluation", "Allocation"),
        command="wharf status",
        api_path="/v1/jobs",
    )


class ListedJobs(NamedTuple):
    """The jobs that the page is about, those that changed last first."""

    ended: list[JobStub]
    """Jobs that ended, some of which may have failed."""
    unfinished: list[JobStub]
    """Services that have not ended, some of which may fail again and again."""
    recent: list[JobStub]


class _Parts:
    """Reads the parts of the page. A part that the API refuses, such as by a rate limit, is left out and named."""

    def __init__(self, *, must_sign_in: bool) -> None:
        self._must_sign_in = must_sign_in
        self.missing: list[str] = []
        self.refusal: RequestRefused | None = None

    async def read(self, name: str, reading: Awaitable[T], default: T) -> T:
        """Return a part, or `default` if it is refused. Raises `Forbidden` if the person must sign in first."""
        try:
            return await reading
        except RequestRefused as refusal:
            if self._must_sign_in and isinstance(refusal, Forbidden) and not refusal.is_by_limiter:
                raise
            self.missing.append(name)
            self.refusal = refusal
            return default


async def _list_waiting(request: PageRequest) -> tuple[list[Evaluation], QueueReasons, tuple[QueueEntry, ...]]:
    """Return evaluations of jobs that wait for capacity, how many jobs wait for which reason, and the queue if it is short.

    Only an entry of the queue counts the elements of arrays that wait.
    """
    waiting, reasons = await asyncio.gather(
        request.client.evaluations.list(filter='Status == "blocked"', namespace=ALL_NAMESPACES, per_page=MAX_RECORDS),
        request.client.evaluations.queue_reasons(namespace=ALL_NAMESPACES),
    )
    if not 0 < reasons.value.count <= MAX_TROUBLES_OF_A_KIND:
        return waiting.value, reasons.value, ()
    queue = await request.client.evaluations.queue(namespace=ALL_NAMESPACES, limit=MAX_TROUBLES_OF_A_KIND)
    return waiting.value, reasons.value, queue.value.entries


async def _list_jobs(request: PageRequest) -> ListedJobs:
    """Return the jobs that ended last, the services that changed last and have not ended, and all that changed last."""
    list_last_changed = partial(request.client.jobs.list, sort="changed", namespace=ALL_NAMESPACES)
    ended, unfinished, recent = await asyncio.gather(
        list_last_changed(filter='Status == "dead" and Stop == false and ParentID == ""', per_page=MAX_RECORDS),
        list_last_changed(filter='Status != "dead" and Stop == false and Type == "service"', per_page=MAX_RECORDS),
        list_last_changed(filter='ParentID == ""', per_page=MAX_RECENT_JOBS, progress=True),
    )
    return ListedJobs(ended.value, unfinished.value, recent.value)


async def _list_gated_runs(request: PageRequest) -> list[RunStub]:
    """Return the newest runs of which a step waits for approval, one more than the page shows; none if they are refused."""
    try:
        reply = await request.client.flows.list_runs(
            state=RunState.GATED.value,
            sort=RunSort.NEWEST.value,
            namespace=ALL_NAMESPACES,
            per_page=MAX_TROUBLES_OF_A_KIND + 1,
        )
    except RequestRefused:
        return []
    return reply.value


async def _list_rollouts(request: PageRequest) -> list[Deployment]:
    """Return the rollouts that failed and still concern their jobs, and those that have not ended."""
    active, failed = await asyncio.gather(
        request.client.deployments.list(
            filter='Status == "running" or Status == "paused"', namespace=ALL_NAMESPACES, per_page=MAX_RECORDS
        ),
        _list_failed_rollouts(request),
    )
    return [*failed, *active.value]


async def _list_failed_rollouts(request: PageRequest) -> list[Deployment]:
    """Return the newest rollouts that failed and still concern their jobs: these run, and have the version of the rollout.

    A job that has returned to its earlier version, or has a newer one, has changed since the rollout.
    """
    failed = await request.client.deployments.list(
        filter='Status == "failed"', namespace=ALL_NAMESPACES, per_page=MAX_FAILED_ROLLOUTS, reverse=True
    )
    keys = dict.fromkeys((deployment.namespace, deployment.job_id) for deployment in failed.value)
    found = await asyncio.gather(
        *(request.client.jobs.list(prefix=job_id, namespace=namespace, per_page=1) for namespace, job_id in keys)
    )
    jobs = {(job.namespace, job.id): job for reply in found for job in reply.value}
    return [
        deployment
        for deployment in failed.value
        if (job := jobs.get((deployment.namespace, deployment.job_id))) is not None
        and not job.stop
        and job.status != "dead"  # It is listed as a job that failed.
        and job.job_modify_index == deployment.job_spec_modify_index
    ]


async def _read_amounts(request: PageRequest) -> tuple[LimiterStatus, tuple[QuotaRow, ...]]:
    """Return what the rate limits refused, and how much of the quotas is used."""
    return await asyncio.gather(_read_limits(request), _list_quotas(request))


async def _list_quotas(request: PageRequest) -> tuple[QuotaRow, ...]:
    """Return the first quotas; none if the caller may not see them."""
    try:
        quotas, usages = await asyncio.gather(request.client.quotas.list(), request.client.quotas.usages())
    except RequestRefused:
        return ()
    return build_quota_list(quotas.value, usages.value, "").rows


async def _read_limits(request: PageRequest) -> LimiterStatus:
    """Return the rules of the rate limiter, with how often they refused. A caller may lack the right to see them."""
    try:
        return await request.client.limits.read(limit=0)
    except RequestRefused:
        return LimiterStatus(is_enabled=False)


async def _list_troubled_nodes(request: PageRequest) -> tuple[list[NodeListStub], bool]:
    """Return the nodes that are away or ineligible, and whether any node is ready. A caller may lack the right to see nodes."""
    try:
        troubled, ready = await asyncio.gather(
            request.client.nodes.list(
                filter='Status != "ready" or SchedulingEligibility != "eligible"', per_page=MAX_RECORDS
            ),
            request.client.nodes.list(filter='Status == "ready" and SchedulingEligibility == "eligible"', per_page=1),
        )
    except Forbidden as refusal:
        if refusal.is_by_limiter:
            raise
        return [], True
    return troubled.value, bool(ready.value)


ROUTES: Final = (Route("", show_overview, is_shared=True),)
