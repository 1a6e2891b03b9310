"""The marks that decide between those who place on nodes and those who change what nodes can take.

Each node has a mark that moves when its capacity, eligibility, drain or status changes, when something occupies it again,
and when it goes; the mark of all nodes moves whenever a part of a plan is committed. Both rest on both, so of two that
were decided on the same state the second conflicts, whichever it is. Placing a thousand moves one mark, not a thousand
(docs/adr/0052). It decides nothing.
"""

from collections.abc import Callable
from typing import Final

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NODE_PLACEMENTS
from wharf.contract.model.cluster import NodeCapacityVersion
from wharf.contract.model.log import Condition, DeleteRecord, PutRecord

CLUSTER_KEY: Final = "*"
"""The key of the mark of all nodes."""


def write_cluster_version() -> PutRecord:
    """Of a part of a plan: something was placed, nobody need know on which of the nodes."""
    return NODE_PLACEMENTS.build_put(NodeCapacityVersion(node_id=CLUSTER_KEY))


def expect_cluster_version(snapshot: Replica) -> Condition:
    """Nothing was placed meanwhile."""
    return snapshot.build_key_condition(NODE_PLACEMENTS, CLUSTER_KEY)


def expect_node_version(snapshot: Replica, node_id: str) -> Condition:
    """The node takes what it took."""
    return snapshot.build_key_condition(NODE_PLACEMENTS, node_id)


def make_node_version_lookup(snapshot: Replica) -> Callable[[str], Condition]:
    """`rests_on`, for plans, which ask it of a thousand nodes in a row."""
    table, marks = NODE_PLACEMENTS.name, snapshot.get_table_records(NODE_PLACEMENTS).records

    def rests_on(node_id: str) -> Condition:
        mark = marks.get(node_id)
        return Condition(table, node_id, 0 if mark is None else mark.modify_index)

    return rests_on


def write_node_version(node_id: str) -> PutRecord:
    """The node takes something else than it did."""
    return NODE_PLACEMENTS.build_put(NodeCapacityVersion(node_id=node_id))


def delete_node_version(node_id: str) -> DeleteRecord:
    """There is no such node any more."""
    return NODE_PLACEMENTS.build_delete(node_id)


def expect_both_versions(snapshot: Replica, node_id: str) -> tuple[Condition, Condition]:
    """Of whoever changes what the node takes: it is as it was, and nothing was placed meanwhile."""
    return expect_node_version(snapshot, node_id), expect_cluster_version(snapshot)
