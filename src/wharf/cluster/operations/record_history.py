"""What the state still tells of a record, in short sentences: for whoever must understand why a step was refused.

It only reads. It tells what stands there, and never guesses at what is no longer kept.
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
"""Of each task and of a node, the last ones: a story is one line of a log."""


def add_record_history(snapshot: Replica, transition: InvalidTransition) -> InvalidTransition:
    """The same refusal, with all that the state tells of its record."""
    tell = HISTORY_BUILDERS.get(transition.machine)
    if tell is None or transition.history:
        return transition
    return InvalidTransition(
        machine=transition.machine,
        record_id=transition.record_id,
        source=transition.source,
        target=transition.target,
        allowed_targets=transition.allowed_targets,
        history=tell(snapshot, transition.record_id),
    )


def describe_allocation(snapshot: Replica, allocation: Allocation) -> list[str]:
    told = f"it was to {allocation.desired_status}{_why(allocation.desired_description)}"
    told += f", its node said {allocation.client_status}{_why(allocation.client_description)}"
    story = [_indexes(allocation), told]
    if allocation.eval_id:
        evaluation = snapshot.get(EVALUATIONS, allocation.eval_id)
        came = f" ({evaluation.triggered_by}, {evaluation.status})" if evaluation else ", which is gone"
        story.append(f"placed by evaluation {allocation.eval_id}{came}")
    for name, task in sorted((allocation.task_states or {}).items()):
        story += _story_of_task(name, task)
    node = snapshot.get(NODES, allocation.node_id)
    story.append(f"its node {allocation.node_id} is {node.status if node else 'gone'}")
    return story


def describe_node(node: Node) -> list[str]:
    standing = f"it is {node.status} and {node.scheduling_eligibility}"
    if node.last_missed_heartbeat_index:
        standing += f"; it missed its heartbeat at index {node.last_missed_heartbeat_index}"
    events = (node.events or ())[-MAX_EVENTS:]
    return [
        _indexes(node),
        standing,
        *(f"{event.message}{f' at {event.timestamp.isoformat()}' if event.timestamp else ''}" for event in events),
    ]


def describe_evaluation(evaluation: Evaluation) -> list[str]:
    story = [
        _indexes(evaluation),
        f"of job {evaluation.job_id}, because of {evaluation.triggered_by}",
        f"it is {evaluation.status}{_why(evaluation.status_description)}",
    ]
    if evaluation.previous_eval:
        story.append(f"it follows evaluation {evaluation.previous_eval}")
    if evaluation.blocked_eval:
        story.append(f"what found no room waits as evaluation {evaluation.blocked_eval}")
    return story


def _story_of_task(name: str, task: TaskState) -> list[str]:
    ended = ", failed" if task.failed else ""
    restarts = f", after {task.restarts} restart{'s' if task.restarts != 1 else ''}" if task.restarts else ""
    story = [f"task {name} is {task.state}{ended}{restarts}"]
    for event in (task.events or ())[-MAX_EVENTS:]:
        when = f" at {to_datetime(event.time).isoformat()}" if event.time else ""
        story.append(f"task {name}: {event.type}{when}{_why(event.message)}")
    return story


def _story_of_status(record: Job | Deployment) -> list[str]:
    return [_indexes(record), f"it is {record.status}{_why(record.status_description)}"]


def _indexes(record: Allocation | Node | Evaluation | Job | Deployment) -> str:
    return f"made at index {record.create_index}, last changed at index {record.modify_index}"


def _why(text: str) -> str:
    return f" ({text})" if text else ""


def _of_allocation(snapshot: Replica, record_id: str) -> list[str]:
    allocation = snapshot.get(ALLOCATIONS, record_id)
    return [] if allocation is None else describe_allocation(snapshot, allocation)


def _of_node(snapshot: Replica, record_id: str) -> list[str]:
    node = snapshot.get(NODES, record_id)
    return [] if node is None else describe_node(node)


def _of_evaluation(snapshot: Replica, record_id: str) -> list[str]:
    evaluation = snapshot.get(EVALUATIONS, record_id)
    return [] if evaluation is None else describe_evaluation(evaluation)


def _of_job(snapshot: Replica, record_id: str) -> list[str]:
    namespace, _, job_id = record_id.partition("/")
    job = snapshot.get(JOBS, namespace, job_id)
    return [] if job is None else _story_of_status(job)


def _of_deployment(snapshot: Replica, record_id: str) -> list[str]:
    deployment = snapshot.get(DEPLOYMENTS, record_id)
    return [] if deployment is None else _story_of_status(deployment)


HISTORY_BUILDERS: Final[Mapping[str, Callable[[Replica, str], list[str]]]] = {
    ALLOCATION_STATES.name: _of_allocation,
    NODE_STATES.name: _of_node,
    EVALUATION_STATES.name: _of_evaluation,
    JOB_STATES.name: _of_job,
    DEPLOYMENT_STATES.name: _of_deployment,
}
"""By the name of the record's table of states."""
