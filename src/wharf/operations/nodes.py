"""What happens to nodes: they register, change their status, and report on their allocations.

A node's write carries evaluations of its jobs, as many as fit. The others follow: `look_at_the_rest` tells, from the
state alone, which job has not been looked at yet, so nothing need be remembered between the two.
"""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, AllocDeploymentStatus, ClientStatus, DesiredStatus, NetworkStatus
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.job import Job, JobType
from wharf.model.log_tails import PACKED_MAX_BYTES
from wharf.model.machine import TransitionRefused, advance
from wharf.model.moment import to_time
from wharf.model.naming import POOL_NAME, is_pool_name
from wharf.model.node import Node, NodeStatus, SchedulingEligibility, with_news
from wharf.model.node_pool import ALL
from wharf.model.refusal import Code, Refusal, invalid
from wharf.model.registration import ServiceRegistration
from wharf.model.task_state import TaskState
from wharf.model.transitions import ALLOCATION, NODE
from wharf.operations import host_volumes, services
from wharf.operations.decision import Decision, Moment
from wharf.operations.evaluations import new_evaluation
from wharf.operations.node_writes import (
    NodeWritten as NodeWritten,  # Whoever asks for one of these decisions needs the form of its reply.
)
from wharf.operations.node_writes import (
    evaluations_of,
    jobs_left_behind,
    jobs_to_look_at,
    known_node,
    must_report_of,
    node_write,
    nothing_to_write,
    with_message,
)
from wharf.operations.story import with_story
from wharf.scheduling import room_marks
from wharf.scheduling.node_class import computed_class
from wharf.scheduling.reconcile.classes import lost_after_ns, unknown_since_ns
from wharf.state import Replica
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_VERSIONS,
    JOBS,
    NODE_POOLS,
    NODES,
)

SECOND_NS: Final = 1_000_000_000

KNOWN_BY_SERVERS: Final = (
    "drain",
    "drain_strategy",
    "scheduling_eligibility",
    "status",
    "status_description",
    "status_updated_at",
    "events",
    "last_drain",
    "last_missed_heartbeat_index",
    "last_alloc_update_index",
    "create_index",
    "modify_index",
)
"""What a node cannot say of itself."""

LOOKED_AT: Final = ("name", "datacenter", "node_class", "attributes", "meta", "host_volumes", "node_resources")
"""What jobs may ask for: a change of it has the node's jobs looked at again (scheduling.md 9.2)."""


class AllocationReport(msgspec.Struct, frozen=True):
    """What a node says of one allocation."""

    id: str
    client_status: ClientStatus
    client_description: str = ""
    task_states: dict[str, TaskState] | None = None
    deployment_status: AllocDeploymentStatus | None = None
    network_status: NetworkStatus | None = None
    services: tuple[ServiceRegistration, ...] | None = None
    """Those of it that run now; None: nothing is said of them."""
    log_tails: bytes = b""


