"""Version records that make plans and changes of node capacity conflict with each other.

A node's version is written when its capacity, eligibility, drain or status changes, when an ended allocation occupies
it again, and when it is deleted. The cluster version is written whenever a part of a plan is committed. Plans and node
changes both check both versions, so of two writes that were decided on the same state the second one fails. A plan that
places a thousand allocations writes one record, not a thousand (docs/adr/0052).
"""

from collections.abc import Callable
from typing import Final

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODE_PLACEMENTS
from wharf.contract.model.cluster import NodeCapacityVersion
from wharf.contract.model.log import Condition, DeleteRecord, PutRecord

CLUSTER_KEY: Final = "*"
"""The key of the cluster version, which stands for all nodes."""


def write_cluster_version() -> PutRecord:
    """Return the change that writes the cluster version. Each part of a plan that places allocations contains it."""
    return NODE_PLACEMENTS.build_put(NodeCapacityVersion(node_id=CLUSTER_KEY))


def expect_cluster_version(snapshot: Replica) -> Condition:
    """Return the condition that no plan placed allocations on any node since the snapshot."""
    return snapshot.build_key_condition(NODE_PLACEMENTS, CLUSTER_KEY)


def expect_node_version(snapshot: Replica, node_id: str) -> Condition:
    """Return the condition that the capacity of the node has not changed since the snapshot."""
    return snapshot.build_key_condition(NODE_PLACEMENTS, node_id)


def make_node_version_lookup(snapshot: Replica) -> Callable[[str], Condition]:
    """Return a function that returns the condition that the capacity of a node has not changed since the snapshot.

    It looks up the table once, because a plan calls it for up to a thousand nodes in a row.
    """
    table, versions = NODE_PLACEMENTS.name, snapshot.get_table_records(NODE_PLACEMENTS).records

    def expect_version(node_id: str) -> Condition:
        """Return the condition that the capacity of this node has not changed since the snapshot."""
        version = versions.get(node_id)
        return Condition(table, node_id, 0 if version is None else version.modify_index)

    return expect_version


def write_node_version(node_id: str) -> PutRecord:
    """Return the change that writes a node's version. A write that changes the node's capacity contains it."""
    return NODE_PLACEMENTS.build_put(NodeCapacityVersion(node_id=node_id))


def delete_node_version(node_id: str) -> DeleteRecord:
    """Return the change that deletes the version of a node. A write that deletes the node contains it."""
    return NODE_PLACEMENTS.build_delete(node_id)


def expect_both_versions(snapshot: Replica, node_id: str) -> tuple[Condition, Condition]:
    """Return the two conditions of a write that changes the capacity of a node.

    They hold if, since the snapshot, the node's capacity has not changed and no plan placed allocations on any node.
    """
    return expect_node_version(snapshot, node_id), expect_cluster_version(snapshot)
