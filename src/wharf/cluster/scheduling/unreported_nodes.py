"""Which nodes must report all their allocations before anything is placed on them (ADR 82).

A node that was out of contact may still run allocations that servers consider lost, and whose resources count as free.
"""

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODE_POOLS, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.nodes.node import Node, NodeStatus


def may_run_allocations(snapshot: Replica, node_id: str) -> bool:
    """Return whether allocations may run on the node: their node has not reported their ends."""
    return snapshot.count_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id) > 0


def is_full_report_due(snapshot: Replica, node: Node) -> bool:
    """Return whether the node must report all its allocations before it can become ready.

    It must if it missed a heartbeat, or registered again after it was purged, and allocations may run on it. A node that
    never ran an allocation, and a node whose pool does not exist, need no report.
    """
    if node.status is not NodeStatus.INITIALIZING or snapshot.get(NODE_POOLS, node.node_pool) is None:
        return False
    return node.last_missed_heartbeat_index != 0 or may_run_allocations(snapshot, node.id)
