"""Evaluate the jobs that a node's change affects: on request, and those that did not fit in the node's own write."""

from collections.abc import Collection
from itertools import islice

import msgspec

from wharf.cluster.operations import services
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.nodes.writes import NodeWriteResult as NodeWriteResult
from wharf.cluster.operations.nodes.writes import find_affected_jobs, find_jobs_on_node, get_node
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, EVALUATIONS_OF_JOB, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobKey, JobType
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.nodes.node import Node, NodeStatus


class NodeEvaluationResult(msgspec.Struct, frozen=True):
    """The result of a request to evaluate the jobs of a node."""

    index: int  # The log index of the write; 0 if nothing was written.
    eval_ids: tuple[str, ...] = ()  # The evaluations that were created.
    job_keys: tuple[tuple[str, str], ...] = ()  # (namespace, job id) of each evaluated job.
    is_complete: bool = True  # False: more jobs remain; the caller repeats the request.


def evaluate_node(
    snapshot: Replica,
    node_id: str,
    context: DecisionContext,
    *,
    evaluated_jobs: Collection[tuple[str, str]] = (),
    max_evaluations: int,
    cause: str = "",
) -> Decision[NodeEvaluationResult]:
    """Return the decision that evaluates the jobs that the node affects, at most `max_evaluations` of them.

    `evaluated_jobs` are jobs that an earlier write of the same request has evaluated. Raises not-found if the node does
    not exist.
    """
    node = get_node(snapshot, node_id)
    remaining = (job for job in find_affected_jobs(snapshot, node) if (job.namespace, job.id) not in evaluated_jobs)
    jobs = list(islice(remaining, max_evaluations))
    if not jobs:
        return Decision(None, lambda _index: NodeEvaluationResult(0))
    is_complete = next(remaining, None) is None
    evaluations = [make_evaluation(job, context, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-evaluated",
        Cause(CauseKind.REQUEST, cause),
        [EVALUATIONS.build_put(evaluation) for evaluation in evaluations],
        [snapshot.build_key_condition(NODES, node_id)],
    )
    ids = tuple(evaluation.id for evaluation in evaluations)
    keys = tuple((job.namespace, job.id) for job in jobs)
    return Decision(write, lambda index: NodeEvaluationResult(index, ids, keys, is_complete))


def evaluate_remaining_jobs(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult] | None:
    """Return the decision that evaluates the jobs that did not fit in the write that changed their node, or `None`.

    When all are evaluated and the node is down or purged, the decision deletes the services on it instead.
    """
    node = snapshot.get(NODES, node_id)
    if node is None:  # The node was purged, and its jobs did not all fit in the write of the purge.
        unevaluated = (job for job in find_jobs_on_node(snapshot, node_id) if not _has_open_evaluation(snapshot, job))
    else:
        allocations = _group_unfinished_by_job(snapshot, node_id)
        unevaluated = (
            job
            for job in find_affected_jobs(snapshot, node)
            if _needs_evaluation(snapshot, job, node, allocations.get((job.namespace, job.id), ()))
        )
    jobs = list(islice(unevaluated, max_evaluations))
    if not jobs:
        is_gone = node is None or node.status is NodeStatus.DOWN
        write = services.delete_node_services(snapshot, node_id, max_services=max_evaluations) if is_gone else None
        return Decision(write, NodeWriteResult) if write is not None else None
    evaluations = [make_evaluation(job, context, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-evaluated",
        Cause(CauseKind.NODE, node_id),
        [EVALUATIONS.build_put(evaluation) for evaluation in evaluations],
        [snapshot.build_key_condition(NODES, node_id)],
    )
    return Decision(write, NodeWriteResult)


def _group_unfinished_by_job(snapshot: Replica, node_id: str) -> dict[JobKey, list[Allocation]]:
    """Return by job the allocations on the node whose end it has not reported."""
    allocations: dict[JobKey, list[Allocation]] = {}
    for allocation in snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id):
        allocations.setdefault((allocation.namespace, allocation.job_id), []).append(allocation)
    return allocations


def _needs_evaluation(snapshot: Replica, job: Job, node: Node, unfinished: Collection[Allocation]) -> bool:
    """Return whether the node's status requires an evaluation of the job and none of its evaluations is open.

    `unfinished` are the job's allocations on the node whose end it has not reported.
    """
    if node.status is NodeStatus.READY and job.type != JobType.SYSTEM:
        return False
    if _has_open_evaluation(snapshot, job):
        return False
    if node.status is NodeStatus.DOWN:
        return any(not allocation.is_client_terminal for allocation in unfinished)
    if node.status is NodeStatus.DISCONNECTED:
        live_statuses = (ClientStatus.PENDING, ClientStatus.RUNNING)
        return any(each.client_status in live_statuses and not each.is_server_terminal for each in unfinished)
    is_missing = all(allocation.is_terminal for allocation in unfinished)
    return node.is_ready_for_placements and job.type == JobType.SYSTEM and is_missing


def _has_open_evaluation(snapshot: Replica, job: Job) -> bool:
    """Return whether the job has an evaluation that is not terminal."""
    return any(
        not each.status.is_terminal for each in snapshot.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    )
