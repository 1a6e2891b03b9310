"""What happens to nodes: they register, change their status, go. What they report on their allocations is in `reports`.

A node's write carries evaluations of its jobs, as many as fit. The others follow: `look_at_the_rest` tells, from the
state alone, which job has not been looked at yet, so nothing need be remembered between the two.
"""

from collections.abc import Collection
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import ClientStatus
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.job import Job, JobType
from wharf.model.machine import advance
from wharf.model.naming import POOL_NAME, is_pool_name
from wharf.model.node import Node, NodeStatus, SchedulingEligibility, with_news
from wharf.model.node_pool import ALL
from wharf.model.refusal import Code, Refusal, invalid
from wharf.model.transitions import NODE
from wharf.operations import host_volumes, reports, services
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
    node_write,
    nothing_to_write,
    with_message,
)
from wharf.scheduling import room_marks
from wharf.scheduling.node_class import computed_class
from wharf.scheduling.reconcile.classes import lost_after_ns, unknown_since_ns
from wharf.state import Replica
from wharf.state.tables import (
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
    "reports_from",
    "create_index",
    "modify_index",
)
"""What a node cannot say of itself."""

LOOKED_AT: Final = ("name", "datacenter", "node_class", "attributes", "meta", "host_volumes", "node_resources")
"""What jobs may ask for: a change of it has the node's jobs looked at again (scheduling.md 9.2)."""


def register(snapshot: Replica, told: Node, moment: Moment, *, evaluations_max: int) -> Decision[NodeWritten]:
    """A node says what it is, with events of its own. What servers know of it (drain, eligibility) it cannot change.

    Where a life of its agent begins it asks, by a `reports_from` above 0, from where on it is to number its reports.
    """
    if not told.id or not told.secret_digest:
        raise invalid("a node registers with an ID and a secret")
    refuse_pool(told.node_pool)
    stored = snapshot.get(NODES, told.id)
    if stored is not None and stored.secret_digest != told.secret_digest:
        raise Refusal(Code.FORBIDDEN, f"node {told.id} is registered with another secret")
    known = stored if stored is not None else Node(id=told.id, create_index=THIS)
    kept: dict[str, Any] = {name: getattr(known, name) for name in KNOWN_BY_SERVERS}
    node = with_news(replace(told, **kept, computed_class=computed_class(told)), told.events)
    if told.reports_from:
        node = replace(node, reports_from=reports.beginning(snapshot, known))
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


def begin_reports_anew(snapshot: Replica, node_id: str) -> Decision[NodeWritten]:
    """What the node has said until now is old, whatever is known of it here. Of one that gives no numbers nothing is."""
    stored = known_node(snapshot, node_id)
    if not stored.reports_from:
        return nothing_to_write(stored)
    node = replace(stored, reports_from=reports.beginning(snapshot, stored))
    return node_write("node-updated", snapshot, node, [], ())


def _in_contact(snapshot: Replica, node: Node, moment: Moment, *, message_when_down: str) -> Node:
    """The node with the status that it has when it is heard of; itself where that is the same."""
    status = _status_on_contact(snapshot, node)
    if status is node.status:
        return node
    was_down = node.status is NodeStatus.DOWN
    was_away = was_down or node.status is NodeStatus.DISCONNECTED
    node = replace(
        node,
        status=advance(NODE, node.status, status, record_id=node.id),
        status_updated_at=moment.now_ns // SECOND_NS,
        last_missed_heartbeat_index=0 if status is NodeStatus.READY else node.last_missed_heartbeat_index,
        # What it said before it was given up is older than that.
        reports_from=reports.beginning(snapshot, node) if node.reports_from and was_away else node.reports_from,
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
