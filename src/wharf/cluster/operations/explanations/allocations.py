"""."""

from collections.abc import Iterator
from typing import Final

from wharf.cluster.operations.explanations.text import TRIGGER_REASONS, format_time, make_placement_explanation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.task_event_messages import describe_last_failure
from wharf.contract.model.explanations import AllocationExplanation, PlacementExplanation, WaitCondition, WaitReason
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import not_found

CLIENT_STATUS_TEXTS: Final = {
    ClientStatus.COMPLETE: "ended well",
    ClientStatus.FAILED: "failed",
    ClientStatus.LOST: "was lost",
}


def explain_allocation(snapshot: Replica, alloc_id: str) -> AllocationExplanation:
    allocation = snapshot.get(ALLOCATIONS, alloc_id)
    if allocation is None:
        raise not_found("alloc not found")
    waits = tuple(_waits_of_allocation(snapshot, allocation))
    told = make_placement_explanation(allocation)
    where = allocation.node_name or allocation.node_id
    # That its health is waited for says less than where it runs.
    in_the_way = [each for each in waits if each.waits_for is not WaitReason.HEALTH]
    state = in_the_way[0].text if in_the_way else _state_of(allocation, where)
    chosen = "" if in_the_way or allocation.is_terminal else _chosen(told)
    return AllocationExplanation(
        alloc_id=alloc_id,
        name=allocation.name,
        job_id=allocation.job_id,
        namespace=allocation.namespace,
        text=f"{allocation.name} {state}{chosen}{_what_follows(snapshot, allocation)}",
        waits=waits,
        story=tuple(_story(snapshot, allocation)),
        placement=told,
    )


def _chosen(told: PlacementExplanation) -> str:
    evaluated, filtered = told.nodes_evaluated, told.nodes_filtered
    could = evaluated - filtered
    if not evaluated:
        return ""
    best = "the only node that could take it" if could == 1 else f"the best of {could} nodes that could take it"
    return f", {best}" + (f" ({evaluated} were looked at)" if filtered else "")


def _waits_of_allocation(snapshot: Replica, allocation: Allocation) -> Iterator[WaitCondition]:
    if allocation.is_client_terminal:
        return
    node = snapshot.get(NODES, allocation.node_id)
    where = allocation.node_name or allocation.node_id
    why = describe_last_failure(allocation.task_states)
    if node is None or node.status is not NodeStatus.READY or allocation.client_status is ClientStatus.UNKNOWN:
        yield WaitCondition(waits_for=WaitReason.NODE, text=f"is on {where}, which is out of contact")
    if allocation.is_server_terminal:
        reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
        yield WaitCondition(waits_for=WaitReason.TASKS, text=f"is to stop{reason}, and {where} has not ended it yet")
        return
    if node is not None and node.drain_strategy is not None:
        yield WaitCondition(
            waits_for=WaitReason.DRAIN, text=f"is on {where}, which is being drained, and waits for its turn to move"
        )
    if allocation.client_status is ClientStatus.PENDING:
        again = f" after it ended ({why})" if why else ""
        yield WaitCondition(waits_for=WaitReason.TASKS, text=f"is placed on {where} and has not started{again} yet")
        return
    health = allocation.deployment_status
    if allocation.deployment_id and (health is None or health.healthy is None):
        yield WaitCondition(
            waits_for=WaitReason.HEALTH,
            text="its deployment waits until it is healthy",
            deployment_id=allocation.deployment_id,
        )


def _state_of(allocation: Allocation, where: str) -> str:
    ended = CLIENT_STATUS_TEXTS.get(allocation.client_status)
    if ended is None:
        return f"runs on {where}"
    why = describe_last_failure(allocation.task_states) or allocation.client_description
    because = f" ({why})" if why and allocation.client_status is not ClientStatus.COMPLETE else ""
    if allocation.is_server_terminal and allocation.client_status is ClientStatus.COMPLETE:
        reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
        return f"was stopped on {where}{reason}"
    return f"{ended} on {where}{because}"


def _what_follows(snapshot: Replica, allocation: Allocation) -> str:
    if not allocation.is_terminal:
        return ""
    if allocation.next_allocation:
        return f"; {_successor(snapshot, allocation)}"
    follow_up = snapshot.get(EVALUATIONS, allocation.followup_eval_id) if allocation.followup_eval_id else None
    if follow_up is not None and not follow_up.status.is_terminal and follow_up.wait_until is not None:
        return f"; it is tried again at {format_time(follow_up.wait_until)}"
    if allocation.client_status in (ClientStatus.FAILED, ClientStatus.LOST):
        return "; nothing took its place: `explain` of its job tells why"
    return ""


def _successor(snapshot: Replica, allocation: Allocation) -> str:
    """A stop names who is to come next before that is placed, and a placement may be refused."""
    if snapshot.get(ALLOCATIONS, allocation.next_allocation) is None:
        return f"{allocation.next_allocation} was to take its place, and was not placed or is collected by now"
    return f"{allocation.next_allocation} took its place"


def _story(snapshot: Replica, allocation: Allocation) -> Iterator[str]:
    for event in (allocation.reschedule_tracker.events if allocation.reschedule_tracker else None) or ():
        yield f"{event.prev_alloc_id} failed on node {event.prev_node_id[:8]} and was tried again elsewhere"
    former = snapshot.get(ALLOCATIONS, allocation.previous_allocation) if allocation.previous_allocation else None
    if former is not None:
        where = former.node_name or former.node_id
        reason = former.desired_description or describe_last_failure(former.task_states) or former.client_status.value
        yield f"takes the place of {former.id} on {where} ({reason})"
    evaluation = snapshot.get(EVALUATIONS, allocation.eval_id)
    if evaluation is not None:
        because = TRIGGER_REASONS.get(evaluation.triggered_by, evaluation.triggered_by.value)
        yield f"version {allocation.job_version} of {allocation.job_id}; looked at last because {because} ({evaluation.id})"
    for other in allocation.preempted_allocations or ():
        yield f"pushed {other} aside to get its room"
    if allocation.preempted_by_allocation:
        yield f"was pushed aside by {allocation.preempted_by_allocation}, whose job has a higher priority"
    health = allocation.deployment_status
    if health is not None and health.canary:
        yield "is a canary: it tries its version beside the others"
    if health is not None and health.healthy is not None:
        yield "was found healthy by its deployment" if health.healthy else "was found unhealthy by its deployment"
    if allocation.should_migrate:
        yield "somebody asked that it move"
    if allocation.next_allocation:
        yield _successor(snapshot, allocation)
