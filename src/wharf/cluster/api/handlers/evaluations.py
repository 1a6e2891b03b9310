"""Endpoints of evaluations.

Endpoints that tell why work is where it is, or nowhere: of a job, an evaluation, an allocation.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, list_by_creation
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    BrainQuery,
    MissingRecord,
    ReadHandler,
    find_record,
    sort_by_creation,
)
from wharf.cluster.operations.evaluations import MAX_EVALUATION_IDS
from wharf.cluster.operations.explanations.allocations import explain_allocation
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.dry_runs import (
    EXPLAIN_EVALUATION,
    EXPLAIN_JOB,
    ExplainEvaluationRequest,
    ExplainJobRequest,
)
from wharf.cluster.server.rpc.handlers.evaluations import DELETE_EVALUATIONS, DeleteEvaluationsRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_EVALUATION,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOBS,
    LEADER,
    NODES,
)
from wharf.cluster.state.watches import WatchTarget
from wharf.contract.model.evaluations import Evaluation, make_evaluation_stub
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.evaluations import EvaluationCount, EvaluationDeleteRequest, EvaluationDeleteResponse
from wharf.languages.filters import FilterError, FilterEvaluationError, FilterSubject, compile_filter

PREFIX_ERROR_PREFIX: Final = "eval lookup failed: index error: "
LOOKUP_ERROR_PREFIX: Final = f"failed to lookup eval: {PREFIX_ERROR_PREFIX}"
FILTER_SUBJECT: Final = FilterSubject(Evaluation)
EVALUATIONS_PER_STEP: Final = 500
"""Evaluations looked at in one step: with a filter, one or two milliseconds."""


def list_evaluations(replica: Replica, request: Request, options: QueryOptions) -> Listing[Evaluation]:
    status, job_id = request.get_text("status"), request.get_text("job")

    def may_see(evaluation: Evaluation) -> bool:
        return (not status or evaluation.status == status) and (not job_id or evaluation.job_id == job_id)

    chosen = may_see if status or job_id else None
    return list_by_creation(
        replica, EVALUATIONS, options, error_prefix=PREFIX_ERROR_PREFIX, is_visible=chosen, cache_name="evaluation.list"
    )


def count_evaluations(replica: Replica, _request: Request, options: QueryOptions) -> Listing[Evaluation]:
    index, knows_leader = replica.get_last_change(EVALUATIONS), replica.get(LEADER) is not None

    def told(counted: list[Evaluation]) -> EvaluationCount:
        return EvaluationCount(count=len(counted), index=index, known_leader=knows_leader)

    return list_by_creation(replica, EVALUATIONS, options, error_prefix=PREFIX_ERROR_PREFIX, build_reply=told)


def read_evaluation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    eval_id = parse_uuid(request.get_path_value("eval_id"), error_prefix=LOOKUP_ERROR_PREFIX)
    found, index, watched = find_record(replica, EVALUATIONS, eval_id, missing_text="eval not found")
    if isinstance(found, MissingRecord):
        return ReadResult(found, index, watched)
    request.require_permission(namespace=found.namespace)
    if request.get_text("related") != "true":
        return ReadResult(found, index, watched)
    relatives = find_related_evaluations(replica, found)
    told = replace(found, related_evals=tuple(make_evaluation_stub(each) for each in relatives))
    index = max(index, *(each.modify_index for each in relatives), 0)
    return ReadResult(told, index, [*watched, *(watch.watch_key(EVALUATIONS, each.id) for each in relatives)])


def find_related_evaluations(replica: Replica, evaluation: Evaluation) -> list[Evaluation]:
    """All that stand in one chain with it, in order of creation: each names those before and after it."""
    known = {evaluation.id: evaluation}
    to_follow = [evaluation]
    while to_follow:
        each = to_follow.pop()
        for eval_id in (each.next_eval, each.previous_eval, each.blocked_eval):
            relative = replica.get(EVALUATIONS, eval_id) if eval_id and eval_id not in known else None
            if relative is not None:
                known[eval_id] = relative
                to_follow.append(relative)
    del known[evaluation.id]
    return sort_by_creation(known.values())


def list_evaluation_allocations(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    eval_id = parse_uuid(request.get_path_value("eval_id"), error_prefix=LOOKUP_ERROR_PREFIX)
    evaluation = replica.get(EVALUATIONS, eval_id)
    if evaluation is not None:
        request.require_permission(namespace=evaluation.namespace)
    placed = sort_by_creation(replica.list_by_index(ALLOCATIONS_OF_EVALUATION, eval_id))
    seen = [each for each in placed if evaluation is not None or request.has_permission(namespace=each.namespace)]
    stubs = [build_allocation_stub(replica, allocation) for allocation in seen]
    return ReadResult(
        stubs, replica.get_last_change(ALLOCATIONS), [watch.watch_index(ALLOCATIONS_OF_EVALUATION, eval_id)]
    )


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "evaluation.list": list_evaluations,
    "evaluation.count": count_evaluations,
    "evaluation.read": read_evaluation,
    "evaluation.allocations": list_evaluation_allocations,
}


class EvaluationActions:
    """What is asked of the leader."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def delete_evaluations(self, request: Request) -> ActionResult:
        asked = request.decode_body(EvaluationDeleteRequest)
        if asked.eval_ids and asked.filter:
            raise invalid_request("evals cannot be deleted by both ID and filter")
        if asked.eval_ids:
            if len(asked.eval_ids) > MAX_EVALUATION_IDS:
                raise invalid_request(
                    f"request includes {len(asked.eval_ids)} evaluation IDs, must be {MAX_EVALUATION_IDS} or fewer"
                )
            ids = tuple(parse_uuid(eval_id, error_prefix=LOOKUP_ERROR_PREFIX) for eval_id in asked.eval_ids)
            deleted = await self._server.leader.call(
                DELETE_EVALUATIONS, DeleteEvaluationsRequest(ids, cause=request.id)
            )
            return _deleted(deleted.count, deleted.index)
        if not asked.filter:
            raise invalid_request("evals must be deleted by either ID or filter")
        return await self._delete_by_filter(request, asked.filter)

    async def _delete_by_filter(self, request: Request, expression: str) -> ActionResult:
        accepts = _accepts(expression)
        await self._server.reader.catch_up()
        # Asked of the leader even where nothing matches: a broker that is not paused is told first.
        ids: list[str] = []
        for some in _in_steps(self._server.replica):
            ids += [each.id for each in some if request.namespace in (ALL_NAMESPACES, each.namespace) and accepts(each)]
            await asyncio.sleep(0)
        count, index = 0, 0
        for start in range(0, max(1, len(ids)), MAX_EVALUATION_IDS):
            part = tuple(ids[start : start + MAX_EVALUATION_IDS])
            wanted = DeleteEvaluationsRequest(part, passes_over=True, cause=request.id)
            deleted = await self._server.leader.call(DELETE_EVALUATIONS, wanted)
            count, index = count + deleted.count, max(index, deleted.index)
        return _deleted(count, index)


