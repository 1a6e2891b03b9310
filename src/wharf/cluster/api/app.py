"""The HTTP API as an ASGI application: route, read, decide, encode; nothing between that is not needed.

Which class of endpoint an answer counts for. There are as many classes as the table has nouns and kinds, and no more.
"""

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from wharf.cluster.api.access_control import CallerAuthenticator, require_endpoint_access
from wharf.cluster.api.audit import AuditedWrite, WriteAuditPort
from wharf.cluster.api.connection import HttpConnection, take_connection
from wharf.cluster.api.handler_table import build_action_handlers
from wharf.cluster.api.handlers.allocations import exec
from wharf.cluster.api.handlers.nodes import channel
from wharf.cluster.api.idempotency import IDEMPOTENCY_HEADER, IdempotentExecutor
from wharf.cluster.api.reads import EncodedRead, ReadExecutor, build_query_key
from wharf.cluster.api.relay.authoritative import relay_to_authoritative_region, should_relay_write
from wharf.cluster.api.replies.cors import build_preflight_headers, list_cors_methods
from wharf.cluster.api.replies.encoding import EMPTY_REPLY_BODY, ReplyBody, encode_body
from wharf.cluster.api.replies.sender import (
    JSON_HEADER,
    Headers,
    HttpReply,
    ReplyContext,
    ReplySender,
    Send,
    build_refusal_reply,
    build_text_reply,
)
from wharf.cluster.api.requests.body import (
    PART_TIMEOUT_S,
    BodyTimeout,
    ClientDisconnected,
    Receive,
    iterate_body,
    read_body,
)
from wharf.cluster.api.requests.parameters import (
    BAD_ESCAPE_PATTERN,
    NO_PARAMETERS,
    ParameterValue,
    is_pretty,
    parse_endpoint_parameters,
    parse_query_strict,
)
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.targets import RequestTarget, RequestTargetCache
from wharf.cluster.api.results import EncodedBody, StreamedBody
from wharf.cluster.api.routing.router import Router
from wharf.cluster.api.routing.unrouted import UnroutedReply, build_redirect, build_unrouted_reply, clean_path
from wharf.cluster.api.websockets.handshake import reply_as_request
from wharf.cluster.api.websockets.sockets import CallerSocket, WebSocketHandlers
from wharf.cluster.server.metrics import RequestSeries
from wharf.cluster.server.server import Server
from wharf.contract.model.acl.permissions import PublicAccess
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind
from wharf.world.request_id import RequestIdScope

BLOCKED_READ_KIND = "blocked"
"""A read that named an index and may have waited: how long says nothing about us."""


