"""The HTTP API as an ASGI application: routes requests, checks access, runs handlers and sends their replies.

Reads are executed by `reads`, request metrics are recorded here. Handlers are in `handlers`.
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
"""The metrics kind of a read with an `index`: its duration includes waiting, so it must not count as latency."""


def get_request_series(endpoint: Endpoint, status: int, *, is_blocking: bool) -> RequestSeries:
    """Return the metrics series of a reply, by endpoint noun, kind and status class."""
    kind = BLOCKED_READ_KIND if is_blocking else endpoint.kind.value
    series = _SERIES.get((endpoint.name, kind, status // 100))
    if series is None:
        series = RequestSeries(endpoint.name.partition(".")[0], kind, f"{status // 100}xx")
        _SERIES[endpoint.name, kind, status // 100] = series
    return series


_SERIES: dict[tuple[str, str, int], RequestSeries] = {}
"""Series by endpoint name, kind and first digit of the status. Bounded by the endpoint table."""


log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Default limit of a request body; protects the memory of the process."""
MAX_PATH_BYTES: Final = 16 * 1024
MAX_HEADERS: Final = 256
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Limits the total size of header names and values."""
TOO_MANY_HEADERS_TEXT: Final = "431 Request Header Fields Too Large"
TOKEN_SAFE_CHARACTERS: Final = "".join(map(chr, range(33, 127))).replace("%", "")
"""Characters of a page token that its header holds unescaped. Job ids in tokens may contain any character."""
BODY_METHODS: Final = frozenset(("PUT", "POST", "DELETE"))


class Api:
    """The ASGI application of the HTTP API."""

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
        """Create the application. Without an `authenticator` access control is off.

        `extra_headers` are added to every reply; for `is_nomad_compatible` see `ReplySender`.
        """
        self._server = server
        self._max_body_bytes = max_body_bytes
        self._audit = audit
        self._router = Router(ENDPOINTS)
        self._authenticator = authenticator or CallerAuthenticator(server.world)
        self._action_handlers = build_action_handlers(server)
        self._reads = ReadExecutor(server, self._authenticator)
        self._targets = RequestTargetCache()
        self._idempotency = IdempotentExecutor(server)
        self._replies = ReplySender(
            server.world, extra_headers=extra_headers or {}, is_nomad_compatible=is_nomad_compatible
        )
        self._closing = asyncio.Event()
        self._websocket_handlers: WebSocketHandlers = {
            **exec.build_websocket_handlers(server, self._add_checked_caller),
            **channel.build_websocket_handlers(server),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await self._handle_websocket(scope, receive, send)
            return
        connection = take_connection(scope)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        headers = self._replies.parse_headers(scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or _count_header_bytes(scope["headers"]) > MAX_HEADER_BYTES:
            reply, is_cors_allowed = build_text_reply(431, TOO_MANY_HEADERS_TEXT), False
        else:
            target = self._targets.get((scope["method"], raw_path, scope["query_string"]))
            if target is not None:
                request = self._build_request(
                    target.endpoint, target.path_values, target.query, headers, target.parameters
                )
                with RequestIdScope(request.id):
                    reply = await self._answer(scope, receive, request, target, connection)
                is_cors_allowed = target.is_cors_allowed
            else:
                path = raw_path.partition(b"?")[0].decode("latin-1")
                reply = await self._reply_uncached(scope, path, headers, receive, connection)
                is_cors_allowed = bool(list_cors_methods(path))
        context = ReplyContext(headers, is_cors_allowed, receive, send, connection)
        await self._replies.send(reply, context)

    def close(self) -> None:
        """End streams and websockets because this server stops. Blocking queries are ended by the log reader."""
        self._closing.set()
        self._replies.close()

    async def _handle_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the websocket handler of the path, or reject the handshake as the plain request would be."""
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        match = self._router.find_route(raw_path.partition(b"?")[0].decode("latin-1"))
        endpoint = match.methods.get("GET")
        handler = self._websocket_handlers.get(endpoint.name) if endpoint is not None else None
        if endpoint is None or handler is None:
            await reply_as_request(self, scope, receive, send)
            return
        socket = CallerSocket(scope, receive, send, self._closing)
        headers = self._replies.parse_headers(scope["headers"])
        try:
            query = parse_query_strict(scope["query_string"])
            parameters = parse_endpoint_parameters(endpoint, query, scope["query_string"])
            request = self._build_request(endpoint, match.path_values, query, headers, parameters)
            with RequestIdScope(request.id):
                self._check_region(request)
                await handler(request, socket)
        except Refusal as refusal:
            await socket.refuse(refusal)
        except Exception:  # Last resort: the caller must get an error, not a silent disconnect.
            log.exception("websocket handler failed path=%s", scope["path"])
            await socket.refuse(Refusal(RefusalCode.OUTCOME_UNKNOWN, "internal error: the server log has the details"))

    async def _add_checked_caller(self, request: Request) -> Request:
        """Return the request with its caller. Raises `Refusal` if the caller may not use the endpoint."""
        request = await self._add_caller(request)
        self._check_access(request)
        return request

    # -- routing -----------------------------------------------------------------------------------------------------

    async def _reply_uncached(
        self, scope: Scope, path: str, headers: dict[bytes, bytes], receive: Receive, connection: HttpConnection | None
    ) -> HttpReply:
        """Route and answer a request that is not in the target cache."""
        method = scope["method"]
        if BAD_ESCAPE_PATTERN.search(path.encode("latin-1")):
            return build_text_reply(400, "400 Bad Request")
        if len(path) > MAX_PATH_BYTES:
            return build_text_reply(414, f"the path is longer than {MAX_PATH_BYTES} bytes")
        clean = clean_path(path)
        if clean != path:
            return _build_unrouted_http_reply(build_redirect(clean, method), scope)
        match = self._router.find_route(path)
        if not match.methods:
            return _build_unrouted_http_reply(build_unrouted_reply(path, match, method), scope)
        endpoint = match.methods.get(method)
        if endpoint is None:
            if method == "OPTIONS" and (open_methods := list_cors_methods(path)):
                return HttpReply(204, build_preflight_headers(headers, open_methods))
            return build_text_reply(405, "Invalid method")
        try:
            query = parse_query_strict(scope["query_string"])
        except Refusal as refusal:
            return build_refusal_reply(refusal)
        request = self._build_request(endpoint, match.path_values, query, headers)
        with RequestIdScope(request.id):
            return await self._answer(scope, receive, request, None, connection)

    def _build_request(
        self,
        endpoint: Endpoint,
        values: dict[str, str],
        query: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
    ) -> Request:
        """Return the request; its id is that of the `X-Request-Id` header (up to 64 characters), else a new one."""
        id_header = headers.get(b"x-request-id")
        request_id = (id_header.decode("latin-1")[:64] if id_header else "") or self._server.world.new_id()
        return Request(request_id, endpoint, values, query, headers, parameters=parameters)

    def _parse_target(self, scope: Scope, request: Request) -> RequestTarget:
        """Return the parsed target of a read. Targets of GET requests are cached. Raises `Refusal` if it is invalid."""
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

    # -- execution --------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        request: Request,
        target: RequestTarget | None,
        connection: HttpConnection | None,
    ) -> HttpReply:
        """Execute the request, count and audit it, and return its reply. `target` is set if it came from the cache."""
        error = ""
        began_s = self._server.meter.now_s()
        try:
            if target is None:
                request = await self._read_parameters_and_body(scope, receive, request)
            if request.endpoint.unsupported_reason:
                raise Refusal(RefusalCode.NOT_IMPLEMENTED, request.endpoint.unsupported_reason)
            if request.endpoint.kind is EndpointKind.READ:
                target = target or self._parse_target(scope, request)
                reply = self._build_read_reply(await self._reads.execute(request, target, receive, connection))
            else:
                self._check_region(request)
                request = await self._add_caller(request)
                self._check_access(
                    request
                )  # A separate step, so that the audit record of a refused request names its caller.
                reply = await self._execute_action(scope, request)
        except Refusal as refusal:
            error = refusal.text
            reply = build_refusal_reply(refusal)
        except ClientDisconnected:
            return build_text_reply(400, "the request ended before its body")
        except BodyTimeout:
            return build_text_reply(408, f"the next part of the body did not arrive within {PART_TIMEOUT_S:g} s")
        except Exception:  # Last resort: the caller must get a reply.
            log.exception("request failed id=%s method=%s path=%s", request.id, scope["method"], scope["path"])
            error = f"internal error: see request {request.id} in the server log"
            reply = build_text_reply(500, error)
        series = get_request_series(request.endpoint, reply.status, is_blocking="index" in request.query)
        self._server.meter.record_request(series, began_s=began_s)
        self._record_audit(scope, request, reply, error)
        return reply

    async def _read_parameters_and_body(self, scope: Scope, receive: Receive, request: Request) -> Request:
        """Return the request with its parameters and its body. A streamed body is read later, by the handler."""
        endpoint = request.endpoint
        parameters = parse_endpoint_parameters(endpoint, request.query, scope["query_string"])
        if parameters:
            request = msgspec.structs.replace(request, parameters=parameters)
        if endpoint.has_streamed_body:
            return msgspec.structs.replace(request, body_parts=iterate_body(receive))
        if scope["method"] in BODY_METHODS:
            body = await read_body(receive, request.headers, self._max_body_bytes)
            request = msgspec.structs.replace(request, body=body)
        return request

    def _check_region(self, request: Request) -> None:
        """Raise a not-found `Refusal` if the request names another region.

        Requests for reachable regions were relayed before they reach the application.
        """
        if request.query.get("region", "") not in ("", self._server.identity.region):
            raise not_found("No path to region")

    def _build_read_reply(self, encoded: EncodedRead) -> HttpReply:
        """Return the reply of a read with its index, leader and page headers."""
        reader = self._server.reader
        headers = [
            (b"x-cluster-index", b"%d" % max(1, encoded.index)),
            (b"x-cluster-knownleader", b"true" if reader.has_leader() else b"false"),
            (b"x-cluster-lastcontact", b"%d" % (reader.last_contact_ms() or 0)),
        ]
        if encoded.refusal is not None:
            return build_refusal_reply(encoded.refusal, *headers)
        if encoded.next_token:
            headers.append((b"x-cluster-nexttoken", quote(encoded.next_token, safe=TOKEN_SAFE_CHARACTERS).encode()))
        return HttpReply(200, [JSON_HEADER, *headers], encoded.body or EMPTY_REPLY_BODY)

    async def _execute_action(self, scope: Scope, request: Request) -> HttpReply:
        """Run the action here or in the authoritative region, honoring an idempotency key, and build its reply."""
        handler = self._action_handlers[request.endpoint.name]
        if should_relay_write(self._server, request):
            result = await relay_to_authoritative_region(self._server, request, method=scope["method"])
        elif IDEMPOTENCY_HEADER in request.headers and request.endpoint.kind in (
            EndpointKind.WRITE,
            EndpointKind.LEADER_WRITE,
        ):
            query = scope["query_string"].decode("latin-1")
            target = f"{scope['path']}?{query}" if query else scope["path"]
            result = await self._idempotency.execute(request, handler, method=scope["method"], target=target)
        else:
            result = await handler(request)
        headers: Headers = [(b"x-cluster-index", str(result.index).encode())] if result.index else []
        match result.body:
            case None:
                return HttpReply(result.status, headers)
            case EncodedBody(data, content_type):
                if content_type == "application/json" and is_pretty(request.query):
                    data = msgspec.json.format(data, indent=4) + b"\n"
                return HttpReply(
                    result.status, [(b"content-type", content_type.encode()), *headers], ReplyBody((data,))
                )
            case StreamedBody():
                return HttpReply(result.status, headers, result.body)
            case value:
                return HttpReply(
                    result.status, [JSON_HEADER, *headers], encode_body(value, is_pretty=is_pretty(request.query))
                )

    # -- authorization -----------------------------------------------------------------------------------------------

    async def _add_caller(self, request: Request) -> Request:
        """Return the request with its caller.

        Writes first catch up with the log, so that a deleted token can write nothing. Other actions catch up only if
        they would be refused, because the token may have been created on another server just now.
        """
        endpoint = request.endpoint
        if not self._authenticator.is_enabled or isinstance(endpoint.need, PublicAccess):
            return request
        if endpoint.kind is not EndpointKind.LOCAL:
            await self._server.reader.catch_up()
        request_with_caller = self._authenticate(request)
        try:
            self._check_access(request_with_caller)
        except Refusal:
            await self._server.reader.catch_up()
            return self._authenticate(request)
        return request_with_caller

    def _authenticate(self, request: Request) -> Request:
        caller = self._authenticator.authenticate(self._server.replica, request.endpoint, request.headers)
        return msgspec.structs.replace(request, caller=caller)

    def _check_access(self, request: Request) -> None:
        """Raise a `Refusal` unless the request's caller may use the endpoint."""
        require_endpoint_access(
            request.caller, request.endpoint, namespace=request.namespace, path_values=request.path_values
        )

    def _record_audit(self, scope: Scope, request: Request, reply: HttpReply, error: str) -> None:
        """Write an audit record if the endpoint is audited. A failure is logged and does not fail the request."""
        endpoint = request.endpoint
        if self._audit is None or not (
            endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) or endpoint.is_audited
        ):
            return
        audited_write = AuditedWrite(
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
            self._audit.record(audited_write)
        except OSError:
            log.exception("audit record not written request=%s", request.id)


def _count_header_bytes(headers: Any) -> int:
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    return size


def _build_unrouted_http_reply(unrouted: UnroutedReply, scope: Scope) -> HttpReply:
    """Convert an unrouted reply; a redirect keeps the request's query."""
    headers: Headers = [(b"content-type", unrouted.content_type.encode())] if unrouted.content_type else []
    if unrouted.location:
        query = scope["query_string"]
        headers.append((b"location", unrouted.location.encode("latin-1") + (b"?" + query if query else b"")))
    return HttpReply(unrouted.status, headers, ReplyBody((unrouted.body,)))


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    """Answer the messages of the ASGI lifespan protocol."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
