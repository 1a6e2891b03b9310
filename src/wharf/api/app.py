"""The HTTP API as an ASGI application: route, read, decide, encode; nothing between that is not needed."""

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from wharf.api.answers import Packed, Streamed
from wharf.api.astray import Astray, cleaned, reply_astray, sent_to
from wharf.api.authoritative import is_made_elsewhere, made_elsewhere
from wharf.api.bodies import PART_WITHIN_S, Gone, Receive, TooSlow, body_parts, read_body
from wharf.api.connection import Connection, connection_of
from wharf.api.cors import methods_for_pages, preflight
from wharf.api.encoding import EMPTY, Body, body_of
from wharf.api.endpoints import exec_sockets, node_sockets
from wharf.api.gate import Gate, check
from wharf.api.handlers import acts_of
from wharf.api.idempotency import HEADER, Idempotency
from wharf.api.measuring import series_of
from wharf.api.parameters import BAD_ESCAPE, NO_PARAMETERS, Value, is_pretty, read_parameters, read_query
from wharf.api.reads import Answered, Reads, question_of
from wharf.api.replying import JSON, Exchange, Headers, Replies, Reply, Send, refusal_reply, text_reply
from wharf.api.request import Request
from wharf.api.router import Router
from wharf.api.sockets import CallerSocket, Conversations
from wharf.api.targets import Target, Targets
from wharf.api.upgrades import answer_as_request
from wharf.model.need import Nothing
from wharf.model.refusal import Code, Refusal, unknown
from wharf.server.server import Server
from wharf.wire.endpoints import ENDPOINTS, Endpoint, Kind
from wharf.world.request import working_for

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]

BODY_MAX_BYTES: Final = 32 * 1024 * 1024
PATH_MAX_BYTES: Final = 16 * 1024
HEADERS_MAX: Final = 256
HEADERS_MAX_BYTES: Final = 1024 * 1024
TOO_MANY_HEADERS: Final = "431 Request Header Fields Too Large"
TOKEN_SAFE: Final = "".join(map(chr, range(33, 127))).replace("%", "")
"""What a token holds in a header as it is; the rest is escaped, since ids of jobs may hold anything."""
WRITING_METHODS: Final = frozenset(("PUT", "POST", "DELETE"))


class Written(msgspec.Struct, frozen=True):
    """One write as the audit log takes it."""

    request_id: str
    endpoint: str
    path: str
    remote: str
    status: int
    index: int
    method: str = ""
    error: str = ""
    namespace: str = ""
    accessor_id: str = ""
    """Of the caller's token; empty for callers without one, and while access control is off."""
    token_name: str = ""


class Audit(Protocol):
    def record(self, written: Written) -> None: ...


