"""`Idempotency-Key`: a write is made once, and whoever repeats it gets the first answer.

A write of this server's own goes into one batch with its answer. What the leader does is claimed first and remembered
after: should a server die in between, the effect is still never there twice, and the repeat is told so.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wharf.api.answers import Done, Packed, Streamed
from wharf.api.encoding import encode
from wharf.api.request import Request
from wharf.engines.port import Committed
from wharf.model.changes import Write
from wharf.model.cluster import IdempotencyKey
from wharf.model.refusal import Code, Refusal
from wharf.model.secret import Sealed
from wharf.operations import idempotency
from wharf.operations.idempotency import CLAIMED, Repeatable
from wharf.operations.keyring import about_answer
from wharf.server.rehearsal import INDEX, CannotRehearse, rehearsing
from wharf.server.server import Server
from wharf.wire.endpoints import Kind

HEADER: Final = b"idempotency-key"
JSON: Final = "application/json"
ATTEMPTS_MAX: Final = 5

Act = Callable[[Request], Awaitable[Done]]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """A reply as it is kept. The index may be `rehearsal.INDEX`: then it is that of the record's own batch."""

    status: int
    body: bytes
    content_type: str
    index: int


class Idempotency:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def act(self, request: Request, act: Act, *, method: str, target: str) -> Done:
        """As `act`, once for each key of a caller."""
        key = request.headers[HEADER].decode("latin-1").strip()
        idempotency.check_key(key)
        caller = request.caller
        scope = caller.accessor_id or (caller.claims.alloc_id if caller.claims else "")
        asked = Repeatable(scope, key, method, target, request.body)
        if request.endpoint.kind is Kind.ASK:
            return await self._claimed(request, act, asked)
        try:
            return await self._rehearsed(request, act, asked)
        except CannotRehearse:
            return await self._claimed(request, act, asked)

    async def _known(self, asked: Repeatable) -> Done | None:
        """The first answer, if there was one."""
        await self._server.writer.catch_up()
        kept = idempotency.remembered(self._server.replica, asked, now_ns=self._server.world.now_ns())
        return None if kept is None else self._opened(kept)

    # -- with the answer in the same batch -----------------------------------------------------------------------------

    async def _rehearsed(self, request: Request, act: Act, asked: Repeatable) -> Done:
        await self._begin_ring()
        for _ in range(ATTEMPTS_MAX):
            known = await self._known(asked)
            if known is not None:
                return known
            with rehearsing() as rehearsal:
                done = await act(request)
            if not rehearsal.has_decided:
                return done  # It writes nothing: parsing, planning.
            answer = _answer_of(done)
            if answer is None:
                raise CannotRehearse
            index = await self._commit(asked, answer, rehearsal.write, cause=request.id)
            if index is not None:
                return _done(answer, index)
        raise _contended()

    async def _commit(self, asked: Repeatable, answer: Answer, write: Write | None, *, cause: str) -> int | None:
        """The index of the batch; None: somebody was faster."""
        replica, now_ns = self._server.replica, self._server.world.now_ns()
        sealed = self._sealed(asked, answer)
        change, condition = idempotency.remember(replica, asked, status=answer.status, answer=sealed, now_ns=now_ns)
        outcome = await self._server.writer.commit(idempotency.beside(write, change, condition, cause=cause))
        if not isinstance(outcome, Committed):
            return None
        await self._server.writer.show(outcome.index)
        return outcome.index

    # -- claimed before, remembered after ------------------------------------------------------------------------------

    async def _claimed(self, request: Request, act: Act, asked: Repeatable) -> Done:
        await self._begin_ring()
        known = await self._known(asked)
        if known is not None:
            return known
        replica, writer, now_ns = self._server.replica, self._server.writer, self._server.world.now_ns()
        claim = idempotency.remember(replica, asked, status=CLAIMED, answer=None, now_ns=now_ns)
        if not isinstance(await writer.commit(idempotency.beside(None, *claim, cause=request.id)), Committed):
            raise _contended()
        await writer.catch_up()
        try:
            done = await act(request)
        except Refusal as refusal:
            if refusal.code is not Code.UNDECIDED:
                await writer.commit(idempotency.forget(replica, asked, cause=request.id))
            raise
        answer = _answer_of(done)
        if answer is not None:
            sealed = self._sealed(asked, answer)
            kept = idempotency.remember(replica, asked, status=answer.status, answer=sealed, now_ns=now_ns)
            await writer.commit(idempotency.beside(None, *kept, cause=request.id))
        return done

    # -- sealing -----------------------------------------------------------------------------------------------------

    async def _begin_ring(self) -> None:
        await self._server.access.begin_ring(self._server.replica, self._server.leader)

    def _sealed(self, asked: Repeatable, answer: Answer) -> Sealed:
        about = about_answer(asked.scope, asked.key)
        return self._server.access.keyring.seal(self._server.replica, msgspec.msgpack.encode(answer), about=about)

    def _opened(self, kept: IdempotencyKey) -> Done:
        sealed = Sealed(kept.answer_sealed, kept.sealed_with)
        about = about_answer(kept.scope, kept.key)
        plain = self._server.access.keyring.open(self._server.replica, sealed, about=about)
        done = _done(msgspec.msgpack.decode(plain, type=Answer), kept.create_index)
        # Before a restore of the log the caller may have been told more, and the index of a reply never falls.
        return msgspec.structs.replace(done, index=max(done.index, self._server.replica.epoch_since))


def _answer_of(done: Done) -> Answer | None:
    """None: what is streamed cannot be kept."""
    match done.body:
        case None:
            return Answer(done.status, b"", "", done.index)
        case Streamed():
            return None
        case Packed(data, content_type):
            return Answer(done.status, data, content_type, done.index)
        case value:
            return Answer(done.status, encode(value), JSON, done.index)


def _done(answer: Answer, index: int) -> Done:
    """The answer with the index in its place."""
    body = answer.body.replace(str(INDEX).encode(), str(index).encode())
    told = index if answer.index == INDEX else answer.index
    if not answer.content_type:
        return Done(None, told, answer.status)
    return Done(Packed(body, answer.content_type), told, answer.status)


def _contended() -> Refusal:
    return Refusal(Code.CONFLICT, "others wrote at the same time, again and again; ask again with the same key")
