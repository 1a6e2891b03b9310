"""."""

from collections.abc import Collection
from itertools import islice

import msgspec

from wharf.cluster.operations import services
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.nodes.writes import NodeWriteResult as NodeWriteResult
from wharf.cluster.operations.nodes.writes import find_affected_jobs, find_jobs_on_node, get_node
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_ON_NODE, EVALUATIONS, EVALUATIONS_OF_JOB, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.nodes.node import Node, NodeStatus


class NodeEvaluationResult(msgspec.Struct, frozen=True):
    """`jobs`: those that this write looks at; `is_all`: no other is left."""

    index: int
    eval_ids: tuple[str, ...] = ()
    job_keys: tuple[tuple[str, str], ...] = ()
    is_complete: bool = True


def evaluate_node(
    snapshot: Replica,
    node_id: str,
    context: DecisionContext,
    *,
    evaluated_jobs: Collection[tuple[str, str]] = (),
    max_evaluations: int,
    cause: str = "",
) -> Decision[NodeEvaluationResult]:
    """Have every job looked at that has work on the node or could have, but for those that are `done` already."""
    node = get_node(snapshot, node_id)
    left = (job for job in find_affected_jobs(snapshot, node) if (job.namespace, job.id) not in evaluated_jobs)
    jobs = list(islice(left, max_evaluations))
    if not jobs:
        return Decision(None, lambda _index: NodeEvaluationResult(0))
    is_all = next(left, None) is None
    evaluations = [make_evaluation(job, context, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-evaluated",
        Cause(CauseKind.REQUEST, cause),
        [EVALUATIONS.build_put(evaluation) for evaluation in evaluations],
        [snapshot.build_key_condition(NODES, node_id)],
    )
    ids = tuple(evaluation.id for evaluation in evaluations)
    keys = tuple((job.namespace, job.id) for job in jobs)
    return Decision(write, lambda index: NodeEvaluationResult(index, ids, keys, is_all))


def evaluate_remaining_jobs(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int
) -> Decision[NodeWriteResult] | None:
    """Evaluations of the node's jobs that did not fit in the node's own write, and its services when it is down or gone;
    None when all are looked at."""
    node = snapshot.get(NODES, node_id)
    if node is None:  # Purged, with so much work on it that it did not fit in one write.
        overlooked = (job for job in find_jobs_on_node(snapshot, node_id) if not _has_open_evaluation(snapshot, job))
    else:
        overlooked = (job for job in find_affected_jobs(snapshot, node) if _is_overlooked(snapshot, job, node))
    jobs = list(islice(overlooked, max_evaluations))
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


def _is_overlooked(snapshot: Replica, job: Job, node: Node) -> bool:
    """Whether the node's status asks something of the job that no open evaluation will find."""
    if node.status is NodeStatus.READY and job.type != JobType.SYSTEM:
        return False
    if _has_open_evaluation(snapshot, job):
        return False
    key = (job.namespace, job.id)
    here = [
        each for each in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id) if (each.namespace, each.job_id) == key
    ]
    if node.status is NodeStatus.DOWN:
        return any(not allocation.is_client_terminal for allocation in here)
    if node.status is NodeStatus.DISCONNECTED:
        known = (ClientStatus.PENDING, ClientStatus.RUNNING)
        return any(each.client_status in known and not each.is_server_terminal for each in here)
    is_missing = all(allocation.is_terminal for allocation in here)
    return node.is_ready_for_placements and job.type == JobType.SYSTEM and is_missing


def _has_open_evaluation(snapshot: Replica, job: Job) -> bool:
    return any(
        not each.status.is_terminal for each in snapshot.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    )
