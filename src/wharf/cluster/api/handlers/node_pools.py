"""Endpoints of node pools, their nodes and their jobs."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import dropwhile
from operator import attrgetter
from typing import Final, TypeVar

import msgspec

from wharf.cluster.api.handlers.jobs.reads import build_job_stub
from wharf.cluster.api.handlers.nodes.records import build_stub_options
from wharf.cluster.api.index_lists import has_many_records
from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, list_by_name, list_by_namespace
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, find_record
from wharf.cluster.operations import node_pools
from wharf.cluster.operations.references import DELETION_ATTEMPTS
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS, JOBS_OF_POOL, NODE_POOLS, NODES, NODES_OF_POOL
from wharf.cluster.state.watches import watch_table
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
    """List the nodes of the pool by id, or return a missing record if it does not exist.

    The pool `all` has every node.
    """
    name = request.get_path_value("pool_name")
    if not _pool_exists(replica, name, options):
        return read_node_pool(replica, request, options)
    shown = build_stub_options(replica, request)
    if name == ALL_NODE_POOL:
        return list_by_name(replica, NODES, options, **shown)
    if has_many_records(replica, NODES_OF_POOL, name):
        # The table is in the order of the list and is read in slices.
        return list_by_name(replica, NODES, options, is_selected=lambda node: node.node_pool == name, **shown)

    def iterate(token: str, _reverse: bool) -> Iterable[Node]:
        return dropwhile(lambda node: node.id < token, replica.list_by_index_sorted(NODES_OF_POOL, name))

    return Listing(
        iterate,
        attrgetter("id"),
        replica.get_last_change(NODES),
        [watch_table(NODES)],
        **shown,
    )


def list_pool_jobs(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job] | ReadResult:
    """List the jobs that are placed in the pool, or return a missing record if it does not exist.

    For the pool `all`, these are only the jobs that name it.
    """
    name = request.get_path_value("pool_name")
    if not _pool_exists(replica, name, options):
        return read_node_pool(replica, request, options)
    is_everywhere, has_meta = options.namespace == ALL_NAMESPACES, request.get_flag("meta")
    # The table is in the order of the list and is read in slices.
    listing = list_by_namespace(
        replica, JOBS, options, JOB_SUMMARIES, build_view=lambda job: build_job_stub(replica, job, has_meta=has_meta)
    )
    listing = replace(
        listing,
        is_selected=lambda job: job.node_pool == name,
        is_visible=lambda job: request.has_permission(LIST_JOBS, namespace=job.namespace),
        get_namespace=None,
        get_detail_namespace=attrgetter("namespace"),
        base_cache_spec=None,
    )
    if has_many_records(replica, JOBS_OF_POOL, name):
        return listing

    def iterate(token: str, reverse: bool) -> Iterable[Job]:
        """Return the jobs from the one that the token names on, backwards if `reverse` is set."""
        pool_jobs = replica.list_by_index_sorted(JOBS_OF_POOL, name, reverse=reverse)
        jobs = (job for job in pool_jobs if is_everywhere or job.namespace == options.namespace)
        namespace, _, job_id = token.partition(".")
        start = (namespace, job_id)
        if not reverse:
            return dropwhile(lambda job: (job.namespace, job.id) < start, jobs)
        return dropwhile(lambda job: token != "" and (job.namespace, job.id) > start, jobs)

    return replace(listing, iterate=iterate, open_snapshot=None)


def _pool_exists(replica: Replica, name: str, options: QueryOptions) -> bool:
    """Return whether the pool exists.

    Raises `Refusal` if the query has a prefix, which lists of a pool do not support.
    """
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
    """Writes node pools."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def store_pool(self, request: Request) -> ActionResult:
        pool = request.decode_body(NodePoolRequest).to_record()
        request.require_permission(label=pool.name)
        return await self._store(pool, request)

    async def update_pool(self, request: Request) -> ActionResult:
        """Replace the node pool of the path. Raises `Refusal` if the body has another name."""
        pool = request.decode_body(NodePoolRequest).to_record()
        if pool.name != request.get_path_value("pool_name"):
            raise invalid_request("Node pool name does not match request path")
        return await self._store(pool, request)

    async def _store(self, pool: NodePool, request: Request) -> ActionResult:
        """Create or replace the node pool."""
        index = await self._server.writer.execute(
            lambda snapshot, _context: node_pools.store_node_pool(snapshot, pool, cause=request.id)
        )
        return ActionResult(index=index)

    async def delete_pool(self, request: Request) -> ActionResult:
        """Delete the node pool of the path. Raises `Refusal` if it is in use."""
        name, region = request.get_path_value("pool_name"), self._server.identity.region
        # Whether the pool is in use depends on many records, so the replica must hold all acknowledged writes.
        await self._server.writer.catch_up()
        index = await self._server.writer.execute(
            lambda snapshot, _context: node_pools.delete_node_pool(snapshot, name, region=region, cause=request.id),
            max_attempts=DELETION_ATTEMPTS,
            is_long=True,
        )
        return ActionResult(index=index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = NodePoolActions(server)
    return {
        "node_pool.store": actions.store_pool,
        "node_pool.update": actions.update_pool,
        "node_pool.delete": actions.delete_pool,
    }
