"""`Idempotency-Key`: a write with a key is executed once; a repeated request gets the reply of the first one.

A write that this server commits itself is committed in one batch with its reply. For a write that the leader executes,
the key is claimed first and the reply stored afterwards: if a server fails in between, a repeated request is refused
instead of executed again. The stored records and their rules are in `wharf.cluster.operations.idempotency`.
"""

import hashlib
import re
from functools import partial
from typing import Final

import msgspec

from wharf.cluster.access import Caller, CallerKind
from wharf.cluster.api.off_loop import OffLoopExecutor
from wharf.cluster.api.replies.encoding import encode_body
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, StreamedBody
from wharf.cluster.engines.port import Committed
from wharf.cluster.operations import idempotency
from wharf.cluster.operations.idempotency import CLAIMED_STATUS, IdempotentRequest
from wharf.cluster.operations.keyring import make_response_context
from wharf.cluster.server.log.preview import PREVIEW_INDEX, CannotPreview, preview_write
from wharf.cluster.server.server import Server
from wharf.contract.model.acl.permissions import PublicAccess
from wharf.contract.model.body_limits import MAX_INLINE_BODY_BYTES
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import SealedData
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind

IDEMPOTENCY_HEADER: Final = b"idempotency-key"
JSON_CONTENT_TYPE: Final = "application/json"
PREVIEW_INDEX_BYTES: Final = b"%d" % PREVIEW_INDEX
JSON_TEXT_OR_PREVIEW_INDEX: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|%b' % PREVIEW_INDEX_BYTES)
"""A text of JSON, or the placeholder of the index as a number."""
MAX_ATTEMPTS: Final = 5
"""Limits retries when concurrent writes conflict with the commit."""


MAX_STORED_BODY_BYTES: Final = 131_072
"""Larger replies are not stored: a repeated request is refused. Limits the memory of every server. The largest reply of an
ordinary write is a variable of 64 KiB."""
NOT_STORED_STATUS: Final = 0
"""The status of a stored reply whose body was too large."""
MAX_TARGET_CHARS: Final = 1_000
"""The rest of a longer path and query is stored as a digest. Limits the memory of every server."""
ANONYMOUS_SCOPE: Final = "anonymous"


class StoredReply(msgspec.Struct, frozen=True, array_like=True):
    """The reply of an executed write, stored encrypted for repeated requests. The field order is the stored format."""

    status: int
    body: bytes
    content_type: str
    index: int
    """Log index of the write; `PREVIEW_INDEX` means the index of the batch that contains this reply."""


