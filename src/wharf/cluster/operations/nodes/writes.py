"""Building blocks of writes about nodes: the node's capacity version, evaluations of its jobs, and its event list.

What happens to a node, and when, is decided in `registration`, `status` and `drains`.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.unreported_nodes import is_full_report_due
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOBS, JOBS_OF_TYPE, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeEvent, NodeEventSubsystem, add_node_event
from wharf.contract.model.refusal import not_found
from wharf.contract.model.times import to_datetime

CAPACITY_FIELDS: Final = ("status", "scheduling_eligibility", "drain_strategy", "node_resources", "reserved_resources")
"""Fields that decide how much fits on a node: plans based on the node conflict if one changes."""


class NodeWriteResult(msgspec.Struct, frozen=True):
    """The result of a write about a node."""

    index: int  # The log index of the write.
    eval_ids: tuple[str, ...] = ()  # The evaluations that the write created.
    must_report: bool = False  # Nothing is placed on the node until it reports all its allocations.
    reports_from: int = 0  # The number of the node's next report; 0: it does not number its reports.


def build_node_decision(
    write_kind: str,
    snapshot: Replica,
    node: Node,
    evaluations: Sequence[Evaluation],
    extra_changes: Sequence[PutRecord | DeleteRecord],
    conditions: Sequence[Condition] = (),
    *,
    cause: Cause | None = None,
) -> Decision[NodeWriteResult]:
    """Return the decision that stores the node, these evaluations and `extra_changes`.

    If the node's capacity changes, the write also changes its capacity version, so that plans based on the old one
    conflict.
    """
    changes: list[PutRecord | DeleteRecord] = [NODES.build_put(node), *extra_changes]
    conditions = [snapshot.build_key_condition(NODES, node.id), *conditions]
    stored = snapshot.get(NODES, node.id)
    if stored is None or any(getattr(stored, name) != getattr(node, name) for name in CAPACITY_FIELDS):
        changes.append(capacity_versions.write_node_version(node.id))
        conditions += capacity_versions.expect_both_versions(snapshot, node.id)
    changes += [EVALUATIONS.build_put(evaluation) for evaluation in evaluations]
    ids = tuple(evaluation.id for evaluation in evaluations)
    must_report, reports_from = is_full_report_due(snapshot, node), node.reports_from
    write = Write(write_kind, cause or Cause(CauseKind.NODE, node.id), changes, conditions)
    return Decision(write, lambda index: NodeWriteResult(index, ids, must_report, reports_from))


def build_empty_decision(snapshot: Replica, node: Node) -> Decision[NodeWriteResult]:
    """Return the decision for a node that does not change. The reply says whether it must report its allocations."""
    must_report, reports_from = is_full_report_due(snapshot, node), node.reports_from
    return Decision(None, lambda index: NodeWriteResult(index, must_report=must_report, reports_from=reports_from))


def add_node_message(
    node: Node, message: str, context: DecisionContext, *, subsystem: NodeEventSubsystem = NodeEventSubsystem.CLUSTER
) -> Node:
    """Return the node with an event that has this text and the current time."""
    return add_node_event(node, NodeEvent(message=message, subsystem=subsystem, timestamp=to_datetime(context.now_ns)))


def make_node_evaluations(
    snapshot: Replica, node: Node, context: DecisionContext, max_evaluations: int
) -> list[Evaluation]:
    """Return new evaluations of the jobs that the node affects, at most `max_evaluations`."""
    jobs = list(islice(find_affected_jobs(snapshot, node), max_evaluations))
    return [make_evaluation(job, context, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]


def find_affected_jobs(snapshot: Replica, node: Node) -> Iterator[Job]:
    """Yield the jobs with allocations on the node that have not ended, then the other system jobs that could run on it."""
    seen_jobs: dict[tuple[str, str], None] = {}
    for job in find_jobs_on_node(snapshot, node.id):
        seen_jobs[job.namespace, job.id] = None
        yield job
    for job in snapshot.list_by_index_sorted(JOBS_OF_TYPE, JobType.SYSTEM):
        if not job.stop and (job.namespace, job.id) not in seen_jobs and is_in_pool_and_datacenter(job, node):
            yield job


def find_jobs_on_node(snapshot: Replica, node_id: str) -> Iterator[Job]:
    """Yield the jobs with allocations on the node that have not ended, each once, even if the node no longer exists."""
    seen_jobs: dict[tuple[str, str], None] = {}
    for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id):
        key = (allocation.namespace, allocation.job_id)
        if not allocation.is_client_terminal and key not in seen_jobs:
            seen_jobs[key] = None
            job = snapshot.get(JOBS, *key)
            if job is not None:
                yield job


def get_node(snapshot: Replica, node_id: str) -> Node:
    """Return the node. Raises not-found if it does not exist."""
    node = snapshot.get(NODES, node_id)
    if node is None:
        raise not_found("node not found")
    return node
