"""What every write about a node has in common: its room, the evaluations of its jobs, its story of events.

It only builds parts of decisions; what happens to a node, and when, is decided in `nodes` and `drains`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from wharf.model.changes import Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import Evaluation, EvaluationTrigger
from wharf.model.job import Job, JobType
from wharf.model.moment import to_time
from wharf.model.node import Node, NodeEvent, NodeEventSubsystem, NodeStatus, with_event
from wharf.model.refusal import unknown
from wharf.operations.decision import Decision, Moment
from wharf.operations.evaluations import new_evaluation
from wharf.scheduling import room_marks
from wharf.scheduling.reach import is_in_reach
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_ON_NODE, EVALUATIONS, JOBS, JOBS_OF_TYPE, NODES

ROOM: Final = ("status", "scheduling_eligibility", "drain_strategy", "node_resources", "reserved_resources")
"""What decides how much can be put on a node: a change of it disturbs the plans that rest on the node."""


class NodeWritten(msgspec.Struct, frozen=True):
    """`must_report`: the node gets nothing new until it has told of every allocation that it knows. `reports_from`: from
    where on it numbers its reports."""

    index: int
    eval_ids: tuple[str, ...] = ()
    must_report: bool = False
    reports_from: int = 0


def node_write(
    kind: str,
    snapshot: Replica,
    node: Node,
    evaluations: Sequence[Evaluation],
    more: Sequence[Put | Drop],
    conditions: Sequence[Condition] = (),
    *,
    cause: Cause | None = None,
) -> Decision[NodeWritten]:
    """Every write that touches what a node can take also moves its mark: plans that rest on the old one conflict."""
    changes: list[Put | Drop] = [NODES.put(node), *more]
    conditions = [snapshot.as_seen(NODES, node.id), *conditions]
    stored = snapshot.get(NODES, node.id)
    if stored is None or any(getattr(stored, name) != getattr(node, name) for name in ROOM):
        changes.append(room_marks.moves(node.id))
        conditions += room_marks.rests_on_both(snapshot, node.id)
    changes += [EVALUATIONS.put(evaluation) for evaluation in evaluations]
    ids = tuple(evaluation.id for evaluation in evaluations)
    must_report, reports_from = must_report_of(node), node.reports_from
    write = Write(kind, cause or Cause(CauseKind.NODE, node.id), changes, conditions)
    return Decision(write, lambda index: NodeWritten(index, ids, must_report, reports_from))


def nothing_to_write(node: Node) -> Decision[NodeWritten]:
    """Nothing is to be written."""
    must_report, reports_from = must_report_of(node), node.reports_from
    return Decision(None, lambda index: NodeWritten(index, must_report=must_report, reports_from=reports_from))


def must_report_of(node: Node) -> bool:
    return node.status is NodeStatus.INITIALIZING and node.last_missed_heartbeat_index != 0


def with_message(
    node: Node, message: str, moment: Moment, *, subsystem: NodeEventSubsystem = NodeEventSubsystem.CLUSTER
) -> Node:
    return with_event(node, NodeEvent(message=message, subsystem=subsystem, timestamp=to_time(moment.now_ns)))


def evaluations_of(snapshot: Replica, node: Node, moment: Moment, evaluations_max: int) -> list[Evaluation]:
    """One evaluation for each job that has live work on the node, and for each system job that could have."""
    jobs: list[Job] = []
    for job in jobs_to_look_at(snapshot, node):
        if len(jobs) == evaluations_max:
            break
        jobs.append(job)
    return [new_evaluation(job, moment, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]


def jobs_to_look_at(snapshot: Replica, node: Node) -> Iterator[Job]:
    """Those with live work on the node, and the system jobs that could have."""
    seen: dict[tuple[str, str], None] = {}
    for job in jobs_left_behind(snapshot, node.id):
        seen[job.namespace, job.id] = None
        yield job
    for job in snapshot.those_by_key(JOBS_OF_TYPE, JobType.SYSTEM):
        if not job.stop and (job.namespace, job.id) not in seen and is_in_reach(job, node):
            yield job


def jobs_left_behind(snapshot: Replica, node_id: str) -> Iterator[Job]:
    """Those with live work on the node, whether the node is there or not."""
    seen: dict[tuple[str, str], None] = {}
    for allocation in snapshot.those(ALLOCATIONS_ON_NODE, node_id):
        key = (allocation.namespace, allocation.job_id)
        if not allocation.is_client_terminal and key not in seen:
            seen[key] = None
            job = snapshot.get(JOBS, *key)
            if job is not None:
                yield job


def known_node(snapshot: Replica, node_id: str) -> Node:
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise unknown("node not found")
    return node