def _deleted(count: int, index: int) -> ActionResult:
    return ActionResult(EvaluationDeleteResponse(count=count, index=index), index)


def _accepts(expression: str) -> Callable[[Evaluation], bool]:
    if not expression:
        return lambda _evaluation: True
    try:
        accepts = compile_filter(expression, FILTER_SUBJECT).accepts
    except FilterError as error:
        raise invalid_request(f"failed to read filter expression: {error.text}") from error

    def accepted(evaluation: Evaluation) -> bool:
        try:
            return accepts(evaluation)
        except FilterEvaluationError as error:
            raise invalid_request(f"failed to read filter expression: {error.text}") from error

    return accepted


def _in_steps(replica: Replica) -> Iterator[list[Evaluation]]:
    """All evaluations, some at a time. Others may write in between: none that stands all the while is missed."""
    place: tuple[int, str] | None = None
    while True:
        some = list(islice(replica.iter_by_creation(EVALUATIONS, start=place), EVALUATIONS_PER_STEP + 1))
        yield some[:EVALUATIONS_PER_STEP]
        if len(some) <= EVALUATIONS_PER_STEP:
            return
        place = (some[-1].create_index, some[-1].id)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    acts = EvaluationActions(server)
    return {"evaluation.delete": acts.delete_evaluations}


def read_job_explanation(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    namespace, job_id = options.namespace, request.get_path_value("job_id")
    if replica.get(JOBS, namespace, job_id) is None:
        return ReadResult(
            MissingRecord("job not found"), replica.get_last_change(JOBS), [watch.watch_key(JOBS, namespace, job_id)]
        )
    asked = ExplainJobRequest(index=replica.index, namespace=namespace, job_id=job_id)
    return ReadResult(BrainQuery(EXPLAIN_JOB, asked), *_moves_with(replica, namespace, job_id))


def read_evaluation_explanation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    eval_id = parse_uuid(
        request.get_path_value("eval_id"), error_prefix="failed to lookup eval: eval lookup failed: index error: "
    )
    found, index, watched = find_record(replica, EVALUATIONS, eval_id, missing_text="eval not found")
    if isinstance(found, MissingRecord):
        return ReadResult(found, index, watched)
    request.require_permission(namespace=found.namespace)
    asked = ExplainEvaluationRequest(index=replica.index, eval_id=found.id)
    return ReadResult(BrainQuery(EXPLAIN_EVALUATION, asked), *_moves_with(replica, found.namespace, found.job_id))


def read_allocation_explanation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    alloc_id = parse_uuid(request.get_path_value("alloc_id"), error_prefix="alloc lookup failed: index error: ")
    found, index, watched = find_record(replica, ALLOCATIONS, alloc_id, missing_text="alloc not found")
    if isinstance(found, MissingRecord):
        return ReadResult(found, index, watched)
    request.require_permission(namespace=found.namespace)
    relatives = (found.previous_allocation, found.next_allocation)
    watched += [watch.watch_key(ALLOCATIONS, each) for each in relatives if each]
    watched += [watch.watch_key(EVALUATIONS, each) for each in (found.eval_id, found.followup_eval_id) if each]
    watched.append(watch.watch_key(NODES, found.node_id))
    index = max(replica.get_last_change(table) for table in (ALLOCATIONS, EVALUATIONS, NODES))
    return ReadResult(explain_allocation(replica, found.id), index, watched)


def _moves_with(replica: Replica, namespace: str, job_id: str) -> tuple[int, list[WatchTarget]]:
    """With the job and with what belongs to it, and with every node: any of them may be what is waited for."""
    key = namespace, job_id
    watched = [
        watch.watch_key(JOBS, *key),
        watch.watch_index(EVALUATIONS_OF_JOB, *key),
        watch.watch_index(ALLOCATIONS_OF_JOB, *key),
        watch.watch_index(DEPLOYMENTS_OF_JOB, *key),
        watch.watch_table(NODES),
    ]
    return max(
        replica.get_last_change(table) for table in (JOBS, EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, NODES)
    ), watched


EXPLANATION_READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "job.explain": read_job_explanation,
    "evaluation.explain": read_evaluation_explanation,
    "allocation.explain": read_allocation_explanation,
}


def build_explanation_action_handlers(_server: Server) -> dict[str, ActionHandler]:
    return {}
