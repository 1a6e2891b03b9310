"""The HTTP API as an ASGI application: limits of requests, routing, metrics and audit.

Endpoints are executed by `reads`, `actions` and `websockets.dispatcher`. Their handlers are in `handlers`.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from wharf.cluster.access import UNCHECKED_CALLER
from wharf.cluster.api.access_control import CallerAuthenticator, RequestAuthorizer
from wharf.cluster.api.actions import WRITE_KINDS, ActionExecutor
from wharf.cluster.api.admission import PACED_ENDPOINTS, UNTIMED_ENDPOINTS, AdmissionController, QueryPass
from wharf.cluster.api.asgi import Receive, Scope, Send
from wharf.cluster.api.audit import AuditPort, AuditWriter, build_audit_record, hide_secrets
from wharf.cluster.api.caller_slots import CallerSlots
from wharf.cluster.api.connection import HttpConnection, take_connection
from wharf.cluster.api.continued_access import AccessWatcher
from wharf.cluster.api.handlers.acl.logins import LOGIN_ENDPOINTS
from wharf.cluster.api.held_memory import HeldMemory
from wharf.cluster.api.node_callers import NODE_ENDPOINTS, require_node_rights
from wharf.cluster.api.off_loop import OffLoopExecutor
from wharf.cluster.api.pacing import REQUESTS_PER_ITERATION
from wharf.cluster.api.reads import ReadExecutor
from wharf.cluster.api.relay.region_slots import RegionSlots
from wharf.cluster.api.replies.cors import build_preflight_headers, list_cors_methods
from wharf.cluster.api.replies.sender import (
    HttpReply,
    ReplyContext,
    ReplySender,
    build_refusal_reply,
    build_text_reply,
)
from wharf.cluster.api.requests.body import (
    PART_TIMEOUT_S,
    BodyLimit,
    BodyTimeout,
    ClientDisconnected,
    decompress_body,
    get_content_encoding,
    iterate_body,
    read_body,
    wait_for_disconnect,
)
from wharf.cluster.api.requests.parameters import (
    BAD_ESCAPE_PATTERN,
    check_filter_is_supported,
    parse_endpoint_parameters,
    parse_query_strict,
)
from wharf.cluster.api.requests.request import Request, create_request
from wharf.cluster.api.requests.targets import RequestTarget, RequestTargetCache
from wharf.cluster.api.results import StreamedBody
from wharf.cluster.api.routing.router import get_api_router
from wharf.cluster.api.routing.unrouted import build_redirect, build_unrouted_reply, clean_path
from wharf.cluster.api.websockets.dispatcher import WebSocketDispatcher
from wharf.cluster.server.log.writer import NOTHING_WRITTEN_TEXT
from wharf.cluster.server.loop_slots import LoopSlots, TimedLoopSlots, leave_slots
from wharf.cluster.server.metrics import RequestSeries
from wharf.cluster.server.request_worker import InlineRequestWorker, RequestWorker
from wharf.cluster.server.server import Server
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.message_texts import format_message
from wharf.contract.model.refusal import NO_LEADER_TEXT, Overloaded, Refusal, RefusalCode, RefusalReason, no_leader
from wharf.contract.wire.credentials import read_credentials
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind
from wharf.contract.wire.errors import STATUS_BY_CODE
from wharf.world.request_id import RequestIdScope

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Default limit of a request body; protects the memory of the process."""
MAX_PATH_BYTES: Final = 16 * 1024
"""Limits the work of routing a path."""
MAX_HEADERS: Final = 256
"""Limits the work of parsing headers."""
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Limits the total size of header names and values."""
TOO_MANY_HEADERS_TEXT: Final = "431 Request Header Fields Too Large"
MAX_BODY_SETTING: Final = "`api.max_body_size` on this server"
BODY_METHODS: Final = frozenset(("PUT", "POST", "DELETE"))
MAX_STREAMS: Final = 4_096
"""Streamed replies, such as followed logs and events, that an api process sends at a time. Protects its memory and open files."""
MAX_STREAMS_PER_CALLER: Final = 512
"""The part of them for one token, or for the tasks of one allocation. While access control is off, only `MAX_STREAMS` applies."""
STREAM_ENDPOINTS: Final = frozenset(endpoint.name for endpoint in ENDPOINTS if endpoint.has_endless_reply) | {
    *("client.fs_cat", "client.fs_read_at", "client.snapshot", "operator.save_snapshot")
}
"""Endpoints whose replies may last as long as their callers want."""
ROUTINE_ENDPOINTS: Final = frozenset(("node.heartbeat", "node.fetch", "node.report"))
"""Requests that every node repeats all the time. They are audited only if they are refused."""
COMMAND_ENDPOINTS: Final = frozenset(("client.exec", "job.action"))
"""Endpoints that run commands in tasks, over websockets. Their handlers write the audit records of commands."""
FORBIDDEN_STATUS: Final = STATUS_BY_CODE[RefusalCode.FORBIDDEN]
BLOCKED_READ_KIND: Final = "blocked"
"""The metrics kind of a read with an `index`: its duration includes waiting, so it must not count as latency."""


class Api:
    """The ASGI application of the HTTP API."""

    def __init__(
        self,
        server: Server,
        *,
        audit: AuditPort | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        extra_headers: Mapping[str, str] | None = None,
        is_nomad_compatible: bool = False,
        authenticator: CallerAuthenticator | None = None,
        admission: AdmissionController | None = None,
        worker: RequestWorker | None = None,
    ) -> None:
        """Create the application. Without an `authenticator` access control is off.

        Without an `admission`, the default limits of requests in flight apply. Without a `worker`, requests with large
        bodies are executed in this process.

        `extra_headers` are added to every reply; for `is_nomad_compatible` see `ReplySender`.
        """
        self._server = server
        self._max_body_bytes = max_body_bytes
        self._audit = AuditWriter(server.world, audit)
        self._router = get_api_router()
        authenticator = authenticator or CallerAuthenticator(server.world)
        self._admission = admission or AdmissionController(server)
        self._streams = CallerSlots(
            MAX_STREAMS,
            MAX_STREAMS_PER_CALLER,
            process_full_text=f"this server process sends {MAX_STREAMS} streams",
            caller_full_text=f"this token reads through this server process {MAX_STREAMS_PER_CALLER} streams",
        )
        self._node_slots = LoopSlots(REQUESTS_PER_ITERATION)
        self._timed_slots = TimedLoopSlots(server.world.cpu_s)
        self._authorizer = RequestAuthorizer(server, authenticator)
        off_loop = OffLoopExecutor(server, worker or InlineRequestWorker())
        self.region_slots = RegionSlots(server, is_nomad_compatible=is_nomad_compatible)
        """Counts the requests to other regions, also those that are relayed before they reach this application."""
        self.actions = ActionExecutor(server, off_loop, self.region_slots)
        self.reads = ReadExecutor(
            server, authenticator, off_loop, node_requests=self._node_slots, is_nomad_compatible=is_nomad_compatible
        )
        self._targets = RequestTargetCache()
        self._replies = ReplySender(
            server.world,
            server.off_loop.loop_slots,
            extra_headers=extra_headers or {},
            is_nomad_compatible=is_nomad_compatible,
        )
        self._access = AccessWatcher(server, self._authorizer)
        self._websockets = WebSocketDispatcher(
            server, self._router, self._replies, self._authorizer, self._access, self._audit
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event of the ASGI server."""
        if scope["type"] == "lifespan":
            await _handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await self._websockets.dispatch(scope, receive, send)
            return
        connection = take_connection(scope)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        headers = self._replies.parse_headers(scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or _count_header_bytes(scope["headers"]) > MAX_HEADER_BYTES:
            reply, is_cors_allowed = build_text_reply(431, TOO_MANY_HEADERS_TEXT), False
        elif (refusal := self._add_credentials(headers, scope)) is not None:
            reply, is_cors_allowed = build_refusal_reply(refusal), False
        else:
            target = self._targets.get((scope["method"], raw_path, scope["query_string"]))
            if target is not None:
                request = create_request(
                    self._server.world, target.endpoint, target.path_values, target.query, headers, target.parameters
                )
                with RequestIdScope(request.id):
                    reply = await self._execute(scope, receive, request, target, connection)
                is_cors_allowed = target.is_cors_allowed
            else:
                path = raw_path.partition(b"?")[0].decode("latin-1")
                reply = await self._reply_uncached(scope, path, headers, receive, connection)
                is_cors_allowed = bool(list_cors_methods(path))
        context = ReplyContext(headers, is_cors_allowed, receive, send, connection)
        await self._replies.send(reply, context)

    def _add_credentials(self, headers: dict[bytes, bytes], scope: Scope) -> Refusal | None:
        """Add the credentials of the request to its headers. Return a refusal if the headers contradict each other."""
        try:
            headers |= read_credentials(scope["headers"], is_nomad_compatible=self._replies.is_nomad_compatible)
        except Refusal as refusal:
            return refusal
        return None

    def close(self) -> None:
        """End streams and websockets because this server stops. Blocking queries are ended by the log reader."""
        self._websockets.close()
        self._replies.close()

    # -- routing -----------------------------------------------------------------------------------------------------

    async def _reply_uncached(
        self, scope: Scope, path: str, headers: dict[bytes, bytes], receive: Receive, connection: HttpConnection | None
    ) -> HttpReply:
        """Route a request whose target is not in the cache, execute it and return its reply.

        Requests without an endpoint get a redirect, a CORS preflight reply or an error.
        """
        method = scope["method"]
        if BAD_ESCAPE_PATTERN.search(path.encode("latin-1")):
            return build_text_reply(400, "400 Bad Request")
        if len(path) > MAX_PATH_BYTES:
            return build_text_reply(414, f"the path is longer than {MAX_PATH_BYTES} bytes")
        clean = clean_path(path)
        if clean != path:
            return build_redirect(clean, method, scope["query_string"])
        match = self._router.find_route(path)
        if not match.methods:
            return build_unrouted_reply(path, match, method, scope["query_string"])
        endpoint = match.methods.get(method)
        if endpoint is None:
            if method == "OPTIONS" and (open_methods := list_cors_methods(path)):
                return HttpReply(204, build_preflight_headers(headers, open_methods))
            allowed = ", ".join(sorted(match.methods))
            return build_text_reply(
                405,
                f"Invalid method: {cut_echo(method)} is not possible here; use {allowed}",
                (b"allow", allowed.encode()),
            )
        try:
            query = parse_query_strict(scope["query_string"], endpoint)
            if not self._replies.is_nomad_compatible:  # Nomad ignores such a filter (0192).
                check_filter_is_supported(query, endpoint)
        except Refusal as refusal:
            return build_refusal_reply(refusal)
        request = create_request(self._server.world, endpoint, match.path_values, query, headers)
        with RequestIdScope(request.id):
            return await self._execute(scope, receive, request, None, connection)

    def _parse_target(self, scope: Scope, request: Request) -> RequestTarget:
        """Return the parsed target of a read, and cache it for later GET requests.

        Raises `Refusal` if it is invalid.
        """
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        target = self.reads.parse_target(request, raw_path)
        request.require_region(self._server.identity.region)
        if scope["method"] == "GET":
            self._targets.put((scope["method"], raw_path, scope["query_string"]), target)
        return target

    def _add_outage(self, refusal: Refusal) -> Refusal:
        """Return a refusal for lack of a leader or log with the cause, if this server cannot reach its store."""
        is_unavailable = refusal.code is RefusalCode.UNAVAILABLE and refusal.text.startswith(NOTHING_WRITTEN_TEXT)
        if not is_unavailable and refusal.text != NO_LEADER_TEXT:
            return refusal
        outage = self._server.reader.describe_outage()
        if not is_unavailable:
            return no_leader(outage)
        text = f"{NOTHING_WRITTEN_TEXT}{outage}"
        return Refusal(refusal.code, text, RefusalReason.STORE_UNREACHABLE) if outage else refusal

    # -- execution --------------------------------------------------------------------------------------------------

    async def _execute(
        self,
        scope: Scope,
        receive: Receive,
        request: Request,
        target: RequestTarget | None,
        connection: HttpConnection | None,
    ) -> HttpReply:
        """Execute the request, count and audit it, and return its reply. Errors become replies.

        `target`: the parsed target of a read if it was in the cache; else `None`.
        """
        error = ""
        began_s = self._server.meter.now_s()
        body: HeldMemory | None = None
        try:
            if target is None:
                body = self._admission.hold_body(request) if scope["method"] in BODY_METHODS else None

                async def require_access() -> None:
                    nonlocal request  # The audit record of a refused request names its caller.
                    request = await self._authorizer.add_caller(request)
                    self._authorizer.check(request)
                    await require_node_rights(self._server, request)
                    if body is not None:
                        body.set_owner(_get_body_owner(request))

                request = await self._read_parameters_and_body(scope, receive, request, body, require_access)
            if request.endpoint.unsupported_reason:
                raise Refusal(RefusalCode.NOT_IMPLEMENTED, request.endpoint.unsupported_reason)
            gate = self._admission.enter(request)
            try:
                if request.endpoint.name in PACED_ENDPOINTS:
                    await self._node_slots.begin()
                if request.endpoint.kind is EndpointKind.READ:
                    target = target or self._parse_target(scope, request)
                    if request.body:
                        # Only callers with access use slots and places of workers, and each uses those of its own share.
                        request = await self._authorizer.add_checked_caller(request)
                        await self._timed_slots.begin(request.caller.owner_key)
                    if isinstance(gate, QueryPass):
                        reply = await self.reads.execute(request, target, receive, connection, on_wait=gate.leave)
                    else:
                        reply = await self.reads.execute(request, target, receive, connection)
                    if request.endpoint.is_read_audited:
                        request = await self._authorizer.add_caller(request)  # The audit record names the caller.
                else:
                    request.require_region(self._server.identity.region)
                    request = await self._authorizer.add_caller(request)
                    # A separate step, so that the audit record of a refused request names its caller.
                    self._authorizer.check(request)
                    if request.endpoint.name not in UNTIMED_ENDPOINTS:
                        if request.endpoint.kind is EndpointKind.LEADER_WRITE:
                            await self._server.reader.wait_for_leader()  # Nodes try another server instead.
                        if request.body or request.endpoint.kind in WRITE_KINDS:
                            # After the caller is known, because all that wait for the log continue in one iteration.
                            await self._timed_slots.begin(request.caller.owner_key)
                    if request.endpoint.name in LOGIN_ENDPOINTS:
                        request = msgspec.structs.replace(
                            request, wait_for_disconnect=partial(wait_for_disconnect, receive)
                        )
                    reply = await self._execute_action(scope, request)
            finally:
                leave_slots()  # A task may execute several requests of its connection.
                if gate is not None:
                    gate.leave()
        except Overloaded as refusal:
            reply = build_refusal_reply(refusal)
            series = get_request_series(request.endpoint, reply.status, is_blocking=False)
            self._server.meter.record_request(series, began_s=began_s)
            return reply  # Not audited: nothing was executed, and a flood would fill the disk.
        except Refusal as caught:
            refused = self._add_outage(caught)
            safe_text = hide_secrets(refused.text, request, self._server.replica)
            error = format_message(safe_text, (*request.path_values.values(), *request.query.values()))
            detail = hide_secrets(refused.detail, request, self._server.replica)
            reply = build_refusal_reply(Refusal(refused.code, error, refused.reason, refused.retry_after_s, detail))
        except ClientDisconnected:
            return build_text_reply(400, "the request ended before its body")
        except BodyTimeout:
            return build_text_reply(408, f"the next part of the body did not arrive within {PART_TIMEOUT_S:g} s")
        except Exception:  # Last resort: the caller must get a reply.
            path = hide_secrets(scope["path"], request, self._server.replica)
            log.exception("request failed id=%s method=%s path=%s", request.id, scope["method"], path)
            error = f"internal error: see request {request.id} in the server log"
            reply = build_text_reply(500, error)
        finally:
            if body is not None:
                body.release()
        series = get_request_series(request.endpoint, reply.status, is_blocking="index" in request.query)
        self._server.meter.record_request(series, began_s=began_s)
        self._record_audit(scope, request, reply, error)
        return reply

    async def _execute_action(self, scope: Scope, request: Request) -> HttpReply:
        """Execute a request that is not a read. A stream takes a slot of its caller. Raises `Refusal`, also without a free slot.

        The slot is taken first, because a stream that has begun uses resources of other processes.
        """
        if request.endpoint.name not in STREAM_ENDPOINTS:
            return self._watch_access(await self.actions.execute(scope, request), request)
        slot = self._streams.take(request.caller)
        try:
            reply = self._watch_access(await self.actions.execute(scope, request), request)
        except BaseException:
            slot.release()
            raise
        if not isinstance(reply.body, StreamedBody):
            slot.release()
            return reply
        return msgspec.structs.replace(reply, body=msgspec.structs.replace(reply.body, slot=slot))

    def _watch_access(self, reply: HttpReply, request: Request) -> HttpReply:
        """Return the reply; if it is a stream, with the check that cuts it off when its caller loses access."""
        body = reply.body
        if not isinstance(body, StreamedBody) or body.is_access_checked:
            return reply
        watched = msgspec.structs.replace(body, wait_until_access_lost=lambda: self._access.wait_until_lost(request))
        return msgspec.structs.replace(reply, body=watched)

    async def _read_parameters_and_body(
        self,
        scope: Scope,
        receive: Receive,
        request: Request,
        held: HeldMemory | None,
        require_access: Callable[[], Awaitable[None]],
    ) -> Request:
        """Return the request with its parsed parameters and its body, counted by `held`. Raises `Refusal`.

        A streamed body is not read here: the handler reads it from `body_parts`. The rest of a large body is read only if
        its caller may use the endpoint, so that callers without a token cannot fill the memory.
        """
        endpoint = request.endpoint
        parameters = parse_endpoint_parameters(endpoint, request.query, scope["query_string"])
        if parameters:
            request = msgspec.structs.replace(request, parameters=parameters)
        if endpoint.has_streamed_body:
            if get_content_encoding(request.headers):
                raise Refusal(RefusalCode.UNSUPPORTED, "this request body must not have a content encoding")
            return msgspec.structs.replace(request, body_parts=iterate_body(receive))
        if held is not None:
            encoding = get_content_encoding(request.headers)
            limit = BodyLimit(self._max_body_bytes, MAX_BODY_SETTING)
            if endpoint.max_body_bytes and endpoint.max_body_bytes <= limit.max_bytes:
                limit = BodyLimit(endpoint.max_body_bytes, "this endpoint")
            body = await read_body(receive, request.headers, limit, held, require_access)
            if encoding and body:
                await require_access()  # A small body can have a large content.
                body = await decompress_body(body, limit, held)
            request = msgspec.structs.replace(request, body=body)
        return request

    def _record_audit(self, scope: Scope, request: Request, reply: HttpReply, error: str) -> None:
        """Append an audit record if the endpoint is audited.

        Successful heartbeats, fetches and reports of nodes are not audited. Of requests for commands that are no websockets,
        only denials are: pages check with one whether they may open a terminal.
        """
        endpoint = request.endpoint
        if not self._audit.is_enabled:
            return
        is_audited_read = endpoint.is_read_audited and request.caller.token is not None
        is_denied_command = endpoint.name in COMMAND_ENDPOINTS and reply.status == FORBIDDEN_STATUS
        if not (endpoint.kind in WRITE_KINDS or endpoint.is_audited or is_audited_read or is_denied_command):
            return
        if endpoint.name in ROUTINE_ENDPOINTS and reply.status < 400:
            return
        self._audit.record(
            build_audit_record(
                self._server.world,
                request,
                self._server.replica,
                method=scope["method"],
                path=scope["path"],
                source=(scope.get("client") or ("", 0))[0],
                status=reply.status,
                index=next((int(value) for name, value in reply.headers if name == b"x-cluster-index"), 0),
                error=error,
            )
        )


def _get_body_owner(request: Request) -> Hashable:
    """Return the node or the caller whose share of the memory for bodies the request uses.

    `None` for callers that are not checked: they have no shares, but use the memory together.
    """
    if request.endpoint.name in NODE_ENDPOINTS:
        return request.get_path_value("node_id")
    return None if request.caller is UNCHECKED_CALLER else request.caller.owner_key


def get_request_series(endpoint: Endpoint, status: int, *, is_blocking: bool) -> RequestSeries:
    """Return the labels under which a reply is counted: the first part of the endpoint name, its kind, and `2xx` to
    `5xx`.

    A blocking query has a kind of its own, because its duration includes waiting.
    """
    kind = BLOCKED_READ_KIND if is_blocking else endpoint.kind.value
    series = _SERIES.get((endpoint.name, kind, status // 100))
    if series is None:
        series = RequestSeries(endpoint.name.partition(".")[0], kind, f"{status // 100}xx")
        _SERIES[endpoint.name, kind, status // 100] = series
    return series


_SERIES: dict[tuple[str, str, int], RequestSeries] = {}
"""Series by endpoint name, kind and first digit of the status. The endpoint table limits their number."""


def _count_header_bytes(headers: Any) -> int:
    """Return the total size of all header names and values."""
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    return size


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    """Confirm startup and shutdown to the ASGI server. Returns after shutdown."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
