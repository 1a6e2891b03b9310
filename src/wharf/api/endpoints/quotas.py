"""Endpoints of quotas. What is used is summed up when it is asked for, over the jobs of the quota's namespaces."""

from collections.abc import Callable
from typing import Final

from wharf.api.answers import Act, Done, Missing, Reading, one
from wharf.api.listing import Listing, by_name
from wharf.api.request import ReadOptions, Request
from wharf.model.need import READ_NAMESPACE, READ_QUOTA
from wharf.model.quota import Quota
from wharf.model.refusal import invalid
from wharf.operations import quotas
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, NAMESPACES, NAMESPACES_WITH_QUOTA, QUOTAS


def quota_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Quota]:
    return by_name(replica, QUOTAS, options, NAMESPACES, may_see=_may_see(replica, request))


def _may_see(replica: Replica, request: Request) -> Callable[[Quota], bool]:
    """Who may read quotas sees all; others those that bind a namespace in which they have any right."""
    if request.may(READ_QUOTA):
        return lambda _quota: True
    return lambda quota: any(
        request.may(READ_NAMESPACE, namespace=namespace.name)
        for namespace in replica.those(NAMESPACES_WITH_QUOTA, quota.name)
    )


def quota_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return Found(*one(replica, QUOTAS, request.value("quota_name"), missing=_missing(request)))


def _missing(request: Request) -> str:
    return f'quota "{request.value("quota_name")}" not found'


def quota_usages(replica: Replica, request: Request, options: ReadOptions) -> Listing[Quota]:
    return by_name(
        replica, QUOTAS, options, NAMESPACES, ALLOCATIONS,
        may_see=_may_see(replica, request), shown=lambda quota: quotas.usage_of(replica, quota),
    )  # fmt: skip


def quota_usage(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    name = request.value("quota_name")
    quota = replica.get(QUOTAS, name)
    watched = [watch.one(QUOTAS, name), watch.whole(NAMESPACES), watch.whole(ALLOCATIONS)]
    index = replica.last_change(QUOTAS, NAMESPACES, ALLOCATIONS)
    return Found(Missing(_missing(request)) if quota is None else quotas.usage_of(replica, quota), index, watched)


READS: Final[dict[str, Reading]] = {
    "quota.list": quota_list,
    "quota.read": quota_read,
    "quota.usages": quota_usages,
    "quota.usage": quota_usage,
}


class QuotaWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def store(self, request: Request) -> Done:
        return await self._store(request.read_body(Quota), request)

    async def update(self, request: Request) -> Done:
        wanted = request.read_body(Quota)
        if wanted.name != request.value("quota_name"):
            raise invalid("Quota name does not match request path")
        return await self._store(wanted, request)

    async def _store(self, wanted: Quota, request: Request) -> Done:
        index = await self._server.writer.write(
            lambda snapshot, _moment: quotas.store(snapshot, wanted, cause=request.id)
        )
        return Done(index=index)

    async def delete(self, request: Request) -> Done:
        name = request.value("quota_name")
        await self._server.writer.catch_up()  # That nothing is in it rests on no record: see all that was acknowledged.
        index = await self._server.writer.write(
            lambda snapshot, _moment: quotas.delete(snapshot, name, cause=request.id)
        )
        return Done(index=index)


def acts_of(server: Server) -> dict[str, Act]:
    writes = QuotaWrites(server)
    return {"quota.store": writes.store, "quota.update": writes.update, "quota.delete": writes.delete}
