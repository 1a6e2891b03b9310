"""Middleware that applies limits to any ASGI application.

Every reply carries the rate limit headers, refusals included. A concurrency slot is freed with the last byte of the reply,
when the caller disconnects, when the application raises, or when the server stops. A body is read before the decision
only for GraphQL requests and for batches of large files.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from wharf.limits.core.body_coding import is_body_coded
from wharf.limits.core.callers.carriers import CarrierSettings, find_carried
from wharf.limits.core.method_overrides import OVERRIDE_HEADERS, is_form, is_json
from wharf.limits.core.paths import BadPath
from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions.headers import EXPOSED_HEADERS, HeaderPair, ReplyMarks, filter_reply_headers
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import MAX_BODY_BYTES, DecisionService
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter

Message = MutableMapping[str, Any]  # Which keys a message has depends on its type: see the ASGI specification.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CLOSE_POLICY_VIOLATION: Final = 1008
"""The close code of a refused websocket."""
_OVERRIDE_HEADERS: Final = frozenset(name.encode() for name in OVERRIDE_HEADERS)
READ_HEADERS: Final = _OVERRIDE_HEADERS | {
    *(b"authorization", b"if-none-match", b"if-modified-since", b"x-forwarded-for", b"forwarded", b"origin", b"host"),
    *(b"content-type", b"content-encoding"),
}
"""The request headers that a decision depends on. All others are ignored."""
SCOPE_KEY: Final = "wharf.limits"
"""The key of the scope with which the application around the middleware describes a request.

