"""The port for passing a websocket on: message by message, both ways, and how it ends.

What is said is not looked at. A side that reads slowly slows the other: no message is read before the last one is sent.
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Origin, Subprotocol

from wharf.contract.client.relay.port import RawHeaders, RelayRequest, remove_hop_by_hop_headers
from wharf.contract.client.transport import CONNECT_TIMEOUT_S, UNIX_SCHEME, Unreachable

HANDSHAKE_HEADER_PREFIX: Final = b"sec-websocket-"
CLOSE_NORMAL: Final = 1000
CLOSE_POLICY_VIOLATION: Final = 1008
CLOSE_INTERNAL_ERROR: Final = 1011
RESERVED_CLOSE_CODES: Final = frozenset((1005, 1006, 1015))
"""They say in a program that nothing was said on the wire."""


class HandshakeRefused(Exception):
    """The other server answered the handshake as it answers a request."""

    def __init__(self, status: int, headers: RawHeaders, body: bytes) -> None:
        super().__init__(f"the handshake was answered with {status}")
        self.status = status
        self.headers = headers
        self.body = body


class WebSocket(Protocol):
    """One open websocket."""

    subprotocol: str | None
    close_code: int
    """Why the other end closed; known once `receive` gave nothing."""
    close_reason: str

    async def receive(self) -> str | bytes | None:
        """The next message; None when the other end has closed."""
        ...

    async def send(self, message: str | bytes) -> None:
        """Nothing happens where the other end has closed."""
        ...

    async def close(self, code: int) -> None: ...


class SocketRelay(Protocol):
    """The way to one server."""

    def open_socket(
        self, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[WebSocket]:
        """Raises `Unreachable`, or SocketRefused with what the server answers instead."""
        ...


def to_sendable_close_code(code: int) -> int:
    """A code for a closing frame, in place of one that cannot be in any."""
    return CLOSE_INTERNAL_ERROR if code in RESERVED_CLOSE_CODES else code


class WebSocketRelay:
    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        """`address`: as that of the server's HTTP, with its scheme."""
        self._address = address
        self._path = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else ""
        self._base = "ws://localhost" if self._path else address.replace("http", "ws", 1)
        self._options: dict[str, Any] = {"ssl": tls} if tls is not None else {}  # None would mean no TLS at all.
        if self._path:
            self._options = {"path": self._path, "unix": True}

    @asynccontextmanager
    async def open_socket(
        self, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[WebSocket]:
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in remove_hop_by_hop_headers(outgoing.headers)
            if not name.lower().startswith(HANDSHAKE_HEADER_PREFIX)
        ]
        origin = next((value for name, value in headers if name.lower() == "origin"), None)
        opening = connect(
            self._base + outgoing.target.decode("latin-1"),
            additional_headers=[pair for pair in headers if pair[0].lower() not in ("origin", "user-agent")],
            origin=Origin(origin) if origin else None,
            user_agent_header=next((value for name, value in headers if name.lower() == "user-agent"), None),
            subprotocols=[Subprotocol(each) for each in subprotocols] or None,
            compression=None,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CONNECT_TIMEOUT_S,
            max_size=None,
            max_queue=1,
            proxy=None,
            process_exception=lambda error: error,
            **self._options,
        )
        try:
            connection = await opening
        except InvalidStatus as refused:
            reply = refused.response
            told = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.raw_items()]
            raise HandshakeRefused(
                reply.status_code, remove_hop_by_hop_headers(told), bytes(reply.body or b"")
            ) from refused
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            raise Unreachable(f"no server answers at {self._address} ({error})", is_sent=False) from error
        try:
            yield _Opened(connection)
        finally:
            await connection.close()


class _Opened:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.subprotocol: str | None = connection.subprotocol
        self.close_code = CLOSE_NORMAL
        self.close_reason = ""

    async def receive(self) -> str | bytes | None:
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            self.close_code = to_sendable_close_code(self._connection.close_code or CLOSE_INTERNAL_ERROR)
            self.close_reason = self._connection.close_reason or ""
            return None

    async def send(self, message: str | bytes) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed:
            return

    async def close(self, code: int) -> None:
        await self._connection.close(to_sendable_close_code(code))
