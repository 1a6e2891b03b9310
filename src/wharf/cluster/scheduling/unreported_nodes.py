"""Which nodes must report all their allocations before anything is placed on them (ADR 82).

A node that was out of contact may still run allocations that servers consider lost, and whose resources count as free.
"""

from typing import Final

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_ON_NODE, NODE_POOLS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.nodes.node import Node, NodeStatus

ENDS_REPORTED_BY_NODES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED)
"""The client statuses in which an allocation certainly uses no resources: only its node can report them."""


def may_run_allocations(snapshot: Replica, node_id: str) -> bool:
    """Return whether allocations may run on the node: their node has not reported their ends."""
    return any(
        allocation.client_status not in ENDS_REPORTED_BY_NODES
        for allocation in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node_id)
    )


def is_full_report_due(snapshot: Replica, node: Node) -> bool:
    """Return whether the node must report all its allocations before it can become ready.

    It must if it missed a heartbeat, or registered again after it was purged, and allocations may run on it. A node that
    never ran an allocation, and a node whose pool does not exist, need no report.
    """
    if node.status is not NodeStatus.INITIALIZING or snapshot.get(NODE_POOLS, node.node_pool) is None:
        return False
    return node.last_missed_heartbeat_index != 0 or may_run_allocations(snapshot, node.id)
