"""Create, replace and delete node pools."""

from collections.abc import Iterator
from typing import Final

from wharf.cluster.operations.decision import Decision, build_delete_decision, build_store_decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS_OF_POOL, NODE_POOLS, NODES, NODES_OF_POOL
from wharf.contract.model import node_pools
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import invalid_request, not_found

STORED_WRITE_KIND: Final = "node-pool-stored"
"""The name in the log of a write that stores a node pool."""
DELETED_WRITE_KIND: Final = "node-pool-deleted"
"""The name in the log of a write that deletes a node pool."""
MAX_NAMED_BLOCKERS: Final = 10
"""Number of nodes or jobs that an error text names."""
MAX_POOLS_FOR_REGISTRATIONS: Final = 1_000
"""Number of pools from which on nodes create no further pool by their registration; operators still may. Each pool stays until
an operator deletes it, every server holds it in memory, and other regions copy it."""


def store_node_pool(snapshot: Replica, requested: NodePool, *, cause: str = "") -> Decision[int]:
    """Return the decision that creates the node pool or replaces the one of the same name. Raises if it is invalid.

    Nothing is written if the stored pool is identical.
    """
    problems = node_pools.list_node_pool_problems(requested)
    if len(problems) == 1:
        raise invalid_request(problems[0])
    if problems:
        raise invalid_request(format_problems([ValidationProblem("", problem) for problem in problems]).rstrip())
    return build_store_decision(
        snapshot,
        NODE_POOLS,
        requested,
        snapshot.get(NODE_POOLS, requested.name),
        STORED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        build_reply=lambda index, _pool: index,
    )


def ensure_node_pool(snapshot: Replica, node: Node, *, cause: str = "") -> Decision[int]:
    """Return the decision that creates the node pool that a registering node names, if it does not exist.

    No pool is created for a node whose registration will be refused because of a wrong secret (nodes-allocations.md
    1.5). Raises if the cluster has `MAX_POOLS_FOR_REGISTRATIONS` pools.
    """
    stored = snapshot.get(NODES, node.id)
    is_refused = stored is not None and stored.secret_digest != node.secret_digest
    if is_refused or snapshot.get(NODE_POOLS, node.node_pool) is not None:
        return Decision(None, lambda index: index)
    if snapshot.count_records(NODE_POOLS) >= MAX_POOLS_FOR_REGISTRATIONS:
        raise invalid_request(
            f'node pool "{node.node_pool}" does not exist, and nodes create no more pools because there are '
            f"{MAX_POOLS_FOR_REGISTRATIONS:,}: create it with `wharf node pool apply {node.node_pool}`, or delete unused pools"
        )
    return store_node_pool(snapshot, NodePool(name=node.node_pool), cause=cause)


def delete_node_pool(snapshot: Replica, name: str, *, region: str, cause: str = "") -> Decision[int]:
    """Return the decision that deletes the node pool.

    Raises if it does not exist or is built in, or while nodes or jobs that are not terminal use it. `region` is named
    in the error text.
    """
    if name in node_pools.BUILT_IN_NODE_POOLS:
        raise invalid_request(f'deleting node pool "{name}" is not allowed')
    if snapshot.get(NODE_POOLS, name) is None:
        raise not_found(f"node pool {name} not found")
    blockers = list(_iter_deletion_blockers(snapshot, name, region))
    if blockers:
        raise invalid_request(format_problems([ValidationProblem("", blocker) for blocker in blockers]).rstrip())
    return build_delete_decision(
        snapshot, NODE_POOLS, name, write_kind=DELETED_WRITE_KIND, cause=Cause(CauseKind.REQUEST, cause)
    )


def _iter_deletion_blockers(snapshot: Replica, name: str, region: str) -> Iterator[str]:
    """Yield an error text for each reason why the node pool cannot be deleted: its nodes, and its jobs."""
    nodes = sorted(node.id for node in snapshot.list_by_index(NODES_OF_POOL, name))
    if nodes:
        yield f'node pool "{name}" has nodes in regions: [{region}]: {_join_first_names(nodes)}'
    jobs = sorted(
        f"{job.namespace}/{job.id}"
        for job in snapshot.list_by_index(JOBS_OF_POOL, name)
        if not job.stop and job.status != "dead"
    )
    if jobs:
        yield f'node pool "{name}" has non-terminal jobs in regions: [{region}]: {_join_first_names(jobs)}'


def _join_first_names(names: list[str]) -> str:
    """Return the first `MAX_NAMED_BLOCKERS` names as a comma-separated list, and how many more there are."""
    more_count = len(names) - MAX_NAMED_BLOCKERS
    return ", ".join(names[:MAX_NAMED_BLOCKERS]) + (f" and {more_count} more" if more_count > 0 else "")
