"""Endpoints that tell why work is where it is, or nowhere: of a job, an evaluation, an allocation."""

from typing import Final

from wharf.api.answers import Act, Missing, Reading, Thinking, one
from wharf.api.ids import read_id
from wharf.api.request import ReadOptions, Request
from wharf.operations.explaining_work import explain_allocation
from wharf.server.answering.forethought import EXPLAIN_EVALUATION, EXPLAIN_JOB, EvaluationToExplain, JobToExplain
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOBS,
    NODES,
)
from wharf.state.watches import Watched


def job_explain(replica: Replica, request: Request, options: ReadOptions) -> Found:
    namespace, job_id = options.namespace, request.value("job_id")
    if replica.get(JOBS, namespace, job_id) is None:
        return Found(Missing("job not found"), replica.last_change(JOBS), [watch.one(JOBS, namespace, job_id)])
    asked = JobToExplain(index=replica.index, namespace=namespace, job_id=job_id)
    return Found(Thinking(EXPLAIN_JOB, asked), *_moves_with(replica, namespace, job_id))


def evaluation_explain(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    eval_id = read_id(request.value("eval_id"), where="failed to lookup eval: eval lookup failed: index error: ")
    found, index, watched = one(replica, EVALUATIONS, eval_id, missing="eval not found")
    if isinstance(found, Missing):
        return Found(found, index, watched)
    request.require(namespace=found.namespace)
    asked = EvaluationToExplain(index=replica.index, eval_id=found.id)
    return Found(Thinking(EXPLAIN_EVALUATION, asked), *_moves_with(replica, found.namespace, found.job_id))


def allocation_explain(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    alloc_id = read_id(request.value("alloc_id"), where="alloc lookup failed: index error: ")
    found, index, watched = one(replica, ALLOCATIONS, alloc_id, missing="alloc not found")
    if isinstance(found, Missing):
        return Found(found, index, watched)
    request.require(namespace=found.namespace)
    relatives = (found.previous_allocation, found.next_allocation)
    watched += [watch.one(ALLOCATIONS, each) for each in relatives if each]
    watched += [watch.one(EVALUATIONS, each) for each in (found.eval_id, found.followup_eval_id) if each]
    watched.append(watch.one(NODES, found.node_id))
    index = max(replica.last_change(table) for table in (ALLOCATIONS, EVALUATIONS, NODES))
    return Found(explain_allocation(replica, found.id), index, watched)


def _moves_with(replica: Replica, namespace: str, job_id: str) -> tuple[int, list[Watched]]:
    """With the job and with what belongs to it, and with every node: any of them may be what is waited for."""
    key = namespace, job_id
    watched = [
        watch.one(JOBS, *key),
        watch.those(EVALUATIONS_OF_JOB, *key),
        watch.those(ALLOCATIONS_OF_JOB, *key),
        watch.those(DEPLOYMENTS_OF_JOB, *key),
        watch.whole(NODES),
    ]
    return max(replica.last_change(table) for table in (JOBS, EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, NODES)), watched


READS: Final[dict[str, Reading]] = {
    "job.explain": job_explain,
    "evaluation.explain": evaluation_explain,
    "allocation.explain": allocation_explain,
}


def acts_of(_server: Server) -> dict[str, Act]:
    return {}
