"""Endpoints of evaluations: lists, counts, reads and deletion by the leader."""

from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.api.handlers.allocations.records import build_allocation_stub
from wharf.cluster.api.index_lists import MAX_RECORDS_TOGETHER, build_index_list, sort_in_slices
from wharf.cluster.api.lists.listing import Listing, list_by_creation
from wharf.cluster.api.lists.pages import ListPage
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    MissingRecord,
    ReadHandler,
    SlicedValue,
    find_record,
    get_creation_order,
    sort_by_creation,
)
from wharf.cluster.operations.evaluations import MAX_EVALUATION_IDS
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.evaluations import DELETE_EVALUATIONS, DeleteEvaluationsRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_EVALUATION,
    EVALUATIONS,
    LEADER,
)
from wharf.cluster.state.watches import watch_index, watch_key, watch_table
from wharf.contract.model.evaluations import Evaluation, make_evaluation_stub
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.evaluations import EvaluationCount, EvaluationDeleteRequest, EvaluationDeleteResponse
from wharf.languages.filters import Filter, FilterError, FilterSubject, compile_filter

PREFIX_ERROR_PREFIX: Final = "eval lookup failed: index error: "
LOOKUP_ERROR_PREFIX: Final = f"failed to lookup eval: {PREFIX_ERROR_PREFIX}"
FILTER_SUBJECT: Final = FilterSubject(Evaluation)
FILTER_ERROR_PREFIX: Final = "failed to read filter expression: "
EVALUATIONS_PER_CHECK: Final = 50
"""Evaluations whose links are followed before the CPU time is checked: about a tenth of a millisecond."""


def list_evaluations(replica: Replica, request: Request, options: QueryOptions) -> Listing[Evaluation]:
    """List evaluations in the order of their creation. The parameters `status` and `job` select some of them."""
    status, job_id = request.get_text("status"), request.get_text("job")

    def is_requested(evaluation: Evaluation) -> bool:
        return (not status or evaluation.status == status) and (not job_id or evaluation.job_id == job_id)

    is_visible = is_requested if status or job_id else None
    return list_by_creation(
        replica,
        EVALUATIONS,
        options,
        error_prefix=PREFIX_ERROR_PREFIX,
        is_visible=is_visible,
        cache_name="evaluation.list",
    )


def count_evaluations(replica: Replica, _request: Request, options: QueryOptions) -> Listing[Evaluation]:
    """Return the number of evaluations that a list with the same parameters would contain."""
    index, knows_leader = replica.get_last_change(EVALUATIONS), replica.get(LEADER) is not None

    async def build_count(evaluations: list[Evaluation], _work: SlicedWork) -> EvaluationCount:
        return EvaluationCount(count=len(evaluations), index=index, known_leader=knows_leader)

    return list_by_creation(replica, EVALUATIONS, options, error_prefix=PREFIX_ERROR_PREFIX, build_reply=build_count)


