"""The way past ASGI for one request: its reply in one step, and a word when its caller hangs up.

The server sends the head of a reply and its body apart, and who wants to know that a caller has gone must receive in a
task of their own. Both cost as much as the rest of a small read, and the memory of a long wait.

Connections at the HTTP port: how many one address may have, and how large the head of a request may be.

What comes in here was not read yet by anybody, so everything has a bound. Loopback has no bound of connections: what
runs on this machine is ours, or has easier ways to do harm.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from wharf.cluster.api.connection import CONNECTION_EXTENSION, Headers
from wharf.world import World


class DirectReplyProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **options: Any) -> None:  # Whatever the server gives its protocol.
        super().__init__(*args, **options)
        self.on_disconnect: Callable[[], None] | None = None
        """Of the one request that is being answered; those that came behind it wait for their turn."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_disconnect is not None:
            self.on_disconnect()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # Else it is no request that is answered here.
            exchange: dict[Any, Any] = {
                CONNECTION_EXTENSION: DirectReply(self, cycle, has_body=_has_body(self.headers))
            }
            self.scope["extensions"] = exchange


class DirectReply:
    __slots__ = ("_cycle", "_has_body", "_protocol")

    def __init__(self, protocol: DirectReplyProtocol, cycle: RequestResponseCycle, *, has_body: bool) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._has_body = has_body

    def try_write_reply(self, status: int, headers: Headers, body: bytes) -> bool:
        """Only in the plain case: what is special in any way goes the server's own way."""
        cycle = self._cycle
        if (
            cycle.response_started
            or cycle.disconnected
            or cycle.flow.write_paused
            or not cycle.keep_alive
            or cycle.waiting_for_100_continue
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        told = [*cycle.default_headers, *headers]
        head = b"".join([b"%b: %b\r\n" % header for header in told])
        if head.count(b"\n") != len(told) or head.count(b"\r") != len(told):
            return False  # A value with the end of a line in it, which the server refuses to send.
        transport: asyncio.Transport = cycle.transport
        cycle.response_started = True
        transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], head, len(body), body))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def set_disconnect_callback(self, callback: Callable[[], None] | None) -> bool:
        if self._has_body:
            return False  # Of a body that nobody takes, the rest would keep the end of the connection from being seen.
        self._protocol.on_disconnect = callback
        if callback is not None and self._cycle.disconnected:
            callback()
        return True


def _has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)


MAX_HEAD_BYTES: Final = 1024 * 1024
MAX_HEADERS: Final = 1_000
HEAD_TIMEOUT_S: Final = 30.0
FIRST_BYTE_TIMEOUT_S: Final = 60.0
"""How long one may be connected before its first word."""
STALLED_REPLY_TIMEOUT_S: Final = 60.0
"""How long a reply may lie here because its caller reads nothing of it. After that the connection is cut: to close it in
order would mean to wait for the caller."""
REJECTION_REPLIES_PER_S: Final = 10.0
MAX_REJECTION_BURST: Final = 100.0

TOO_MANY_BODY: Final = b"Your IP is issuing too many concurrent connections, please rate limit your calls\n"
TIMEOUT_STATUS_LINE: Final = b"408 Request Timeout"
TOO_LARGE_STATUS_LINE: Final = b"431 Request Header Fields Too Large"


class ConnectionLimiter:
    """Who is connected. One for each process: every process counts its own."""

    def __init__(self, world: World, *, max_per_client: int) -> None:
        """`per_client_max` 0: no bound."""
        self._world = world
        self._per_client_max = max_per_client
        self._open: dict[str, int] = {}
        self._may_tell = MAX_REJECTION_BURST
        self._told_at_s = world.monotonic_s()

    def try_admit(self, address: str) -> bool:
        """Whether the address may have one more; then it counts until `leave`."""
        if not self._per_client_max or is_loopback(address):
            return True
        count = self._open.get(address, 0)
        if count >= self._per_client_max:
            return False
        self._open[address] = count + 1
        return True

    def release(self, address: str) -> None:
        count = self._open.get(address, 0)
        if count > 1:
            self._open[address] = count - 1
        else:
            self._open.pop(address, None)

    def should_explain_rejection(self) -> bool:
        """Whether one who is turned away is told why: some are, a flood is not."""
        now_s = self._world.monotonic_s()
        earned = (now_s - self._told_at_s) * REJECTION_REPLIES_PER_S
        self._may_tell, self._told_at_s = min(MAX_REJECTION_BURST, self._may_tell + earned), now_s
        if self._may_tell < 1:
            return False
        self._may_tell -= 1
        return True


