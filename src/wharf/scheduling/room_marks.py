"""The marks that decide between those who place on nodes and those who change what nodes can take.

Each node has a mark that moves when its capacity, eligibility, drain or status changes, when something occupies it again,
and when it goes; the mark of all nodes moves whenever a part of a plan is committed. Both rest on both, so of two that
were decided on the same state the second conflicts, whichever it is. Placing a thousand moves one mark, not a thousand
(docs/adr/0052). It decides nothing.
"""

from collections.abc import Callable
from typing import Final

from wharf.model.changes import Condition, Drop, Put
from wharf.model.cluster import NodePlacement
from wharf.state import Replica
from wharf.state.tables import NODE_PLACEMENTS

EVERY_NODE: Final = "*"
"""The key of the mark of all nodes."""


def moves_for_all() -> Put:
    """Of a part of a plan: something was placed, nobody need know on which of the nodes."""
    return NODE_PLACEMENTS.put(NodePlacement(node_id=EVERY_NODE))


def rests_on_all(snapshot: Replica) -> Condition:
    """Nothing was placed meanwhile."""
    return snapshot.as_seen(NODE_PLACEMENTS, EVERY_NODE)


def rests_on(snapshot: Replica, node_id: str) -> Condition:
    """The node takes what it took."""
    return snapshot.as_seen(NODE_PLACEMENTS, node_id)


def resting_on(snapshot: Replica) -> Callable[[str], Condition]:
    """`rests_on`, for plans, which ask it of a thousand nodes in a row."""
    table, marks = NODE_PLACEMENTS.name, snapshot.rows(NODE_PLACEMENTS).records

    def rests_on(node_id: str) -> Condition:
        mark = marks.get(node_id)
        return Condition(table, node_id, 0 if mark is None else mark.modify_index)

    return rests_on


def moves(node_id: str) -> Put:
    """The node takes something else than it did."""
    return NODE_PLACEMENTS.put(NodePlacement(node_id=node_id))


def goes(node_id: str) -> Drop:
    """There is no such node any more."""
    return NODE_PLACEMENTS.drop(node_id)


def rests_on_both(snapshot: Replica, node_id: str) -> tuple[Condition, Condition]:
    """Of whoever changes what the node takes: it is as it was, and nothing was placed meanwhile."""
    return rests_on(snapshot, node_id), rests_on_all(snapshot)
