"""The HTTP protocol of the port: uvicorn's protocol with connection limits, request limits, and direct replies.

A direct reply bypasses ASGI: it is written in one step, and a callback reports that the client disconnected. With ASGI
both would double the cost of a small read. Authentication and rate limits do not belong here.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from wharf.agent.http.connection_limits import ConnectionLimiter, CountedConnection
from wharf.agent.http.parsing_slots import ParsingSlots, ReadControl, ReceivedData
from wharf.agent.http.websockets import LimitedWebSocket, UpgradeRefused, parse_upgrade
from wharf.cluster.api.connection import CONNECTION_EXTENSION, Headers
from wharf.contract.wire.credentials import CONNECTION_SECRET_HEADERS, RELAY_SECRET_HEADER


class DirectReplyProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which offers a `DirectReply` to the application of each request."""

    def __init__(self, *args: Any, **options: Any) -> None:  # The arguments are uvicorn's.
        super().__init__(*args, **options)
        self.on_disconnect: Callable[[], None] | None = None
        """Called if the client disconnects during the current request. Pipelined requests wait until it is answered."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_disconnect is not None:
            self.on_disconnect()

    def on_headers_complete(self) -> None:
        """Start to handle the request, and offer a `DirectReply` to the application in the extensions of its scope."""
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # Otherwise it is an upgrade or a pipelined request.
            exchange: dict[Any, Any] = {
                CONNECTION_EXTENSION: DirectReply(self, cycle, has_body=_has_body(self.headers))
            }
            self.scope["extensions"] = exchange


class DirectReply:
    """The connection of one request, for replies that bypass ASGI."""

    __slots__ = ("_cycle", "_has_body", "_protocol")

    def __init__(self, protocol: DirectReplyProtocol, cycle: RequestResponseCycle, *, has_body: bool) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._has_body = has_body

    def try_write_reply(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write the whole reply and return `True`, or return `False` if the reply must go through ASGI.

        A reply to a client that has disconnected is dropped.

        ASGI handles the special cases: HEAD, closing connections, paused writing, `Expect: 100-continue`.
        """
        cycle = self._cycle
        if cycle.transport.is_closing():
            cycle.disconnected = True  # Its event comes later, and a write would raise an error.
            return True
        if (
            cycle.response_started
            or cycle.disconnected
            or cycle.flow.write_paused
            or not cycle.keep_alive
            or cycle.waiting_for_100_continue
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        all_headers = [*cycle.default_headers, *headers]
        head = b"".join([b"%b: %b\r\n" % header for header in all_headers])
        if head.count(b"\n") != len(all_headers) or head.count(b"\r") != len(all_headers):
            return False  # A header value contains a line break; uvicorn rejects it.
        transport: asyncio.Transport = cycle.transport
        cycle.response_started = True
        transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], head, len(body), body))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def set_disconnect_callback(self, callback: Callable[[], None] | None) -> bool:
        """Call `callback` once the client disconnects, at once if it has; `None` removes the callback.

        Return whether that is possible. It is not possible for a request with a body, and then nothing is changed.
        """
        if self._has_body:
            return False  # An unread body would hide the end of the connection.
        self._protocol.on_disconnect = callback
        if callback is not None and self._cycle.disconnected:
            callback()
        return True


BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")


def _has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the headers announce a request body, which may be empty."""
    return any(name in BODY_HEADERS for name, _ in headers)


def _announces_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the headers announce a request body that is not empty."""
    return any(value != b"0" for name, value in headers if name in BODY_HEADERS)


