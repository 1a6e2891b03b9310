"""Endpoints of quotas. Usage is computed at each request, over the jobs of the quota's namespaces."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler, SlicedValue, find_record
from wharf.cluster.operations import quotas
from wharf.cluster.operations.references import DELETION_ATTEMPTS
from wharf.cluster.scheduling.capacity.quotas import UsageAdder
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.table_snapshot import TableSnapshot
from wharf.cluster.state.tables import ALLOCATIONS, NAMESPACES, QUOTAS
from wharf.cluster.state.watches import watch_key, watch_table
from wharf.contract.model.acl.permissions import READ_NAMESPACE, READ_QUOTA
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.quotas import Quota, QuotaUsage
from wharf.contract.model.refusal import invalid_request

ALLOCATIONS_PER_STEP: Final = 250
"""Allocations added up before the CPU time is checked: about a quarter of a millisecond."""
NAMESPACES_PER_STEP: Final = 16
"""Namespaces whose rights are checked before the CPU time is checked: up to half a millisecond for each."""


def list_quotas(replica: Replica, request: Request, options: QueryOptions) -> Listing[Quota]:
    return list_by_name(replica, QUOTAS, options, NAMESPACES, prepare_visibility=_select_visibility(replica, request))


def _select_visibility(
    replica: Replica, request: Request
) -> Callable[[SlicedWork], Awaitable[Callable[[Quota], bool]]] | None:
    """Return what finds out which quotas the caller sees; `None` if it sees all.

    Callers that may read quotas see all. Other callers see the quotas of namespaces in which they have any right.
    """
    return None if request.has_permission(READ_QUOTA) else partial(_find_visible_quotas, replica, request)


async def _find_visible_quotas(replica: Replica, request: Request, work: SlicedWork) -> Callable[[Quota], bool]:
    """Return the test of whether a quota belongs to a namespace in which the caller has any right."""
    visible: set[str] = set()
    snapshot = TableSnapshot(replica, NAMESPACES)
    work.restart()
    try:
        while namespaces := snapshot.read_next(NAMESPACES_PER_STEP):
            for namespace in namespaces:
                quota = namespace.quota
                if quota and quota not in visible and request.has_permission(READ_NAMESPACE, namespace=namespace.name):
                    visible.add(quota)
            if work.is_slice_over():
                await work.pause()
    finally:
        snapshot.close()
    return lambda quota: quota.name in visible


def read_quota(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    return ReadResult(
        *find_record(replica, QUOTAS, request.get_path_value("quota_name"), missing_text=_build_not_found_text(request))
    )


def _build_not_found_text(request: Request) -> str:
    return f'quota "{request.get_path_value("quota_name")}" not found'


def list_quota_usages(replica: Replica, request: Request, options: QueryOptions) -> Listing[Quota]:
    return list_by_name(
        replica, QUOTAS, options, NAMESPACES, ALLOCATIONS,
        prepare_visibility=_select_visibility(replica, request), prepare_view=partial(_prepare_usage_view, replica),
    )  # fmt: skip


async def _prepare_usage_view(
    replica: Replica, _quotas: Sequence[Quota], work: SlicedWork
) -> Callable[[Quota], QuotaUsage]:
    """Add up all allocations in slices, and return the function that returns the usage of a quota."""
    adder = UsageAdder()
    await visit_allocations(replica, adder.add, work)
    return lambda quota: quotas.compute_quota_usage(replica, quota, adder)


async def visit_allocations(replica: Replica, visit: Callable[[Allocation], None], work: SlicedWork) -> None:
    """Call a function with each allocation, in slices."""
    work.restart()
    snapshot = TableSnapshot(replica, ALLOCATIONS, by_creation=True)
    try:
        while batch := snapshot.read_next(ALLOCATIONS_PER_STEP):
            for allocation in batch:
                visit(allocation)
            if work.is_slice_over():
                await work.pause()
    finally:
        snapshot.close()


def read_quota_usage(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the quota with the resources that the jobs of its namespaces use now."""
    name = request.get_path_value("quota_name")
    quota = replica.get(QUOTAS, name)
    watched = [watch_key(QUOTAS, name), watch_table(NAMESPACES), watch_table(ALLOCATIONS)]
    index = replica.get_last_change(QUOTAS, NAMESPACES, ALLOCATIONS)
    if quota is None:
        return ReadResult(MissingRecord(_build_not_found_text(request)), index, watched)

    async def build_usage(work: SlicedWork) -> QuotaUsage:
        return (await _prepare_usage_view(replica, (quota,), work))(quota)

    return ReadResult(SlicedValue(build_usage), index, watched)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "quota.list": list_quotas,
    "quota.read": read_quota,
    "quota.usages": list_quota_usages,
    "quota.usage": read_quota_usage,
}


class QuotaActions:
    """Writes quotas."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def store_quota(self, request: Request) -> ActionResult:
        return await self._store(request.decode_body(Quota), request)

    async def update_quota(self, request: Request) -> ActionResult:
        """Replace the quota of the path. Raises `Refusal` if the body has another name."""
        quota = request.decode_body(Quota)
        if quota.name != request.get_path_value("quota_name"):
            raise invalid_request("Quota name does not match request path")
        return await self._store(quota, request)

    async def _store(self, quota: Quota, request: Request) -> ActionResult:
        """Create or replace the quota."""
        index = await self._server.writer.execute(
            lambda snapshot, _context: quotas.store_quota(snapshot, quota, cause=request.id)
        )
        return ActionResult(index=index)

    async def delete_quota(self, request: Request) -> ActionResult:
        """Delete the quota of the path. Raises `Refusal` if it is in use."""
        name = request.get_path_value("quota_name")
        # Whether the quota is in use depends on many records, so the replica must hold all acknowledged writes.
        await self._server.writer.catch_up()
        index = await self._server.writer.execute(
            lambda snapshot, _context: quotas.delete_quota(snapshot, name, cause=request.id),
            max_attempts=DELETION_ATTEMPTS,
        )
        return ActionResult(index=index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = QuotaActions(server)
    return {
        "quota.store": actions.store_quota,
        "quota.update": actions.update_quota,
        "quota.delete": actions.delete_quota,
    }
