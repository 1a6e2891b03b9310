"""The HTTP transport of fake nodes: one process sends the requests of thousands of nodes through it.

It does only what fake nodes need: complete requests and replies of HTTP/1.1. It costs about a tenth of the processor time of
the transport of real nodes, so that measurements show the cost of servers and not that of the fake nodes.
"""

import asyncio
import ssl
from collections import deque
from typing import Final
from urllib.parse import urlencode, urlsplit

import httptools

from wharf.contract.client import ClientReply, ClientRequest, Unreachable
from wharf.contract.client.transport import UNIX_SCHEME, StreamedReply
from wharf.world import World
from wharf.world.tls_contexts import load_client_context

MAX_IDLE_S: Final = 3.0
"""How long an unused connection may be used again. Servers close theirs after 5 s."""
MAX_IDLE_CONNECTIONS: Final = 8
"""Unused connections that stay open to one server. Limits open sockets."""
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
"""The largest body of a reply. Protects memory."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class _Connection(asyncio.Protocol):
    """One connection. It carries one request at a time."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[ClientReply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    async def exchange(self, data: bytes) -> ClientReply:
        """Send a request and return its reply. Raises `ConnectionError`."""
        assert self._transport is not None, "the connection is not open yet"
        self._reply = asyncio.get_running_loop().create_future()
        self._headers, self._body, self._body_bytes = {}, [], 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(data)
        try:
            return await self._reply
        finally:
            if not self._reply.done() or self._reply.cancelled():
                self.close()  # A late reply must not answer the next request.
            self._reply = None

    def close(self) -> None:
        """Close the connection at once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"invalid reply: {error}")

    def eof_received(self) -> None:
        """Let the event loop close the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc is not None else "the server closed the connection")

    def _fail(self, reason: str) -> None:
        """End the open request, if there is one, with a `ConnectionError`, and close the connection."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError(reason))
        self.close()

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_REPLY_BYTES:
            self._fail(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._reply is not None and not self._reply.done():
            reply = ClientReply(self._parser.get_status_code(), self._headers, b"".join(self._body))
            self._reply.set_result(reply)


class FakeNodeTransport:
    """Sends requests to one server over HTTP, for fake nodes. Connections stay open between requests."""

    def __init__(self, world: World, address: str, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        """`token` is sent with each request. `tls` is for addresses that begin with `https`; without it, those
        authorities are trusted that the system trusts.
        """
        parts = urlsplit(address)
        self._world = world
        self._address = address
        self._socket_path = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else None
        self._host = parts.hostname or "localhost"
        self._port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
        self._is_tls = parts.scheme == "https"
        self._tls = tls
        self._prefix = "" if self._socket_path else parts.path.rstrip("/")
        host = "localhost" if self._socket_path else parts.netloc.rpartition("@")[2]
        self._common_head = f"host: {host}\r\n" + (f"x-cluster-token: {token}\r\n" if token else "")
        self._idle: deque[_Connection] = deque()
        self._open: dict[_Connection, None] = {}

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the complete reply. Raises `Unreachable`."""
        data = self._encode(request)
        is_sent = False
        try:
            async with asyncio.timeout(request.timeout_s):
                connection = self._take_idle() or await self._connect(request.connect_timeout_s)
                is_sent = True
                reply = await self._exchange(connection, data)
        except TimeoutError:
            raise Unreachable(f"no reply from {self._address} (timeout)", is_sent=is_sent) from None
        except OSError as error:
            text = "no reply from" if is_sent else "cannot connect to"
            raise Unreachable(f"{text} {self._address} ({error.strerror or error})", is_sent=is_sent) from error
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Raise `Unreachable`: fake nodes open no streams."""
        raise Unreachable(f"fake nodes open no streams, such as {request.path}", is_sent=False)

    async def close(self) -> None:
        """Close the connections to the server."""
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    def cut(self) -> int:
        """Close all connections at once, with the requests on them, as a failing network does. Return their number."""
        connections = list(self._open)
        for connection in connections:
            connection.close()
        return len(connections)

    async def _connect(self, timeout_s: float) -> _Connection:
        """Return a new connection. Raises `OSError` and `TimeoutError`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            if self._socket_path is not None:
                _, connection = await loop.create_unix_connection(_Connection, self._socket_path)
            else:
                context = (self._tls or await load_client_context()) if self._is_tls else None
                _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=context)
        self._open[connection] = None
        return connection

    async def _exchange(self, connection: _Connection, data: bytes) -> ClientReply:
        """Send the request over this connection and return the reply. The connection can then be used again."""
        try:
            reply = await connection.exchange(data)
        except BaseException:
            self._open.pop(connection, None)
            connection.close()
            raise
        if connection.is_closed or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            self._open.pop(connection, None)
            connection.close()
        else:
            connection.idle_since_s = self._world.monotonic_s()
            self._idle.append(connection)
        return reply

    def _take_idle(self) -> _Connection | None:
        """Return the connection that was used last, or `None`. Close those that were not used for too long."""
        now_s = self._world.monotonic_s()
        while self._idle and (self._idle[0].is_closed or now_s - self._idle[0].idle_since_s > MAX_IDLE_S):
            connection = self._idle.popleft()
            self._open.pop(connection, None)
            connection.close()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
            self._open.pop(connection, None)
        return None

    def _encode(self, request: ClientRequest) -> bytes:
        """Return the request as it is sent."""
        target = self._prefix + request.path
        if request.query:
            target += f"?{urlencode(request.query)}"
        headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        length = f"content-length: {len(request.body)}\r\n" if request.body or request.method != "GET" else ""
        head = f"{request.method} {target} HTTP/1.1\r\n{self._common_head}{headers}{length}\r\n"
        return head.encode("latin-1") + request.body
