"""What the state still tells of a record, in short sentences: for whoever must understand why a step was refused.

It only reads. It tells what stands there, and never guesses at what is no longer kept.
"""

from collections.abc import Callable, Mapping
from typing import Final

from wharf.model.allocation import Allocation
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.model.machine import TransitionRefused
from wharf.model.moment import to_time
from wharf.model.node import Node
from wharf.model.task_state import TaskState
from wharf.model.transitions import ALLOCATION, DEPLOYMENT, EVALUATION, JOB, NODE
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS, NODES

EVENTS_TOLD: Final = 5
"""Of each task and of a node, the last ones: a story is one line of a log."""


def with_story(snapshot: Replica, refused: TransitionRefused) -> TransitionRefused:
    """The same refusal, with all that the state tells of its record."""
    tell = TELLERS.get(refused.machine)
    if tell is None or refused.story:
        return refused
    return TransitionRefused(
        machine=refused.machine,
        record_id=refused.record_id,
        source=refused.source,
        target=refused.target,
        allowed=refused.allowed,
        story=tell(snapshot, refused.record_id),
    )


def story_of_allocation(snapshot: Replica, allocation: Allocation) -> list[str]:
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


def story_of_node(node: Node) -> list[str]:
    standing = f"it is {node.status} and {node.scheduling_eligibility}"
    if node.last_missed_heartbeat_index:
        standing += f"; it missed its heartbeat at index {node.last_missed_heartbeat_index}"
    events = (node.events or ())[-EVENTS_TOLD:]
    return [
        _indexes(node),
        standing,
        *(f"{event.message}{f' at {event.timestamp.isoformat()}' if event.timestamp else ''}" for event in events),
    ]


def story_of_evaluation(evaluation: Evaluation) -> list[str]:
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
    for event in (task.events or ())[-EVENTS_TOLD:]:
        when = f" at {to_time(event.time).isoformat()}" if event.time else ""
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
    return [] if allocation is None else story_of_allocation(snapshot, allocation)


def _of_node(snapshot: Replica, record_id: str) -> list[str]:
    node = snapshot.get(NODES, record_id)
    return [] if node is None else story_of_node(node)


def _of_evaluation(snapshot: Replica, record_id: str) -> list[str]:
    evaluation = snapshot.get(EVALUATIONS, record_id)
    return [] if evaluation is None else story_of_evaluation(evaluation)


def _of_job(snapshot: Replica, record_id: str) -> list[str]:
    namespace, _, job_id = record_id.partition("/")
    job = snapshot.get(JOBS, namespace, job_id)
    return [] if job is None else _story_of_status(job)


def _of_deployment(snapshot: Replica, record_id: str) -> list[str]:
    deployment = snapshot.get(DEPLOYMENTS, record_id)
    return [] if deployment is None else _story_of_status(deployment)


TELLERS: Final[Mapping[str, Callable[[Replica, str], list[str]]]] = {
    ALLOCATION.name: _of_allocation,
    NODE.name: _of_node,
    EVALUATION.name: _of_evaluation,
    JOB.name: _of_job,
    DEPLOYMENT.name: _of_deployment,
}
"""By the name of the record's table of states."""