MAX_HEAD_BYTES: Final = 1024 * 1024
"""Limits the memory that an unauthenticated request may use for its head."""
MAX_REQUEST_TARGET_BYTES: Final = 65_535
"""Limits the path and query of a request line; httptools parses no longer ones. The longest filter of ASCII characters
fits, with every character escaped.
"""
MAX_HEADERS: Final = 1_000
"""Limits the work of parsing headers before authentication."""
MAX_PIPELINED: Final = 64
"""How many requests of a connection may wait for the replies to earlier ones. A connection with more is closed: two megabytes of
short requests would hold the event loop for half a second."""
MAX_SMALL_CHUNKS: Final = 10_000
"""Chunks of a body that may be as small as one byte. A body of 10 MB in such chunks would take 20 s of CPU time."""
MIN_CHUNK_BYTES: Final = 64
"""The smallest mean size of the further chunks."""
HEAD_TIMEOUT_S: Final = 30.0
"""How long a client may take to send the head of a request. Protects against slow clients that hold connections."""
FIRST_BYTE_TIMEOUT_S: Final = 60.0
"""How long a connection may stay open without sending its first byte."""
STALLED_REPLY_TIMEOUT_S: Final = 60.0
"""How long a reply may be unsent because the client does not read. Then the connection is aborted, because closing it
regularly would wait for the client."""
DISCARD_S: Final = 1.0
"""How long the rest of a rejected request is read and discarded. If a connection is closed with unread data, its client may
lose the reply."""
UNPROVEN_TIMEOUT_S: Final = 5.0
"""How long a connection beyond the limit of its address may take for the head of its first request. Covers two lost packets."""
MAX_UNPROVEN_HEAD_BYTES: Final = 16 * 1024
"""Limits the memory of such a connection. The head of a node's request has less than 1 KiB."""

SECRET_HEADER_LENGTHS: Final = frozenset(map(len, CONNECTION_SECRET_HEADERS))

TOO_MANY_BODY: Final = b"Your IP is issuing too many concurrent connections, please rate limit your calls\n"
TIMEOUT_STATUS_LINE: Final = b"408 Request Timeout"
TOO_LARGE_STATUS_LINE: Final = b"431 Request Header Fields Too Large"
LONG_TARGET_STATUS_LINE: Final = b"414 URI Too Long"
SMALL_CHUNKS_BODY: Final = (
    b"the request body has more than %d chunks of less than %d bytes: send larger chunks, or a Content-Length header"
    % (MAX_SMALL_CHUNKS, MIN_CHUNK_BYTES)
)
LONG_TARGET_BODY: Final = b"the request line is longer than %d bytes" % MAX_REQUEST_TARGET_BYTES
BAD_REQUEST_STATUS_LINE: Final = b"400 Bad Request"
BAD_HOST_BODY: Final = b"a request over HTTP/1.1 needs exactly one Host header"
UPGRADE_BODY_BODY: Final = (
    b"a request for a websocket must have no body: send neither Content-Length nor Transfer-Encoding"
)


