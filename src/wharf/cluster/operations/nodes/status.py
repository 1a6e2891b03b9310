"""Status and eligibility of nodes: contact, missed heartbeats and operator requests.

A write includes evaluations of the node's jobs, as many as fit. `evaluate_remaining_jobs` derives the others from
the state, so nothing is remembered between the writes. Reports about allocations are in `reports`.
"""

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
from wharf.cluster.scheduling.unreported_nodes import may_run_allocations
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    CLUSTER_FORMAT,
    JOB_VERSIONS,
    JOBS,
    NODE_POOLS,
    NODES,
    UNFINISHED_ALLOCATIONS_ON_NODE,
)
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import NODE_STATES
from wharf.contract.model.times import SECOND, has_passed


def mark_node_reachable(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """Return the decision that updates the status of a node that was not ready and has sent a heartbeat.

    If the status changes, up to `max_evaluations` of its jobs are evaluated.
    """
    stored = get_node(snapshot, node_id)
    node = update_contact_status(snapshot, stored, context, message_when_down="Node reregistered by heartbeat")
    if node is stored:
        return build_empty_decision(snapshot, node)
    evaluations = make_node_evaluations(snapshot, node, context, max_evaluations)
    return build_node_decision("node-updated", snapshot, node, evaluations, ())


def restart_report_numbers(snapshot: Replica, node_id: str) -> Decision[NodeWriteResult]:
    """Return the decision that makes all reports that the node has sent so far outdated.

    It raises the number from which the node must number its reports. A node without report numbers does not change.
    """
    stored = get_node(snapshot, node_id)
    if not stored.reports_from:
        return build_empty_decision(snapshot, stored)
    node = replace(stored, reports_from=reports.compute_first_report_number(snapshot, stored))
    return build_node_decision("node-updated", snapshot, node, [], ())


def update_contact_status(snapshot: Replica, node: Node, context: DecisionContext, *, message_when_down: str) -> Node:
    """Return the node with the status that it has after it contacted a server, or the same object if that is unchanged.

    `message_when_down` is the text of the event that is added if the node was down.
    """
    status = _compute_contact_status(snapshot, node)
    if status is node.status:
        return node
    was_down = node.status is NodeStatus.DOWN
    was_lost = was_down or node.status is NodeStatus.DISCONNECTED
    node = replace(
        node,
        status=advance_state(NODE_STATES, node.status, status, record_id=node.id),
        status_updated_at=context.now_ns // SECOND,
        last_missed_heartbeat_index=0 if status is NodeStatus.READY else node.last_missed_heartbeat_index,
        # Reports sent before the node was considered lost are outdated.
        reports_from=reports.compute_first_report_number(snapshot, node)
        if node.reports_from and was_lost
        else node.reports_from,
    )
    return add_node_message(node, message_when_down, context) if was_down else node


def _compute_contact_status(snapshot: Replica, node: Node) -> NodeStatus:
    """Return the status that a node has after it contacted a server.

    It stays `initializing` until it has reported its allocations, if it was disconnected, or if it missed a heartbeat or
    was purged and allocations may still run on it. Until then nothing is placed on it (scheduling.md 9.2, ADR 82).
    """
    if node.status is NodeStatus.READY:
        return NodeStatus.READY
    if snapshot.get(NODE_POOLS, node.node_pool) is None or node.status is NodeStatus.DISCONNECTED:
        return NodeStatus.INITIALIZING
    if node.last_alloc_update_index > node.last_missed_heartbeat_index:
        return NodeStatus.READY
    return NodeStatus.INITIALIZING if may_run_allocations(snapshot, node.id) else NodeStatus.READY


def mark_heartbeat_missed(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """Return the decision that marks the node as down after a missed heartbeat, and evaluates its jobs.

    If an allocation tolerates a disconnect, the node is only marked as disconnected, until that time is over too.
    """
    stored = snapshot.get(NODES, node_id)
    if stored is None or stored.status is NodeStatus.DOWN:
        return Decision(None, NodeWriteResult)
    status = NodeStatus.DOWN
    if stored.status is not NodeStatus.INITIALIZING and _tolerates_disconnect(snapshot, node_id, context):
        status = NodeStatus.DISCONNECTED
    has_changed = status is not stored.status
    node = replace(
        stored,
        status=advance_state(NODE_STATES, stored.status, status, record_id=stored.id),
        status_updated_at=context.now_ns // SECOND if has_changed else stored.status_updated_at,
        last_missed_heartbeat_index=WRITE_INDEX,
    )
    node = add_node_message(node, "Node heartbeat missed", context)
    evaluations = make_node_evaluations(snapshot, node, context, max_evaluations) if has_changed else []
    return build_node_decision("node-updated", snapshot, node, evaluations, ())


def _tolerates_disconnect(snapshot: Replica, node_id: str, context: DecisionContext) -> bool:
    """Return whether an allocation on the node may run without contact for now, by the `disconnect` block of its group."""
    for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id):
        if allocation.is_server_terminal or allocation.is_client_terminal:
            continue
        key = (allocation.namespace, allocation.job_id)
        job = snapshot.get(JOB_VERSIONS, *key, allocation.job_version) or snapshot.get(JOBS, *key)
        window_ns = get_lost_after_ns(job.find_group(allocation.task_group)) if job is not None else 0
        since_ns = get_unknown_since_ns(allocation)
        if window_ns and (since_ns is None or not has_passed(since_ns + window_ns, window_ns, context.now_ns)):
            return True
    return False


def set_node_eligibility(
    snapshot: Replica, node_id: str, is_eligible: bool, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult]:
    """Return the decision that sets whether the scheduler may place allocations on the node.

    Raises if a draining node is to become eligible. If it becomes eligible, up to `max_evaluations` jobs are evaluated.
    """
    node = get_node(snapshot, node_id)
    eligibility = SchedulingEligibility.ELIGIBLE if is_eligible else SchedulingEligibility.INELIGIBLE
    if node.scheduling_eligibility is eligibility:
        return Decision(None, lambda _index: NodeWriteResult(0))
    if is_eligible and node.drain_strategy is not None:
        raise invalid_request("can not set node's scheduling eligibility to eligible while it is draining")
    eligibility_text = "eligible" if is_eligible else "ineligible"
    node = replace(node, scheduling_eligibility=eligibility)
    node = add_node_message(node, f"Node marked as {eligibility_text} for scheduling", context)
    evaluations = make_node_evaluations(snapshot, node, context, max_evaluations) if is_eligible else []
    return build_node_decision("node-eligibility", snapshot, node, evaluations, ())


def store_longest_ttl(snapshot: Replica, ttl_ns: int) -> Decision[bool] | None:
    """Return the decision that stores the TTL; `None` if it is stored already, or if the cluster has no records yet."""
    stored = snapshot.get(CLUSTER_FORMAT)
    if stored is None or stored.longest_heartbeat_ttl == ttl_ns:
        return None
    write = Write(
        "heartbeat-ttl",
        Cause(CauseKind.TIMER, "heartbeat TTL"),
        [CLUSTER_FORMAT.build_put(replace(stored, longest_heartbeat_ttl=ttl_ns))],
        [snapshot.build_record_condition(CLUSTER_FORMAT, stored)],
    )
    return Decision(write, lambda _index: True)
