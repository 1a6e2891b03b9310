"""`Idempotency-Key`: a write is made once, and whoever repeats it gets the first answer.

A write of this server's own goes into one batch with its answer. What the leader does is claimed first and remembered
after: should a server die in between, the effect is still never there twice, and the repeat is told so.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wharf.cluster.api.replies.encoding import encode_json
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, EncodedBody, StreamedBody
from wharf.cluster.engines.port import Committed
from wharf.cluster.operations import idempotency
from wharf.cluster.operations.idempotency import CLAIMED_STATUS, IdempotentRequest
from wharf.cluster.operations.keyring import make_response_context
from wharf.cluster.server.log.preview import PREVIEW_INDEX, CannotPreview, preview_write
from wharf.cluster.server.server import Server
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import SealedData
from wharf.contract.wire.endpoint_table import EndpointKind

IDEMPOTENCY_HEADER: Final = b"idempotency-key"
JSON_CONTENT_TYPE: Final = "application/json"
MAX_ATTEMPTS: Final = 5

ActionHandler = Callable[[Request], Awaitable[ActionResult]]


class StoredReply(msgspec.Struct, frozen=True, array_like=True):
    """A reply as it is kept. The index may be `rehearsal.INDEX`: then it is that of the record's own batch."""

    status: int
    body: bytes
    content_type: str
    index: int


class IdempotentExecutor:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def execute(self, request: Request, handler: ActionHandler, *, method: str, target: str) -> ActionResult:
        """As `act`, once for each key of a caller."""
        key = request.headers[IDEMPOTENCY_HEADER].decode("latin-1").strip()
        idempotency.check_idempotency_key(key)
        caller = request.caller
        scope = caller.accessor_id or (caller.claims.alloc_id if caller.claims else "")
        asked = IdempotentRequest(scope, key, method, target, request.body)
        if request.endpoint.kind is EndpointKind.LEADER_WRITE:
            return await self._claimed(request, handler, asked)
        try:
            return await self._rehearsed(request, handler, asked)
        except CannotPreview:
            return await self._claimed(request, handler, asked)

    async def _known(self, asked: IdempotentRequest) -> ActionResult | None:
        """The first answer, if there was one."""
        await self._server.writer.catch_up()
        kept = idempotency.find_recorded_response(self._server.replica, asked, now_ns=self._server.world.now_ns())
        return None if kept is None else self._opened(kept)

    # -- with the answer in the same batch -----------------------------------------------------------------------------

    async def _rehearsed(self, request: Request, act: ActionHandler, asked: IdempotentRequest) -> ActionResult:
        await self._begin_ring()
        for _ in range(MAX_ATTEMPTS):
            known = await self._known(asked)
            if known is not None:
                return known
            with preview_write() as rehearsal:
                done = await act(request)
            if not rehearsal.has_decided:
                return done  # It writes nothing: parsing, planning.
            answer = _answer_of(done)
            if answer is None:
                raise CannotPreview
            index = await self._commit(asked, answer, rehearsal.write, cause=request.id)
            if index is not None:
                return _done(answer, index)
        raise _contended()

    async def _commit(
        self, asked: IdempotentRequest, answer: StoredReply, write: Write | None, *, cause: str
    ) -> int | None:
        """The index of the batch; None: somebody was faster."""
        replica, now_ns = self._server.replica, self._server.world.now_ns()
        sealed = self._sealed(asked, answer)
        change, condition = idempotency.record_response(
            replica, asked, status=answer.status, response=sealed, now_ns=now_ns
        )
        outcome = await self._server.writer.commit(
            idempotency.attach_response_record(write, change, condition, cause=cause)
        )
        if not isinstance(outcome, Committed):
            return None
        await self._server.writer.wait_until_visible(outcome.index)
        return outcome.index

    # -- claimed before, remembered after ------------------------------------------------------------------------------

    async def _claimed(self, request: Request, act: ActionHandler, asked: IdempotentRequest) -> ActionResult:
        await self._begin_ring()
        known = await self._known(asked)
        if known is not None:
            return known
        replica, writer, now_ns = self._server.replica, self._server.writer, self._server.world.now_ns()
        claim = idempotency.record_response(replica, asked, status=CLAIMED_STATUS, response=None, now_ns=now_ns)
        if not isinstance(
            await writer.commit(idempotency.attach_response_record(None, *claim, cause=request.id)), Committed
        ):
            raise _contended()
        await writer.catch_up()
        try:
            done = await act(request)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.OUTCOME_UNKNOWN:
                await writer.commit(idempotency.delete_claim(replica, asked, cause=request.id))
            raise
        answer = _answer_of(done)
        if answer is not None:
            sealed = self._sealed(asked, answer)
            kept = idempotency.record_response(replica, asked, status=answer.status, response=sealed, now_ns=now_ns)
            await writer.commit(idempotency.attach_response_record(None, *kept, cause=request.id))
        return done

    # -- sealing -----------------------------------------------------------------------------------------------------

    async def _begin_ring(self) -> None:
        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)

    def _sealed(self, asked: IdempotentRequest, answer: StoredReply) -> SealedData:
        about = make_response_context(asked.scope, asked.key)
        return self._server.access.keyring.seal(self._server.replica, msgspec.msgpack.encode(answer), context=about)

    def _opened(self, kept: IdempotencyKey) -> ActionResult:
        sealed = SealedData(kept.answer_sealed, kept.sealed_with)
        about = make_response_context(kept.scope, kept.key)
        plain = self._server.access.keyring.open(self._server.replica, sealed, context=about)
        done = _done(msgspec.msgpack.decode(plain, type=StoredReply), kept.create_index)
        # Before a restore of the log the caller may have been told more, and the index of a reply never falls.
        return msgspec.structs.replace(done, index=max(done.index, self._server.replica.epoch_since))


def _answer_of(done: ActionResult) -> StoredReply | None:
    """None: what is streamed cannot be kept."""
    match done.body:
        case None:
            return StoredReply(done.status, b"", "", done.index)
        case StreamedBody():
            return None
        case EncodedBody(data, content_type):
            return StoredReply(done.status, data, content_type, done.index)
        case value:
            return StoredReply(done.status, encode_json(value), JSON_CONTENT_TYPE, done.index)


def _done(answer: StoredReply, index: int) -> ActionResult:
    """The answer with the index in its place."""
    body = answer.body.replace(str(PREVIEW_INDEX).encode(), str(index).encode())
    told = index if answer.index == PREVIEW_INDEX else answer.index
    if not answer.content_type:
        return ActionResult(None, told, answer.status)
    return ActionResult(EncodedBody(body, answer.content_type), told, answer.status)


def _contended() -> Refusal:
    return Refusal(RefusalCode.CONFLICT, "others wrote at the same time, again and again; ask again with the same key")