class Api:
    def __init__(
        self,
        server: Server,
        *,
        audit: Audit | None = None,
        body_max_bytes: int = BODY_MAX_BYTES,
        more_headers: Mapping[str, str] | None = None,
        compat: bool = False,
        gate: Gate | None = None,
    ) -> None:
        """Without a `gate` access control is off. The others: see `Replies`."""
        self._server = server
        self._body_max_bytes = body_max_bytes
        self._audit = audit
        self._router = Router(ENDPOINTS)
        self._gate = gate or Gate(server.world)
        self._acts = acts_of(server)
        self._reads = Reads(server, self._gate)
        self._targets = Targets()
        self._idempotency = Idempotency(server)
        self._replies = Replies(server.world, more_headers=more_headers or {}, compat=compat)
        self._closing = asyncio.Event()
        self._conversations: Conversations = {
            **exec_sockets.conversations_of(server, self._with_caller_checked),
            **node_sockets.conversations_of(server),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await self._converse(scope, receive, send)
            return
        connection = connection_of(scope)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        headers = self._replies.read_headers(scope["headers"])
        if len(scope["headers"]) > HEADERS_MAX or _size(scope["headers"]) > HEADERS_MAX_BYTES:
            reply, is_for_pages = text_reply(431, TOO_MANY_HEADERS), False
        else:
            target = self._targets.get((scope["method"], raw_path, scope["query_string"]))
            if target is not None:
                request = self._request(target.endpoint, target.values, target.query, headers, target.parameters)
                with working_for(request.id):
                    reply = await self._answer(scope, receive, request, target, connection)
                is_for_pages = target.is_for_pages
            else:
                path = raw_path.partition(b"?")[0].decode("latin-1")
                reply = await self._reply(scope, path, headers, receive, connection)
                is_for_pages = bool(methods_for_pages(path))
        exchange = Exchange(headers, is_for_pages, receive, send, connection)
        await self._replies.send(reply, exchange)

    def close(self) -> None:
        """This server stops: streams end. Whoever waits in a blocking query is the reader's business."""
        self._closing.set()
        self._replies.close()

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        routed = self._router.find(raw_path.partition(b"?")[0].decode("latin-1"))
        endpoint = routed.methods.get("GET")
        conversation = self._conversations.get(endpoint.name) if endpoint is not None else None
        if endpoint is None or conversation is None:
            await answer_as_request(self, scope, receive, send)
            return
        socket = CallerSocket(scope, receive, send, self._closing)
        headers = self._replies.read_headers(scope["headers"])
        try:
            query = read_query(scope["query_string"])
            parameters = read_parameters(endpoint, query, scope["query_string"])
            request = self._request(endpoint, routed.values, query, headers, parameters)
            with working_for(request.id):
                self._check_region(request)
                await conversation(request, socket)
        except Refusal as refusal:
            await socket.refuse(refusal)
        except Exception:  # The top of a conversation: whoever talks must hear something.
            log.exception("the conversation %s failed", scope["path"])
            await socket.refuse(Refusal(Code.UNDECIDED, "an error of our own; the log tells of it"))

    async def _with_caller_checked(self, request: Request) -> Request:
        request = await self._with_caller(request)
        self._check(request)
        return request

    # -- where to ----------------------------------------------------------------------------------------------------

    async def _reply(
        self, scope: Scope, path: str, headers: dict[bytes, bytes], receive: Receive, connection: Connection | None
    ) -> Reply:
        method = scope["method"]
        if BAD_ESCAPE.search(path.encode("latin-1")):
            return text_reply(400, "400 Bad Request")
        if len(path) > PATH_MAX_BYTES:
            return text_reply(414, f"the path is longer than {PATH_MAX_BYTES} bytes")
        clean = cleaned(path)
        if clean != path:
            return _as_reply(sent_to(clean, method), scope)
        routed = self._router.find(path)
        if not routed.methods:
            return _as_reply(reply_astray(path, routed, method), scope)
        endpoint = routed.methods.get(method)
        if endpoint is None:
            if method == "OPTIONS" and (open_methods := methods_for_pages(path)):
                return Reply(204, preflight(headers, open_methods))
            return text_reply(405, "Invalid method")
        try:
            query = read_query(scope["query_string"])
        except Refusal as refusal:
            return refusal_reply(refusal)
        request = self._request(endpoint, routed.values, query, headers)
        with working_for(request.id):
            return await self._answer(scope, receive, request, None, connection)

    def _request(
        self,
        endpoint: Endpoint,
        values: dict[str, str],
        query: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        parameters: Mapping[str, Value] = NO_PARAMETERS,
    ) -> Request:
        given = headers.get(b"x-request-id")
        request_id = (given.decode("latin-1")[:64] if given else "") or self._server.world.new_id()
        return Request(request_id, endpoint, values, query, headers, parameters=parameters)

    def _target_of(self, scope: Scope, request: Request) -> Target:
        """What is asked for, kept for the next who asks for it. Raises Refusal where something is wrong with it."""
        options = self._reads.options_of(request)
        self._check_region(request)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        target = Target(
            endpoint=request.endpoint,
            values=request.path_values,
            query=request.query,
            parameters=request.parameters,
            options=options,
            question=question_of(request),
            is_pretty=is_pretty(request.query),
            is_for_pages=bool(methods_for_pages(raw_path.decode("latin-1"))),
        )
        if scope["method"] == "GET":
            self._targets.keep((scope["method"], raw_path, scope["query_string"]), target)
        return target

    # -- what is said ------------------------------------------------------------------------------------------------

    async def _answer(
        self, scope: Scope, receive: Receive, request: Request, target: Target | None, connection: Connection | None
    ) -> Reply:
        """`target` where it is known already what is asked for."""
        error = ""
        began_s = self._server.meter.now_s()
        try:
            if target is None:
                request = await self._complete(scope, receive, request)
            if request.endpoint.left_out:
                raise Refusal(Code.NOT_OURS, request.endpoint.left_out)
            if request.endpoint.kind is Kind.READ:
                target = target or self._target_of(scope, request)
                reply = self._read_reply(await self._reads.answer(request, target, receive, connection))
            else:
                self._check_region(request)
                request = await self._with_caller(request)
                self._check(request)  # Apart from that: also of one who is refused, the audit log tells who it was.
                reply = await self._act(scope, request)
        except Refusal as refusal:
            error = refusal.text
            reply = refusal_reply(refusal)
        except Gone:
            return text_reply(400, "the request ended before its body")
        except TooSlow:
            return text_reply(408, f"the next part of the body did not come within {PART_WITHIN_S:g} s")
        except Exception:  # The top of a request: whoever asks must hear something.
            log.exception("request %s %s %s failed", request.id, scope["method"], scope["path"])
            error = f"an error of our own; the log tells of it under {request.id}"
            reply = text_reply(500, error)
        series = series_of(request.endpoint, reply.status, is_blocking="index" in request.query)
        self._server.meter.answered(series, began_s=began_s)
        self._tell_audit(scope, request, reply, error)
        return reply

    async def _complete(self, scope: Scope, receive: Receive, request: Request) -> Request:
        """The request with its parameters and its body."""
        endpoint = request.endpoint
        parameters = read_parameters(endpoint, request.query, scope["query_string"])
        if parameters:
            request = msgspec.structs.replace(request, parameters=parameters)
        if endpoint.streams_body:
            return msgspec.structs.replace(request, parts=body_parts(receive))
        if scope["method"] in WRITING_METHODS:
            body = await read_body(receive, request.headers, self._body_max_bytes)
            request = msgspec.structs.replace(request, body=body)
        return request

    def _check_region(self, request: Request) -> None:
        """What is of another region was passed on before it came here."""
        if request.query.get("region", "") not in ("", self._server.identity.region):
            raise unknown("No path to region")

    def _read_reply(self, answered: Answered) -> Reply:
        reader = self._server.reader
        headers = [
            (b"x-cluster-index", b"%d" % max(1, answered.index)),
            (b"x-cluster-knownleader", b"true" if reader.knows_leader() else b"false"),
            (b"x-cluster-lastcontact", b"%d" % (reader.last_contact_ms() or 0)),
        ]
        if answered.refusal is not None:
            return refusal_reply(answered.refusal, *headers)
        if answered.next_token:
            headers.append((b"x-cluster-nexttoken", quote(answered.next_token, safe=TOKEN_SAFE).encode()))
        return Reply(200, [JSON, *headers], answered.body or EMPTY)

    async def _act(self, scope: Scope, request: Request) -> Reply:
        act = self._acts[request.endpoint.name]
        if is_made_elsewhere(self._server, request):
            done = await made_elsewhere(self._server, request, method=scope["method"])
        elif HEADER in request.headers and request.endpoint.kind in (Kind.WRITE, Kind.ASK):
            query = scope["query_string"].decode("latin-1")
            target = f"{scope['path']}?{query}" if query else scope["path"]
            done = await self._idempotency.act(request, act, method=scope["method"], target=target)
        else:
            done = await act(request)
        headers: Headers = [(b"x-cluster-index", str(done.index).encode())] if done.index else []
        match done.body:
            case None:
                return Reply(done.status, headers)
            case Packed(data, content_type):
                if content_type == "application/json" and is_pretty(request.query):
                    data = msgspec.json.format(data, indent=4) + b"\n"
                return Reply(done.status, [(b"content-type", content_type.encode()), *headers], Body((data,)))
            case Streamed():
                return Reply(done.status, headers, done.body)
            case value:
                return Reply(done.status, [JSON, *headers], body_of(value, pretty=is_pretty(request.query)))

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def _with_caller(self, request: Request) -> Request:
        """The request with its caller. What was done elsewhere just now is known after a barrier: a write waits for one, so
        that a token that was deleted writes nothing any more; the others only where they would be refused.
        """
        endpoint = request.endpoint
        if not self._gate.enabled or isinstance(endpoint.need, Nothing):
            return request
        if endpoint.kind is not Kind.LOCAL:
            await self._server.reader.catch_up()
        known = self._known(request)
        try:
            self._check(known)
        except Refusal:
            await self._server.reader.catch_up()
            return self._known(request)
        return known

    def _known(self, request: Request) -> Request:
        caller = self._gate.caller(self._server.replica, request.endpoint, request.headers)
        return msgspec.structs.replace(request, caller=caller)

    def _check(self, request: Request) -> None:
        check(request.caller, request.endpoint, namespace=request.namespace, path_values=request.path_values)

    def _tell_audit(self, scope: Scope, request: Request, reply: Reply, error: str) -> None:
        endpoint = request.endpoint
        if self._audit is None or not (endpoint.kind in (Kind.WRITE, Kind.ASK) or endpoint.audited):
            return
        written = Written(
            request_id=request.id,
            endpoint=request.endpoint.name,
            path=scope["path"],
            remote=(scope.get("client") or ("", 0))[0],
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


def _as_reply(astray: Astray, scope: Scope) -> Reply:
    headers: Headers = [(b"content-type", astray.content_type.encode())] if astray.content_type else []
    if astray.location:
        query = scope["query_string"]
        headers.append((b"location", astray.location.encode("latin-1") + (b"?" + query if query else b"")))
    return Reply(astray.status, headers, Body((astray.body,)))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
