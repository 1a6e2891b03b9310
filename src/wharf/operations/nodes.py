"""What happens to nodes: they register, change their status, and report on their allocations."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, AllocDeploymentStatus, ClientStatus, NetworkStatus
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.cluster import NodePlacement
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.model.job import Job, JobType
from wharf.model.machine import advance
from wharf.model.moment import to_time
from wharf.model.node import Node, NodeEvent, NodeStatus, SchedulingEligibility, with_event
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.task_state import TaskState
from wharf.model.transitions import ALLOCATION, NODE
from wharf.operations.decision import Decision, Moment
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, EVALUATIONS, JOBS, NODE_PLACEMENTS, NODES

LOST: Final = "alloc is lost since its node is down"
SECOND_NS: Final = 1_000_000_000


class AllocationReport(msgspec.Struct, frozen=True):
    """What a node says of one allocation."""

    id: str
    client_status: ClientStatus
    client_description: str = ""
    task_states: dict[str, TaskState] | None = None
    deployment_status: AllocDeploymentStatus | None = None
    network_status: NetworkStatus | None = None


class NodeWritten(msgspec.Struct, frozen=True):
    index: int
    eval_ids: tuple[str, ...] = ()


def register(snapshot: Replica, node: Node, moment: Moment) -> Decision[NodeWritten]:
    """A node says what it is. What servers know of it (drain, eligibility, events) it cannot change."""
    if not node.id or not node.secret_digest:
        raise invalid("a node registers with an ID and a secret")
    stored = snapshot.get(NODES, node.id)
    if stored is not None and stored.secret_digest != node.secret_digest:
        raise Refusal(Code.FORBIDDEN, f"node {node.id} is registered with another secret")
    if stored is None:
        status = NodeStatus.INITIALIZING
        node = replace(node, create_index=THIS, status=status)
        node = with_event(node, NodeEvent(message="Node registered", timestamp=to_time(moment.now_ns)))
    else:
        status = _status_on_contact(snapshot, stored)
        node = replace(
            node,
            create_index=stored.create_index,
            status=advance(NODE, stored.status, status, record_id=node.id),
            drain=stored.drain,
            drain_strategy=stored.drain_strategy,
            scheduling_eligibility=stored.scheduling_eligibility,
            last_drain=stored.last_drain,
            events=stored.events,
            last_missed_heartbeat_index=0 if status is NodeStatus.READY else stored.last_missed_heartbeat_index,
            last_alloc_update_index=stored.last_alloc_update_index,
            status_updated_at=stored.status_updated_at,
            modify_index=stored.modify_index,
        )
        if stored.status is NodeStatus.DOWN:
            node = with_event(node, NodeEvent(message="Node re-registered", timestamp=to_time(moment.now_ns)))
        if node == stored:
            return Decision(None, NodeWritten)
    node = replace(node, status_updated_at=moment.now_ns // SECOND_NS)
    evaluations = _evaluations_of(snapshot, node, moment) if stored is not None and stored.status is not status else []
    return _node_write("node-registered", snapshot, node, evaluations, ())


def _status_on_contact(snapshot: Replica, stored: Node) -> NodeStatus:
    """What a node is that is heard of again.

    One that was disconnected is held at `initializing` until it has told what became of its allocations: nothing new
    is put there before (scheduling.md 9.2).
    """
    if stored.status is NodeStatus.DISCONNECTED:
        return NodeStatus.INITIALIZING
    if stored.status is NodeStatus.INITIALIZING and stored.last_missed_heartbeat_index:
        told = stored.last_alloc_update_index > stored.last_missed_heartbeat_index
        live = any(not allocation.is_terminal for allocation in snapshot.those(ALLOCATIONS_ON_NODE, stored.id))
        return NodeStatus.READY if told or not live else NodeStatus.INITIALIZING
    return NodeStatus.READY


def come_back(snapshot: Replica, node_id: str, moment: Moment) -> Decision[NodeWritten]:
    """A heartbeat of a node that is not ready: it is there, for the first time or again."""
    stored = _known(snapshot, node_id)
    status = _status_on_contact(snapshot, stored)
    if status is stored.status:
        return Decision(None, NodeWritten)
    node = replace(
        stored,
        status=advance(NODE, stored.status, status, record_id=stored.id),
        status_updated_at=moment.now_ns // SECOND_NS,
        last_missed_heartbeat_index=0 if status is NodeStatus.READY else stored.last_missed_heartbeat_index,
    )
    if stored.status is NodeStatus.DOWN:
        event = NodeEvent(message="Node reregistered by heartbeat", timestamp=to_time(moment.now_ns))
        node = with_event(node, event)
    return _node_write("node-updated", snapshot, node, _evaluations_of(snapshot, node, moment), ())


def miss_heartbeat(snapshot: Replica, node_id: str, moment: Moment) -> Decision[NodeWritten]:
    """The node's time is over: it is down, what it ran is lost, and every job of it is looked at again."""
    node = snapshot.get(NODES, node_id)
    if node is None or node.status is NodeStatus.DOWN:
        return Decision(None, NodeWritten)
    node = replace(
        node,
        status=advance(NODE, node.status, NodeStatus.DOWN, record_id=node.id),
        status_updated_at=moment.now_ns // SECOND_NS,
        last_missed_heartbeat_index=THIS,
    )
    node = with_event(node, NodeEvent(message="Node heartbeat missed", timestamp=to_time(moment.now_ns)))
    return _node_write("node-updated", snapshot, node, _evaluations_of(snapshot, node, moment), ())


