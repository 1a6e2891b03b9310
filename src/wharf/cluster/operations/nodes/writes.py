"""What every write about a node has in common: its room, the evaluations of its jobs, its story of events.

It only builds parts of decisions; what happens to a node, and when, is decided in `nodes` and `drains`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_ON_NODE, EVALUATIONS, JOBS, JOBS_OF_TYPE, NODES
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeEvent, NodeEventSubsystem, NodeStatus, add_node_event
from wharf.contract.model.refusal import not_found
from wharf.contract.model.times import to_datetime

CAPACITY_FIELDS: Final = ("status", "scheduling_eligibility", "drain_strategy", "node_resources", "reserved_resources")
"""What decides how much can be put on a node: a change of it disturbs the plans that rest on the node."""


class NodeWriteResult(msgspec.Struct, frozen=True):
    """`must_report`: the node gets nothing new until it has told of every allocation that it knows. `reports_from`: from
    where on it numbers its reports."""

    index: int
    eval_ids: tuple[str, ...] = ()
    must_report: bool = False
    reports_from: int = 0


def build_node_decision(
    kind: str,
    snapshot: Replica,
    node: Node,
    evaluations: Sequence[Evaluation],
    extra_changes: Sequence[PutRecord | DeleteRecord],
    conditions: Sequence[Condition] = (),
    *,
    cause: Cause | None = None,
) -> Decision[NodeWriteResult]:
    """Every write that touches what a node can take also moves its mark: plans that rest on the old one conflict."""
    changes: list[PutRecord | DeleteRecord] = [NODES.build_put(node), *extra_changes]
    conditions = [snapshot.build_key_condition(NODES, node.id), *conditions]
    stored = snapshot.get(NODES, node.id)
    if stored is None or any(getattr(stored, name) != getattr(node, name) for name in CAPACITY_FIELDS):
        changes.append(capacity_versions.write_node_version(node.id))
        conditions += capacity_versions.expect_both_versions(snapshot, node.id)
    changes += [EVALUATIONS.build_put(evaluation) for evaluation in evaluations]
    ids = tuple(evaluation.id for evaluation in evaluations)
    must_report, reports_from = is_full_report_due(node), node.reports_from
    write = Write(kind, cause or Cause(CauseKind.NODE, node.id), changes, conditions)
    return Decision(write, lambda index: NodeWriteResult(index, ids, must_report, reports_from))


def build_empty_decision(node: Node) -> Decision[NodeWriteResult]:
    """Nothing is to be written."""
    must_report, reports_from = is_full_report_due(node), node.reports_from
    return Decision(None, lambda index: NodeWriteResult(index, must_report=must_report, reports_from=reports_from))


def is_full_report_due(node: Node) -> bool:
    return node.status is NodeStatus.INITIALIZING and node.last_missed_heartbeat_index != 0


def add_node_message(
    node: Node, message: str, context: DecisionContext, *, subsystem: NodeEventSubsystem = NodeEventSubsystem.CLUSTER
) -> Node:
    return add_node_event(node, NodeEvent(message=message, subsystem=subsystem, timestamp=to_datetime(context.now_ns)))


def make_node_evaluations(
    snapshot: Replica, node: Node, context: DecisionContext, max_evaluations: int
) -> list[Evaluation]:
    """One evaluation for each job that has live work on the node, and for each system job that could have."""
    jobs: list[Job] = []
    for job in find_affected_jobs(snapshot, node):
        if len(jobs) == max_evaluations:
            break
        jobs.append(job)
    return [make_evaluation(job, context, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]


def find_affected_jobs(snapshot: Replica, node: Node) -> Iterator[Job]:
    """Those with live work on the node, and the system jobs that could have."""
    seen: dict[tuple[str, str], None] = {}
    for job in find_jobs_on_node(snapshot, node.id):
        seen[job.namespace, job.id] = None
        yield job
    for job in snapshot.list_by_index_sorted(JOBS_OF_TYPE, JobType.SYSTEM):
        if not job.stop and (job.namespace, job.id) not in seen and is_in_pool_and_datacenter(job, node):
            yield job


def find_jobs_on_node(snapshot: Replica, node_id: str) -> Iterator[Job]:
    """Those with live work on the node, whether the node is there or not."""
    seen: dict[tuple[str, str], None] = {}
    for allocation in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node_id):
        key = (allocation.namespace, allocation.job_id)
        if not allocation.is_client_terminal and key not in seen:
            seen[key] = None
            job = snapshot.get(JOBS, *key)
            if job is not None:
                yield job


def get_node(snapshot: Replica, node_id: str) -> Node:
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise not_found("node not found")
    return node