The value is a dict with `kind` ("machine", or any other word), `class` ("plain" or "waiting"), and `authorization`, which
replaces the header of this name.
"""


class LimitsMiddleware:
    """Applies limits to an ASGI application.

    A `RateLimiter` is opened and closed with the application's lifespan. A `DecisionService` must be open already.
    `has_pages`: whether the limiter serves its own pages, such as `/rate_limit`, instead of the application.
    `routes_raw_paths`: whether the application selects its handlers by `raw_path`. Most applications, such as those of
    Starlette, use the decoded `path` of the scope. The limiter judges the path that the application uses.
    """

    def __init__(
        self,
        application: Application,
        limits: RateLimiter | DecisionService,
        *,
        has_pages: bool = True,
        routes_raw_paths: bool = False,
    ) -> None:
        self._application = application
        self._limits = limits if isinstance(limits, RateLimiter) else None
        self._decision_service = limits.decision_service if isinstance(limits, RateLimiter) else limits
        self._has_pages = has_pages
        self._routes_raw_paths = routes_raw_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection: admit or refuse an HTTP request, and pass an admitted one to the application."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        decision_service = self._decision_service
        carriers = decision_service.carriers
        try:
            path = self._normalize_path(scope)
        except BadPath as error:
            incoming = read_incoming_request(scope, "/", carriers=carriers)
            await _send_local_reply(await self._refuse_path(incoming, error), send, incoming)
            return
        incoming = read_incoming_request(scope, path, carriers=carriers)
        if SCOPE_KEY in scope and _is_machine(scope):
            decision_service.admit_machine(incoming)
            await self._application(scope, receive, send)
            return
        body = None
        if decision_service.needs_body_of(incoming):
            body, receive = await _read_body(receive)
            if not body and decision_service.can_lack_body(incoming):
                body = None
        if decision_service.can_admit_locally(incoming, body):
            result = decision_service.admit_locally(incoming, body)
        else:
            result = await decision_service.admit(incoming, body)
        if isinstance(result, LocalReply):
            await _send_local_reply(result, send, incoming)
            return
        has_page = self._has_pages and decision_service.is_own_path(incoming.path)
        if has_page and await self._serve_page(incoming, result, send):
            return
        call = _AsgiCall(decision_service, result, incoming, receive, send)
        try:
            await self._application(scope, call.receive, call.send)
        except Exception:
            if not call.has_reply_begun:
                # The server would reply with 500 and without the rate limit headers: reply first, then raise again.
                await call.send_server_error()
            raise
        finally:
            if call.disconnect_task is not None:
                call.disconnect_task.cancel()
            if not result.is_ended:
                await decision_service.end_request(result)

    def _normalize_path(self, scope: Scope) -> str:
        """Return the path by which the application selects its handler, in normal form. Raises `BadPath`."""
        rulebook = self._decision_service.evaluator.limiter.rulebook
        raw_path: bytes | None = scope.get("raw_path") if self._routes_raw_paths else None
        return rulebook.normalize_path(raw_path.partition(b"?")[0] if raw_path else scope["path"])

    async def _refuse_path(self, incoming: IncomingRequest, error: BadPath) -> LocalReply:
        """Return the reply to a request whose path is refused."""
        return await self._decision_service.render_error(incoming, error.status, str(error))

    async def _serve_page(self, incoming: IncomingRequest, admitted: AdmittedRequest, send: Send) -> bool:
        """Send the limiter's own page. Return false if it has no page at this path, so that the application replies."""
        has_page = True
        admitted.pause_work(self._decision_service.world.monotonic_s())
        try:
            page = await self._decision_service.render_page(incoming, admitted)
            has_page = page is not None
            if page is not None:
                await _send_local_reply(page, send, incoming)
        finally:
            if has_page:
                await self._decision_service.end_request(admitted)
        admitted.resume_work(self._decision_service.world.monotonic_s())
        return has_page

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an ASGI connection that is not an HTTP request: a websocket, the lifespan, or any other."""
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        elif scope["type"] == "lifespan" and self._limits is not None:
            await self._run_lifespan(self._limits, scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _run_lifespan(self, limits: RateLimiter, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the limiter before the application starts, and close it after the application has stopped.

        If the application does not know the lifespan, as that of Django, its events are answered here.
        """
        is_open = is_known = False

        async def receive_and_open() -> Message:
            """Receive a message for the application; open the limiter before the message that starts the application."""
            nonlocal is_open, is_known
            is_known = True
            message = await receive()
            if message["type"] == "lifespan.startup":
                await limits.open()
                is_open = True
            return message

        async def send_reply(message: Message) -> None:
            """Send a message of the application, unless it is one for another kind of connection."""
            nonlocal is_known
            if not message["type"].startswith("lifespan."):
                raise ValueError(f"the application sent {message['type']} in a lifespan")
            is_known = True
            await send(message)

        try:
            await self._application(scope, receive_and_open, send_reply)
        except Exception:
            if is_known:
                raise
        finally:
            if is_open:
                await limits.close()
        if not is_known:
            await _answer_lifespan(limits, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a websocket: charge one request for the handshake, and hold a concurrency slot until the websocket closes.

        A refused handshake does not reach the application.
        """
        decision_service = self._decision_service
        carriers = decision_service.carriers
        try:
            path = self._normalize_path(scope)
        except BadPath as error:
            reply = await self._refuse_path(read_incoming_request(scope, "/", carriers=carriers), error)
            await receive()  # A reply is allowed only after the message `websocket.connect` was received.
            await _refuse_websocket(reply, scope, send)
            return
        incoming = read_incoming_request(scope, path, connection=ConnectionClass.WEBSOCKET, carriers=carriers)
        if _is_machine(scope):
            decision_service.admit_machine(incoming)
            await self._application(scope, receive, send)
            return
        result = await decision_service.admit(incoming)
        if isinstance(result, LocalReply):
            await receive()  # A reply is allowed only after the message `websocket.connect` was received.
            await _refuse_websocket(result, scope, send)
            return
        result.finish_work(decision_service.world.monotonic_s())
        has_received = has_reply_begun = False

        async def send_with_headers(message: Message) -> None:
            """Send a message of the application; add the rate limit headers, and end the request when it closes."""
            nonlocal has_reply_begun
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                has_reply_begun = True
                headers = await self._charge_handshake(result, message.get("status", 101), message.get("headers", ()))
                message = {**message, "headers": headers}
            elif message["type"] == "websocket.close":
                has_reply_begun = True
                await decision_service.end_request(result)
            await send(message)

        async def receive_until_disconnect() -> Message:
            """Receive a message for the application; end the request when the caller has disconnected."""
            nonlocal has_received
            message = await receive()
            has_received = True
            if message["type"] == "websocket.disconnect":
                await decision_service.end_request(result)
            return message

        try:
            await self._application(scope, receive_until_disconnect, send_with_headers)
        except Exception:
            if not has_reply_begun and not result.is_ended:
                # The server would reply without the rate limit headers: reply first, then raise again.
                await decision_service.on_status(result, 500)
                reply = await decision_service.render_error(incoming, 500, "Server Error", result)
                if not has_received:
                    await receive()  # A reply is allowed only after the message `websocket.connect` was received.
                await _refuse_websocket(reply, scope, send)
            raise
        finally:
            await decision_service.end_request(result)

    async def _charge_handshake(
        self, admitted: AdmittedRequest, status: int, headers: Iterable[HeaderPair]
    ) -> list[HeaderPair]:
        """Apply the application's reply to a handshake to the limits, and return its headers with the limiter's own."""
        decision_service = self._decision_service
        if admitted.proof is not None:
            decision_service.on_reply_status(admitted, status)
        if status >= 500:
            await decision_service.on_status(admitted, status)
        passed, marks = filter_reply_headers(headers, replaces_limits=admitted.reports_limits, status=status)
        if marks.measured_ms is not None:
            admitted.measured_ms = marks.measured_ms
        if marks.is_content:
            await decision_service.on_content_created(admitted)
        return [*passed, *decision_service.build_header_pairs(admitted)]


async def _answer_lifespan(limits: RateLimiter, receive: Receive, send: Send) -> None:
    """Answer the events of a lifespan for an application that does not, and open and close the limiter with them."""
    await receive()  # The first message is always `lifespan.startup`.
    try:
        await limits.open()
    except LimiterStartError as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    try:
        await send({"type": "lifespan.startup.complete"})
        await receive()
    finally:
        await limits.close()
    await send({"type": "lifespan.shutdown.complete"})


class _AsgiCall:
    """One admitted request that the application handles: adds rate limit headers to its reply, and measures its work.

    `receive` and `send` are passed to the application.
    """

    __slots__ = (
        *("_admitted", "_decision_service", "_incoming", "_is_body_read", "_is_receiving", "_now_s", "_receive"),
        *("_send", "disconnect_task", "has_reply_begun"),
    )

    def __init__(
        self,
        decision_service: DecisionService,
        admitted: AdmittedRequest,
        incoming: IncomingRequest,
        receive: Receive,
        send: Send,
    ) -> None:
        self.has_reply_begun = False
        self._decision_service = decision_service
        self._admitted = admitted
        self._incoming = incoming
        self._receive = receive
        self._send = send
        self._is_body_read = False
        self._is_receiving = False
        self.disconnect_task: asyncio.Task[Message] | None = None
        """The task that waits for the caller's disconnect, if one was started."""
        self._now_s = decision_service.world.monotonic_s
        if admitted.decision is not None:
            admitted.on_long_running = self._watch_disconnect

    async def receive(self) -> Message:
        """Receive a message for the application. The time spent waiting for the caller does not count as work."""
        if self.disconnect_task is not None:
            return await asyncio.shield(self.disconnect_task)
        self._admitted.pause_work(self._now_s())
        self._is_receiving = True
        try:
            message = await self._receive()
        finally:
            self._is_receiving = False
            self._admitted.resume_work(self._now_s())
        if message["type"] == "http.disconnect":
            await self._decision_service.end_request(self._admitted)
        elif not message.get("more_body", False):
            self._is_body_read = True
        return message

    def _watch_disconnect(self) -> None:
        """Start to wait for the caller's disconnect, because many applications do not while they handle a long request."""
        if self._is_body_read and not self._is_receiving and self.disconnect_task is None:
            self.disconnect_task = self._decision_service.world.start_task(
                self._receive_disconnect(), name="limits: wait for the caller's disconnect"
            )

    async def _receive_disconnect(self) -> Message:
        """Wait until the caller has disconnected, end the request, and return a disconnect message.

        After a complete body, any message counts as the disconnect. The application receives it at each further call.
        """
        await self._receive()
        await self._decision_service.end_request(self._admitted)
        return {"type": "http.disconnect"}

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the application, with the rate limit headers, and end the request with the last one.

        The time after the start of the reply does not count as work. This is no coroutine of its own if nothing must be
        awaited before or after the message: most replies are two messages, and a coroutine for each costs time.
        """
        if message["type"] == "http.response.start":
            admitted = self._admitted
            admitted.finish_work(self._now_s())
            status = message["status"]
            if admitted.proof is not None:
                self._decision_service.on_reply_status(admitted, status)
            if status == 304 or status >= 500:
                return self._refund_then_send(message, status)
            headers, marks = self._build_headers(message)
            if marks.is_content:
                return self._charge_then_send(message, headers, marks)
            self.has_reply_begun = True
            return self._send({**message, "headers": headers})
        if message["type"] == "http.response.body" and not message.get("more_body"):
            return self._send_last(message)
        return self._send(message)

    async def _refund_then_send(self, message: Message, status: int) -> None:
        """Send the start of a reply with the status 304 or 5xx, after its refund."""
        await self._decision_service.on_status(self._admitted, status)
        headers, marks = self._build_headers(message)
        if marks.is_content:
            await self._decision_service.on_content_created(self._admitted, marks.content_route)
        self.has_reply_begun = True
        await self._send({**message, "headers": headers})

    async def _charge_then_send(self, message: Message, headers: list[HeaderPair], marks: ReplyMarks) -> None:
        """Send the start of a reply with these headers, after charging the content that the application created."""
        await self._decision_service.on_content_created(self._admitted, marks.content_route)
        self.has_reply_begun = True
        await self._send({**message, "headers": headers})

    async def _send_last(self, message: Message) -> None:
        """Send the last message of a reply, and end the request."""
        await self._send(message)
        decision_service = self._decision_service
        if decision_service.is_local:
            decision_service.end_request_locally(self._admitted)
        else:
            await decision_service.end_request(self._admitted)

    def _build_headers(self, message: Message) -> tuple[list[HeaderPair], ReplyMarks]:
        """Return a pair: the headers of the reply with the limiter's own, and what the application reports in it.

        The CPU time that the application reports is stored in the admitted request.
        """
        admitted = self._admitted
        headers, marks = filter_reply_headers(
            message.get("headers", ()), replaces_limits=admitted.reports_limits, status=message["status"]
        )
        if marks.measured_ms is not None:
            admitted.measured_ms = marks.measured_ms
        headers += self._decision_service.build_header_pairs(admitted)
        if self._incoming.has_origin:
            headers.append((b"access-control-expose-headers", EXPOSED_HEADERS.encode()))
        return headers, marks

    async def send_server_error(self) -> None:
        """Reply with 500 instead of the application."""
        await self._decision_service.on_status(self._admitted, 500)
        reply = await self._decision_service.render_error(self._incoming, 500, "Server Error", self._admitted)
        self.has_reply_begun = True
        await _send_local_reply(reply, self._send, self._incoming)


def read_incoming_request(
    scope: Scope,
    path: str,
    *,
    connection: ConnectionClass = ConnectionClass.PLAIN,
    carriers: CarrierSettings | None = None,
) -> IncomingRequest:
    """Return the parts of a request that its decision needs. `path` is its path in normal form.

    `carriers`: what else than `Authorization` carries credentials.
    """
    authorization: str | None = None
    is_conditional = False
    forwarded_for: list[str] = []
    forwarded: list[str] = []
    has_origin = False
    host = ""
    method_overrides: list[str] = []
    content_types: list[str] = []
    content_encodings: list[str] = []
    for name, value in scope["headers"]:
        if name not in READ_HEADERS:
            continue
        if name == b"authorization":
            # With two credentials it is unclear which one counts: "twice" is never a valid credential.
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
        elif name == b"host":
            host = value.decode("latin-1")
        elif name == b"content-type":
            content_types.append(value.decode("latin-1"))
        elif name == b"content-encoding":
            content_encodings.append(value.decode("latin-1"))
        elif name in _OVERRIDE_HEADERS:
            method_overrides.append(value.decode("latin-1"))
    description = scope.get(SCOPE_KEY)
    if description is not None:
        authorization = description["authorization"]
        if description["class"] == ConnectionClass.WAITING.value:
            connection = ConnectionClass.WAITING
    client = scope.get("client")
    method = scope.get("method", "GET").upper()
    return IncomingRequest(  # By position: names cost half a microsecond.
        method,
        path,
        scope["query_string"].decode("latin-1"),
        client[0] if client and client[0] else "127.0.0.1",
        authorization,
        is_conditional,
        connection,
        tuple(forwarded_for),
        tuple(forwarded),
        has_origin,
        () if carriers is None else find_carried(scope["headers"], carriers),
        host,
        scope.get("scheme") == "https",
        tuple(method_overrides),
        is_form(method, content_types),
        is_json(method, content_types),
        bool(content_types or content_encodings) and is_body_coded(content_types, content_encodings),
    )


def _is_machine(scope: Scope) -> bool:
    """Return whether the scope describes the request as one of a node agent or server of the cluster."""
    description = scope.get(SCOPE_KEY)
    return description is not None and description["kind"] == "machine"


async def _read_body(receive: Receive) -> tuple[bytes, Receive]:
    """Return a pair: the body, or its beginning if it exceeds `MAX_BODY_BYTES`, and a `receive` that returns it again.

    It returns what was read as one part: a million small parts would take minutes.
    """
    buffer = bytearray()
    messages: deque[Message] = deque()
    more = True
    while more and len(buffer) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            messages.append(message)
            break
        part = message.get("body", b"")
        buffer += part
        more = bool(message.get("more_body"))
        if not part:
            await asyncio.sleep(0)  # Empty parts do not count, and may be ready without a wait.
    body = bytes(buffer)
    if body or not messages:
        messages.appendleft({"type": "http.request", "body": body, "more_body": more})

    async def receive_again() -> Message:
        """Return the next message that was read already; receive one if there are no more of them."""
        return messages.popleft() if messages else await receive()

    return body, receive_again


async def _send_local_reply(reply: LocalReply, send: Send, incoming: IncomingRequest) -> None:
    """Send a reply of the limiter instead of the application; without the body for a HEAD request."""
    headers = _encode_headers(reply)
    if incoming.has_origin:
        headers.append((b"access-control-expose-headers", EXPOSED_HEADERS.encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if incoming.method == "HEAD" else reply.body})


async def _refuse_websocket(reply: LocalReply, scope: Scope, send: Send) -> None:
    """Refuse a handshake with the reply if the server can send one, otherwise with a close code."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": CLOSE_POLICY_VIOLATION})
        return
    status = reply.status if reply.status >= 400 else 403
    await send({"type": "websocket.http.response.start", "status": status, "headers": _encode_headers(reply)})
    await send({"type": "websocket.http.response.body", "body": reply.body})


def _encode_headers(reply: LocalReply) -> list[HeaderPair]:
    """Return the headers of a reply of the limiter as bytes, with the length of its body."""
    headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"content-length", b"%d" % len(reply.body)))
    return headers