class LingeringConnections:
    """Finds closing connections that do not end because the client does not read the rest of its reply."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Transport] = set()

    def abort_lingering(self, transports: Iterable[asyncio.Transport]) -> None:
        """Abort the connections that were already closing at the previous call."""
        closing = {transport for transport in transports if transport.is_closing()}
        for transport in closing & self._closing:
            transport.abort()
        self._closing = closing


def build_protocol(connections: ConnectionLimiter, slots: ParsingSlots) -> type[asyncio.Protocol]:
    """Return the protocol class of a port whose connections share this limiter and take these slots."""

    class LimitedProtocol(DirectReplyProtocol):
        """The protocol of one connection: closes it if the client has too many, sends too slowly or does not read."""

        def __init__(self, *args: Any, **options: Any) -> None:  # The arguments are uvicorn's.
            super().__init__(*args, **options)
            self._counted: CountedConnection | None = None
            self._secrets: dict[bytes, bytes] = {}
            """The secrets of the current request that can prove a sender, by header name."""
            self._is_in_head = True
            self._is_in_body = False
            self._head_bytes = 0
            self._part_count = 0
            """Chunks of the current body, or its parts as they were received; and its trailers."""
            self._body_bytes = 0
            self._host_count = 0
            self._rejection: tuple[bytes, bytes] | None = None
            """Status line and body of the reply to a request that a callback of the parser rejected."""
            self._head_timer: asyncio.TimerHandle | None = None
            self._first_byte_timer: asyncio.TimerHandle | None = None
            self._stalled_timer: asyncio.TimerHandle | None = None
            self._unproven_timer: asyncio.TimerHandle | None = None
            self._discard_timer: asyncio.TimerHandle | None = None
            """Set while the rest of a rejected request is discarded."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
            """Accept the connection. If its client may not open another one, only until the head of its first request."""
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
            self._counted = connections.open(address, transport.abort)
            super().connection_made(transport)
            self.flow = ReadControl(transport)
            self._received = ReceivedData(slots, self.flow, self._parse)
            self._first_byte_timer = self.loop.call_later(FIRST_BYTE_TIMEOUT_S, transport.abort)
            if self._counted.is_unproven:
                self._unproven_timer = self.loop.call_later(UNPROVEN_TIMEOUT_S, self._refuse_excess)

        def _refuse_excess(self) -> None:
            """Close a connection that its client may not open, usually with a 429 reply."""
            if self.transport.is_closing():
                return
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.abort()  # The reply would come before those to the earlier requests.
                return
            if connections.should_explain_rejection():
                self.transport.write(_build_reply(b"429 Too Many Requests", TOO_MANY_BODY))
            self.transport.close()

        def data_received(self, data: bytes) -> None:
            """Parse received data, now or in later iterations of the event loop."""
            if self._counted is None or self._discard_timer is not None or self.transport.is_closing():
                return
            if self._first_byte_timer is not None:
                self._first_byte_timer.cancel()
                self._first_byte_timer = None
            self._received.receive(data, is_in_body=self._is_in_body)

        def _parse(self, data: bytes) -> None:
            """Parse a piece of what was received, and enforce the size and the time limit of the head of a request."""
            assert self._counted is not None
            if self._discard_timer is not None or self.transport.is_closing():
                self._received.clear()
                return
            if self._is_in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._reply_and_close(TOO_LARGE_STATUS_LINE)
                    return
            super().data_received(data)
            if self._is_in_head and self._head_bytes > MAX_UNPROVEN_HEAD_BYTES and self._counted.is_unproven:
                self._refuse_excess()
                return
            self._watch_head()

        def _watch_head(self) -> None:
            """Start a timer if the head of a request is incomplete; cancel it once the head is complete."""
            if self._is_in_head and self._head_bytes:
                self._head_timer = self._head_timer or self.loop.call_later(
                    HEAD_TIMEOUT_S, self._reply_and_close, TIMEOUT_STATUS_LINE
                )
            elif self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._counted is None:
                return
            self._received.clear()
            self._counted.release()
            self._cancel_timers()
            super().connection_lost(exc)

        def _cancel_timers(self) -> None:
            """Cancel all timers of the connection."""
            for timer in (
                self._head_timer, self._first_byte_timer, self._stalled_timer, self._unproven_timer, self._discard_timer
            ):  # fmt: skip
                if timer is not None:
                    timer.cancel()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stalled_timer is None:
                self._stalled_timer = self.loop.call_later(STALLED_REPLY_TIMEOUT_S, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled_timer is not None:
                self._stalled_timer.cancel()
                self._stalled_timer = None

        def handle_websocket_upgrade(self) -> None:
            """Let the websocket protocol take over the connection, or reply to a request that is no valid handshake.

            The connection counts for its client until it ends, unless the client turns out to be a registered node.
            """
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.abort()  # The websocket would come before the replies to the earlier requests.
                return
            assert self._counted is not None
            websocket = LimitedWebSocket(
                config=self.config,
                server_state=self.server_state,
                app_state=self.app_state,
                on_end=self._counted.release,
            )
            try:
                request = parse_upgrade(websocket.conn, self._build_head())
            except UpgradeRefused as refusal:
                self._reply_and_close(refusal.status, refusal.text.encode(), refusal.headers)
                return
            self._cancel_timers()
            self._received.clear()
            self.connections.discard(self)
            websocket.begin(self.transport, request)

        def _build_head(self) -> bytes:
            """Return the head of the current request, as the websocket library parses it."""
            method, version = self.scope["method"].encode(), self.scope["http_version"].encode()
            lines = [b"%b %b HTTP/%b" % (method, self.url, version), *(b"%b: %b" % pair for pair in self.headers)]
            return b"\r\n".join([*lines, b"", b""])

        def on_message_begin(self) -> None:
            if len(self.pipeline) >= MAX_PIPELINED:
                self.transport.abort()  # A reply would come before those to the earlier requests.
                raise ValueError("too many pipelined requests")  # Stops the parser.
            self._is_in_head = True
            self._head_bytes = self._head_bytes or 1
            self._host_count = 0
            self._secrets = {}
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            if len(self.url) + len(url) > MAX_REQUEST_TARGET_BYTES:
                self._reject(LONG_TARGET_STATUS_LINE, LONG_TARGET_BODY)
            super().on_url(url)

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            self._head_bytes = 0
            self._part_count = self._body_bytes = 0
            self._require_capacity()
            if self._host_count != 1 and (self._host_count or self.parser.get_http_version() == "1.1"):
                self._reject(BAD_REQUEST_STATUS_LINE, BAD_HOST_BODY)  # RFC 9112, 3.2
            if self.parser.should_upgrade() and self._should_upgrade() and _announces_body(self.headers):
                self._reject(BAD_REQUEST_STATUS_LINE, UPGRADE_BODY_BODY)  # No timeout covers the wait for its body.
            super().on_headers_complete()

        def _require_capacity(self) -> None:
            """Stop parsing and close the connection if its client has too many and the request proves no other sender."""
            assert self._counted is not None
            if not self._counted.check_request(self._secrets):
                self._refuse_excess()
                raise ValueError("too many connections")  # Stops the parser.
            if self._unproven_timer is not None:
                self._unproven_timer.cancel()
                self._unproven_timer = None

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._is_in_head:
                self._count_part()
                return  # A trailer. It must not become a header: headers were checked before the body (RFC 9110, 6.5.1).
            if len(self.headers) >= MAX_HEADERS:
                self._reject(TOO_LARGE_STATUS_LINE, TOO_LARGE_STATUS_LINE)
            if len(name) == len(b"host") and name.lower() == b"host":
                self._host_count += 1
            elif len(name) in SECRET_HEADER_LENGTHS and (lower_name := name.lower()) in CONNECTION_SECRET_HEADERS:
                is_new = lower_name not in self._secrets
                secret = value.strip(b" \t")
                self._secrets[lower_name] = secret if is_new or self._secrets[lower_name] == secret else b""
                if lower_name == RELAY_SECRET_HEADER and is_new:
                    return  # The application could relay it to another region. A repeated one counts for `MAX_HEADERS`.
            super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self._is_in_body = True
            self._body_bytes += len(body)
            self._count_part()
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._is_in_body = False
            super().on_message_complete()

        def _count_part(self) -> None:
            """Count a chunk or a trailer. A request with too many small chunks is refused: each costs as much as a large one."""
            self._part_count += 1
            if self._part_count <= MAX_SMALL_CHUNKS + self._body_bytes // MIN_CHUNK_BYTES:
                return
            cycle = self.cycle
            if self.pipeline or cycle.response_started:
                self.transport.abort()  # The reply would come before another one, or inside it.
            cycle.disconnected = True
            cycle.message_event.set()
            self._reject(BAD_REQUEST_STATUS_LINE, SMALL_CHUNKS_BODY)

        def _reject(self, status: bytes, body: bytes) -> NoReturn:
            """Stop parsing the request. The parser then calls `send_400_response`, which sends this reply."""
            self._rejection = status, body
            raise ValueError(status)

        def send_400_response(self, msg: str) -> None:
            if self._rejection is not None:
                self._reply_and_close(*self._rejection)
            elif not self.transport.is_closing():
                super().send_400_response(msg)

        def _reply_and_close(self, status: bytes, body: bytes = b"", headers: Headers = ()) -> None:
            """Send a reply with this status line and close the connection. Without a body, it repeats the status.

            What the client sends meanwhile is discarded, so that it can read the reply.
            """
            if self.transport.is_closing() or self._discard_timer is not None:
                return
            self.transport.write(_build_reply(status, body or status, headers))
            if self.transport.can_write_eof():
                self.transport.write_eof()
                self._discard_timer = self.loop.call_later(DISCARD_S, self.transport.close)
            else:
                self.transport.close()  # TLS cannot close one direction only.

    return LimitedProtocol


def _build_reply(status: bytes, body: bytes, headers: Headers = ()) -> bytes:
    """Return a complete plain-text reply that closes the connection. `headers`: further headers."""
    head = (
        b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n%b\r\n%b"
    )
    return head % (status, len(body), b"".join([b"%b: %b\r\n" % pair for pair in headers]), body)
