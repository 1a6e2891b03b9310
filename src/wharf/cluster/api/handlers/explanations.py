"""Endpoints that explain why a job, an evaluation or an allocation has its current state."""

from typing import Final

from wharf.cluster.api.handlers.allocations.records import LOOKUP_ERROR_PREFIX as ALLOCATION_ERROR_PREFIX
from wharf.cluster.api.handlers.evaluations import LOOKUP_ERROR_PREFIX as EVALUATION_ERROR_PREFIX
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import BrainQuery, MissingRecord, ReadHandler, find_record
from wharf.cluster.operations.explanations.allocations import explain_allocation
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.dry_runs import (
    EXPLAIN_EVALUATION,
    EXPLAIN_JOB,
    ExplainEvaluationRequest,
    ExplainJobRequest,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOBS,
    NODES,
)
from wharf.cluster.state.watches import WatchTarget, watch_index, watch_key, watch_table


def read_job_explanation(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return a `BrainQuery`: when the reply is encoded, it asks the scheduler process to explain the job."""
    namespace, job_id = options.namespace, request.get_path_value("job_id")
    if replica.get(JOBS, namespace, job_id) is None:
        return ReadResult(
            MissingRecord("job not found"), replica.get_last_change(JOBS), [watch_key(JOBS, namespace, job_id)]
        )
    query = ExplainJobRequest(index=replica.index, namespace=namespace, job_id=job_id, owner=request.owner)
    return ReadResult(BrainQuery(EXPLAIN_JOB, query), *_get_job_watch(replica, namespace, job_id))


def read_evaluation_explanation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return a `BrainQuery`: when the reply is encoded, it asks the scheduler process to explain the evaluation.

    Raises `Refusal` if the caller may not read the namespace.
    """
    eval_id = parse_uuid(request.get_path_value("eval_id"), error_prefix=EVALUATION_ERROR_PREFIX)
    evaluation, index, watched = find_record(replica, EVALUATIONS, eval_id, missing_text="eval not found")
    if isinstance(evaluation, MissingRecord):
        return ReadResult(evaluation, index, watched)
    request.require_permission(namespace=evaluation.namespace)
    query = ExplainEvaluationRequest(index=replica.index, eval_id=evaluation.id, owner=request.owner)
    return ReadResult(
        BrainQuery(EXPLAIN_EVALUATION, query), *_get_job_watch(replica, evaluation.namespace, evaluation.job_id)
    )


def read_allocation_explanation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the explanation of the allocation, computed from the replica.

    Raises `Refusal` without access to its namespace.
    """
    alloc_id = parse_uuid(request.get_path_value("alloc_id"), error_prefix=ALLOCATION_ERROR_PREFIX)
    allocation, index, watched = find_record(replica, ALLOCATIONS, alloc_id, missing_text="alloc not found")
    if isinstance(allocation, MissingRecord):
        return ReadResult(allocation, index, watched)
    request.require_permission(namespace=allocation.namespace)
    allocation_ids = (allocation.previous_allocation, allocation.next_allocation)
    watched += [watch_key(ALLOCATIONS, each) for each in allocation_ids if each]
    watched += [watch_key(EVALUATIONS, each) for each in (allocation.eval_id, allocation.followup_eval_id) if each]
    watched.append(watch_key(NODES, allocation.node_id))
    index = max(replica.get_last_change(table) for table in (ALLOCATIONS, EVALUATIONS, NODES))
    return ReadResult(explain_allocation(replica, allocation.id), index, watched)


def _get_job_watch(replica: Replica, namespace: str, job_id: str) -> tuple[int, list[WatchTarget]]:
    """Return the index and the watch targets of an explanation of a job, which a blocking query waits for.

    The explanation depends on the job, its evaluations, allocations and deployments, and on all nodes.
    """
    key = namespace, job_id
    watched = [
        watch_key(JOBS, *key),
        watch_index(EVALUATIONS_OF_JOB, *key),
        watch_index(ALLOCATIONS_OF_JOB, *key),
        watch_index(DEPLOYMENTS_OF_JOB, *key),
        watch_table(NODES),
    ]
    return max(
        replica.get_last_change(table) for table in (JOBS, EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, NODES)
    ), watched


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "job.explain": read_job_explanation,
    "evaluation.explain": read_evaluation_explanation,
    "allocation.explain": read_allocation_explanation,
}
