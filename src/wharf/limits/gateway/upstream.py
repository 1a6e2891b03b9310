"""Connections to the service behind the gateway, and the pool that reuses them. Each carries one request at a time.

A connection parses the reply, and passes its parts to a `ReplyHandler`, which decides what to do with them.
"""

import asyncio
import ssl
from collections import deque
from typing import Final, Protocol, cast

from wharf.limits.config.settings import GatewaySettings, Upstream
from wharf.limits.gateway.chunks import BadChunk, ChunkReader
from wharf.limits.gateway.heads import CHUNKED, UNTIL_CLOSE, BadHead, ReplyHead, read_reply_head
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.world import World
from wharf.world.tasks import cancel_tasks

MAX_HEAD_BYTES: Final = 256 * 1024
"""A longer reply head is an error; limits memory."""
MAX_INFORMATIONAL_REPLIES: Final = 64
"""More informational replies to one request are an error; otherwise a service could send them forever."""
IDLE_TIMEOUT_S: Final = 30.0
"""An idle connection is closed after this time."""
MAX_IDLE_CONNECTIONS: Final = 256
"""Connections that are kept open without a request; limits the load on the service."""


class ReplyHandler(Protocol):
    """Receives the events of one request that is forwarded to the service: connection, reply, end or failure.

    After the end or a failure no method is called.
    """

    def on_upstream_ready(self, upstream: "UpstreamConnection") -> bool:
        """Send the request over this connection. Return false if the connection is no longer needed."""

    def on_upstream_full(self, upstream: "UpstreamConnection") -> None:
        """Stop sending the request until `on_upstream_drained` is called: the service does not read fast enough."""

    def on_upstream_drained(self, upstream: "UpstreamConnection") -> None: ...

    def on_reply_head(self, head: ReplyHead, rest: bytes) -> None:
        """Handle the head of the reply.

        Then, at once or later, pass `rest`, the first bytes of the body, to `UpstreamConnection.read_body`.
        """

    def on_reply_body(self, data: bytes) -> None: ...

    def on_reply_end(self) -> None: ...

    def on_tunnel(self, head: ReplyHead, rest: bytes) -> None:
        """Handle the reply that turns the connection into a tunnel, a websocket. `rest` holds its first bytes."""

    def on_tunnel_data(self, data: bytes) -> None: ...

    def on_tunnel_closed(self) -> None: ...

    def on_upstream_lost(self, upstream: "UpstreamConnection", *, was_idle: bool) -> None:
        """Handle the loss of the connection. `was_idle`: it was reused, and no byte of the reply has arrived."""

    def on_upstream_failed(self, message: str, *, status: int) -> None:
        """Handle a failure to connect or to reply. `message` and `status` are for the error reply to the caller."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to the service, which carries one request at a time.

    `handler` receives the reply to `request`; it is `None` while the connection is idle.
    """

    __slots__ = (
        "_buffer",
        "_chunks",
        "_head",
        "_informational_count",
        "_remaining",
        "_transport",
        "deadline_s",
        "handler",
        "is_closed",
        "is_tunnel",
        "pool",
        "request",
        "was_used",
    )

    def __init__(self, pool: "UpstreamPool") -> None:
        self.pool = pool
        self.handler: ReplyHandler | None = None
        self.request: ProxiedRequest | None = None
        self.deadline_s = 0.0
        """When the service must have sent more, by the monotonic clock; 0 means no deadline."""
        self.is_closed = False
        self.is_tunnel = False
        """Whether the service accepted an upgrade: from then on bytes are passed on unchanged."""
        self.was_used = False
        """Whether the connection carried a request before."""
        self._buffer = b""
        self._informational_count = 0
        """Informational replies to the current request."""
        self._head: ReplyHead | None = None
        self._remaining = 0
        """Bytes of the reply's body that have not arrived, CHUNKED or UNTIL_CLOSE."""
        self._chunks: ChunkReader | None = None
        self._transport: asyncio.Transport | None = None

    # -- callbacks of the socket -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it.

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - The reason makes no difference.
        """Notify the pool; end the reply, close the tunnel or report the loss to the handler, if there is one."""
        self.is_closed = True
        self.pool.on_connection_lost(self)
        handler, self.handler = self.handler, None
        if handler is None:
            return
        if self.is_tunnel:
            handler.on_tunnel_closed()
        elif self._head is not None and self._remaining == UNTIL_CLOSE:
            handler.on_reply_end()
        else:
            handler.on_upstream_lost(self, was_idle=self.was_used and self._head is None and not self._buffer)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        if self.handler is not None:
            self.handler.on_upstream_full(self)

    def resume_writing(self) -> None:
        if self.handler is not None:
            self.handler.on_upstream_drained(self)

    def data_received(self, data: bytes) -> None:
        """Process bytes of a reply or tunnel: parse the head when it is complete, and pass body bytes to the handler."""
        handler = self.handler
        if handler is None:
            self.abort()  # Data without a request must not reach any caller.
            return
        if self.is_tunnel:
            handler.on_tunnel_data(data)
            return
        self.deadline_s = self.pool.compute_deadline_s()
        if self._head is None:
            self._read_heads(self._buffer + data if self._buffer else data)
        else:
            self.read_body(data)

    # -- the reply -------------------------------------------------------------------------------------------------

    def _read_heads(self, data: bytes) -> None:
        """Parse the complete heads in `data` up to that of the final reply. Store an incomplete head in the buffer."""
        start = 0
        while (end := data.find(b"\r\n\r\n", start)) >= 0:
            self._buffer = b""
            if not self._read_head(data[start:] if start else data, end + 4 - start):
                return
            start = end + 4
        self._buffer = data[start:]
        if len(self._buffer) > MAX_HEAD_BYTES:
            self._fail(f"its head is longer than {MAX_HEAD_BYTES} bytes")

    def _read_head(self, data: bytes, end: int) -> bool:
        """Parse the head of a reply, which ends at `end` in `data`, and pass it to the handler.

        101 turns the connection into a tunnel. A malformed head fails the request. Return true if the reply was
        informational, so that the final one follows.
        """
        handler, request = self.handler, self.request
        assert handler is not None
        assert request is not None
        try:
            head = read_reply_head(data, end, is_head=request.head.method == b"HEAD")
        except BadHead as error:
            self._fail(str(error))
            return False
        if head.status == 101:
            if not request.head.is_websocket or not head.has_upgrade:
                self._fail("it switches the protocol although no upgrade was requested")
                return False
            self.is_tunnel = True
            self.deadline_s = 0.0
            handler.on_tunnel(head, data[end:])
            return False
        if head.status < 200:
            self._informational_count += 1
            if self._informational_count > MAX_INFORMATIONAL_REPLIES:
                self._fail(f"it has more than {MAX_INFORMATIONAL_REPLIES} informational replies")
                return False
            return True
        self._head = head
        self._remaining = head.length
        if head.length == CHUNKED:
            self._chunks = ChunkReader()
        handler.on_reply_head(head, data[end:])
        return False

    def read_body(self, data: bytes) -> None:
        """Pass bytes of the body to the handler, without chunk framing, and end the reply after its last byte.

        The handler calls this itself for the bytes that arrived with the head.
        """
        handler = self.handler
        assert handler is not None
        if self._remaining == UNTIL_CLOSE:
            if data:
                handler.on_reply_body(data)
            return
        if self._remaining == CHUNKED:
            assert self._chunks is not None
            try:
                body = self._chunks.feed(data)
            except BadChunk as error:
                self._fail(str(error))
                return
            if body:
                handler.on_reply_body(body)
            if self._chunks.is_done and self.handler is handler:
                self._end(is_clean=not self._chunks.rest)
            return
        if len(data) > self._remaining:
            data, is_clean = data[: self._remaining], False
        else:
            is_clean = True
        self._remaining -= len(data)
        if data:
            handler.on_reply_body(data)
        if not self._remaining and self.handler is handler:
            self._end(is_clean=is_clean)

    def _end(self, *, is_clean: bool) -> None:
        """End the reply: return the connection to the pool or abort it, then notify the handler.

        The connection is reused if the service allows it, no bytes follow the reply (`is_clean`), and the request was
        sent completely.
        """
        handler, head, request = self.handler, self._head, self.request
        assert handler is not None
        assert head is not None
        assert request is not None
        self.handler = None
        self.request = None  # An idle connection keeps no credentials and no body.
        self._head = None
        self._chunks = None
        can_reuse = head.is_reusable and is_clean and request.is_body_read
        # Return the connection first, so that the caller's next request can use it.
        if can_reuse:
            self.was_used = True
            self.pool.return_connection(self)
        else:
            self.abort()
        handler.on_reply_end()

    def _fail(self, reason: str) -> None:
        """Abort the connection and fail the request with 502, because the reply is malformed for this reason."""
        handler = self.handler
        self.abandon()
        if handler is not None:
            handler.on_upstream_failed(f"The service's reply is malformed: {reason}.", status=502)

    # -- called by the handler -------------------------------------------------------------------------------------

    def begin(self, handler: ReplyHandler, request: ProxiedRequest) -> None:
        """Assign a request to this connection. The handler then writes the request, and receives its reply."""
        self.handler = handler
        self.request = request
        self._informational_count = 0
        self.deadline_s = self.pool.compute_deadline_s()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.resume_reading()

    def abandon(self) -> None:
        """Abort the connection; its handler is not called any more."""
        self.handler = None
        self.request = None
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; unsent bytes are discarded."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after everything that was written is sent."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()


