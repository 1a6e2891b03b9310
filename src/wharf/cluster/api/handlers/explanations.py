"""Endpoints that explain why a job, an evaluation or an allocation has its current state, and the use of the cluster.

Explanations never use the scheduler process (0289). The use of the cluster is computed by it.
"""

import functools
from collections.abc import Callable
from typing import Final

from wharf.cluster.api.handlers.allocations.records import LOOKUP_ERROR_PREFIX as ALLOCATION_ERROR_PREFIX
from wharf.cluster.api.handlers.evaluations import LOOKUP_ERROR_PREFIX as EVALUATION_ERROR_PREFIX
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import (
    BrainQuery,
    MissingRecord,
    ReadHandler,
    SnapshotValue,
    find_record,
)
from wharf.cluster.operations.explanations.allocations import explain_allocation
from wharf.cluster.operations.explanations.evaluations import explain_evaluation
from wharf.cluster.operations.explanations.job_facts import SchedulerCacheFactory
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.dry_runs import REPORT_USAGE, ReportUsageRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOBS,
    NAMESPACES,
    NODES,
)
from wharf.cluster.state.watches import WatchTarget, watch_index, watch_key, watch_table
from wharf.contract.model.acl import permissions
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.usage import UsageOrder

DEFAULT_USAGE_ENTRIES: Final = 50
MAX_RECORDS_ON_LOOP: Final = 50
"""The most allocations, evaluations and tasks of a job that is explained on the event loop, which takes one or two milliseconds."""


class ExplanationReads:
    """Explains jobs and evaluations."""

    def __init__(self, server: Server) -> None:
        self._world = server.world

    def read_job_explanation(self, replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
        """Return the explanation of the job."""
        namespace, job_id = options.namespace, request.get_path_value("job_id")
        if replica.get(JOBS, namespace, job_id) is None:
            return ReadResult(
                MissingRecord("job not found"), replica.get_last_change(JOBS), [watch_key(JOBS, namespace, job_id)]
            )

        def explain() -> object:
            return explain_job(replica, namespace, job_id, _share_cache(replica), now_ns=self._world.now_ns())

        return ReadResult(
            _choose_place(replica, namespace, job_id, explain), *_get_job_watch(replica, namespace, job_id)
        )

    def read_evaluation_explanation(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        """Return the explanation of the evaluation and of its job.

        Raises `Refusal` if the caller may not read the namespace.
        """
        eval_id = parse_uuid(request.get_path_value("eval_id"), error_prefix=EVALUATION_ERROR_PREFIX)
        evaluation, index, watched = find_record(replica, EVALUATIONS, eval_id, missing_text="eval not found")
        if isinstance(evaluation, MissingRecord):
            return ReadResult(evaluation, index, watched)
        request.require_permission(namespace=evaluation.namespace)
        namespace, job_id = evaluation.namespace, evaluation.job_id

        def explain() -> object:
            return explain_evaluation(replica, eval_id, _share_cache(replica), now_ns=self._world.now_ns())

        return ReadResult(
            _choose_place(replica, namespace, job_id, explain), *_get_job_watch(replica, namespace, job_id)
        )


def _share_cache(replica: Replica) -> SchedulerCacheFactory:
    """Return a function that builds the scheduler's cache of nodes at its first call, and returns it at each one."""
    return functools.cache(lambda: SchedulerCache.from_snapshot(replica))


def _choose_place(replica: Replica, namespace: str, job_id: str, explain: Callable[[], object]) -> object:
    """Return the explanation if it takes little time now, or the value that computes it in a copy of this process."""
    return explain() if _is_explained_fast(replica, namespace, job_id) else SnapshotValue(explain)


def _is_explained_fast(replica: Replica, namespace: str, job_id: str) -> bool:
    """Return whether a job has few records and no open evaluation, so that no other job and no node is examined."""
    key = namespace, job_id
    job = replica.get(JOBS, *key)
    if job is None or sum(len(group.tasks or ()) for group in job.groups) > MAX_RECORDS_ON_LOOP:
        return False
    indexes = (ALLOCATIONS_OF_JOB, EVALUATIONS_OF_JOB)
    if any(replica.count_by_index(index, *key) > MAX_RECORDS_ON_LOOP for index in indexes):
        return False
    return all(evaluation.status.is_terminal for evaluation in replica.list_by_index(EVALUATIONS_OF_JOB, *key))


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


def read_usage(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return a `BrainQuery`: when the reply is encoded, it asks the scheduler process for the use of the cluster.

    The jobs are those that the caller may list. Raises `Refusal` for an unknown order.
    """
    order_text = request.get_text("order") or UsageOrder.CPU.value
    if order_text not in list(UsageOrder):
        known = ", ".join(UsageOrder)
        raise Refusal(RefusalCode.INVALID, f"unknown order: use one of {known}")
    visible: tuple[str, ...] | None = None
    if not request.caller.rights.is_management:
        names = (namespace.name for namespace in replica.iter_all(NAMESPACES))
        visible = tuple(name for name in names if request.has_permission(permissions.LIST_JOBS, namespace=name))
    query = ReportUsageRequest(
        index=replica.index,
        order=UsageOrder(order_text),
        limit=request.get_number("limit", default=DEFAULT_USAGE_ENTRIES),
        namespaces=visible,
        owner=request.owner,
    )
    tables = (ALLOCATIONS, EVALUATIONS, NODES)
    index = max(replica.get_last_change(table) for table in tables)
    return ReadResult(BrainQuery(REPORT_USAGE, query), index, [watch_table(table) for table in tables])


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
    "allocation.explain": read_allocation_explanation,
    "cluster.usage": read_usage,
}


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    reads = ExplanationReads(server)
    return {"job.explain": reads.read_job_explanation, "evaluation.explain": reads.read_evaluation_explanation}
