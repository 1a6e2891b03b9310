"""Relays websockets message by message in both directions, with the close code.

Messages are not interpreted. A slow reader slows the sender: the next message is read only after the last one was sent.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Origin, Subprotocol

from wharf.contract.client.relay.port import RawHeaders, RelayRequest, remove_hop_by_hop_headers
from wharf.contract.client.transport import CONNECT_TIMEOUT_S, UNIX_SCHEME, Unreachable
from wharf.world.tls_contexts import load_client_context

HANDSHAKE_HEADER_PREFIX: Final = b"sec-websocket-"
PING_INTERVAL_S: Final = 20.0
CHANNEL_PING_TIMEOUT_S: Final = 20.0
"""How long a server may take to answer a ping of a websocket that it always reads, such as a node channel."""
CLOSE_NORMAL: Final = 1000
CLOSE_POLICY_VIOLATION: Final = 1008
CLOSE_INTERNAL_ERROR: Final = 1011
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The longest message from the other end; protects memory. Servers accept messages of 1 MiB from clients."""
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Bytes that wait for an end that does not read. Messages are sent up to the limit of the transport, 64 KiB, and one message
more, so a greater number consists of replies to pings."""
SLICE_BYTES: Final = 1_024
"""Bytes that are parsed before the event loop runs other callbacks. The library parses all that was received at once: a
flood of frames without content would hold the loop for 0.8 s."""
RESERVED_CLOSE_CODES: Final = frozenset((1005, 1006, 1015))
"""Codes that a program sees if the close frame had no code; they must not be sent (RFC 6455)."""


class HandshakeRefused(Exception):
    """The error for a websocket handshake to which the server sent an ordinary HTTP reply, which it contains."""

    def __init__(self, status: int, headers: RawHeaders, body: bytes) -> None:
        super().__init__(f"websocket handshake failed with status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class WebSocket(Protocol):
    """An open websocket."""

    subprotocol: str | None
    close_code: int
    """The close code of the other end; set once `receive` has returned None."""
    close_reason: str

    async def receive(self) -> str | bytes | None:
        """Return the next message, or None if the other end has closed the websocket."""
        ...

    async def send(self, message: str | bytes) -> None:
        """Send a message. Does nothing if the other end has closed the websocket."""
        ...

    async def close(self, code: int) -> None: ...

    def abort(self) -> None:
        """Drop the connection without a closing handshake, which a silent server would not answer."""
        ...


class SocketRelay(Protocol):
    """Opens websockets to one server, to forward their messages."""

    def open_socket(
        self, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[WebSocket]:
        """Open a websocket; as a context manager, yield it and close it at the end.

        Raises `Unreachable`, or `HandshakeRefused` with the server's HTTP reply.
        """
        ...


def to_sendable_close_code(code: int) -> int:
    """Return the close code, or 1011 (internal error) in place of a code that must not be sent."""
    return CLOSE_INTERNAL_ERROR if code in RESERVED_CLOSE_CODES else code


class WebSocketRelay:
    """Opens websockets to one server over TCP, TLS or a Unix socket.

    Every `PING_INTERVAL_S` a websocket sends a ping.
    """

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None, ping_timeout_s: float | None = None) -> None:
        """`address` is the server's HTTP address, with its scheme.

        A websocket is closed when the server does not answer a ping within `ping_timeout_s`. `None`: never, because a
        server does not read a websocket, and so no pings, while the program behind it does not read its input.
        """
        self._ping_timeout_s = ping_timeout_s
        self._address = address
        self._path = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else ""
        self._base = "ws://localhost" if self._path else address.replace("http", "ws", 1)
        self._tls = tls

    async def _build_options(self) -> dict[str, Any]:  # The options of the library have different types.
        """Return how to reach the server: its Unix socket, or the TLS context."""
        if self._path:
            return {"path": self._path, "unix": True}
        if self._base.startswith("wss://"):
            return {"ssl": self._tls or await load_client_context()}
        return {}  # `ssl=None` would disable TLS.

    @asynccontextmanager
    async def open_socket(
        self, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[WebSocket]:
        """Open a websocket with the headers of `outgoing`; as a context manager, yield it and close it at the end.

        Handshake headers and headers of a single connection are not forwarded. Raises `Unreachable`, or
        `HandshakeRefused` with the server's HTTP reply.
        """
        if not outgoing.target.startswith(b"/"):  # "@host" or "0" after the address would change its host or port.
            raise Unreachable("the target of a websocket does not begin with /", is_sent=False)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in remove_hop_by_hop_headers(outgoing.headers)
            if not name.lower().startswith(HANDSHAKE_HEADER_PREFIX)
        ]
        origin = next((value for name, value in headers if name.lower() == "origin"), None)
        opening = _DirectConnect(
            self._base + outgoing.target.decode("latin-1"),
            additional_headers=[pair for pair in headers if pair[0].lower() not in ("origin", "user-agent")],
            origin=Origin(origin) if origin else None,
            user_agent_header=next((value for name, value in headers if name.lower() == "user-agent"), None),
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            compression=None,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=self._ping_timeout_s,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CONNECT_TIMEOUT_S,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=1,
            create_connection=_SlicedConnection,
            proxy=None,
            process_exception=lambda error: error,
            **await self._build_options(),
        )
        try:
            connection = await opening
        except InvalidStatus as refused:
            reply = refused.response
            reply_headers = [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.raw_items()
            ]
            raise HandshakeRefused(
                reply.status_code, remove_hop_by_hop_headers(reply_headers), bytes(reply.body or b"")
            ) from refused
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            raise Unreachable(f"cannot connect to {self._address} ({error})", is_sent=False) from error
        assert isinstance(connection, _SlicedConnection)
        try:
            yield _ClientWebSocket(connection)
        finally:
            await connection.close()


class _DirectConnect(connect):
    """Opens a connection to the given address only.

    The library follows redirects, and sends the headers with the token to other hosts too. A hostile server could thereby
    make this one connect to hosts that only this one can reach.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the error: a redirect is a refused handshake like any other."""
        return exc


class _SlicedConnection(ClientConnection):
    """A connection that parses received bytes in slices, in turn with other callbacks of the event loop.

    While slices wait, the reader has not taken the last messages, or many replies to pings are unread, nothing more is read.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # Passed on to the library.
        super().__init__(*arguments, **options)
        self._unparsed = bytearray()
        self._is_reader_behind = False
        self._is_scheduled = False
        self._has_eof = False
        self._lost: tuple[Exception | None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.recv_messages.pause = self._pause
        self.recv_messages.resume = self._resume

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        if not self._is_scheduled:
            self._parse_slice()

    def eof_received(self) -> None:
        self._has_eof = True
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = (exc,)
        self._go_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def abort(self) -> None:
        """Drop the connection, and what was received but not parsed yet: a flood would be parsed for seconds."""
        self._unparsed.clear()
        self.transport.abort()

    @property
    def _must_wait(self) -> bool:
        """Whether messages wait for the reader, or replies to pings for an end that does not read them.

        Messages that wait for the other end are no reason: it may read no more before its own messages are read.
        """
        return self._is_reader_behind or self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES

    def _pause(self) -> None:
        """Parse nothing more until the reader has taken the messages."""
        self._is_reader_behind = True

    def _resume(self) -> None:
        self._is_reader_behind = False
        self._go_on()

    def _parse_slice(self) -> None:
        """Parse one slice, and schedule the next."""
        self._is_scheduled = False
        piece = bytes(self._unparsed[:SLICE_BYTES])
        del self._unparsed[:SLICE_BYTES]
        if piece:
            super().data_received(piece)
        self._go_on()

    def _go_on(self) -> None:
        """Schedule the next slice; after the last one, pass on the end of the connection, or read more.

        A connection that ended has no more than the received bytes, so they are parsed even if the reader is behind.
        """
        if self._is_scheduled:
            return
        if self._unparsed and (self._lost or not self._must_wait):
            self._is_scheduled = True
            self.loop.call_soon(self._parse_slice)
        elif not self._unparsed and self._has_eof:
            self._has_eof = False
            super().eof_received()
        if not self._unparsed and self._lost:
            (error,), self._lost = self._lost, None
            super().connection_lost(error)
            return
        if not self.transport.is_closing():
            if self._unparsed or self._must_wait:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()


class _ClientWebSocket:
    """An open websocket, implemented with the `websockets` library."""

    def __init__(self, connection: _SlicedConnection) -> None:
        self._connection = connection
        self.subprotocol: str | None = connection.subprotocol
        self.close_code = CLOSE_NORMAL
        self.close_reason = ""

    async def receive(self) -> str | bytes | None:
        """Return the next message, or None if the websocket was closed; then `close_code` and `close_reason` are set."""
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            self.close_code = to_sendable_close_code(self._connection.close_code or CLOSE_INTERNAL_ERROR)
            self.close_reason = self._connection.close_reason or ""
            return None

    async def send(self, message: str | bytes) -> None:
        """Send a message. Does nothing if the websocket was closed."""
        try:
            await self._connection.send(message)
        except ConnectionClosed:
            return

    async def close(self, code: int) -> None:
        await self._connection.close(to_sendable_close_code(code))

    def abort(self) -> None:
        self._connection.abort()