class IdempotentExecutor:
    """Executes actions whose request has an idempotency key."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def execute(
        self,
        request: Request,
        handler: ActionHandler,
        *,
        method: str,
        target: str,
        off_loop: OffLoopExecutor | None = None,
    ) -> ActionResult:
        """Run the handler, or return the stored reply if the same caller sent the same key before.

        `method` and `target` (path and query) are compared with those of the earlier request. `off_loop` executes the
        handler if the body is large. Raises `Refusal`.
        """
        key = request.headers[IDEMPOTENCY_HEADER].decode("latin-1").strip()
        idempotency.check_idempotency_key(key)
        digest = await self._compute_digest(request.body)
        path = shorten_target(target)
        scope = find_scope(request.caller, request.endpoint, f"{method} {path} {digest}")
        idempotent_request = IdempotentRequest(scope, key, method, path, digest)
        claimed_handler = handler
        if off_loop is not None:
            claimed_handler = partial(_run_off_loop, off_loop, handler)
        if request.endpoint.kind is EndpointKind.LEADER_WRITE:
            return await self._execute_claimed(request, claimed_handler, idempotent_request)
        try:
            if off_loop is not None:
                return await off_loop.run_action(
                    request, lambda: self._execute_previewed(request, handler, idempotent_request)
                )
            return await self._execute_previewed(request, handler, idempotent_request)
        except CannotPreview:
            return await self._execute_claimed(request, claimed_handler, idempotent_request)

    async def _compute_digest(self, body: bytes) -> str:
        """Return the SHA-256 of a body, in hexadecimal digits. Computed on a thread if the body is large."""
        if len(body) <= MAX_INLINE_BODY_BYTES:
            return hashlib.sha256(body).hexdigest()
        return await self._server.world.run_off_loop(lambda: hashlib.sha256(body).hexdigest())

    async def _find_stored_result(self, idempotent_request: IdempotentRequest) -> ActionResult | None:
        """Catch up with the log, and return the stored reply of an earlier request with this key, or `None`."""
        await self._server.writer.catch_up()
        record = idempotency.find_recorded_response(
            self._server.replica, idempotent_request, now_ns=self._server.world.now_ns()
        )
        return None if record is None else self._open_stored_reply(record)

    # -- reply committed with the write --------------------------------------------------------------------------------

    async def _execute_previewed(
        self, request: Request, handler: ActionHandler, idempotent_request: IdempotentRequest
    ) -> ActionResult:
        """Run the handler without committing its write, then commit the write in one batch with the reply.

        Repeats this after a conflict. Raises `CannotPreview` if the handler does more than one local write or streams
        its reply.
        """
        await self._ensure_active_key()
        for _ in range(MAX_ATTEMPTS):
            stored_result = await self._find_stored_result(idempotent_request)
            if stored_result is not None:
                return stored_result
            with preview_write() as preview:
                result = await handler(request)
            if not preview.has_decided:
                return result  # Nothing to commit, for example after parsing or planning.
            reply = _build_stored_reply(result)
            if reply is None:
                raise CannotPreview
            index = await self._commit(idempotent_request, reply, preview.write, cause=request.id)
            if index is not None:
                return _build_result(reply, index)
        raise _build_conflict()

    async def _commit(
        self, idempotent_request: IdempotentRequest, reply: StoredReply, write: Write | None, *, cause: str
    ) -> int | None:
        """Commit the write together with its encrypted reply.

        Return the index of the batch, or `None` if a concurrent write conflicts.
        """
        replica, now_ns = self._server.replica, self._server.world.now_ns()
        sealed = self._seal(idempotent_request, reply)
        record = idempotency.record_response(
            replica, idempotent_request, status=reply.status, response=sealed, now_ns=now_ns
        )
        outcome = await self._server.writer.commit(idempotency.attach_response_record(write, *record, cause=cause))
        if not isinstance(outcome, Committed):
            return None
        await self._server.writer.wait_until_visible(outcome.index)
        return outcome.index

    # -- key claimed before the write -----------------------------------------------------------------------------------

    async def _execute_claimed(
        self, request: Request, handler: ActionHandler, idempotent_request: IdempotentRequest
    ) -> ActionResult:
        """Record that the key is in use, run the handler, then store its reply.

        If the handler refuses and nothing was written, the key is released again. If this server fails in between, the
        key stays in use and repeated requests are refused.
        """
        await self._ensure_active_key()
        stored_result = await self._find_stored_result(idempotent_request)
        if stored_result is not None:
            return stored_result
        replica, writer, now_ns = self._server.replica, self._server.writer, self._server.world.now_ns()
        claim = idempotency.record_response(
            replica, idempotent_request, status=CLAIMED_STATUS, response=None, now_ns=now_ns
        )
        if not isinstance(
            await writer.commit(idempotency.attach_response_record(None, *claim, cause=request.id)), Committed
        ):
            raise _build_conflict()
        await writer.catch_up()
        try:
            result = await handler(request)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.OUTCOME_UNKNOWN:
                await writer.commit(idempotency.delete_claim(replica, idempotent_request, cause=request.id))
            raise
        reply = _build_stored_reply(result)
        if reply is not None:
            sealed = self._seal(idempotent_request, reply)
            record = idempotency.record_response(
                replica, idempotent_request, status=reply.status, response=sealed, now_ns=now_ns
            )
            await writer.commit(idempotency.attach_response_record(None, *record, cause=request.id))
        return result

    # -- sealing -----------------------------------------------------------------------------------------------------

    async def _ensure_active_key(self) -> None:
        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)

    def _seal(self, idempotent_request: IdempotentRequest, reply: StoredReply) -> SealedData:
        """Return the reply, encrypted with the active key of the keyring.

        Only a request with the same idempotency key and caller can decrypt it.
        """
        context = make_response_context(idempotent_request.scope, idempotent_request.key)
        if len(reply.body) > MAX_STORED_BODY_BYTES:
            reply = StoredReply(NOT_STORED_STATUS, b"", "", reply.index)
        return self._server.access.keyring.seal(self._server.replica, msgspec.msgpack.encode(reply), context=context)

    def _open_stored_reply(self, record: IdempotencyKey) -> ActionResult:
        """Return the decrypted reply of a stored record. Raises `Refusal` if the reply was too large to be stored."""
        sealed = SealedData(record.answer_sealed, record.sealed_with)
        context = make_response_context(record.scope, record.key)
        decoded = self._server.access.keyring.open(self._server.replica, sealed, context=context)
        reply = msgspec.msgpack.decode(decoded, type=StoredReply)
        if reply.status == NOT_STORED_STATUS:
            raise Refusal(
                RefusalCode.CONFLICT,
                f"the request with the Idempotency-Key {record.key!r} has taken effect by index {record.create_index}, "
                f"but its reply has more than {MAX_STORED_BODY_BYTES} bytes and was not stored; read what it changed",
            )
        result = _build_result(reply, record.create_index)
        # Before a restore the caller may have seen a higher index, and reply indexes must never decrease.
        return msgspec.structs.replace(result, index=max(result.index, self._server.replica.epoch_since))


def find_scope(caller: Caller, endpoint: Endpoint, request_text: str) -> str:
    """Return the scope of the caller's keys. Another caller with the same key has another scope.

    Callers without a valid token look alike, so only the same request finds their keys; the token is not checked for an
    endpoint that needs none. While access control is off, all callers have all rights and share one scope.
    """
    if caller.kind is CallerKind.UNCHECKED and not isinstance(endpoint.need, PublicAccess):
        return ""
    if not caller.is_refused:
        if caller.token is not None:
            return caller.accessor_id
        if caller.claims is not None:
            return f"{caller.claims.alloc_id}/{caller.claims.task}"
    return f"{ANONYMOUS_SCOPE} {hashlib.sha256(request_text.encode()).hexdigest()}"


def shorten_target(target: str) -> str:
    """Return path and query of a request, with a digest in place of the rest if they are long."""
    if len(target) <= MAX_TARGET_CHARS:
        return target
    return f"{target[:MAX_TARGET_CHARS]}… (SHA-256 {hashlib.sha256(target.encode()).hexdigest()})"


async def _run_off_loop(off_loop: OffLoopExecutor, handler: ActionHandler, request: Request) -> ActionResult:
    """Run the handler of a request with a large body in a worker."""
    return await off_loop.run_action(request, lambda: handler(request))


def _build_stored_reply(result: ActionResult) -> StoredReply | None:
    """Return the result of a handler in stored form, or `None` for a streamed body, which cannot be stored."""
    match result.body:
        case None:
            return StoredReply(result.status, b"", "", result.index)
        case StreamedBody():
            return None
        case EncodedBody(data, content_type, _):
            return StoredReply(result.status, data, content_type, result.index)
        case value:
            return StoredReply(result.status, b"".join(encode_body(value).chunks), JSON_CONTENT_TYPE, result.index)


def _build_result(reply: StoredReply, index: int) -> ActionResult:
    """Return a stored reply as a result, with `index` in place of the placeholder `PREVIEW_INDEX`."""
    body = reply.body
    if PREVIEW_INDEX_BYTES in body:
        body = JSON_TEXT_OR_PREVIEW_INDEX.sub(partial(_replace_preview_index, b"%d" % index), body)
    reply_index = index if reply.index == PREVIEW_INDEX else reply.index
    if not reply.content_type:
        return ActionResult(None, reply_index, reply.status)
    return ActionResult(EncodedBody(body, reply.content_type), reply_index, reply.status)


def _replace_preview_index(index: bytes, match: re.Match[bytes]) -> bytes:
    """Return the index for the placeholder, and a text as it is: what the caller sent may contain the placeholder."""
    return index if match[0] == PREVIEW_INDEX_BYTES else match[0]


def _build_conflict() -> Refusal:
    return Refusal(RefusalCode.CONFLICT, "concurrent writes conflicted repeatedly; retry with the same key")
