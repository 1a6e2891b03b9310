"""Endpoints of node pools."""

from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from operator import attrgetter
from typing import Final, TypeVar

import msgspec

from wharf.cluster.api.handlers.jobs.reads import build_job_stub
from wharf.cluster.api.handlers.nodes.records import build_stub_options
from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, list_by_name
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, find_record
from wharf.cluster.operations import node_pools
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS, JOBS_OF_POOL, NODE_POOLS, NODES, NODES_OF_POOL
from wharf.contract.model.acl.permissions import LIST_JOBS, READ_NODE_POOL
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.node_pools import ALL_NODE_POOL, NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.node_pools import NodePoolRequest

R = TypeVar("R", bound=msgspec.Struct)


def list_node_pools(replica: Replica, request: Request, options: QueryOptions) -> Listing[NodePool]:
    return list_by_name(
        replica, NODE_POOLS, options, is_visible=lambda pool: request.has_permission(READ_NODE_POOL, label=pool.name)
    )


def read_node_pool(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    return ReadResult(
        *find_record(replica, NODE_POOLS, request.get_path_value("pool_name"), missing_text="node pool not found")
    )


def list_pool_nodes(replica: Replica, request: Request, options: QueryOptions) -> Listing[Node] | ReadResult:
    """Every node is in the pool of all."""
    name = request.get_path_value("pool_name")
    if not _is_known(replica, name, options):
        return read_node_pool(replica, request, options)
    if name == ALL_NODE_POOL:
        return list_by_name(replica, NODES, options, **build_stub_options(request))
    nodes = replica.list_by_index_sorted(NODES_OF_POOL, name)

    def begin(token: str, _reverse: bool) -> Iterable[Node]:
        return dropwhile(lambda node: node.id < token, nodes)

    return Listing(
        begin,
        attrgetter("id"),
        replica.get_last_change(NODES),
        [watch.watch_table(NODES)],
        **build_stub_options(request),
    )


def list_pool_jobs(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job] | ReadResult:
    """The jobs that name this very pool."""
    name = request.get_path_value("pool_name")
    if not _is_known(replica, name, options):
        return read_node_pool(replica, request, options)
    found = replica.list_by_index_sorted(JOBS_OF_POOL, name)
    everywhere = options.namespace == ALL_NAMESPACES
    jobs = [job for job in found if everywhere or job.namespace == options.namespace]
    watched: Sequence[WatchTarget] = [watch.watch_table(JOBS), watch.watch_table(JOB_SUMMARIES)]
    with_meta = request.get_flag("meta")
    return Listing(
        _by_namespace(jobs),
        lambda job: f"{job.namespace}.{job.id}",
        replica.get_last_change(JOBS, JOB_SUMMARIES),
        watched,
        build_view=lambda job: build_job_stub(replica, job, has_meta=with_meta),
        is_visible=lambda job: request.has_permission(LIST_JOBS, namespace=job.namespace),
    )


def _by_namespace(jobs: Sequence[Job]) -> Callable[[str, bool], Iterable[Job]]:
    def begin(token: str, reverse: bool) -> Iterable[Job]:
        namespace, _, job_id = token.partition(".")
        place = (namespace, job_id)
        if not reverse:
            return dropwhile(lambda job: (job.namespace, job.id) < place, jobs)
        return dropwhile(lambda job: token != "" and (job.namespace, job.id) > place, reversed(jobs))

    return begin


def _is_known(replica: Replica, name: str, options: QueryOptions) -> bool:
    """Whether there is such a pool. A prefix is refused: within a pool there is none to choose by."""
    if options.prefix:
        raise invalid_request("`prefix` is not supported here: use `filter`")
    return replica.get(NODE_POOLS, name) is not None


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "node_pool.list": list_node_pools,
    "node_pool.read": read_node_pool,
    "node_pool.nodes": list_pool_nodes,
    "node_pool.jobs": list_pool_jobs,
}


class NodePoolActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def store_pool(self, request: Request) -> ActionResult:
        wanted = request.decode_body(NodePoolRequest).to_record()
        request.require_permission(label=wanted.name)
        return await self._store(wanted, request)

    async def update_pool(self, request: Request) -> ActionResult:
        wanted = request.decode_body(NodePoolRequest).to_record()
        if wanted.name != request.get_path_value("pool_name"):
            raise invalid_request("Node pool name does not match request path")
        return await self._store(wanted, request)

    async def _store(self, wanted: NodePool, request: Request) -> ActionResult:
        index = await self._server.writer.execute(
            lambda snapshot, _moment: node_pools.store_node_pool(snapshot, wanted, cause=request.id)
        )
        return ActionResult(index=index)

    async def delete_pool(self, request: Request) -> ActionResult:
        name, region = request.get_path_value("pool_name"), self._server.identity.region
        await self._server.writer.catch_up()  # That nothing is in it rests on no record: see all that was acknowledged.
        index = await self._server.writer.execute(
            lambda snapshot, _moment: node_pools.delete_node_pool(snapshot, name, region=region, cause=request.id)
        )
        return ActionResult(index=index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = NodePoolActions(server)
    return {
        "node_pool.store": writes.store_pool,
        "node_pool.update": writes.update_pool,
        "node_pool.delete": writes.delete_pool,
    }