def register(snapshot: Replica, told: Node, moment: Moment, *, evaluations_max: int) -> Decision[NodeWritten]:
    """A node says what it is, with events of its own. What servers know of it (drain, eligibility) it cannot change."""
    if not told.id or not told.secret_digest:
        raise invalid("a node registers with an ID and a secret")
    refuse_pool(told.node_pool)
    stored = snapshot.get(NODES, told.id)
    if stored is not None and stored.secret_digest != told.secret_digest:
        raise Refusal(Code.FORBIDDEN, f"node {told.id} is registered with another secret")
    known = stored if stored is not None else Node(id=told.id, create_index=THIS)
    kept: dict[str, Any] = {name: getattr(known, name) for name in KNOWN_BY_SERVERS}
    node = with_news(replace(told, **kept, computed_class=computed_class(told)), told.events)
    if stored is None:
        has_pool = snapshot.get(NODE_POOLS, node.node_pool) is not None
        message = "Node registered" if has_pool else "Node registered but waiting for node pool to be created"
        node = with_message(replace(node, status_updated_at=moment.now_ns // SECOND_NS), message, moment)
        return node_write("node-registered", snapshot, node, [], ())
    node = _in_contact(snapshot, node, moment, message_when_down="Node re-registered")
    if node == stored:
        return nothing_to_write(node)
    is_looked_at = node.status is not stored.status or _fingerprint(node) != _fingerprint(stored)
    # Volumes beyond these are taken over when the node registers again; jobs beyond theirs by `look_at_the_rest`.
    volumes, rests_on = host_volumes.told_by(snapshot, node, moment, volumes_max=max(1, evaluations_max // 2))
    most = max(1, evaluations_max - len(volumes))
    evaluations = evaluations_of(snapshot, node, moment, most) if is_looked_at else []
    return node_write("node-registered", snapshot, node, evaluations, volumes, rests_on)


def refuse_pool(name: str) -> None:
    """Raises where no node may be in a pool of this name."""
    if name == ALL:
        raise invalid(f'node is not allowed to register in node pool "{ALL}": every node is in it anyway')
    if not is_pool_name(name):
        raise invalid(f'invalid node pool name "{name}". Must match regex {POOL_NAME}')


def _fingerprint(node: Node) -> tuple[object, ...]:
    """What jobs may ask for, without the times at which drivers were looked at."""
    drivers = {name: replace(info, update_time=None) for name, info in (node.drivers or {}).items()}
    return (drivers, *(getattr(node, name) for name in LOOKED_AT))


def come_back(snapshot: Replica, node_id: str, moment: Moment, *, evaluations_max: int) -> Decision[NodeWritten]:
    """A heartbeat of a node that is not ready: it is there, for the first time or again."""
    stored = known_node(snapshot, node_id)
    node = _in_contact(snapshot, stored, moment, message_when_down="Node reregistered by heartbeat")
    if node is stored:
        return nothing_to_write(node)
    evaluations = evaluations_of(snapshot, node, moment, evaluations_max)
    return node_write("node-updated", snapshot, node, evaluations, ())


def _in_contact(snapshot: Replica, node: Node, moment: Moment, *, message_when_down: str) -> Node:
    """The node with the status that it has when it is heard of; itself where that is the same."""
    status = _status_on_contact(snapshot, node)
    if status is node.status:
        return node
    was_down = node.status is NodeStatus.DOWN
    node = replace(
        node,
        status=advance(NODE, node.status, status, record_id=node.id),
        status_updated_at=moment.now_ns // SECOND_NS,
        last_missed_heartbeat_index=0 if status is NodeStatus.READY else node.last_missed_heartbeat_index,
    )
    return with_message(node, message_when_down, moment) if was_down else node


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
        for allocation in snapshot.those(ALLOCATIONS_ON_NODE, node.id)
    )
    return NodeStatus.INITIALIZING if may_run else NodeStatus.READY


def miss_heartbeat(snapshot: Replica, node_id: str, moment: Moment, *, evaluations_max: int) -> Decision[NodeWritten]:
    """The node's time is over: it is down, what it ran is lost, and every job of it is looked at again. Where something
    there may go on without contact for a while, it is out of contact only, until that while is over too.
    """
    stored = snapshot.get(NODES, node_id)
    if stored is None or stored.status is NodeStatus.DOWN:
        return Decision(None, NodeWritten)
    status = NodeStatus.DOWN
    if stored.status is not NodeStatus.INITIALIZING and _is_waited_for(snapshot, node_id, moment):
        status = NodeStatus.DISCONNECTED
    is_moved = status is not stored.status
    node = replace(
        stored,
        status=advance(NODE, stored.status, status, record_id=stored.id),
        status_updated_at=moment.now_ns // SECOND_NS if is_moved else stored.status_updated_at,
        last_missed_heartbeat_index=THIS,
    )
    node = with_message(node, "Node heartbeat missed", moment)
    evaluations = evaluations_of(snapshot, node, moment, evaluations_max) if is_moved else []
    return node_write("node-updated", snapshot, node, evaluations, ())


def _is_waited_for(snapshot: Replica, node_id: str, moment: Moment) -> bool:
    """Whether something on the node may run without contact, and not for too long yet."""
    for allocation in snapshot.those(ALLOCATIONS_ON_NODE, node_id):
        if allocation.is_server_terminal or allocation.is_client_terminal:
            continue
        key = (allocation.namespace, allocation.job_id)
        job = snapshot.get(JOB_VERSIONS, *key, allocation.job_version) or snapshot.get(JOBS, *key)
        window_ns = lost_after_ns(job.group(allocation.task_group)) if job is not None else 0
        since_ns = unknown_since_ns(allocation)
        if window_ns and (since_ns is None or moment.now_ns - since_ns < window_ns):
            return True
    return False


def set_eligibility(
    snapshot: Replica, node_id: str, eligible: bool, moment: Moment, *, evaluations_max: int
) -> Decision[NodeWritten]:
    """Whether the node gets new work."""
    node = known_node(snapshot, node_id)
    wanted = SchedulingEligibility.ELIGIBLE if eligible else SchedulingEligibility.INELIGIBLE
    if node.scheduling_eligibility is wanted:
        return Decision(None, lambda _index: NodeWritten(0))
    if eligible and node.drain_strategy is not None:
        raise invalid("can not set node's scheduling eligibility to eligible while it is draining")
    word = "eligible" if eligible else "ineligible"
    node = replace(node, scheduling_eligibility=wanted)
    node = with_message(node, f"Node marked as {word} for scheduling", moment)
    evaluations = evaluations_of(snapshot, node, moment, evaluations_max) if eligible else []
    return node_write("node-eligibility", snapshot, node, evaluations, ())


class NodeEvaluated(msgspec.Struct, frozen=True):
    """`jobs`: those that this write looks at; `is_all`: no other is left."""

    index: int
    eval_ids: tuple[str, ...] = ()
    jobs: tuple[tuple[str, str], ...] = ()
    is_all: bool = True


def evaluate(
    snapshot: Replica,
    node_id: str,
    moment: Moment,
    *,
    done: Collection[tuple[str, str]] = (),
    evaluations_max: int,
    cause: str = "",
) -> Decision[NodeEvaluated]:
    """Have every job looked at that has work on the node or could have, but for those that are `done` already."""
    node = known_node(snapshot, node_id)
    left = (job for job in jobs_to_look_at(snapshot, node) if (job.namespace, job.id) not in done)
    jobs = list(islice(left, evaluations_max))
    if not jobs:
        return Decision(None, lambda _index: NodeEvaluated(0))
    is_all = next(left, None) is None
    evaluations = [new_evaluation(job, moment, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-evaluated",
        Cause(CauseKind.REQUEST, cause),
        [EVALUATIONS.put(evaluation) for evaluation in evaluations],
        [snapshot.as_seen(NODES, node_id)],
    )
    ids = tuple(evaluation.id for evaluation in evaluations)
    keys = tuple((job.namespace, job.id) for job in jobs)
    return Decision(write, lambda index: NodeEvaluated(index, ids, keys, is_all))


def purge(
    snapshot: Replica, node_id: str, moment: Moment, *, evaluations_max: int, cause: str = ""
) -> Decision[NodeWritten]:
    """Forget the node. What ran there is lost: its jobs are looked at, as many as fit here, the others by
    `look_at_the_rest`, which sees them by their work on a node that is none.
    """
    node = known_node(snapshot, node_id)
    jobs = islice(jobs_left_behind(snapshot, node_id), evaluations_max)
    evaluations = [new_evaluation(job, moment, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-purged",
        Cause(CauseKind.REQUEST, cause),
        [NODES.drop(node_id), room_marks.goes(node_id), *map(EVALUATIONS.put, evaluations)],
        [snapshot.as_seen(NODES, node_id), *room_marks.rests_on_both(snapshot, node_id)],
    )
    ids = tuple(evaluation.id for evaluation in evaluations)
    return Decision(write, lambda index: NodeWritten(index, ids))


def report(
    snapshot: Replica,
    node_id: str,
    reports: Sequence[AllocationReport],
    moment: Moment,
    *,
    is_whole: bool,
    evaluations_max: int,
) -> Decision[NodeWritten]:
    """Take over what a node says of its allocations. What it does not own, or what is over, it cannot change.

    `is_whole`: with this report the node has told of every allocation that it knows.
    """
    node = known_node(snapshot, node_id)
    if node.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
        raise invalid(f"node {node_id} is {node.status}; it must be heard of again before it reports")
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    ended: dict[tuple[str, str], EvaluationTrigger] = {}
    refused: list[TransitionRefused] = []
    occupies_again = False
    for told in {told.id: told for told in reports}.values():
        stored = snapshot.get(ALLOCATIONS, told.id)
        if stored is None or stored.node_id != node_id:
            continue
        try:
            new = _reported(stored, told, moment)
        except TransitionRefused as illegal:  # Late, or wrong. The others are true all the same.
            refused.append(with_story(snapshot, illegal))
            continue
        services_changed, rests_on = services.told_by_node(snapshot, new or stored, told.services)
        changes += services_changed
        conditions += rests_on
        if new is None:
            continue
        changes.append(ALLOCATIONS.put(new))
        conditions.append(snapshot.unchanged(ALLOCATIONS, stored))
        occupies_again = occupies_again or (new.is_occupying and not stored.is_occupying)
        if new.client_status is not stored.client_status and _leaves_a_gap(snapshot, new):
            ended[new.namespace, new.job_id] = EvaluationTrigger.ALLOC_FAILURE
        elif new.is_client_terminal and new.desired_status is DesiredStatus.EVICT:
            ended.setdefault((new.namespace, new.job_id), EvaluationTrigger.PREEMPTION)
        elif stored.client_status is ClientStatus.UNKNOWN:  # Whoever took its place meanwhile is weighed against it.
            ended.setdefault((new.namespace, new.job_id), EvaluationTrigger.RECONNECT)
    evaluations = [
        new_evaluation(job, moment, trigger)
        for key, trigger in ended.items()
        if (job := snapshot.get(JOBS, *key)) is not None and not job.stop
    ]
    has_pool = snapshot.get(NODE_POOLS, node.node_pool) is not None
    if is_whole and has_pool and node.status is NodeStatus.INITIALIZING:
        ready = replace(
            node,
            status=advance(NODE, node.status, NodeStatus.READY, record_id=node.id),
            status_updated_at=moment.now_ns // SECOND_NS,
            last_alloc_update_index=THIS,
            last_missed_heartbeat_index=0,
        )
        of_node = evaluations_of(snapshot, ready, moment, evaluations_max)
        evaluations += [each for each in of_node if (each.namespace, each.job_id) not in ended]
        written = node_write("node-reported", snapshot, ready, evaluations, changes, conditions)
        return replace(written, refused=tuple(refused))
    if not changes:
        return replace(nothing_to_write(node), refused=tuple(refused))
    if occupies_again:
        changes.append(room_marks.moves(node_id))
        conditions += room_marks.rests_on_both(snapshot, node_id)
    changes += [EVALUATIONS.put(evaluation) for evaluation in evaluations]
    must_report = must_report_of(node)
    return Decision(
        Write("node-reported", Cause(CauseKind.NODE, node_id), changes, conditions),
        lambda index: NodeWritten(index, must_report=must_report),
        tuple(refused),
    )


def _leaves_a_gap(snapshot: Replica, reported: Allocation) -> bool:
    """Whether what was reported asks for another in its place: it failed, or it ended although it shall go on for ever.

    The latter is heard after a log was restored that does not know yet that the allocation was stopped.
    """
    if reported.client_status is ClientStatus.FAILED:
        return True
    if reported.client_status is not ClientStatus.COMPLETE or reported.desired_status is not DesiredStatus.RUN:
        return False
    job = snapshot.get(JOBS, reported.namespace, reported.job_id)
    return job is not None and job.type in (JobType.SERVICE, JobType.SYSTEM)


def forgotten(snapshot: Replica, node_id: str, named: Collection[str]) -> list[AllocationReport]:
    """What a node's whole report leaves out of that which was given up as lost: it surely runs no more.

    Said outright, it is over for good: a report that was under way since before cannot bring it back.
    """
    return [
        AllocationReport(id=allocation.id, client_status=ClientStatus.COMPLETE)
        for allocation in snapshot.those_by_key(ALLOCATIONS_ON_NODE, node_id)
        if allocation.client_status is ClientStatus.LOST and allocation.id not in named
    ]


def look_at_the_rest(
    snapshot: Replica, node_id: str, moment: Moment, *, evaluations_max: int
) -> Decision[NodeWritten] | None:
    """Evaluations of the node's jobs that did not fit in the node's own write, and its services when it is down or gone;
    None when all are looked at."""
    node = snapshot.get(NODES, node_id)
    if node is None:  # Purged, with so much work on it that it did not fit in one write.
        overlooked = (job for job in jobs_left_behind(snapshot, node_id) if not _has_open_evaluation(snapshot, job))
    else:
        overlooked = (job for job in jobs_to_look_at(snapshot, node) if _is_overlooked(snapshot, job, node))
    jobs = list(islice(overlooked, evaluations_max))
    if not jobs:
        is_gone = node is None or node.status is NodeStatus.DOWN
        write = services.forget_node(snapshot, node_id, most=evaluations_max) if is_gone else None
        return Decision(write, NodeWritten) if write is not None else None
    evaluations = [new_evaluation(job, moment, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-evaluated",
        Cause(CauseKind.NODE, node_id),
        [EVALUATIONS.put(evaluation) for evaluation in evaluations],
        [snapshot.as_seen(NODES, node_id)],
    )
    return Decision(write, NodeWritten)


def _is_overlooked(snapshot: Replica, job: Job, node: Node) -> bool:
    """Whether the node's status asks something of the job that no open evaluation will find."""
    if node.status is NodeStatus.READY and job.type != JobType.SYSTEM:
        return False
    if _has_open_evaluation(snapshot, job):
        return False
    key = (job.namespace, job.id)
    here = [each for each in snapshot.those(ALLOCATIONS_ON_NODE, node.id) if (each.namespace, each.job_id) == key]
    if node.status is NodeStatus.DOWN:
        return any(not allocation.is_client_terminal for allocation in here)
    if node.status is NodeStatus.DISCONNECTED:
        known = (ClientStatus.PENDING, ClientStatus.RUNNING)
        return any(each.client_status in known and not each.is_server_terminal for each in here)
    is_missing = all(allocation.is_terminal for allocation in here)
    return node.is_ready_for_placements and job.type == JobType.SYSTEM and is_missing


def _has_open_evaluation(snapshot: Replica, job: Job) -> bool:
    return any(not each.status.is_terminal for each in snapshot.those(EVALUATIONS_OF_JOB, job.namespace, job.id))


def _reported(stored: Allocation, told: AllocationReport, moment: Moment) -> Allocation | None:
    """The allocation as reported, or None where that is nothing new. Raises TransitionRefused."""
    new = replace(
        stored,
        client_status=advance(ALLOCATION, stored.client_status, told.client_status, record_id=stored.id),
        client_description=told.client_description or stored.client_description,
        task_states=told.task_states if told.task_states is not None else stored.task_states,
        network_status=told.network_status or stored.network_status,
        deployment_status=_health_as_told(stored, told, moment),
        log_tails=_tails_as_told(stored, told),
    )
    if new == stored:
        return None
    return replace(new, modify_time=moment.now_ns)


def _tails_as_told(stored: Allocation, told: AllocationReport) -> bytes:
    """What was kept stays, when a node says no more of it: its files may be gone."""
    is_fit = told.client_status.is_terminal and len(told.log_tails) <= PACKED_MAX_BYTES
    return told.log_tails if told.log_tails and is_fit else stored.log_tails


def _health_as_told(stored: Allocation, told: AllocationReport, moment: Moment) -> AllocDeploymentStatus | None:
    """Whether it is healthy, its node decides; whether it is a canary, it does not. What is in no deployment is judged
    too: a drain waits for what took the place of what it moved."""
    stands, given = stored.deployment_status or AllocDeploymentStatus(), told.deployment_status
    if given is None or given.healthy is None or given.healthy is stands.healthy:
        return stored.deployment_status
    timestamp = given.timestamp or to_time(moment.now_ns)
    return replace(stands, healthy=given.healthy, timestamp=timestamp, modify_index=THIS)