def read_evaluation(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the evaluation. With `related`, it contains stubs of all evaluations that are linked to it."""
    eval_id = parse_uuid(request.get_path_value("eval_id"), error_prefix=LOOKUP_ERROR_PREFIX)
    evaluation, index, watched = find_record(replica, EVALUATIONS, eval_id, missing_text="eval not found")
    if isinstance(evaluation, MissingRecord):
        return ReadResult(evaluation, index, watched)
    request.require_permission(namespace=evaluation.namespace)
    if request.get_text("related") != "true":
        return ReadResult(evaluation, index, watched)
    finder = _RelatedEvaluationFinder(replica, evaluation)
    finder.visit_next(MAX_RECORDS_TOGETHER)
    if not finder.is_complete:
        value = SlicedValue(partial(_build_large_view, evaluation, finder))
        return ReadResult(value, replica.get_last_change(EVALUATIONS), [*watched, watch_table(EVALUATIONS)])
    related = sort_by_creation(finder.found)
    view = replace(evaluation, related_evals=tuple(make_evaluation_stub(each) for each in related))
    index = max(index, *(each.modify_index for each in related), 0)
    return ReadResult(view, index, [*watched, *(watch_key(EVALUATIONS, each.id) for each in related)])


class _RelatedEvaluationFinder:
    """Finds the evaluations that are linked to one, directly or through others.

    The links are the ids of the next, the previous and the blocked evaluation.
    """

    def __init__(self, replica: Replica, evaluation: Evaluation) -> None:
        self._replica = replica
        self._visited_ids = {evaluation.id}
        self._unvisited = [evaluation]
        self.found: list[Evaluation] = []

    @property
    def is_complete(self) -> bool:
        return not self._unvisited

    def visit_next(self, max_count: int) -> None:
        """Follow the links of up to `max_count` further evaluations."""
        for _ in range(max_count):
            if not self._unvisited:
                return
            current = self._unvisited.pop()
            for eval_id in (current.next_eval, current.previous_eval, current.blocked_eval):
                is_new = eval_id and eval_id not in self._visited_ids
                linked = self._replica.get(EVALUATIONS, eval_id) if is_new else None
                if linked is not None:
                    self._visited_ids.add(eval_id)
                    self._unvisited.append(linked)
                    self.found.append(linked)


async def _build_large_view(evaluation: Evaluation, finder: _RelatedEvaluationFinder, work: SlicedWork) -> Evaluation:
    """Return the evaluation with stubs of many related ones. They are found and sorted in slices."""
    work.restart()
    while not finder.is_complete:
        finder.visit_next(EVALUATIONS_PER_CHECK)
        if work.is_slice_over():
            await work.pause()
    related = await sort_in_slices([(get_creation_order(each), each) for each in finder.found], work)
    stubs: Any = LazyList(lambda: map(make_evaluation_stub, related))
    return replace(evaluation, related_evals=stubs)


def list_evaluation_allocations(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """List the allocations that the evaluation placed, as far as the caller may read them."""
    eval_id = parse_uuid(request.get_path_value("eval_id"), error_prefix=LOOKUP_ERROR_PREFIX)
    evaluation = replica.get(EVALUATIONS, eval_id)
    if evaluation is not None:
        request.require_permission(namespace=evaluation.namespace)
    stubs = build_index_list(
        replica,
        ALLOCATIONS_OF_EVALUATION,
        eval_id,
        is_selected=None if evaluation is not None else request.build_namespace_test(),
        build_view=partial(build_allocation_stub, replica),
        is_view_small=True,
    )
    return ReadResult(stubs, replica.get_last_change(ALLOCATIONS), [watch_index(ALLOCATIONS_OF_EVALUATION, eval_id)])


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "evaluation.list": list_evaluations,
    "evaluation.count": count_evaluations,
    "evaluation.read": read_evaluation,
    "evaluation.allocations": list_evaluation_allocations,
}


class EvaluationActions:
    """Deletes evaluations. The leader decides which ones may be deleted."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def delete_evaluations(self, request: Request) -> ActionResult:
        """Delete the evaluations that the body names by ids or by a filter.

        Raises `Refusal` if it has both or neither.
        """
        body = request.decode_body(EvaluationDeleteRequest)
        if body.eval_ids and body.filter:
            raise invalid_request("evals cannot be deleted by both ID and filter")
        if body.eval_ids:
            if len(body.eval_ids) > MAX_EVALUATION_IDS:
                raise invalid_request(
                    f"request includes {len(body.eval_ids)} evaluation IDs, must be {MAX_EVALUATION_IDS} or fewer"
                )
            ids = tuple(parse_uuid(eval_id, error_prefix=LOOKUP_ERROR_PREFIX) for eval_id in body.eval_ids)
            deleted = await self._server.leader.call(
                DELETE_EVALUATIONS, DeleteEvaluationsRequest(ids, cause=request.id)
            )
            return _build_deletion_result(deleted.count, deleted.index)
        if not body.filter:
            raise invalid_request("evals must be deleted by either ID or filter")
        return await self._delete_by_filter(request, body.filter)

    async def _delete_by_filter(self, request: Request, expression: str) -> ActionResult:
        """Delete the evaluations of the requested namespace that the filter accepts, in batches.

        The leader is called even if there are none, because it refuses the request while the evaluation broker is not
        paused.
        """
        server, record_filter = self._server, _compile_deletion_filter(expression)
        await server.reader.catch_up()
        listing = list_by_creation(server.replica, EVALUATIONS, QueryOptions(namespace=request.namespace))
        page = ListPage(
            [] if listing.is_selected is None else [listing.is_selected],
            record_filter,
            SlicedWork(
                server.world, server.off_loop, server.read_limits.make_filter_budget(), request.caller.owner_key
            ),
            per_page=0,
            make_token=listing.make_token,
            error_prefix=FILTER_ERROR_PREFIX,
        )
        page.read_from(listing, "", is_reversed=False)
        await page.finish()
        ids = [each.id for each in page.records]
        count, index = 0, 0
        for start in range(0, max(1, len(ids)), MAX_EVALUATION_IDS):
            part = tuple(ids[start : start + MAX_EVALUATION_IDS])
            deletion = DeleteEvaluationsRequest(part, passes_over=True, cause=request.id)
            deleted = await self._server.leader.call(DELETE_EVALUATIONS, deletion)
            count, index = count + deleted.count, max(index, deleted.index)
        return _build_deletion_result(count, index)


def _build_deletion_result(count: int, index: int) -> ActionResult:
    return ActionResult(EvaluationDeleteResponse(count=count, index=index), index)


def _compile_deletion_filter(expression: str) -> Filter:
    """Return the compiled filter of a deletion. Raises `Refusal` if it is invalid."""
    try:
        return compile_filter(expression, FILTER_SUBJECT)
    except FilterError as error:
        raise invalid_request(f"{FILTER_ERROR_PREFIX}{error.text}") from error


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"evaluation.delete": EvaluationActions(server).delete_evaluations}
