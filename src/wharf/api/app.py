"""The HTTP API as an ASGI application: route, read, decide, encode; nothing between that is not needed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from wharf.api.answers import Done, Missing, Packed, Streamed
from wharf.api.bodies import Gone, Receive, body_parts, read_body, until_gone
from wharf.api.gate import Gate, check
from wharf.api.handlers import acts_of
from wharf.api.parameters import BAD_ESCAPE, parse_query, read_parameters
from wharf.api.reads import Reads
from wharf.api.request import Request
from wharf.api.router import Router
from wharf.model.refusal import Code, Refusal
from wharf.server.server import Server
from wharf.state.packed import unpacked
from wharf.wire.endpoints import ENDPOINTS, Kind
from wharf.wire.errors import CODE_HEADER, STATUS_OF
from wharf.world.request import working_for

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Sent = tuple[int, Headers, bytes | Streamed]

BODY_MAX_BYTES: Final = 32 * 1024 * 1024
JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
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
        gate: Gate | None = None,
    ) -> None:
        """`more_headers` go out with every reply. Without a `gate` access control is off."""
        self._server = server
        self._body_max_bytes = body_max_bytes
        self._more_headers = [(name.lower().encode(), value.encode()) for name, value in (more_headers or {}).items()]
        self._audit = audit
        self._router = Router(ENDPOINTS)
        self._gate = gate or Gate(server.world)
        self._acts = acts_of(server)
        self._reads = Reads(server, self._gate)
        self._encode = msgspec.json.Encoder(enc_hook=unpacked).encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        status, headers, body = await self._reply(scope, receive)
        headers += self._more_headers
        if isinstance(body, Streamed):
            await self._stream(receive, send, status, headers, body)
            return
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, receive: Receive, send: Send, status: int, headers: Headers, body: Streamed) -> None:
        """Part by part, until the parts or the caller's patience end."""
        await send({"type": "http.response.start", "status": status, "headers": headers})
        sending = self._server.world.start(_send_parts(send, body), name="stream")
        leaving = self._server.world.start(until_gone(receive), name="caller")
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.wait([sending])
        if not sending.cancelled():
            sending.result()

    async def _reply(self, scope: Scope, receive: Receive) -> Sent:
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        path = raw_path.partition(b"?")[0]
        if BAD_ESCAPE.search(path):
            return 400, [TEXT], b"400 Bad Request"
        routed = self._router.find(path.decode("latin-1"))
        if not routed.methods:
            return 404, [], b""
        endpoint = routed.methods.get(scope["method"])
        if endpoint is None:
            return 405, [TEXT], b"Invalid method"
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")[:64] or self._server.world.new_id()
        query = parse_query(scope["query_string"]) if scope["query_string"] else {}
        with working_for(request_id):
            return await self._answer(scope, receive, Request(request_id, endpoint, routed.values, query, headers))

    async def _answer(self, scope: Scope, receive: Receive, request: Request) -> Sent:
        endpoint = request.endpoint
        error = ""
        body: bytes | Streamed
        try:
            request = await self._complete(scope, receive, request)
            if endpoint.left_out:
                raise Refusal(Code.NOT_OURS, endpoint.left_out)
            status, headers, body = await (
                self._read(request, receive) if endpoint.kind is Kind.READ else self._act(request)
            )
        except Refusal as refusal:
            error = refusal.text
            status, headers, body = STATUS_OF[refusal.code], [TEXT, _code(refusal)], error.encode()
        except Gone:
            return 400, [TEXT], b"the request ended before its body"
        except Exception:  # The top of a request: whoever asks must hear something.
            log.exception("request %s %s %s failed", request.id, scope["method"], scope["path"])
            error = f"an error of our own; the log tells of it under {request.id}"
            status, headers, body = 500, [TEXT], error.encode()
        self._tell_audit(scope, request, status, headers, error)
        return status, headers, body

    async def _complete(self, scope: Scope, receive: Receive, request: Request) -> Request:
        """The request with its parameters and its body."""
        endpoint = request.endpoint
        parameters = read_parameters(endpoint, request.query, scope["query_string"])
        if parameters:
            request = msgspec.structs.replace(request, parameters=parameters)
        if endpoint.streams_body:
            request = msgspec.structs.replace(request, parts=body_parts(receive))
        elif scope["method"] in WRITING_METHODS:
            body = await read_body(receive, request.headers, self._body_max_bytes)
            request = msgspec.structs.replace(request, body=body)
        return request

    async def _read(self, request: Request, receive: Receive) -> Sent:
        reader = self._server.reader
        answered = await self._reads.answer(request, receive)
        headers = [
            (b"x-cluster-index", str(max(1, answered.index)).encode()),
            (b"x-cluster-knownleader", b"true" if reader.knows_leader() else b"false"),
            (b"x-cluster-lastcontact", str(reader.last_contact_ms() or 0).encode()),
        ]
        if isinstance(answered.value, Missing):
            return 404, [TEXT, _code(answered.value), *headers], answered.value.text.encode()
        if answered.next_token:
            headers.append((b"x-cluster-nexttoken", quote(answered.next_token, safe=TOKEN_SAFE).encode()))
        return 200, [JSON, *headers], self._json(request, answered.value)

    async def _act(self, request: Request) -> Sent:
        request = await self._admitted(request)
        done: Done = await self._acts[request.endpoint.name](request)
        headers: Headers = [(b"x-cluster-index", str(done.index).encode())] if done.index else []
        if isinstance(done.body, Packed):
            return done.status, [_content_type(done.body.content_type), *headers], done.body.data
        if isinstance(done.body, Streamed):
            return done.status, [_content_type(done.body.content_type), *headers], done.body
        if done.body is None:
            return done.status, headers, b""
        return done.status, [JSON, *headers], self._json(request, done.body)

    async def _admitted(self, request: Request) -> Request:
        """The request with its caller. A token that was made elsewhere just now is known after a barrier."""
        if not self._gate.enabled:
            return request
        try:
            return self._with_caller(request)
        except Refusal:
            await self._server.reader.catch_up()
            return self._with_caller(request)

    def _with_caller(self, request: Request) -> Request:
        caller = self._gate.caller(self._server.replica, request.endpoint, request.headers)
        check(caller, request.endpoint, namespace=request.namespace, path_values=request.path_values)
        return msgspec.structs.replace(request, caller=caller)

    def _json(self, request: Request, value: object) -> bytes:
        body = self._encode(value)
        if request.query.get("pretty", "0") != "0":
            return msgspec.json.format(body, indent=4) + b"\n"
        return body

    def _tell_audit(self, scope: Scope, request: Request, status: int, headers: Headers, error: str) -> None:
        if self._audit is None or request.endpoint.kind not in (Kind.WRITE, Kind.ASK):
            return
        written = Written(
            request_id=request.id,
            endpoint=request.endpoint.name,
            path=scope["path"],
            remote=(scope.get("client") or ("", 0))[0],
            status=status,
            index=next((int(value) for name, value in headers if name == b"x-cluster-index"), 0),
            method=scope["method"],
            error=error,
        )
        try:
            self._audit.record(written)
        except OSError:
            log.exception("request %s is missing in the audit log", request.id)


def _code(refusal: Refusal) -> tuple[bytes, bytes]:
    return CODE_HEADER.encode(), refusal.code.value.encode()


async def _send_parts(send: Send, body: Streamed) -> None:
    async for part in body.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _content_type(name: str) -> tuple[bytes, bytes]:
    return b"content-type", name.encode()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