def get_request_series(endpoint: Endpoint, status: int, *, is_blocking: bool) -> RequestSeries:
    kind = BLOCKED_READ_KIND if is_blocking else endpoint.kind.value
    known = _SERIES.get((endpoint.name, kind, status // 100))
    if known is None:
        known = RequestSeries(endpoint.name.partition(".")[0], kind, f"{status // 100}xx")
        _SERIES[endpoint.name, kind, status // 100] = known
    return known


_SERIES: dict[tuple[str, str, int], RequestSeries] = {}


log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_PATH_BYTES: Final = 16 * 1024
MAX_HEADERS: Final = 256
MAX_HEADER_BYTES: Final = 1024 * 1024
TOO_MANY_HEADERS_TEXT: Final = "431 Request Header Fields Too Large"
TOKEN_SAFE_CHARACTERS: Final = "".join(map(chr, range(33, 127))).replace("%", "")
"""What a token holds in a header as it is; the rest is escaped, since ids of jobs may hold anything."""
BODY_METHODS: Final = frozenset(("PUT", "POST", "DELETE"))


class Api:
    def __init__(
        self,
        server: Server,
        *,
        audit: WriteAuditPort | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        extra_headers: Mapping[str, str] | None = None,
        is_nomad_compatible: bool = False,
        authenticator: CallerAuthenticator | None = None,
    ) -> None:
        """Without a `gate` access control is off. The others: see `Replies`."""
        self._server = server
        self._body_max_bytes = max_body_bytes
        self._audit = audit
        self._router = Router(ENDPOINTS)
        self._gate = authenticator or CallerAuthenticator(server.world)
        self._acts = build_action_handlers(server)
        self._reads = ReadExecutor(server, self._gate)
        self._targets = RequestTargetCache()
        self._idempotency = IdempotentExecutor(server)
        self._replies = ReplySender(
            server.world, extra_headers=extra_headers or {}, is_nomad_compatible=is_nomad_compatible
        )
        self._closing = asyncio.Event()
        self._conversations: WebSocketHandlers = {
            **exec.build_websocket_handlers(server, self._with_caller_checked),
            **channel.build_websocket_handlers(server),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await self._converse(scope, receive, send)
            return
        connection = take_connection(scope)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        headers = self._replies.parse_headers(scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or _size(scope["headers"]) > MAX_HEADER_BYTES:
            reply, is_for_pages = build_text_reply(431, TOO_MANY_HEADERS_TEXT), False
        else:
            target = self._targets.get((scope["method"], raw_path, scope["query_string"]))
            if target is not None:
                request = self._request(target.endpoint, target.path_values, target.query, headers, target.parameters)
                with RequestIdScope(request.id):
                    reply = await self._answer(scope, receive, request, target, connection)
                is_for_pages = target.is_cors_allowed
            else:
                path = raw_path.partition(b"?")[0].decode("latin-1")
                reply = await self._reply(scope, path, headers, receive, connection)
                is_for_pages = bool(list_cors_methods(path))
        exchange = ReplyContext(headers, is_for_pages, receive, send, connection)
        await self._replies.send(reply, exchange)

    def close(self) -> None:
        """This server stops: streams end. Whoever waits in a blocking query is the reader's business."""
        self._closing.set()
        self._replies.close()

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        routed = self._router.find_route(raw_path.partition(b"?")[0].decode("latin-1"))
        endpoint = routed.methods.get("GET")
        conversation = self._conversations.get(endpoint.name) if endpoint is not None else None
        if endpoint is None or conversation is None:
            await reply_as_request(self, scope, receive, send)
            return
        socket = CallerSocket(scope, receive, send, self._closing)
        headers = self._replies.parse_headers(scope["headers"])
        try:
            query = parse_query_strict(scope["query_string"])
            parameters = parse_endpoint_parameters(endpoint, query, scope["query_string"])
            request = self._request(endpoint, routed.path_values, query, headers, parameters)
            with RequestIdScope(request.id):
                self._check_region(request)
                await conversation(request, socket)
        except Refusal as refusal:
            await socket.refuse(refusal)
        except Exception:  # The top of a conversation: whoever talks must hear something.
            log.exception("the conversation %s failed", scope["path"])
            await socket.refuse(Refusal(RefusalCode.OUTCOME_UNKNOWN, "an error of our own; the log tells of it"))

    async def _with_caller_checked(self, request: Request) -> Request:
        request = await self._with_caller(request)
        self._check(request)
        return request

    # -- where to ----------------------------------------------------------------------------------------------------

    async def _reply(
        self, scope: Scope, path: str, headers: dict[bytes, bytes], receive: Receive, connection: HttpConnection | None
    ) -> HttpReply:
        method = scope["method"]
        if BAD_ESCAPE_PATTERN.search(path.encode("latin-1")):
            return build_text_reply(400, "400 Bad Request")
        if len(path) > MAX_PATH_BYTES:
            return build_text_reply(414, f"the path is longer than {MAX_PATH_BYTES} bytes")
        clean = clean_path(path)
        if clean != path:
            return _as_reply(build_redirect(clean, method), scope)
        routed = self._router.find_route(path)
        if not routed.methods:
            return _as_reply(build_unrouted_reply(path, routed, method), scope)
        endpoint = routed.methods.get(method)
        if endpoint is None:
            if method == "OPTIONS" and (open_methods := list_cors_methods(path)):
                return HttpReply(204, build_preflight_headers(headers, open_methods))
            return build_text_reply(405, "Invalid method")
        try:
            query = parse_query_strict(scope["query_string"])
        except Refusal as refusal:
            return build_refusal_reply(refusal)
        request = self._request(endpoint, routed.path_values, query, headers)
        with RequestIdScope(request.id):
            return await self._answer(scope, receive, request, None, connection)

    def _request(
        self,
        endpoint: Endpoint,
        values: dict[str, str],
        query: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
    ) -> Request:
        given = headers.get(b"x-request-id")
        request_id = (given.decode("latin-1")[:64] if given else "") or self._server.world.new_id()
        return Request(request_id, endpoint, values, query, headers, parameters=parameters)

    def _target_of(self, scope: Scope, request: Request) -> RequestTarget:
        """What is asked for, kept for the next who asks for it. Raises Refusal where something is wrong with it."""
        options = self._reads.parse_options(request)
        self._check_region(request)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        target = RequestTarget(
            endpoint=request.endpoint,
            path_values=request.path_values,
            query=request.query,
            parameters=request.parameters,
            options=options,
            query_key=build_query_key(request),
            is_pretty=is_pretty(request.query),
            is_cors_allowed=bool(list_cors_methods(raw_path.decode("latin-1"))),
        )
        if scope["method"] == "GET":
            self._targets.put((scope["method"], raw_path, scope["query_string"]), target)
        return target

    # -- what is said ------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        request: Request,
        target: RequestTarget | None,
        connection: HttpConnection | None,
    ) -> HttpReply:
        """`target` where it is known already what is asked for."""
        error = ""
        began_s = self._server.meter.now_s()
        try:
            if target is None:
                request = await self._complete(scope, receive, request)
            if request.endpoint.unsupported_reason:
                raise Refusal(RefusalCode.NOT_IMPLEMENTED, request.endpoint.unsupported_reason)
            if request.endpoint.kind is EndpointKind.READ:
                target = target or self._target_of(scope, request)
                reply = self._read_reply(await self._reads.execute(request, target, receive, connection))
            else:
                self._check_region(request)
                request = await self._with_caller(request)
                self._check(request)  # Apart from that: also of one who is refused, the audit log tells who it was.
                reply = await self._act(scope, request)
        except Refusal as refusal:
            error = refusal.text
            reply = build_refusal_reply(refusal)
        except ClientDisconnected:
            return build_text_reply(400, "the request ended before its body")
        except BodyTimeout:
            return build_text_reply(408, f"the next part of the body did not come within {PART_TIMEOUT_S:g} s")
        except Exception:  # The top of a request: whoever asks must hear something.
            log.exception("request %s %s %s failed", request.id, scope["method"], scope["path"])
            error = f"an error of our own; the log tells of it under {request.id}"
            reply = build_text_reply(500, error)
        series = get_request_series(request.endpoint, reply.status, is_blocking="index" in request.query)
        self._server.meter.record_request(series, began_s=began_s)
        self._tell_audit(scope, request, reply, error)
        return reply

    async def _complete(self, scope: Scope, receive: Receive, request: Request) -> Request:
        """The request with its parameters and its body."""
        endpoint = request.endpoint
        parameters = parse_endpoint_parameters(endpoint, request.query, scope["query_string"])
        if parameters:
            request = msgspec.structs.replace(request, parameters=parameters)
        if endpoint.has_streamed_body:
            return msgspec.structs.replace(request, body_parts=iterate_body(receive))
        if scope["method"] in BODY_METHODS:
            body = await read_body(receive, request.headers, self._body_max_bytes)
            request = msgspec.structs.replace(request, body=body)
        return request

    def _check_region(self, request: Request) -> None:
        """What is of another region was passed on before it came here."""
        if request.query.get("region", "") not in ("", self._server.identity.region):
            raise not_found("No path to region")

    def _read_reply(self, answered: EncodedRead) -> HttpReply:
        reader = self._server.reader
        headers = [
            (b"x-cluster-index", b"%d" % max(1, answered.index)),
            (b"x-cluster-knownleader", b"true" if reader.has_leader() else b"false"),
            (b"x-cluster-lastcontact", b"%d" % (reader.last_contact_ms() or 0)),
        ]
        if answered.refusal is not None:
            return build_refusal_reply(answered.refusal, *headers)
        if answered.next_token:
            headers.append((b"x-cluster-nexttoken", quote(answered.next_token, safe=TOKEN_SAFE_CHARACTERS).encode()))
        return HttpReply(200, [JSON_HEADER, *headers], answered.body or EMPTY_REPLY_BODY)

    async def _act(self, scope: Scope, request: Request) -> HttpReply:
        act = self._acts[request.endpoint.name]
        if should_relay_write(self._server, request):
            done = await relay_to_authoritative_region(self._server, request, method=scope["method"])
        elif IDEMPOTENCY_HEADER in request.headers and request.endpoint.kind in (
            EndpointKind.WRITE,
            EndpointKind.LEADER_WRITE,
        ):
            query = scope["query_string"].decode("latin-1")
            target = f"{scope['path']}?{query}" if query else scope["path"]
            done = await self._idempotency.execute(request, act, method=scope["method"], target=target)
        else:
            done = await act(request)
        headers: Headers = [(b"x-cluster-index", str(done.index).encode())] if done.index else []
        match done.body:
            case None:
                return HttpReply(done.status, headers)
            case EncodedBody(data, content_type):
                if content_type == "application/json" and is_pretty(request.query):
                    data = msgspec.json.format(data, indent=4) + b"\n"
                return HttpReply(done.status, [(b"content-type", content_type.encode()), *headers], ReplyBody((data,)))
            case StreamedBody():
                return HttpReply(done.status, headers, done.body)
            case value:
                return HttpReply(
                    done.status, [JSON_HEADER, *headers], encode_body(value, is_pretty=is_pretty(request.query))
                )

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def _with_caller(self, request: Request) -> Request:
        """The request with its caller. What was done elsewhere just now is known after a barrier: a write waits for one, so
        that a token that was deleted writes nothing any more; the others only where they would be refused.
        """
        endpoint = request.endpoint
        if not self._gate.is_enabled or isinstance(endpoint.need, PublicAccess):
            return request
        if endpoint.kind is not EndpointKind.LOCAL:
            await self._server.reader.catch_up()
        known = self._known(request)
        try:
            self._check(known)
        except Refusal:
            await self._server.reader.catch_up()
            return self._known(request)
        return known

    def _known(self, request: Request) -> Request:
        caller = self._gate.authenticate(self._server.replica, request.endpoint, request.headers)
        return msgspec.structs.replace(request, caller=caller)

    def _check(self, request: Request) -> None:
        require_endpoint_access(
            request.caller, request.endpoint, namespace=request.namespace, path_values=request.path_values
        )

    def _tell_audit(self, scope: Scope, request: Request, reply: HttpReply, error: str) -> None:
        endpoint = request.endpoint
        if self._audit is None or not (
            endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) or endpoint.is_audited
        ):
            return
        written = AuditedWrite(
            request_id=request.id,
            endpoint=request.endpoint.name,
            path=scope["path"],
            source=(scope.get("client") or ("", 0))[0],
            status=reply.status,
            index=next((int(value) for name, value in reply.headers if name == b"x-cluster-index"), 0),
            method=scope["method"],
            error=error,
            namespace=request.namespace,
            accessor_id=request.caller.accessor_id,
            token_name=request.caller.token.name if request.caller.token is not None else "",
        )
        try:
            self._audit.record(written)
        except OSError:
            log.exception("request %s is missing in the audit log", request.id)


def _size(headers: Any) -> int:
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    return size


def _as_reply(astray: UnroutedReply, scope: Scope) -> HttpReply:
    headers: Headers = [(b"content-type", astray.content_type.encode())] if astray.content_type else []
    if astray.location:
        query = scope["query_string"]
        headers.append((b"location", astray.location.encode("latin-1") + (b"?" + query if query else b"")))
    return HttpReply(astray.status, headers, ReplyBody((astray.body,)))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
