"""What people do to node pools: write them, and delete those that nobody uses."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS_OF_POOL, NODE_POOLS, NODES, NODES_OF_POOL
from wharf.contract.model import node_pools
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request, not_found

STORED_WRITE_KIND: Final = "node-pool-stored"
DELETED_WRITE_KIND: Final = "node-pool-deleted"
MAX_NAMED_BLOCKERS: Final = 10
"""How many of those that stand in the way are named."""


def store_node_pool(snapshot: Replica, requested: NodePool, *, cause: str = "") -> Decision[int]:
    """Create the pool, or replace what is written of it. The same again writes nothing."""
    problems = node_pools.list_node_pool_problems(requested)
    if len(problems) == 1:
        raise invalid_request(problems[0])
    if problems:
        raise invalid_request(format_problems([ValidationProblem("", problem) for problem in problems]).rstrip())
    stored = snapshot.get(NODE_POOLS, requested.name)
    pool = replace(
        requested,
        hash=hash_content(requested),
        create_index=WRITE_INDEX if stored is None else stored.create_index,
        modify_index=0,
    )
    if stored is not None and stored.hash == pool.hash:
        return Decision(None, lambda _index: stored.modify_index)
    write = Write(
        STORED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [NODE_POOLS.build_put(pool)],
        [snapshot.build_key_condition(NODE_POOLS, requested.name)],
    )
    return Decision(write, lambda index: index)


def ensure_node_pool(snapshot: Replica, node: Node, *, cause: str = "") -> Decision[int]:
    """A node that registers names a pool that nobody has made: it is there from now on (nodes-allocations.md 1.5).

    Nothing is made for a node that will be refused.
    """
    stored = snapshot.get(NODES, node.id)
    is_refused = stored is not None and stored.secret_digest != node.secret_digest
    if is_refused or snapshot.get(NODE_POOLS, node.node_pool) is not None:
        return Decision(None, lambda index: index)
    return store_node_pool(snapshot, NodePool(name=node.node_pool), cause=cause)


def delete_node_pool(snapshot: Replica, name: str, *, region: str, cause: str = "") -> Decision[int]:
    """Take the pool away. Refused while nodes are in it or jobs may still ask for it."""
    if name in node_pools.BUILT_IN_NODE_POOLS:
        raise invalid_request(f'deleting node pool "{name}" is not allowed')
    if snapshot.get(NODE_POOLS, name) is None:
        raise not_found(f"node pool {name} not found")
    standing = list(_what_stands_in_the_way(snapshot, name, region))
    if standing:
        raise invalid_request(format_problems([ValidationProblem("", each) for each in standing]).rstrip())
    write = Write(
        DELETED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [NODE_POOLS.build_delete(name)],
        [snapshot.build_key_condition(NODE_POOLS, name)],
    )
    return Decision(write, lambda index: index)


def _what_stands_in_the_way(snapshot: Replica, name: str, region: str) -> Iterator[str]:
    nodes = sorted(node.id for node in snapshot.list_by_index(NODES_OF_POOL, name))
    if nodes:
        yield f'node pool "{name}" has nodes in regions: [{region}]: {_some(nodes)}'
    jobs = sorted(
        f"{job.namespace}/{job.id}"
        for job in snapshot.list_by_index(JOBS_OF_POOL, name)
        if not job.stop and job.status != "dead"
    )
    if jobs:
        yield f'node pool "{name}" has non-terminal jobs in regions: [{region}]: {_some(jobs)}'


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED_BLOCKERS
    return ", ".join(names[:MAX_NAMED_BLOCKERS]) + (f" and {more} more" if more > 0 else "")
