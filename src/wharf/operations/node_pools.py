"""What people do to node pools: write them, and delete those that nobody uses."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from wharf.model import node_pool
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.content import content_hash
from wharf.model.node import Node
from wharf.model.node_pool import NodePool
from wharf.model.refusal import invalid, unknown
from wharf.model.validation.findings import Problem, multi_error
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import JOBS_OF_POOL, NODE_POOLS, NODES, NODES_OF_POOL

STORED: Final = "node-pool-stored"
DELETED: Final = "node-pool-deleted"
NAMED_MOST: Final = 10
"""How many of those that stand in the way are named."""


def store(snapshot: Replica, wanted: NodePool, *, cause: str = "") -> Decision[int]:
    """Create the pool, or replace what is written of it. The same again writes nothing."""
    problems = node_pool.problems(wanted)
    if len(problems) == 1:
        raise invalid(problems[0])
    if problems:
        raise invalid(multi_error([Problem("", problem) for problem in problems]).rstrip())
    stored = snapshot.get(NODE_POOLS, wanted.name)
    pool = replace(
        wanted, hash=content_hash(wanted), create_index=THIS if stored is None else stored.create_index, modify_index=0
    )
    if stored is not None and stored.hash == pool.hash:
        return Decision(None, lambda _index: stored.modify_index)
    write = Write(
        STORED, Cause(CauseKind.REQUEST, cause), [NODE_POOLS.put(pool)], [snapshot.as_seen(NODE_POOLS, wanted.name)]
    )
    return Decision(write, lambda index: index)


def appear(snapshot: Replica, node: Node, *, cause: str = "") -> Decision[int]:
    """A node that registers names a pool that nobody has made: it is there from now on (nodes-allocations.md 1.5).

    Nothing is made for a node that will be refused.
    """
    stored = snapshot.get(NODES, node.id)
    is_refused = stored is not None and stored.secret_digest != node.secret_digest
    if is_refused or snapshot.get(NODE_POOLS, node.node_pool) is not None:
        return Decision(None, lambda index: index)
    return store(snapshot, NodePool(name=node.node_pool), cause=cause)


def delete(snapshot: Replica, name: str, *, region: str, cause: str = "") -> Decision[int]:
    """Take the pool away. Refused while nodes are in it or jobs may still ask for it."""
    if name in node_pool.BUILT_IN:
        raise invalid(f'deleting node pool "{name}" is not allowed')
    if snapshot.get(NODE_POOLS, name) is None:
        raise unknown(f"node pool {name} not found")
    standing = list(_what_stands_in_the_way(snapshot, name, region))
    if standing:
        raise invalid(multi_error([Problem("", each) for each in standing]).rstrip())
    write = Write(
        DELETED, Cause(CauseKind.REQUEST, cause), [NODE_POOLS.drop(name)], [snapshot.as_seen(NODE_POOLS, name)]
    )
    return Decision(write, lambda index: index)


def _what_stands_in_the_way(snapshot: Replica, name: str, region: str) -> Iterator[str]:
    nodes = sorted(node.id for node in snapshot.those(NODES_OF_POOL, name))
    if nodes:
        yield f'node pool "{name}" has nodes in regions: [{region}]: {_some(nodes)}'
    jobs = sorted(
        f"{job.namespace}/{job.id}"
        for job in snapshot.those(JOBS_OF_POOL, name)
        if not job.stop and job.status != "dead"
    )
    if jobs:
        yield f'node pool "{name}" has non-terminal jobs in regions: [{region}]: {_some(jobs)}'


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MOST
    return ", ".join(names[:NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
