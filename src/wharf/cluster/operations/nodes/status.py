"""What happens to nodes: they register, change their status, go. What they report on their allocations is in `reports`.

A node's write carries evaluations of its jobs, as many as fit. The others follow: `look_at_the_rest` tells, from the
state alone, which job has not been looked at yet, so nothing need be remembered between the two.
"""

from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.writes import NodeWriteResult as NodeWriteResult
from wharf.cluster.operations.nodes.writes import (
    add_node_message,
    build_empty_decision,
    build_node_decision,
    get_node,
    make_node_evaluations,
)
from wharf.cluster.scheduling.reconcile.classification import get_lost_after_ns, get_unknown_since_ns
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_ON_NODE, JOB_VERSIONS, JOBS, NODE_POOLS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import NODE_STATES

SECOND_NS: Final = 1_000_000_000


def mark_node_reachable(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """A heartbeat of a node that is not ready: it is there, for the first time or again."""
    stored = get_node(snapshot, node_id)
    node = update_contact_status(snapshot, stored, context, message_when_down="Node reregistered by heartbeat")
    if node is stored:
        return build_empty_decision(node)
    evaluations = make_node_evaluations(snapshot, node, context, max_evaluations)
    return build_node_decision("node-updated", snapshot, node, evaluations, ())


def restart_report_numbers(snapshot: Replica, node_id: str) -> Decision[NodeWriteResult]:
    """What the node has said until now is old, whatever is known of it here. Of one that gives no numbers nothing is."""
    stored = get_node(snapshot, node_id)
    if not stored.reports_from:
        return build_empty_decision(stored)
    node = replace(stored, reports_from=reports.compute_first_report_number(snapshot, stored))
    return build_node_decision("node-updated", snapshot, node, [], ())


def update_contact_status(snapshot: Replica, node: Node, context: DecisionContext, *, message_when_down: str) -> Node:
    """The node with the status that it has when it is heard of; itself where that is the same."""
    status = _status_on_contact(snapshot, node)
    if status is node.status:
        return node
    was_down = node.status is NodeStatus.DOWN
    was_away = was_down or node.status is NodeStatus.DISCONNECTED
    node = replace(
        node,
        status=advance_state(NODE_STATES, node.status, status, record_id=node.id),
        status_updated_at=context.now_ns // SECOND_NS,
        last_missed_heartbeat_index=0 if status is NodeStatus.READY else node.last_missed_heartbeat_index,
        # What it said before it was given up is older than that.
        reports_from=reports.compute_first_report_number(snapshot, node)
        if node.reports_from and was_away
        else node.reports_from,
    )
    return add_node_message(node, message_when_down, context) if was_down else node


def _status_on_contact(snapshot: Replica, node: Node) -> NodeStatus:
    """What a node is that is heard of.

    One that was out of contact is held at `initializing` until it has told what became of its allocations: until then
    nobody knows what still runs there, and nothing new is put beside it (scheduling.md 9.2).
    """
    if node.status is NodeStatus.READY:
        return NodeStatus.READY
    if snapshot.get(NODE_POOLS, node.node_pool) is None or node.status is NodeStatus.DISCONNECTED:
        return NodeStatus.INITIALIZING
    if not node.last_missed_heartbeat_index or node.last_alloc_update_index > node.last_missed_heartbeat_index:
        return NodeStatus.READY
    may_run = any(
        allocation.client_status not in (ClientStatus.COMPLETE, ClientStatus.FAILED)
        for allocation in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id)
    )
    return NodeStatus.INITIALIZING if may_run else NodeStatus.READY


def mark_heartbeat_missed(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """The node's time is over: it is down, what it ran is lost, and every job of it is looked at again. Where something
    there may go on without contact for a while, it is out of contact only, until that while is over too.
    """
    stored = snapshot.get(NODES, node_id)
    if stored is None or stored.status is NodeStatus.DOWN:
        return Decision(None, NodeWriteResult)
    status = NodeStatus.DOWN
    if stored.status is not NodeStatus.INITIALIZING and _is_waited_for(snapshot, node_id, context):
        status = NodeStatus.DISCONNECTED
    is_moved = status is not stored.status
    node = replace(
        stored,
        status=advance_state(NODE_STATES, stored.status, status, record_id=stored.id),
        status_updated_at=context.now_ns // SECOND_NS if is_moved else stored.status_updated_at,
        last_missed_heartbeat_index=WRITE_INDEX,
    )
    node = add_node_message(node, "Node heartbeat missed", context)
    evaluations = make_node_evaluations(snapshot, node, context, max_evaluations) if is_moved else []
    return build_node_decision("node-updated", snapshot, node, evaluations, ())


def _is_waited_for(snapshot: Replica, node_id: str, context: DecisionContext) -> bool:
    """Whether something on the node may run without contact, and not for too long yet."""
    for allocation in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node_id):
        if allocation.is_server_terminal or allocation.is_client_terminal:
            continue
        key = (allocation.namespace, allocation.job_id)
        job = snapshot.get(JOB_VERSIONS, *key, allocation.job_version) or snapshot.get(JOBS, *key)
        window_ns = get_lost_after_ns(job.find_group(allocation.task_group)) if job is not None else 0
        since_ns = get_unknown_since_ns(allocation)
        if window_ns and (since_ns is None or context.now_ns - since_ns < window_ns):
            return True
    return False


def set_node_eligibility(
    snapshot: Replica, node_id: str, is_eligible: bool, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """Whether the node gets new work."""
    node = get_node(snapshot, node_id)
    wanted = SchedulingEligibility.ELIGIBLE if is_eligible else SchedulingEligibility.INELIGIBLE
    if node.scheduling_eligibility is wanted:
        return Decision(None, lambda _index: NodeWriteResult(0))
    if is_eligible and node.drain_strategy is not None:
        raise invalid_request("can not set node's scheduling eligibility to eligible while it is draining")
    word = "eligible" if is_eligible else "ineligible"
    node = replace(node, scheduling_eligibility=wanted)
    node = add_node_message(node, f"Node marked as {word} for scheduling", context)
    evaluations = make_node_evaluations(snapshot, node, context, max_evaluations) if is_eligible else []
    return build_node_decision("node-eligibility", snapshot, node, evaluations, ())
