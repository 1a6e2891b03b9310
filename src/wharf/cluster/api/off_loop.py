"""Requests that a worker executes outside the event loop, with large bodies or long computations, and the form of their replies."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import msgspec

from wharf.cluster.api.node_callers import NODE_ENDPOINTS, has_node_secret
from wharf.cluster.api.replies.encoding import ReplyBody, encode_body
from wharf.cluster.api.replies.sender import HttpReply
from wharf.cluster.api.requests.parameters import is_pretty
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, EncodedBody, StreamedBody
from wharf.cluster.server.log.preview import CannotPreview
from wharf.cluster.server.request_worker import RequestWorker, WorkerLane
from wharf.cluster.server.server import Server
from wharf.contract.model.body_limits import MAX_INLINE_BODY_BYTES, is_large_body
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason

JSON_CONTENT_TYPE: Final = "application/json"


class OffLoopReply(msgspec.Struct, frozen=True):
    """The outcome of a request in a worker process: a reply, or the parts of a `Refusal` if `code` is set."""

    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: str = ""
    """Empty for a reply of an action without a body."""
    body: bytes = b""
    index: int = 0
    code: RefusalCode | None = None
    text: str = ""
    reason: RefusalReason = RefusalReason.UNSPECIFIED
    retry_after_s: float | None = None
    cannot_preview: bool = False
    """Whether the handler cannot be previewed for its idempotency key."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(OffLoopReply).decode


def needs_worker(request: Request) -> bool:
    """Return whether the body is so large that a worker must decode it.

    Bodies without a type are not decoded here. Endpoints with a small limit of their own always run in this process,
    because they wait for nodes or identity providers.
    """
    endpoint = request.endpoint
    if not request.body or endpoint.body_type is None or 0 < endpoint.max_body_bytes <= MAX_INLINE_BODY_BYTES:
        return False
    return is_large_body(request.body, endpoint.body_type.__name__)


class OffLoopExecutor:
    """Executes requests in a worker, and returns their results as if they had been executed here."""

    def __init__(self, server: Server, worker: RequestWorker) -> None:
        self._server = server
        self._worker = worker

    async def run_action(self, request: Request, execute: Callable[[], Awaitable[ActionResult]]) -> ActionResult:
        """Return the result of an action, with an encoded body. Raises `Refusal` or `CannotPreview`."""
        has_indent = is_pretty(request.query)

        async def compute() -> OffLoopReply:
            return _encode_result(await execute(), has_indent=has_indent)

        reply = await self._run(compute, *self._choose_lane(request))
        body = None
        if reply.content_type:
            body = EncodedBody(reply.body, reply.content_type, is_indented=has_indent)
        return ActionResult(body, reply.index, reply.status, reply.headers)

    async def run_read(self, request: Request, execute: Callable[[], Awaitable[HttpReply]]) -> HttpReply:
        """Return the reply of a read. Raises `Refusal`."""

        async def compute() -> OffLoopReply:
            reply = await execute()
            assert isinstance(reply.body, ReplyBody), "reads have no streamed replies"
            return OffLoopReply(reply.status, tuple(reply.headers), body=b"".join(reply.body.chunks))

        encoded = await self._run(compute, *self._choose_lane(request))
        return HttpReply(encoded.status, list(encoded.headers), ReplyBody((encoded.body,)))

    async def compute_body(self, request: Request, compute: Callable[[], object], *, has_indent: bool) -> ReplyBody:
        """Return the encoded value that `compute` returns on a copy of the state. Raises `Refusal`."""

        async def encode() -> OffLoopReply:
            return OffLoopReply(body=b"".join(encode_body(compute(), is_pretty=has_indent).chunks))

        reply = await self._run(encode, WorkerLane.EXPLANATION, request.owner)
        return ReplyBody((reply.body,))

    async def _run(
        self, compute: Callable[[], Awaitable[OffLoopReply]], lane: WorkerLane, owner: Hashable
    ) -> OffLoopReply:
        """Return what `compute` returns in a worker. Raises the `Refusal` or `CannotPreview` that it raises."""

        async def encode_outcome() -> bytes:
            try:
                return _encode(await compute())
            except Refusal as refusal:
                return _encode(
                    OffLoopReply(
                        code=refusal.code,
                        text=refusal.text,
                        reason=refusal.reason,
                        retry_after_s=refusal.retry_after_s,
                    )
                )
            except CannotPreview:
                return _encode(OffLoopReply(cannot_preview=True))

        reply = _decode(await self._worker.run(encode_outcome, lane=lane, owner=owner))
        if reply.code is not None:
            raise Refusal(reply.code, reply.text, reply.reason, reply.retry_after_s)
        if reply.cannot_preview:
            raise CannotPreview
        return reply

    def _choose_lane(self, request: Request) -> tuple[WorkerLane, Hashable]:
        """Return the lane of the request, which follows from what its sender has proved, and the owner of its place."""
        if request.endpoint.name not in NODE_ENDPOINTS:
            return WorkerLane.USER, request.caller.owner_key
        is_node = has_node_secret(self._server.replica, request)
        return WorkerLane.NODE if is_node else WorkerLane.NEW_NODE, request.get_path_value("node_id")


def _encode_result(result: ActionResult, *, has_indent: bool) -> OffLoopReply:
    """Return the result of an action with its body encoded as it is sent."""
    content_type, data = JSON_CONTENT_TYPE, b""
    match result.body:
        case None:
            content_type = ""
        case EncodedBody(data, content_type, _):
            if content_type == JSON_CONTENT_TYPE and has_indent:
                data = msgspec.json.format(data, indent=4) + b"\n"
        case StreamedBody():
            raise AssertionError("endpoints with large bodies have no streamed replies")
        case value:
            data = b"".join(encode_body(value, is_pretty=has_indent).chunks)
    return OffLoopReply(result.status, tuple(result.headers), content_type, data, result.index)
