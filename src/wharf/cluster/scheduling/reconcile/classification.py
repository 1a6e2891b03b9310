"""What an allocation is to its group just now, by what is wanted, what its node said, and how its node is.

The table of scheduling.md 5.3: first match wins.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Final

from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.times import to_ns

DELETED_NODE: Final = None
"""Stands for a node that no longer exists, among those that are tainted."""

TaintedNodes = Mapping[str, Node | None]
"""Nodes on which the job has allocations and that are gone, down, draining or out of contact."""


class AllocationClass(enum.Enum):
    UNTAINTED = "untainted"
    IGNORED = "ignored"
    MIGRATING = "migrating"
    LOST = "lost"
    DISCONNECTING = "disconnecting"
    RECONNECTING = "reconnecting"
    EXPIRING = "expiring"


def is_last_state_unknown(allocation: Allocation) -> bool:
    """The last that servers said of it is that they do not know."""
    states = allocation.alloc_states or ()
    return bool(states) and states[-1].value == ClientStatus.UNKNOWN


def should_reconnect(allocation: Allocation) -> bool:
    return is_last_state_unknown(allocation) and allocation.client_status in (
        ClientStatus.UNKNOWN,
        ClientStatus.RUNNING,
        ClientStatus.FAILED,
    )


def get_lost_after_ns(group: TaskGroup | None) -> int:
    return group.disconnect.lost_after if group is not None and group.disconnect is not None else 0


def should_replace_lost(group: TaskGroup | None) -> bool:
    return group is None or group.disconnect is None or group.disconnect.replace


def get_unknown_since_ns(allocation: Allocation) -> int | None:
    """Since when the servers do not know what it does."""
    states = allocation.alloc_states or ()
    if not states or states[-1].value != ClientStatus.UNKNOWN or states[-1].time is None:
        return None
    return to_ns(states[-1].time)


def classify_allocation(
    allocation: Allocation, group: TaskGroup | None, tainted: TaintedNodes, now_ns: int
) -> AllocationClass:
    comes_back = should_reconnect(allocation)
    if comes_back:
        if allocation.client_status is ClientStatus.FAILED and allocation.desired_status is DesiredStatus.RUN:
            return AllocationClass.RECONNECTING
    elif allocation.is_terminal:
        return _of_terminal(allocation)
    if _is_expired(allocation, group, now_ns):
        return AllocationClass.EXPIRING
    if comes_back and allocation.client_status is ClientStatus.FAILED and allocation.is_server_terminal:
        return AllocationClass.IGNORED
    is_tainted = allocation.node_id in tainted
    node = tainted.get(allocation.node_id)
    if node is not None and node.status is NodeStatus.DISCONNECTED:
        return _of_disconnected(allocation, group)
    if allocation.should_migrate:
        return AllocationClass.MIGRATING
    if not is_tainted or (node is not None and node.status is NodeStatus.READY):
        return AllocationClass.RECONNECTING if comes_back else AllocationClass.UNTAINTED
    if node is DELETED_NODE:
        return AllocationClass.LOST
    if node.status is NodeStatus.DOWN:
        return _of_down(allocation, group)
    return AllocationClass.UNTAINTED


def _of_terminal(allocation: Allocation) -> AllocationClass:
    transition = allocation.desired_transition
    if allocation.is_server_terminal:
        stays = transition is not None and bool(transition.migrate_disable_placement)
        return AllocationClass.UNTAINTED if stays else AllocationClass.IGNORED
    status = allocation.deployment_status
    if status is not None and status.canary and allocation.should_migrate:
        return AllocationClass.MIGRATING
    return AllocationClass.UNTAINTED


def _is_expired(allocation: Allocation, group: TaskGroup | None, now_ns: int) -> bool:
    window, since = get_lost_after_ns(group), get_unknown_since_ns(allocation)
    if allocation.client_status is not ClientStatus.UNKNOWN or not window or since is None:
        return False
    return now_ns - since >= window


def _of_disconnected(allocation: Allocation, group: TaskGroup | None) -> AllocationClass:
    if allocation.client_status is ClientStatus.UNKNOWN:
        return AllocationClass.UNTAINTED
    if allocation.client_status is ClientStatus.PENDING or not get_lost_after_ns(group):
        return AllocationClass.LOST
    return AllocationClass.DISCONNECTING


def _of_down(allocation: Allocation, group: TaskGroup | None) -> AllocationClass:
    if not should_replace_lost(group):
        if allocation.client_status is ClientStatus.UNKNOWN:
            return AllocationClass.UNTAINTED
        if allocation.client_status is ClientStatus.RUNNING:
            return AllocationClass.DISCONNECTING
    return AllocationClass.LOST


def find_tainted_nodes(allocations: list[Allocation], node_of: Callable[[str], Node | None]) -> dict[str, Node | None]:
    """Of the nodes where these allocations are: those that are not fine."""
    tainted: dict[str, Node | None] = {}
    for node_id in {allocation.node_id: None for allocation in allocations}:
        node = node_of(node_id)
        if node is None or node.drain_strategy is not None or node.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
            tainted[node_id] = node
    return tainted
