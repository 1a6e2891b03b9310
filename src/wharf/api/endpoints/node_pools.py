"""Endpoints of node pools."""

from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from operator import attrgetter
from typing import Final, TypeVar

import msgspec

from wharf.api.answers import Act, Done, Reading, one
from wharf.api.endpoints.jobs.stubs import job_stub
from wharf.api.endpoints.nodes import stubs
from wharf.api.listing import EVERY_NAMESPACE, Listing, by_name
from wharf.api.request import ReadOptions, Request
from wharf.model.job import Job
from wharf.model.need import LIST_JOBS, READ_POOL
from wharf.model.node import Node
from wharf.model.node_pool import ALL, NodePool
from wharf.model.refusal import invalid
from wharf.operations import node_pools
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica, Watched
from wharf.state import watches as watch
from wharf.state.tables import JOBS, JOBS_OF_POOL, NODE_POOLS, NODES, NODES_OF_POOL, SUMMARIES
from wharf.wire.node_pool_shapes import NodePoolRequest

R = TypeVar("R", bound=msgspec.Struct)


def pool_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[NodePool]:
    return by_name(replica, NODE_POOLS, options, may_see=lambda pool: request.may(READ_POOL, label=pool.name))


def pool_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return Found(*one(replica, NODE_POOLS, request.value("pool_name"), missing="node pool not found"))


def pool_nodes(replica: Replica, request: Request, options: ReadOptions) -> Listing[Node] | Found:
    """Every node is in the pool of all."""
    name = request.value("pool_name")
    if not _is_known(replica, name, options):
        return pool_read(replica, request, options)
    if name == ALL:
        return by_name(replica, NODES, options, **stubs(request))
    nodes = replica.those_by_key(NODES_OF_POOL, name)

    def begin(token: str, _reverse: bool) -> Iterable[Node]:
        return dropwhile(lambda node: node.id < token, nodes)

    return Listing(begin, attrgetter("id"), replica.last_change(NODES), [watch.whole(NODES)], **stubs(request))


def pool_jobs(replica: Replica, request: Request, options: ReadOptions) -> Listing[Job] | Found:
    """The jobs that name this very pool."""
    name = request.value("pool_name")
    if not _is_known(replica, name, options):
        return pool_read(replica, request, options)
    found = replica.those_by_key(JOBS_OF_POOL, name)
    everywhere = options.namespace == EVERY_NAMESPACE
    jobs = [job for job in found if everywhere or job.namespace == options.namespace]
    watched: Sequence[Watched] = [watch.whole(JOBS), watch.whole(SUMMARIES)]
    with_meta = request.flag("meta")
    return Listing(
        _by_namespace(jobs),
        lambda job: f"{job.namespace}.{job.id}",
        replica.last_change(JOBS, SUMMARIES),
        watched,
        shown=lambda job: job_stub(replica, job, with_meta=with_meta),
        may_see=lambda job: request.may(LIST_JOBS, namespace=job.namespace),
    )


def _by_namespace(jobs: Sequence[Job]) -> Callable[[str, bool], Iterable[Job]]:
    def begin(token: str, reverse: bool) -> Iterable[Job]:
        namespace, _, job_id = token.partition(".")
        place = (namespace, job_id)
        if not reverse:
            return dropwhile(lambda job: (job.namespace, job.id) < place, jobs)
        return dropwhile(lambda job: token != "" and (job.namespace, job.id) > place, reversed(jobs))

    return begin


def _is_known(replica: Replica, name: str, options: ReadOptions) -> bool:
    """Whether there is such a pool. A prefix is refused: within a pool there is none to choose by."""
    if options.prefix:
        raise invalid("`prefix` is not supported here: use `filter`")
    return replica.get(NODE_POOLS, name) is not None


READS: Final[dict[str, Reading]] = {
    "node_pool.list": pool_list,
    "node_pool.read": pool_read,
    "node_pool.nodes": pool_nodes,
    "node_pool.jobs": pool_jobs,
}


class NodePoolWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def store(self, request: Request) -> Done:
        wanted = request.read_body(NodePoolRequest).record()
        request.require(label=wanted.name)
        return await self._store(wanted, request)

    async def update(self, request: Request) -> Done:
        wanted = request.read_body(NodePoolRequest).record()
        if wanted.name != request.value("pool_name"):
            raise invalid("Node pool name does not match request path")
        return await self._store(wanted, request)

    async def _store(self, wanted: NodePool, request: Request) -> Done:
        index = await self._server.writer.write(
            lambda snapshot, _moment: node_pools.store(snapshot, wanted, cause=request.id)
        )
        return Done(index=index)

    async def delete(self, request: Request) -> Done:
        name, region = request.value("pool_name"), self._server.identity.region
        await self._server.writer.catch_up()  # That nothing is in it rests on no record: see all that was acknowledged.
        index = await self._server.writer.write(
            lambda snapshot, _moment: node_pools.delete(snapshot, name, region=region, cause=request.id)
        )
        return Done(index=index)


def acts_of(server: Server) -> dict[str, Act]:
    writes = NodePoolWrites(server)
    return {"node_pool.store": writes.store, "node_pool.update": writes.update, "node_pool.delete": writes.delete}