class LingeringConnections:
    """ConnectionLimiter that are closed and do not end, because the caller does not read the last of its reply."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Transport] = set()

    def abort_lingering(self, transports: Iterable[asyncio.Transport]) -> None:
        """Cut those that were closing at the last look already."""
        closing = {transport for transport in transports if transport.is_closing()}
        for transport in closing & self._closing:
            transport.abort()
        self._closing = closing


def is_loopback(address: str) -> bool:
    """Also where a v4 address is written as one of v6. What has no address, a socket of this machine, is near too."""
    if not address:
        return True
    try:
        read = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(read, IPv6Address) and read.ipv4_mapped is not None:
        return read.ipv4_mapped.is_loopback
    return read.is_loopback


def build_protocol(connections: ConnectionLimiter) -> type[asyncio.Protocol]:
    """The server's protocol with these bounds."""

    class BoundedProtocol(DirectReplyProtocol):
        def __init__(self, *args: Any, **options: Any) -> None:  # Whatever the server gives its protocol.
            super().__init__(*args, **options)
            self._address: str | None = None
            self._is_in_head = True
            self._head_bytes = 0
            self._has_too_many = False
            self._head_due: asyncio.TimerHandle | None = None
            self._silent_due: asyncio.TimerHandle | None = None
            self._stalled_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the server's
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
            if not connections.try_admit(address):
                if connections.should_explain_rejection():
                    transport.write(_plain(b"429 Too Many Requests", TOO_MANY_BODY))
                transport.close()
                return
            self._address = address
            super().connection_made(transport)
            self._silent_due = self.loop.call_later(FIRST_BYTE_TIMEOUT_S, transport.abort)

        def data_received(self, data: bytes) -> None:
            if self._address is None:
                return
            if self._silent_due is not None:
                self._silent_due.cancel()
                self._silent_due = None
            if self._is_in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._end_with(TOO_LARGE_STATUS_LINE)
                    return
            super().data_received(data)
            self._watch_head()

        def _watch_head(self) -> None:
            """A head that was begun must come to its end; most come whole, and cost no timer."""
            if self._is_in_head and self._head_bytes:
                self._head_due = self._head_due or self.loop.call_later(
                    HEAD_TIMEOUT_S, self._end_with, TIMEOUT_STATUS_LINE
                )
            elif self._head_due is not None:
                self._head_due.cancel()
                self._head_due = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._address is None:
                return
            connections.release(self._address)
            self._forget_bounds()
            super().connection_lost(exc)

        def _forget_bounds(self) -> None:
            for due in (self._head_due, self._silent_due, self._stalled_due):
                if due is not None:
                    due.cancel()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stalled_due is None:
                self._stalled_due = self.loop.call_later(STALLED_REPLY_TIMEOUT_S, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled_due is not None:
                self._stalled_due.cancel()
                self._stalled_due = None

        def handle_websocket_upgrade(self) -> None:
            # Another protocol takes the connection from here, and does not come back to say that it ended.
            if self._address is not None:
                connections.release(self._address)
            self._forget_bounds()
            super().handle_websocket_upgrade()

        def on_message_begin(self) -> None:
            self._is_in_head = True
            self._head_bytes = self._head_bytes or 1
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            self._head_bytes = 0
            super().on_headers_complete()

        def on_header(self, name: bytes, value: bytes) -> None:
            if len(self.headers) >= MAX_HEADERS:
                self._has_too_many = True
                raise ValueError("too many headers")  # The parser stops, and asks for a reply.
            super().on_header(name, value)

        def send_400_response(self, msg: str) -> None:
            if self._has_too_many:
                self._end_with(TOO_LARGE_STATUS_LINE)
            else:
                super().send_400_response(msg)

        def _end_with(self, status: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(_plain(status, status))
                self.transport.close()

    return BoundedProtocol


def _plain(status: bytes, body: bytes) -> bytes:
    head = (
        b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    )
    return head % (status, len(body), body)
