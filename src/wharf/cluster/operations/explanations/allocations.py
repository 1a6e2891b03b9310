"""Explain an allocation: its state, why its node was chosen, what it waits for, and what led to it."""

from collections.abc import Iterator
from typing import Final

from wharf.cluster.operations.explanations.text import TRIGGER_REASONS, format_time, make_placement_explanation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, RescheduleEvent, RetryCause
from wharf.contract.model.allocations.failure_reasons import (
    describe_failure,
    describe_task_failure,
    has_failed,
)
from wharf.contract.model.explanations import AllocationExplanation, PlacementExplanation, WaitCondition, WaitReason
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import not_found

CLIENT_STATUS_TEXTS: Final = {
    ClientStatus.COMPLETE: "completed",
    ClientStatus.FAILED: "failed",
    ClientStatus.LOST: "was lost",
}
"""How a text describes an allocation that has ended. Other statuses mean that it runs."""


def explain_allocation(snapshot: Replica, alloc_id: str) -> AllocationExplanation:
    """Return the explanation of an allocation: its state, what it waits for, its history and its placement.

    Raises not-found if it does not exist.
    """
    allocation = snapshot.get(ALLOCATIONS, alloc_id)
    if allocation is None:
        raise not_found("alloc not found")
    waits = tuple(_iter_wait_conditions(snapshot, allocation))
    placement = make_placement_explanation(allocation)
    node_text = allocation.node_name or allocation.node_id
    # For an allocation that waits for its health, where it runs is more informative.
    blocking_waits = [each for each in waits if each.waits_for is not WaitReason.HEALTH]
    state = blocking_waits[0].text if blocking_waits else _describe_state(allocation, node_text)
    choice_text = "" if blocking_waits or allocation.is_terminal else _describe_choice(placement)
    return AllocationExplanation(
        alloc_id=alloc_id,
        name=allocation.name,
        job_id=allocation.job_id,
        namespace=allocation.namespace,
        text=f"{allocation.name} {state}{choice_text}{_describe_successor(snapshot, allocation)}",
        waits=waits,
        story=tuple(_iter_history(snapshot, allocation)),
        placement=placement,
    )


def _describe_choice(placement: PlacementExplanation) -> str:
    """Return why the node was chosen, such as ", the best of 3 nodes that could run it", or an empty text if unknown."""
    evaluated, filtered = placement.nodes_evaluated, placement.nodes_filtered
    feasible_count = evaluated - filtered
    if not evaluated:
        return ""
    choice = (
        "the only node that could run it"
        if feasible_count == 1
        else f"the best of {feasible_count} nodes that could run it"
    )
    return f", {choice}" + (f" ({evaluated} were evaluated)" if filtered else "")


def _iter_wait_conditions(snapshot: Replica, allocation: Allocation) -> Iterator[WaitCondition]:
    """Yield what the allocation waits for, most urgent first. Nothing if it has ended on its node."""
    if allocation.is_client_terminal:
        return
    node = snapshot.get(NODES, allocation.node_id)
    node_text = allocation.node_name or allocation.node_id
    failure_text = describe_task_failure(allocation.task_states)
    if node is None or node.status is not NodeStatus.READY or allocation.client_status is ClientStatus.UNKNOWN:
        yield WaitCondition(waits_for=WaitReason.NODE, text=f"is on {node_text}, which is out of contact")
    if allocation.is_server_terminal:
        reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
        yield WaitCondition(
            waits_for=WaitReason.TASKS, text=f"is stopping{reason}, and {node_text} has not ended it yet"
        )
        return
    if node is not None and node.drain_strategy is not None:
        yield WaitCondition(
            waits_for=WaitReason.DRAIN, text=f"is on {node_text}, which is being drained, and waits to be migrated"
        )
    if allocation.client_status is ClientStatus.PENDING:
        restart_text = f" after it ended ({failure_text})" if failure_text else ""
        yield WaitCondition(
            waits_for=WaitReason.TASKS,
            text=f"is placed on {node_text} and has not {'restarted' if restart_text else 'started'} yet{restart_text}",
        )
        return
    deployment_status = allocation.deployment_status
    if allocation.deployment_id and (deployment_status is None or deployment_status.healthy is None):
        yield WaitCondition(
            waits_for=WaitReason.HEALTH,
            text="its deployment waits until it is healthy",
            deployment_id=allocation.deployment_id,
        )


