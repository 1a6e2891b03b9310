"""Endpoints of evaluations."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from wharf.api.answers import Act, Done, Missing, Reading, by_creation, one
from wharf.api.endpoints.allocations import allocation_stub
from wharf.api.ids import read_id
from wharf.api.listing import EVERY_NAMESPACE, Listing, by_creation_or_prefix
from wharf.api.request import ReadOptions, Request
from wharf.filters import FilterError, NotReadable, Subject, compile_filter
from wharf.model.evaluation import Evaluation, stub
from wharf.model.refusal import invalid
from wharf.operations.evaluation_deletion import IDS_MAX
from wharf.server.answering.evaluations import DELETE_EVALUATIONS, EvaluationsToDelete
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_EVALUATION, EVALUATIONS, LEADER
from wharf.wire.work_shapes import EvaluationCount, EvaluationDeleteRequest, EvaluationDeleteResponse

PREFIX_FAILED: Final = "eval lookup failed: index error: "
LOOKUP_FAILED: Final = f"failed to lookup eval: {PREFIX_FAILED}"
SUBJECT: Final = Subject(Evaluation)
LOOKED_AT_ONCE: Final = 500
"""Evaluations looked at in one step: with a filter, one or two milliseconds."""


def evaluation_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Evaluation]:
    status, job_id = request.text("status"), request.text("job")

    def may_see(evaluation: Evaluation) -> bool:
        return (not status or evaluation.status == status) and (not job_id or evaluation.job_id == job_id)

    chosen = may_see if status or job_id else None
    return by_creation_or_prefix(
        replica, EVALUATIONS, options, where=PREFIX_FAILED, may_see=chosen, form="evaluation.list"
    )


def evaluation_count(replica: Replica, _request: Request, options: ReadOptions) -> Listing[Evaluation]:
    index, knows_leader = replica.last_change(EVALUATIONS), replica.get(LEADER) is not None

    def told(counted: list[Evaluation]) -> EvaluationCount:
        return EvaluationCount(count=len(counted), index=index, known_leader=knows_leader)

    return by_creation_or_prefix(replica, EVALUATIONS, options, where=PREFIX_FAILED, told=told)


def evaluation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    eval_id = read_id(request.value("eval_id"), where=LOOKUP_FAILED)
    found, index, watched = one(replica, EVALUATIONS, eval_id, missing="eval not found")
    if isinstance(found, Missing):
        return Found(found, index, watched)
    request.require(namespace=found.namespace)
    if request.text("related") != "true":
        return Found(found, index, watched)
    relatives = related_to(replica, found)
    told = replace(found, related_evals=tuple(stub(each) for each in relatives))
    index = max(index, *(each.modify_index for each in relatives), 0)
    return Found(told, index, [*watched, *(watch.one(EVALUATIONS, each.id) for each in relatives)])


def related_to(replica: Replica, evaluation: Evaluation) -> list[Evaluation]:
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
    return by_creation(known.values())


def evaluation_allocations(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    eval_id = read_id(request.value("eval_id"), where=LOOKUP_FAILED)
    evaluation = replica.get(EVALUATIONS, eval_id)
    if evaluation is not None:
        request.require(namespace=evaluation.namespace)
    placed = by_creation(replica.those(ALLOCATIONS_OF_EVALUATION, eval_id))
    seen = [each for each in placed if evaluation is not None or request.may(namespace=each.namespace)]
    stubs = [allocation_stub(replica, allocation) for allocation in seen]
    return Found(stubs, replica.last_change(ALLOCATIONS), [watch.those(ALLOCATIONS_OF_EVALUATION, eval_id)])


READS: Final[dict[str, Reading]] = {
    "evaluation.list": evaluation_list,
    "evaluation.count": evaluation_count,
    "evaluation.read": evaluation_read,
    "evaluation.allocations": evaluation_allocations,
}


class EvaluationActs:
    """What is asked of the leader."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def delete(self, request: Request) -> Done:
        asked = request.read_body(EvaluationDeleteRequest)
        if asked.eval_ids and asked.filter:
            raise invalid("evals cannot be deleted by both ID and filter")
        if asked.eval_ids:
            if len(asked.eval_ids) > IDS_MAX:
                raise invalid(f"request includes {len(asked.eval_ids)} evaluation IDs, must be {IDS_MAX} or fewer")
            ids = tuple(read_id(eval_id, where=LOOKUP_FAILED) for eval_id in asked.eval_ids)
            deleted = await self._server.leader.ask(DELETE_EVALUATIONS, EvaluationsToDelete(ids, cause=request.id))
            return _deleted(deleted.count, deleted.index)
        if not asked.filter:
            raise invalid("evals must be deleted by either ID or filter")
        return await self._delete_by_filter(request, asked.filter)

    async def _delete_by_filter(self, request: Request, expression: str) -> Done:
        accepts = _accepts(expression)
        await self._server.reader.catch_up()
        # Asked of the leader even where nothing matches: a broker that is not paused is told first.
        ids: list[str] = []
        for some in _in_steps(self._server.replica):
            ids += [
                each.id for each in some if request.namespace in (EVERY_NAMESPACE, each.namespace) and accepts(each)
            ]
            await asyncio.sleep(0)
        count, index = 0, 0
        for start in range(0, max(1, len(ids)), IDS_MAX):
            part = tuple(ids[start : start + IDS_MAX])
            wanted = EvaluationsToDelete(part, passes_over=True, cause=request.id)
            deleted = await self._server.leader.ask(DELETE_EVALUATIONS, wanted)
            count, index = count + deleted.count, max(index, deleted.index)
        return _deleted(count, index)


def _deleted(count: int, index: int) -> Done:
    return Done(EvaluationDeleteResponse(count=count, index=index), index)


def _accepts(expression: str) -> Callable[[Evaluation], bool]:
    if not expression:
        return lambda _evaluation: True
    try:
        accepts = compile_filter(expression, SUBJECT).accepts
    except FilterError as error:
        raise invalid(f"failed to read filter expression: {error.text}") from error

    def accepted(evaluation: Evaluation) -> bool:
        try:
            return accepts(evaluation)
        except NotReadable as error:
            raise invalid(f"failed to read filter expression: {error.text}") from error

    return accepted


def _in_steps(replica: Replica) -> Iterator[list[Evaluation]]:
    """All evaluations, some at a time. Others may write in between: none that stands all the while is missed."""
    place: tuple[int, str] | None = None
    while True:
        some = list(islice(replica.by_creation(EVALUATIONS, start=place), LOOKED_AT_ONCE + 1))
        yield some[:LOOKED_AT_ONCE]
        if len(some) <= LOOKED_AT_ONCE:
            return
        place = (some[-1].create_index, some[-1].id)


def acts_of(server: Server) -> dict[str, Act]:
    acts = EvaluationActs(server)
    return {"evaluation.delete": acts.delete}
