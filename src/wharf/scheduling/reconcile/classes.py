"""What an allocation is to its group just now, by what is wanted, what its node said, and how its node is.

The table of scheduling.md 5.3: first match wins.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Final

from wharf.model.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.model.group import TaskGroup
from wharf.model.moment import to_ns
from wharf.model.node import Node, NodeStatus

GONE: Final = None
"""Stands for a node that no longer exists, among those that are tainted."""

Tainted = Mapping[str, Node | None]
"""Nodes on which the job has allocations and that are gone, down, draining or out of contact."""


class Class(enum.Enum):
    UNTAINTED = "untainted"
    IGNORED = "ignored"
    MIGRATING = "migrating"
    LOST = "lost"
    DISCONNECTING = "disconnecting"
    RECONNECTING = "reconnecting"
    EXPIRING = "expiring"


def needs_to_reconnect(allocation: Allocation) -> bool:
    """The last that servers said of it is that they do not know."""
    states = allocation.alloc_states or ()
    return bool(states) and states[-1].value == ClientStatus.UNKNOWN


def should_reconnect(allocation: Allocation) -> bool:
    return needs_to_reconnect(allocation) and allocation.client_status in (
        ClientStatus.UNKNOWN,
        ClientStatus.RUNNING,
        ClientStatus.FAILED,
    )


def lost_after_ns(group: TaskGroup | None) -> int:
    return group.disconnect.lost_after if group is not None and group.disconnect is not None else 0


def is_replaced_when_lost(group: TaskGroup | None) -> bool:
    return group is None or group.disconnect is None or group.disconnect.replace


def unknown_since_ns(allocation: Allocation) -> int | None:
    """Since when the servers do not know what it does."""
    states = allocation.alloc_states or ()
    if not states or states[-1].value != ClientStatus.UNKNOWN or states[-1].time is None:
        return None
    return to_ns(states[-1].time)


def class_of(allocation: Allocation, group: TaskGroup | None, tainted: Tainted, now_ns: int) -> Class:
    comes_back = should_reconnect(allocation)
    if comes_back:
        if allocation.client_status is ClientStatus.FAILED and allocation.desired_status is DesiredStatus.RUN:
            return Class.RECONNECTING
    elif allocation.is_terminal:
        return _of_terminal(allocation)
    if _is_expired(allocation, group, now_ns):
        return Class.EXPIRING
    if comes_back and allocation.client_status is ClientStatus.FAILED and allocation.is_server_terminal:
        return Class.IGNORED
    is_tainted = allocation.node_id in tainted
    node = tainted.get(allocation.node_id)
    if node is not None and node.status is NodeStatus.DISCONNECTED:
        return _of_disconnected(allocation, group)
    if allocation.is_to_migrate:
        return Class.MIGRATING
    if not is_tainted or (node is not None and node.status is NodeStatus.READY):
        return Class.RECONNECTING if comes_back else Class.UNTAINTED
    if node is GONE:
        return Class.LOST
    if node.status is NodeStatus.DOWN:
        return _of_down(allocation, group)
    return Class.UNTAINTED


def _of_terminal(allocation: Allocation) -> Class:
    transition = allocation.desired_transition
    if allocation.is_server_terminal:
        stays = transition is not None and bool(transition.migrate_disable_placement)
        return Class.UNTAINTED if stays else Class.IGNORED
    status = allocation.deployment_status
    if status is not None and status.canary and allocation.is_to_migrate:
        return Class.MIGRATING
    return Class.UNTAINTED


def _is_expired(allocation: Allocation, group: TaskGroup | None, now_ns: int) -> bool:
    window, since = lost_after_ns(group), unknown_since_ns(allocation)
    if allocation.client_status is not ClientStatus.UNKNOWN or not window or since is None:
        return False
    return now_ns - since >= window


def _of_disconnected(allocation: Allocation, group: TaskGroup | None) -> Class:
    if allocation.client_status is ClientStatus.UNKNOWN:
        return Class.UNTAINTED
    if allocation.client_status is ClientStatus.PENDING or not lost_after_ns(group):
        return Class.LOST
    return Class.DISCONNECTING


def _of_down(allocation: Allocation, group: TaskGroup | None) -> Class:
    if not is_replaced_when_lost(group):
        if allocation.client_status is ClientStatus.UNKNOWN:
            return Class.UNTAINTED
        if allocation.client_status is ClientStatus.RUNNING:
            return Class.DISCONNECTING
    return Class.LOST


def tainted_nodes(allocations: list[Allocation], node_of: Callable[[str], Node | None]) -> dict[str, Node | None]:
    """Of the nodes where these allocations are: those that are not fine."""
    tainted: dict[str, Node | None] = {}
    for node_id in {allocation.node_id: None for allocation in allocations}:
        node = node_of(node_id)
        if node is None or node.drain_strategy is not None or node.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
            tainted[node_id] = node
    return tainted
