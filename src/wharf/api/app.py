"""The HTTP API as an ASGI application: route, read, decide, encode; nothing between that is not needed."""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from wharf.api.answers import Done, Missing, Packed
from wharf.api.handlers import READS, acts_of
from wharf.api.request import BAD_ESCAPE, ReadOptions, Request, body_too_large, parse_query, read_options
from wharf.api.router import Router
from wharf.model.refusal import Refusal
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.wire.endpoints import ENDPOINTS, Kind
from wharf.wire.errors import CODE_HEADER, STATUS_OF
from wharf.world.request import working_for

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BODY_MAX_BYTES: Final = 32 * 1024 * 1024
BODY_DIGITS: Final = 18
JSON: Final = (b"content-type", b"application/json")
MSGPACK: Final = (b"content-type", b"application/msgpack")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
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
    ) -> None:
        """`more_headers` go out with every reply."""
        self._server = server
        self._body_max_bytes = body_max_bytes
        self._more_headers = [(name.lower().encode(), value.encode()) for name, value in (more_headers or {}).items()]
        self._audit = audit
        self._router = Router(ENDPOINTS)
        self._acts = acts_of(server)
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        status, headers, body = await self._reply(scope, receive)
        headers += [(b"content-length", str(len(body)).encode()), *self._more_headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _reply(self, scope: Scope, receive: Receive) -> tuple[int, Headers, bytes]:
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
            return await self._answer(scope, receive, Request(request_id, endpoint, routed.values, query, headers, b""))

    async def _answer(self, scope: Scope, receive: Receive, request: Request) -> tuple[int, Headers, bytes]:
        endpoint = request.endpoint
        error = ""
        try:
            if endpoint.kind is Kind.READ:
                return await self._read(request, receive)
            if scope["method"] in WRITING_METHODS:
                body = await _read_body(receive, request.headers, self._body_max_bytes)
                request = msgspec.structs.replace(request, body=body)
            status, headers, reply = await self._act(request)
        except Refusal as refusal:
            error = refusal.text
            status, headers, reply = STATUS_OF[refusal.code], [TEXT, _code(refusal)], error.encode()
        except _Gone:
            return 400, [TEXT], b"the request ended before its body"
        except Exception:  # The top of a request: whoever asks must hear something.
            log.exception("request %s %s %s failed", request.id, scope["method"], scope["path"])
            error = f"an error of our own; the log tells of it under {request.id}"
            status, headers, reply = 500, [TEXT], error.encode()
        self._tell_audit(scope, request, status, headers, error)
        return status, headers, reply

    async def _read(self, request: Request, receive: Receive) -> tuple[int, Headers, bytes]:
        server = self._server
        options = read_options(request.query)
        if not options.stale:
            await server.reader.catch_up()
        found = await self._find(request, options, receive)
        headers = [
            (b"x-cluster-index", str(max(1, found.index)).encode()),
            (b"x-cluster-knownleader", b"true" if server.reader.knows_leader() else b"false"),
            (b"x-cluster-lastcontact", str(server.reader.last_contact_ms() or 0).encode()),
        ]
        if isinstance(found.value, Missing):
            return 404, [TEXT, _code(found.value), *headers], found.value.text.encode()
        return 200, [JSON, *headers], self._json(request, found.value)

    async def _find(self, request: Request, options: ReadOptions, receive: Receive) -> Found:
        handler = READS[request.endpoint.name]

        def read(replica: Replica) -> Found:
            return handler(replica, request, options)

        if not options.index:
            return read(self._server.replica)
        jitter_s = self._server.world.random.random() * options.wait_s / 16
        # A caller that hangs up must not be waited for, or those who come again and again would pile up.
        caller = self._server.world.start(_until_gone(receive), name="caller")
        try:
            return await self._server.reader.blocking(
                read, index=options.index, wait_s=options.wait_s + jitter_s, caller=caller
            )
        finally:
            caller.cancel()

    async def _act(self, request: Request) -> tuple[int, Headers, bytes]:
        done: Done = await self._acts[request.endpoint.name](request)
        headers: Headers = [(b"x-cluster-index", str(done.index).encode())] if done.index else []
        if isinstance(done.body, Packed):
            return done.status, [MSGPACK, *headers], done.body.data
        return done.status, [JSON, *headers], self._json(request, done.body)

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


async def _until_gone(receive: Receive) -> None:
    """Until the caller hangs up. A reading request has no body that anybody wants."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Gone(Exception):
    """The caller went away before its body was here."""


async def _read_body(receive: Receive, headers: Mapping[bytes, bytes], body_max_bytes: int) -> bytes:
    told = headers.get(b"content-length", b"")
    if told.isdigit() and (len(told) > BODY_DIGITS or int(told) > body_max_bytes):
        raise body_too_large(body_max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size > body_max_bytes:
            raise body_too_large(body_max_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
