"""Middleware that puts limits in front of any ASGI application.

Every reply carries the limits' headers, refusals too. A slot is free at the last byte, when the caller hangs up, when the
application raises, or at the end of the server. Bodies are read before a decision for GraphQL and large-file batches only.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions.headers import (
    CONTENT_MARK_HEADER,
    CPU_MARK_HEADER,
    EXPOSED_HEADERS,
    MARK_PREFIX,
    REPLACED_HEADERS,
    read_milliseconds,
)
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import MAX_BODY_BYTES, DecisionService
from wharf.limits.rate_limiter import RateLimiter

Message = MutableMapping[str, Any]  # As ASGI has it: what is in a message, its type says.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CLOSE_POLICY_VIOLATION: Final = 1008
MAX_SHARED_PATHS: Final = 4_096
MAX_SHARED_PATH_BYTES: Final = 256
READ_HEADERS: Final = frozenset(
    {b"authorization", b"if-none-match", b"if-modified-since", b"x-forwarded-for", b"forwarded", b"origin"}
)
"""Of a request's headers; all others are the application's business."""
SCOPE_KEY: Final = "wharf.limits"
"""Where whoever stands before the middleware may say of a request what its headers do not: a dict with `kind` ("machine",
or another word), `class` ("plain" or "waiting"), and `authorization`, which is read in the place of the header."""


class LimitsMiddleware:
    """`limits` is opened and closed with the application's lifespan; a desk that is open already may be given instead."""

    def __init__(
        self, application: Application, limits: RateLimiter | DecisionService, *, has_pages: bool = True
    ) -> None:
        self._application = application
        self._limits = limits if isinstance(limits, RateLimiter) else None
        self._desk = limits.decision_service if isinstance(limits, RateLimiter) else limits
        self._answers_pages = has_pages
        self._paths: dict[bytes, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http":
            await self._serve_other(kind, scope, receive, send)
            return
        desk = self._desk
        arrival = read_incoming_request(scope, paths=self._paths)
        if SCOPE_KEY in scope and _is_machine(scope):
            desk.admit_machine(arrival)
            await self._application(scope, receive, send)
            return
        body = None
        if desk.needs_body(arrival.method, arrival.path):
            body, receive = await _read_before(receive)
        admitted = desk.admit_locally(arrival, body) if desk.is_local else await desk.admit(arrival, body)
        if isinstance(admitted, LocalReply):
            await _answer(admitted, send, arrival)
            return
        if (
            self._answers_pages
            and desk.pages.is_own_path(arrival.path)
            and await self._tell_page(arrival, admitted, send)
        ):
            return
        waits = arrival.connection is ConnectionClass.WAITING
        exchange = _Exchange(desk, admitted, receive, send, has_origin=arrival.has_origin, waits=waits)
        try:
            await self._application(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.has_begun:
                # Whoever called us answers 500 without our headers; so it is said here, and then told on.
                await exchange.fail(arrival)
            raise
        finally:
            exchange.stop()
            if not admitted.is_ended:
                await desk.end_request(admitted)

    async def _tell_page(self, arrival: IncomingRequest, passage: AdmittedRequest, send: Send) -> bool:
        """Answer in the application's place. False where the page is the application's."""
        is_ours = True
        try:
            page = await self._desk.render_page(arrival, passage)
            is_ours = page is not None
            if page is not None:
                await _answer(page, send, arrival)
        finally:
            if is_ours:
                await self._desk.end_request(passage)
        return is_ours

    async def _serve_other(self, kind: str, scope: Scope, receive: Receive, send: Send) -> None:
        if kind == "websocket":
            await self._connect(scope, receive, send)
        elif kind == "lifespan" and self._limits is not None:
            await self._live(self._limits, scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _live(self, limits: RateLimiter, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def receive_and_open() -> Message:
            nonlocal is_open
            message = await receive()
            if message["type"] == "lifespan.startup":
                await limits.open()
                is_open = True
            return message

        try:
            await self._application(scope, receive_and_open, send)
        finally:
            if is_open:
                await limits.close()

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A websocket costs one request at its handshake, and then holds a slot of a class of its own."""
        desk = self._desk
        arrival = read_incoming_request(scope, connection=ConnectionClass.WEBSOCKET)
        if _is_machine(scope):
            desk.admit_machine(arrival)
            await self._application(scope, receive, send)
            return
        admitted = await desk.admit(arrival)
        if isinstance(admitted, LocalReply):
            await receive()  # The handshake's own message comes first.
            await _refuse_websocket(admitted, scope, send)
            return
        admitted.pause_work(desk.world.monotonic_s())

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                message = {**message, "headers": [*message.get("headers", ()), *desk.build_header_pairs(admitted)]}
            elif message["type"] == "websocket.close":
                await desk.end_request(admitted)
            await send(message)

        async def receive_until_gone() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                await desk.end_request(admitted)
            return message

        try:
            await self._application(scope, receive_until_gone, send_with_headers)
        finally:
            await desk.end_request(admitted)


class _Exchange:
    """One request that the application answers, watched from both sides."""

    __slots__ = (
        *("_desk", "_gone", "_has_origin", "_is_body_read", "_is_receiving", "_now_s", "_passage", "_receive", "_send"),
        *("_waits", "has_begun"),
    )

    def __init__(
        self,
        desk: DecisionService,
        passage: AdmittedRequest,
        receive: Receive,
        send: Send,
        *,
        has_origin: bool,
        waits: bool = False,
    ) -> None:
        """`waits`: of a request that mostly waits only what passes before its reply is work."""
        self.has_begun = False
        self._desk = desk
        self._passage = passage
        self._receive = receive
        self._send = send
        self._has_origin = has_origin
        self._waits = waits
        self._is_body_read = False
        self._is_receiving = False
        self._gone: asyncio.Task[Message] | None = None
        self._now_s = desk.world.monotonic_s
        if passage.decision is not None:
            passage.on_long_running = self._watch

    async def receive(self) -> Message:
        if self._gone is not None:
            return await asyncio.shield(self._gone)
        self._passage.pause_work(self._now_s())
        self._is_receiving = True
        try:
            message = await self._receive()
        finally:
            self._is_receiving = False
            self._passage.resume_work(self._now_s())
        if message["type"] == "http.disconnect":
            await self._desk.end_request(self._passage)
        elif not message.get("more_body", False):
            self._is_body_read = True
        return message

    def _watch(self) -> None:
        """The request takes long. An application that does not listen would not hear that its caller left."""
        if self._is_body_read and not self._is_receiving and self._gone is None:
            self._gone = self._desk.world.start_task(
                self._wait_until_gone(), name="limits: wait for the caller to leave"
            )

    async def _wait_until_gone(self) -> Message:
        message = await self._receive()
        await self._desk.end_request(self._passage)
        return message

    def stop(self) -> None:
        if self._gone is not None:
            self._gone.cancel()

    async def send(self, message: Message) -> None:
        desk, passage = self._desk, self._passage
        is_last = False
        if message["type"] == "http.response.start":
            status = message["status"]
            if status == 304 or status >= 500:
                await desk.on_status(passage, status)
            headers, makes_content = self._headers(message)
            if makes_content:
                await desk.on_content_created(passage)
            self.has_begun = True
            message = {**message, "headers": headers}
        else:
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
        passage.pause_work(self._now_s())
        await self._send(message)
        if not is_last:
            if (
                not self._waits
            ):  # A part is out, and the service works on the next one; else it waits until there is one.
                passage.resume_work(self._now_s())
        elif desk.is_local:
            desk.end_request_locally(passage)
        else:
            await desk.end_request(passage)

    def _headers(self, message: Message) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Those of the reply with ours in the place of its own; and whether it says that content was made."""
        passage = self._passage
        kept: list[tuple[bytes, bytes]] = []
        makes_content = False
        for pair in message.get("headers", ()):
            name = pair[0]
            if name in REPLACED_HEADERS and passage.decision is not None:
                continue
            if name.startswith(MARK_PREFIX):
                if name == CPU_MARK_HEADER:
                    passage.measured_ms = read_milliseconds(pair[1])
                elif name == CONTENT_MARK_HEADER:
                    makes_content = pair[1] == b"1"
                continue
            kept.append(pair)
        kept += self._desk.build_header_pairs(passage)
        if self._has_origin:
            kept.append((b"access-control-expose-headers", EXPOSED_HEADERS.encode()))
        return kept, makes_content

    async def fail(self, arrival: IncomingRequest) -> None:
        desk = self._desk
        await desk.on_status(self._passage, 500)
        reply = await desk.render_error(arrival, 500, "Server Error", self._passage)
        self.has_begun = True
        await _answer(reply, self._send, arrival)


def read_incoming_request(
    scope: Scope, *, connection: ConnectionClass = ConnectionClass.PLAIN, paths: dict[bytes, str] | None = None
) -> IncomingRequest:
    """`paths` are texts of paths seen before, so that all that is kept of their requests shares them."""
    authorization: str | None = None
    is_conditional = False
    forwarded_for: list[str] = []
    forwarded: list[str] = []
    has_origin = False
    for name, value in scope["headers"]:
        if name not in READ_HEADERS:
            continue
        if name == b"authorization":
            # Two credentials are none: which of them counts would be a guess.
            text = value.decode("latin-1")
            authorization = text if authorization is None else "twice"
        elif name in (b"if-none-match", b"if-modified-since"):
            is_conditional = True
        elif name == b"x-forwarded-for":
            forwarded_for.append(value.decode("latin-1"))
        elif name == b"forwarded":
            forwarded.append(value.decode("latin-1"))
        elif name == b"origin":
            has_origin = True
    mark = scope.get(SCOPE_KEY)
    if mark is not None:
        authorization = mark["authorization"]
        if mark["class"] == ConnectionClass.WAITING.value:
            connection = ConnectionClass.WAITING
    client = scope.get("client")
    raw: bytes | None = scope.get("raw_path")
    path = None if raw is None or paths is None else paths.get(raw)
    if path is None:
        path = raw.decode("latin-1") if raw else scope["path"]
        if raw and paths is not None and len(raw) <= MAX_SHARED_PATH_BYTES:
            if len(paths) >= MAX_SHARED_PATHS:
                paths.clear()
            paths[raw] = path
    return IncomingRequest(
        scope.get("method", "GET"),
        path,
        scope["query_string"].decode("latin-1"),
        client[0] if client and client[0] else "127.0.0.1",
        authorization,
        is_conditional,
        connection,
        tuple(forwarded_for),
        tuple(forwarded),
        has_origin,
    )


def _is_machine(scope: Scope) -> bool:
    mark = scope.get(SCOPE_KEY)
    return mark is not None and mark["kind"] == "machine"


async def _read_before(receive: Receive) -> tuple[bytes, Receive]:
    """The body, up to what is read before a decision; and a `receive` that gives it again."""
    messages: list[Message] = []
    body = b""
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        messages.append(message)
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            break

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, again


async def _answer(reply: LocalReply, send: Send, arrival: IncomingRequest) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"content-length", b"%d" % len(reply.body)))
    if arrival.has_origin:
        headers.append((b"access-control-expose-headers", EXPOSED_HEADERS.encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if arrival.method == "HEAD" else reply.body})


async def _refuse_websocket(reply: LocalReply, scope: Scope, send: Send) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": CLOSE_POLICY_VIOLATION})
        return
    headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"content-length", b"%d" % len(reply.body)))
    status = reply.status if reply.status >= 400 else 403
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reply.body})