class UpstreamPool:
    """All connections to one service. Requests wait in order while all connections are busy."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings, world: World) -> None:
        self.upstream: Final = upstream
        self._pending_connections = 0
        """Connections that are being opened."""
        self._settings = settings
        self._world = world
        self._idle: list[UpstreamConnection] = []
        self._connections: set[UpstreamConnection] = set()
        self._waiting: deque[tuple[ReplyHandler, float]] = deque()
        """Handlers of waiting requests with their deadlines, in order of both arrival and deadline."""
        self._tls = _build_tls_context(settings) if upstream.is_tls else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reply_timeout_s = settings.upstream_ms / 1_000

    def compute_deadline_s(self) -> float:
        """Return the time by the monotonic clock until which the service must send the next bytes."""
        return self._world.monotonic_s() + self._reply_timeout_s

    def take_idle(self) -> UpstreamConnection | None:
        """Remove an idle connection that is still open from the pool and return it; `None` if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    def start_connecting(self, handler: ReplyHandler) -> None:
        """Open a connection, or queue the request if the maximum number of connections is reached.

        The handler's `on_upstream_ready` or `on_upstream_failed` is called later.
        """
        if len(self._connections) + self._pending_connections >= self._settings.upstream_connections_most:
            self._waiting.append((handler, self.compute_deadline_s()))
            return
        self._pending_connections += 1
        task = self._world.start_task(self._connect(handler), name="gateway: connect to the service")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, handler: ReplyHandler) -> None:
        """Open a connection for the request of a handler; notify the handler when it is ready or has failed."""
        upstream = self.upstream
        try:
            async with asyncio.timeout(self._settings.connect_ms / 1_000):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: UpstreamConnection(self),
                    upstream.host,
                    upstream.port,
                    ssl=self._tls,
                    server_hostname=upstream.host if self._tls is not None else None,
                )
        except TimeoutError:
            self._on_no_connection(handler, "The service did not accept a connection in time.", status=504)
        except OSError:
            self._on_no_connection(handler, "The service cannot be reached.", status=502)
        else:
            self._pending_connections -= 1
            self._connections.add(connection)
            if not handler.on_upstream_ready(connection):
                self.return_connection(connection)

    def _on_no_connection(self, handler: ReplyHandler, message: str, *, status: int) -> None:
        """Fail a request for which no connection could be opened, and all waiting ones if none can become free."""
        self._pending_connections -= 1
        handler.on_upstream_failed(message, status=status)
        if self._connections or self._pending_connections:
            return
        waiting, self._waiting = self._waiting, deque()
        for waiting_handler, _ in waiting:
            waiting_handler.on_upstream_failed(message, status=status)

    def return_connection(self, connection: UpstreamConnection) -> None:
        """Assign a free connection to the request that has waited longest; without one, keep it idle or close it."""
        while self._waiting:
            if self._waiting.popleft()[0].on_upstream_ready(connection):
                return
        if len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
            return
        connection.deadline_s = self._world.monotonic_s() + IDLE_TIMEOUT_S
        self._idle.append(connection)

    def on_connection_lost(self, connection: UpstreamConnection) -> None:
        """Remove a closed connection, and open another one for the request that has waited longest."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self.start_connecting(self._waiting.popleft()[0])

    def cancel_wait(self, handler: ReplyHandler) -> None:
        """Remove the request of this handler from the queue of waiting requests, if it is in it."""
        for index, (waiting, _) in enumerate(self._waiting):
            if waiting is handler:
                del self._waiting[index]
                return

    def expire_deadlines(self, now_s: float) -> None:
        """Fail requests that waited, or whose reply took, too long. Close connections that were idle too long."""
        while self._waiting and now_s >= self._waiting[0][1]:
            message = "The service did not reply in time: all connections to it were busy."
            self._waiting.popleft()[0].on_upstream_failed(message, status=504)
        for connection in list(self._connections):
            if not connection.deadline_s or now_s < connection.deadline_s:
                continue
            handler = connection.handler
            connection.abandon()
            if handler is not None:
                handler.on_upstream_failed("The service did not reply in time.", status=504)

    async def close(self) -> None:
        """Close all connections, and stop opening others."""
        for connection in list(self._connections):
            connection.close()
        await cancel_tasks(*self._tasks)


def _build_tls_context(settings: GatewaySettings) -> ssl.SSLContext:
    """Return the TLS settings for connections to the service, with the configured CA certificate."""
    path = settings.upstream_ca_file
    context = ssl.create_default_context(cafile=str(path) if path is not None else None)
    context.set_alpn_protocols(["http/1.1"])
    return context