def _describe_state(allocation: Allocation, node_text: str) -> str:
    """Return whether and on which node (`node_text`) the allocation runs, or how it ended, with the reason."""
    end_text = CLIENT_STATUS_TEXTS.get(allocation.client_status)
    if end_text is None:
        return f"runs on {node_text}"
    failure_text = describe_failure(allocation)
    reason_text = f" ({failure_text})" if failure_text and allocation.client_status is not ClientStatus.COMPLETE else ""
    if allocation.is_server_terminal and allocation.client_status is ClientStatus.COMPLETE:
        reason = f" ({allocation.desired_description})" if allocation.desired_description else ""
        return f"was stopped on {node_text}{reason}"
    return f"{end_text} on {node_text}{reason_text}"


def _describe_successor(snapshot: Replica, allocation: Allocation) -> str:
    """Return what follows a terminal allocation: its replacement, the time of a retry, or that it was not replaced.

    Return an empty text if the allocation is active or nothing has to follow.
    """
    if not allocation.is_terminal:
        return ""
    if allocation.next_allocation:
        return f"; {_describe_replacement(snapshot, allocation)}"
    follow_up = snapshot.get(EVALUATIONS, allocation.followup_eval_id) if allocation.followup_eval_id else None
    if follow_up is not None and not follow_up.status.is_terminal and follow_up.wait_until is not None:
        return f"; it is rescheduled at {format_time(follow_up.wait_until)}"
    if allocation.client_status in (ClientStatus.FAILED, ClientStatus.LOST):
        return "; it was not replaced: explain its job to see why"
    return ""


def _describe_replacement(snapshot: Replica, allocation: Allocation) -> str:
    """Return a text that names the replacement, or says that it does not exist.

    Its id is stored before it is placed, and placement can fail.
    """
    if snapshot.get(ALLOCATIONS, allocation.next_allocation) is None:
        return f"its replacement {allocation.next_allocation} was not placed, or was garbage-collected"
    return f"{allocation.next_allocation} replaced it"


def _describe_cause(event: RescheduleEvent) -> str:
    """Return why an earlier run of an element ended, such as `its program (main: Exit Code: 75)`."""
    names = {
        RetryCause.PROGRAM: "its program",
        RetryCause.DRIVER: "a failure before its program ran",
        RetryCause.NODE: "its node",
        RetryCause.MIGRATION: "a migration",
        RetryCause.PREEMPTION: "a preemption",
        RetryCause.STOP: "a stop",
    }
    return names.get(event.cause, event.cause.value) + (f" ({event.detail})" if event.detail else "")


def _name_node(snapshot: Replica, event: RescheduleEvent) -> str:
    """Return the name of the node of an earlier run, or the short ID if the records of node and allocation are deleted."""
    node = snapshot.get(NODES, event.prev_node_id)
    former = snapshot.get(ALLOCATIONS, event.prev_alloc_id)
    name = (node.name if node is not None else "") or (former.node_name if former is not None else "")
    return name or f"node {event.prev_node_id[:8]}"


def _iter_history(snapshot: Replica, allocation: Allocation) -> Iterator[str]:
    """Yield sentences about what led to the allocation's current state, such as failures before it, its trigger and
    preemptions.
    """
    for event in (allocation.reschedule_tracker.events if allocation.reschedule_tracker else None) or ():
        if event.cause:
            yield f"{event.prev_alloc_id} on {_name_node(snapshot, event)} ran again because of {_describe_cause(event)}"
        else:
            yield f"{event.prev_alloc_id} failed on {_name_node(snapshot, event)} and was rescheduled"
    predecessor = snapshot.get(ALLOCATIONS, allocation.previous_allocation) if allocation.previous_allocation else None
    if predecessor is not None:
        node_text = predecessor.node_name or predecessor.node_id
        reason = (
            (describe_failure(predecessor) if has_failed(predecessor) else "")
            or predecessor.desired_description
            or predecessor.client_status.value
        )
        yield f"replaces {predecessor.id} on {node_text} ({reason})"
    evaluation = snapshot.get(EVALUATIONS, allocation.eval_id)
    if evaluation is not None:
        reason_text = TRIGGER_REASONS.get(evaluation.triggered_by, evaluation.triggered_by.value)
        yield f"version {allocation.job_version} of {allocation.job_id}; last evaluated because {reason_text} ({evaluation.id})"
    for preempted_id in allocation.preempted_allocations or ():
        yield f"preempted {preempted_id} to get its resources"
    if allocation.preempted_by_allocation:
        yield f"was preempted by {allocation.preempted_by_allocation}, whose job has a higher priority"
    deployment_status = allocation.deployment_status
    if deployment_status is not None and deployment_status.canary:
        yield "is a canary: it tests a new version"
    if deployment_status is not None and deployment_status.healthy is not None:
        yield (
            "was found healthy by its deployment"
            if deployment_status.healthy
            else "was found unhealthy by its deployment"
        )
    if allocation.should_migrate:
        yield "its migration was requested"
    if allocation.next_allocation:
        yield _describe_replacement(snapshot, allocation)