def set_eligibility(snapshot: Replica, node_id: str, eligible: bool, moment: Moment) -> Decision[NodeWritten]:
    """Whether the node gets new work."""
    node = _known(snapshot, node_id)
    wanted = SchedulingEligibility.ELIGIBLE if eligible else SchedulingEligibility.INELIGIBLE
    if node.scheduling_eligibility is wanted:
        return Decision(None, lambda _index: NodeWritten(0))
    if eligible and node.drain_strategy is not None:
        raise invalid("can not set node's scheduling eligibility to eligible while it is draining")
    word = "eligible" if eligible else "ineligible"
    event = NodeEvent(message=f"Node marked as {word} for scheduling", timestamp=to_time(moment.now_ns))
    node = with_event(replace(node, scheduling_eligibility=wanted), event)
    evaluations = _evaluations_of(snapshot, node, moment) if eligible else []
    return _node_write("node-eligibility", snapshot, node, evaluations, ())


def report(
    snapshot: Replica, node_id: str, reports: Sequence[AllocationReport], moment: Moment
) -> Decision[NodeWritten]:
    """Take over what a node says of its allocations. What it does not own, or what is over, it cannot change."""
    node = _known(snapshot, node_id)
    if node.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
        raise invalid(f"node {node_id} is {node.status}; it must register again before it reports")
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    jobs: dict[tuple[str, str], Allocation] = {}
    occupies_again = False
    for told in reports:
        stored = snapshot.get(ALLOCATIONS, told.id)
        if stored is None or stored.node_id != node_id:
            continue
        new = _reported(stored, told, moment)
        if new is None:
            continue
        changes.append(ALLOCATIONS.put(new))
        conditions.append(snapshot.unchanged(ALLOCATIONS, stored))
        occupies_again = occupies_again or (new.is_occupying and not stored.is_occupying)
        if new.client_status is ClientStatus.FAILED and stored.client_status is not ClientStatus.FAILED:
            jobs[new.namespace, new.job_id] = new
    evaluations = [
        _evaluation(job, moment, EvaluationTrigger.ALLOC_FAILURE)
        for key in jobs
        if (job := snapshot.get(JOBS, *key)) is not None and not job.stop
    ]
    if node.status is NodeStatus.INITIALIZING:
        ready = replace(node, status=advance(NODE, node.status, NodeStatus.READY, record_id=node.id))
        ready = replace(ready, last_alloc_update_index=THIS, last_missed_heartbeat_index=0)
        evaluations += _evaluations_of(snapshot, ready, moment)
        return _node_write("node-reported", snapshot, ready, evaluations, changes, conditions)
    if not changes:
        return Decision(None, NodeWritten)
    if occupies_again:
        changes.append(NODE_PLACEMENTS.put(NodePlacement(node_id=node_id)))
        conditions.append(snapshot.as_seen(NODE_PLACEMENTS, node_id))
    changes += [EVALUATIONS.put(evaluation) for evaluation in evaluations]
    return Decision(Write("node-reported", Cause(CauseKind.NODE, node_id), changes, conditions), NodeWritten)


def _reported(stored: Allocation, told: AllocationReport, moment: Moment) -> Allocation | None:
    """The allocation as reported, or None where the report is late, repeated, or says nothing new."""
    if not ALLOCATION.allows(stored.client_status, told.client_status):
        return None
    new = replace(
        stored,
        client_status=told.client_status,
        client_description=told.client_description or stored.client_description,
        task_states=told.task_states if told.task_states is not None else stored.task_states,
        network_status=told.network_status or stored.network_status,
    )
    if new == stored:
        return None
    return replace(new, modify_time=moment.now_ns)


def _node_write(
    kind: str,
    snapshot: Replica,
    node: Node,
    evaluations: Sequence[Evaluation],
    more: Sequence[Put | Drop],
    conditions: Sequence[Condition] = (),
) -> Decision[NodeWritten]:
    """Every write that touches what a node can take also moves its placement record: plans on the old one conflict."""
    changes: list[Put | Drop] = [
        NODES.put(node),
        NODE_PLACEMENTS.put(NodePlacement(node_id=node.id)),
        *more,
        *(EVALUATIONS.put(evaluation) for evaluation in evaluations),
    ]
    conditions = [snapshot.as_seen(NODES, node.id), snapshot.as_seen(NODE_PLACEMENTS, node.id), *conditions]
    ids = tuple(evaluation.id for evaluation in evaluations)
    write = Write(kind, Cause(CauseKind.NODE, node.id), changes, conditions)
    return Decision(write, lambda index: NodeWritten(index, ids))


def _evaluations_of(snapshot: Replica, node: Node, moment: Moment) -> list[Evaluation]:
    """One evaluation for each job that has live work on the node, and for each system job that could have."""
    jobs: dict[tuple[str, str], Job] = {}
    for allocation in snapshot.those(ALLOCATIONS_ON_NODE, node.id):
        key = (allocation.namespace, allocation.job_id)
        if not allocation.is_client_terminal and key not in jobs:
            job = snapshot.get(JOBS, *key)
            if job is not None:
                jobs[key] = job
    for job in snapshot.all(JOBS):
        if job.type == JobType.SYSTEM and not job.stop:
            jobs[job.namespace, job.id] = job
    return [_evaluation(job, moment, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs.values()]


def _evaluation(job: Job, moment: Moment, trigger: EvaluationTrigger, *, node: Node | None = None) -> Evaluation:
    return Evaluation(
        id=moment.new_id(),
        namespace=job.namespace,
        priority=job.priority,
        type=SchedulerType(job.type),
        triggered_by=trigger,
        job_id=job.id,
        job_modify_index=job.job_modify_index,
        node_id=node.id if node else "",
        node_modify_index=THIS if node else 0,
        status=EvaluationStatus.PENDING,
        create_index=THIS,
        create_time=moment.now_ns,
        modify_time=moment.now_ns,
    )


def _known(snapshot: Replica, node_id: str) -> Node:
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise unknown("node not found")
    return node
