"""Describe the current state of a record in short sentences, for the log line of a refused state change.

Reads the state only; earlier states of a record are not stored.
"""

from collections.abc import Callable, Mapping
from typing import Final

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.state_machines.transitions import (
    ALLOCATION_STATES,
    DEPLOYMENT_STATES,
    EVALUATION_STATES,
    JOB_STATES,
    NODE_STATES,
)
from wharf.contract.model.times import to_datetime

MAX_EVENTS: Final = 5
"""Number of events described for each task and for a node: the history must fit in one log line."""


def add_record_history(snapshot: Replica, transition: InvalidTransition) -> InvalidTransition:
    """Return the refused state change with sentences about its record added, for the log line.

    Return it unchanged if it has such sentences or its state machine is unknown.
    """
    build_history = HISTORY_BUILDERS.get(transition.machine)
    if build_history is None or transition.history:
        return transition
    return InvalidTransition(
        machine=transition.machine,
        record_id=transition.record_id,
        source=transition.source,
        target=transition.target,
        allowed_targets=transition.allowed_targets,
        history=build_history(snapshot, transition.record_id),
    )


def describe_allocation(snapshot: Replica, allocation: Allocation) -> list[str]:
    """Return sentences about the allocation: its statuses, its evaluation, its tasks and its node."""
    status_sentence = f"desired status {allocation.desired_status}{_parenthesize(allocation.desired_description)}"
    status_sentence += f", client status {allocation.client_status}{_parenthesize(allocation.client_description)}"
    sentences = [_describe_indexes(allocation), status_sentence]
    if allocation.eval_id:
        evaluation = snapshot.get(EVALUATIONS, allocation.eval_id)
        origin = f" ({evaluation.triggered_by}, {evaluation.status})" if evaluation else ", which no longer exists"
        sentences.append(f"placed by evaluation {allocation.eval_id}{origin}")
    for name, task in sorted((allocation.task_states or {}).items()):
        sentences += _describe_task(name, task)
    node = snapshot.get(NODES, allocation.node_id)
    sentences.append(f"its node {allocation.node_id} is {node.status if node else 'deleted'}")
    return sentences


def describe_node(node: Node) -> list[str]:
    """Return sentences about the node: its status, eligibility and last events."""
    status_sentence = f"it is {node.status} and {node.scheduling_eligibility}"
    if node.last_missed_heartbeat_index:
        status_sentence += f"; it missed its heartbeat at index {node.last_missed_heartbeat_index}"
    events = (node.events or ())[-MAX_EVENTS:]
    return [
        _describe_indexes(node),
        status_sentence,
        *(f"{event.message}{f' at {event.timestamp.isoformat()}' if event.timestamp else ''}" for event in events),
    ]


def describe_evaluation(evaluation: Evaluation) -> list[str]:
    """Return sentences about the evaluation: its job, trigger and status, and the evaluations linked to it."""
    sentences = [
        _describe_indexes(evaluation),
        f"of job {evaluation.job_id}, triggered by {evaluation.triggered_by}",
        f"it is {evaluation.status}{_parenthesize(evaluation.status_description)}",
    ]
    if evaluation.previous_eval:
        sentences.append(f"it follows evaluation {evaluation.previous_eval}")
    if evaluation.blocked_eval:
        sentences.append(f"unplaced allocations wait in evaluation {evaluation.blocked_eval}")
    return sentences


def _describe_task(name: str, task: TaskState) -> list[str]:
    """Return sentences about a task: its state, restarts and last events."""
    failed_text = ", failed" if task.failed else ""
    restarts_text = f", after {task.restarts} restart{'s' if task.restarts != 1 else ''}" if task.restarts else ""
    sentences = [f"task {name} is {task.state}{failed_text}{restarts_text}"]
    for event in (task.events or ())[-MAX_EVENTS:]:
        time_text = f" at {to_datetime(event.time).isoformat()}" if event.time else ""
        sentences.append(f"task {name}: {event.type}{time_text}{_parenthesize(event.message)}")
    return sentences


def _describe_status(record: Job | Deployment) -> list[str]:
    """Return sentences about the status of a job or deployment."""
    return [_describe_indexes(record), f"it is {record.status}{_parenthesize(record.status_description)}"]


def _describe_indexes(record: Allocation | Node | Evaluation | Job | Deployment) -> str:
    """Return a sentence with the log indexes at which the record was created and last changed."""
    return f"created at index {record.create_index}, last changed at index {record.modify_index}"


def _parenthesize(text: str) -> str:
    """Return the text in parentheses, or an empty text."""
    return f" ({text})" if text else ""


def _build_allocation_history(snapshot: Replica, record_id: str) -> list[str]:
    """Return sentences about the allocation with this id, or an empty list if it does not exist."""
    allocation = snapshot.get(ALLOCATIONS, record_id)
    return [] if allocation is None else describe_allocation(snapshot, allocation)


def _build_node_history(snapshot: Replica, record_id: str) -> list[str]:
    """Return sentences about the node with this id, or an empty list if it does not exist."""
    node = snapshot.get(NODES, record_id)
    return [] if node is None else describe_node(node)


def _build_evaluation_history(snapshot: Replica, record_id: str) -> list[str]:
    """Return sentences about the evaluation with this id, or an empty list if it does not exist."""
    evaluation = snapshot.get(EVALUATIONS, record_id)
    return [] if evaluation is None else describe_evaluation(evaluation)


def _build_job_history(snapshot: Replica, record_id: str) -> list[str]:
    """Return sentences about the job with the id `<namespace>/<job>`, or an empty list if it does not exist."""
    namespace, _, job_id = record_id.partition("/")
    job = snapshot.get(JOBS, namespace, job_id)
    return [] if job is None else _describe_status(job)


def _build_deployment_history(snapshot: Replica, record_id: str) -> list[str]:
    """Return sentences about the deployment with this id, or an empty list if it does not exist."""
    deployment = snapshot.get(DEPLOYMENTS, record_id)
    return [] if deployment is None else _describe_status(deployment)


HISTORY_BUILDERS: Final[Mapping[str, Callable[[Replica, str], list[str]]]] = {
    ALLOCATION_STATES.name: _build_allocation_history,
    NODE_STATES.name: _build_node_history,
    EVALUATION_STATES.name: _build_evaluation_history,
    JOB_STATES.name: _build_job_history,
    DEPLOYMENT_STATES.name: _build_deployment_history,
}
"""By name of a state machine, the function that returns sentences about a record of that machine."""
