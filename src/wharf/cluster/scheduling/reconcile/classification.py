"""Classifies an allocation by its desired state, its reported state and the state of its node.

This is the table of scheduling.md 5.3: the first match applies.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Final

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.times import has_passed, to_ns

DELETED_NODE: Final = None
"""Stands for a deleted node in `TaintedNodes`."""

TaintedNodes = Mapping[str, Node | None]
"""Nodes that have allocations of the job and are deleted (`None`), down, draining or disconnected, by node id."""


class AllocationClass(enum.Enum):
    """How reconciliation treats an allocation."""

    UNTAINTED = "untainted"
    """It stays in its group. Its node is healthy, or it has ended and is not replaced for its node's sake."""
    IGNORED = "ignored"  # It has no effect any more.
    MIGRATING = "migrating"  # It moves to another node.
    LOST = "lost"  # Its node is down or deleted.
    DISCONNECTING = "disconnecting"  # Its node has just disconnected; it becomes unknown.
    RECONNECTING = "reconnecting"  # Its node is back after a disconnect.
    EXPIRING = "expiring"  # It was unknown for too long: it stops, and is lost if its node is out of contact.


def is_last_state_unknown(allocation: Allocation) -> bool:
    """Return whether the last state that servers recorded for the allocation is "unknown" (its node is disconnected)."""
    states = allocation.alloc_states or ()
    return bool(states) and states[-1].value == ClientStatus.UNKNOWN


def should_reconnect(allocation: Allocation) -> bool:
    """Return whether the allocation was disconnected and must be compared with its replacement when its node returns."""
    return is_last_state_unknown(allocation) and allocation.client_status in (
        ClientStatus.UNKNOWN,
        ClientStatus.RUNNING,
        ClientStatus.FAILED,
    )


def is_in_contact(allocation: Allocation, tainted: TaintedNodes) -> bool:
    """Return whether the node of the allocation exists and sends heartbeats, so that it reports the allocation's end."""
    node = tainted.get(allocation.node_id)
    return allocation.node_id not in tainted or (node is not None and node.status.is_in_contact)


def get_lost_after_ns(group: TaskGroup | None) -> int:
    """Return how long an allocation of the group may stay unknown before it is lost, in nanoseconds. 0: it is lost at
    once.
    """
    return group.disconnect.lost_after if group is not None and group.disconnect is not None else 0


def should_replace_lost(group: TaskGroup | None) -> bool:
    """Return whether a lost or disconnected allocation of the group is replaced."""
    return group is None or group.disconnect is None or group.disconnect.replace


def get_unknown_since_ns(allocation: Allocation) -> int | None:
    """Return when the allocation became unknown, in Unix nanoseconds, or `None` if it is not unknown."""
    states = allocation.alloc_states or ()
    if not states or states[-1].value != ClientStatus.UNKNOWN or states[-1].time is None:
        return None
    return to_ns(states[-1].time)


def classify_allocation(
    allocation: Allocation, group: TaskGroup | None, tainted: TaintedNodes, now_ns: int
) -> AllocationClass:
    """Return how reconciliation treats the allocation, by its states and the state of its node (scheduling.md 5.3).

    `tainted` are the nodes of the job that are deleted, down, draining or disconnected.
    """
    is_reconnecting = should_reconnect(allocation)
    if is_reconnecting:
        if allocation.client_status is ClientStatus.FAILED and allocation.desired_status is DesiredStatus.RUN:
            return AllocationClass.RECONNECTING
    elif allocation.is_terminal:
        return _classify_terminal(allocation)
    if _is_expired(allocation, group, now_ns):
        # On a node in contact, an expired allocation was stopped once, and counts until its node reports its end.
        is_stopping = allocation.is_server_terminal and is_in_contact(allocation, tainted)
        return AllocationClass.IGNORED if is_stopping else AllocationClass.EXPIRING
    if is_reconnecting and allocation.client_status is ClientStatus.FAILED and allocation.is_server_terminal:
        return AllocationClass.IGNORED
    is_tainted = allocation.node_id in tainted
    node = tainted.get(allocation.node_id)
    if node is not None and node.status is NodeStatus.DISCONNECTED:
        return _classify_on_disconnected_node(allocation, group)
    if allocation.should_migrate:
        return AllocationClass.MIGRATING
    if not is_tainted or (node is not None and node.status is NodeStatus.READY):
        return AllocationClass.RECONNECTING if is_reconnecting else AllocationClass.UNTAINTED
    if node is DELETED_NODE:
        return AllocationClass.LOST
    if node.status is NodeStatus.DOWN:
        return _classify_on_down_node(allocation, group)
    return AllocationClass.UNTAINTED


def _classify_terminal(allocation: Allocation) -> AllocationClass:
    """Return the class of an allocation that has ended or must end.

    A stopped one is ignored, unless its migration forbids a replacement: then it still counts.
    """
    transition = allocation.desired_transition
    if allocation.is_server_terminal:
        keeps_slot = transition is not None and bool(transition.migrate_disable_placement)
        return AllocationClass.UNTAINTED if keeps_slot else AllocationClass.IGNORED
    status = allocation.deployment_status
    if status is not None and status.canary and allocation.should_migrate:
        return AllocationClass.MIGRATING
    return AllocationClass.UNTAINTED


def _is_expired(allocation: Allocation, group: TaskGroup | None, now_ns: int) -> bool:
    """Return whether the allocation has been unknown for the time `lost_after` of its group, or longer."""
    window, since = get_lost_after_ns(group), get_unknown_since_ns(allocation)
    if allocation.client_status is not ClientStatus.UNKNOWN or not window or since is None:
        return False
    return has_passed(since + window, window, now_ns)


def _classify_on_disconnected_node(allocation: Allocation, group: TaskGroup | None) -> AllocationClass:
    """Return the class of an allocation whose node is disconnected.

    It becomes unknown, unless its group allows no disconnect or it has not started: then it is lost.
    """
    if allocation.client_status is ClientStatus.UNKNOWN:
        return AllocationClass.UNTAINTED
    if allocation.client_status is ClientStatus.PENDING or not get_lost_after_ns(group):
        return AllocationClass.LOST
    return AllocationClass.DISCONNECTING


def _classify_on_down_node(allocation: Allocation, group: TaskGroup | None) -> AllocationClass:
    """Return the class of an allocation whose node is down.

    It is lost, unless its group replaces no lost allocations: then it becomes, or stays, unknown.
    """
    if not should_replace_lost(group):
        if allocation.client_status is ClientStatus.UNKNOWN:
            return AllocationClass.UNTAINTED
        if allocation.client_status is ClientStatus.RUNNING:
            return AllocationClass.DISCONNECTING
    return AllocationClass.LOST


def find_tainted_nodes(
    allocations: list[Allocation], find_node: Callable[[str], Node | None]
) -> dict[str, Node | None]:
    """Return the nodes of these allocations that are deleted (`None`), down, draining or disconnected, by node id."""
    tainted: dict[str, Node | None] = {}
    for node_id in {allocation.node_id: None for allocation in allocations}:
        node = find_node(node_id)
        if node is None or node.drain_strategy is not None or node.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
            tainted[node_id] = node
    return tainted
