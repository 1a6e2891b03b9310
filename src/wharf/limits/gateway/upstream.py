"""Connections to the service behind the gateway, and the pool that reuses them. Each carries one request at a time.

A connection parses the reply, and passes its parts to a `ReplyHandler`, which decides what to do with them.
"""

import asyncio
import logging
import select
import ssl
from collections import OrderedDict
from typing import Final, Protocol, cast

from wharf.limits.config.settings import GatewaySettings, Upstream
from wharf.limits.gateway.chunks import BadChunk, ChunkReader
from wharf.limits.gateway.heads import CHUNKED, UNTIL_CLOSE, BadHead, ReplyHead, read_reply_head
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.limits.gateway.sockets import enable_keepalive
from wharf.world import World
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import cancel_tasks
from wharf.world.tls_contexts import ClientTls, get_client_context

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 256 * 1024
"""A longer reply head is an error; limits memory."""
MAX_INFORMATIONAL_REPLIES: Final = 64
"""More informational replies to one request are an error; otherwise a service could send them forever."""
CHUNK_LINES_PER_STEP: Final = 1_024
"""Chunks of a reply that are decoded at a time; limits how long one reply holds the event loop."""
FAILURES_PER_STEP: Final = 32
"""Requests that fail at a time, when many fail for one reason; limits how long they hold the event loop."""
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
        "_is_full",
        "_is_held",
        "_is_paused",
        "_poll",
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
        self._is_full = False
        """Whether the service does not read what was written."""
        self._is_held = False
        """Whether bytes that were received are not decoded yet: no more are read until they are."""
        self._is_paused = False
        """Whether the handler can take no more bytes of the reply."""
        self._poll: select.poll | None = None
        """Finds unread bytes; `None` if the transport has no socket."""
        self._transport: asyncio.Transport | None = None

    # -- callbacks of the socket -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it.
        transport_socket = transport.get_extra_info("socket")
        if transport_socket is not None:
            self._poll = select.poll()
            self._poll.register(transport_socket.fileno(), select.POLLIN)
            enable_keepalive(transport_socket)
        self.pool.on_connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the pool; end the reply, close the tunnel or report the loss to the handler, if there is one.

        A reply that lasts until the service closes the connection is incomplete if the connection was reset.
        """
        was_closed_by_service = error is None and not self.is_closed
        self.is_closed = True
        self.pool.on_connection_lost(self)
        handler, self.handler = self.handler, None
        if handler is None:
            return
        if self.is_tunnel:
            handler.on_tunnel_closed()
        elif was_closed_by_service and self._head is not None and self._remaining == UNTIL_CLOSE:
            handler.on_reply_end()
        else:
            handler.on_upstream_lost(self, was_idle=self.was_used and self._head is None and not self._buffer)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self._is_full = True
        if self.handler is not None:
            self.handler.on_upstream_full(self)

    def resume_writing(self) -> None:
        self._is_full = False
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
        # Only a complete head and bytes of the body extend the deadline, not parts of a head, chunk sizes or trailers.
        self.deadline_s = self.pool.compute_deadline_s()
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
                self._pass_body(handler, data)
            return
        if self._remaining == CHUNKED:
            chunks = self._chunks
            assert chunks is not None
            try:
                body = chunks.feed(data, max_lines=CHUNK_LINES_PER_STEP)
            except BadChunk as error:
                self._fail(str(error))
                return
            if body:
                self._pass_body(handler, body)
            if self.handler is not handler:
                return
            if chunks.is_done:
                self._end(is_clean=not chunks.rest)
            elif chunks.has_more:
                self._hold_reading()
            return
        if len(data) > self._remaining:
            data, is_clean = data[: self._remaining], False
        else:
            is_clean = True
        self._remaining -= len(data)
        if data:
            self._pass_body(handler, data)
        if not self._remaining and self.handler is handler:
            self._end(is_clean=is_clean)

    def _pass_body(self, handler: ReplyHandler, data: bytes) -> None:
        """Pass bytes of the body to the handler, and give the service time for more."""
        self.deadline_s = self.pool.compute_deadline_s()
        handler.on_reply_body(data)

    def _hold_reading(self) -> None:
        """Read no more, and decode the chunks that were received in the next iterations of the loop."""
        if not self._is_held:
            self._is_held = True
            if self._transport is not None and not self._is_paused:
                self._transport.pause_reading()
        if not self._is_paused:
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        """Decode further chunks, now that other connections had their turn. Read again after the last one."""
        chunks = self._chunks
        if self.is_closed or self.handler is None or chunks is None or not self._is_held or self._is_paused:
            return
        if chunks.has_more:
            self.read_body(b"")
        if self._chunks is chunks and not chunks.has_more and not self.is_closed:
            self._is_held = False
            if self._transport is not None and not self._is_paused:
                self._transport.resume_reading()

    def _end(self, *, is_clean: bool) -> None:
        """End the reply: return the connection to the pool or abort it, then notify the handler.

        The connection is reused if the service allows it, no bytes follow the reply (`is_clean`), and the service has read
        the request, or at least so much that the socket takes more.
        """
        handler, head, request = self.handler, self._head, self.request
        assert handler is not None
        assert head is not None
        assert request is not None
        self.handler = None
        self.request = None  # An idle connection keeps no credentials and no body.
        self._head = None
        self._chunks = None
        can_reuse = head.is_reusable and is_clean and request.is_body_read and not self._is_full
        # Return the connection first, so that the caller's next request can use it.
        if can_reuse:
            self.was_used = True
            if self._is_paused or self._is_held:  # For the handler of this reply, not of the next one.
                self._is_paused = self._is_held = False
                if self._transport is not None:
                    self._transport.resume_reading()
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
        """Pass no more of the reply to the handler."""
        if self._transport is not None and not self.is_closed and not self._is_paused:
            self._is_paused = True
            if not self._is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Pass more of the reply to the handler; first what was received already."""
        if self._transport is not None and not self.is_closed and self._is_paused:
            self._is_paused = False
            if self._is_held:
                asyncio.get_running_loop().call_soon(self._continue)
            else:
                self._transport.resume_reading()

    def has_unread_bytes(self) -> bool:
        """Return whether the service has sent bytes, or closed the connection, and the event loop has not noticed yet."""
        return self._poll is not None and not self.is_closed and bool(self._poll.poll(0))

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
        self._waiting: OrderedDict[ReplyHandler, float] = OrderedDict()
        """Handlers of waiting requests with their deadlines, in order of both arrival and deadline."""
        self._tls = _build_tls_context(settings) if upstream.is_tls else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reply_timeout_s = settings.upstream_ms / 1_000
        self._connect_failures = LogLimit(world)
        self._is_outage_logged = False
        """Whether the last log line about the service says that it cannot be reached."""

    def compute_deadline_s(self) -> float:
        """Return the time by the monotonic clock until which the service must send the next bytes."""
        return self._world.monotonic_s() + self._reply_timeout_s

    def take_idle(self) -> UpstreamConnection | None:
        """Remove an idle connection that is still open from the pool and return it; `None` if there is none.

        A connection with unread bytes is aborted: the service sent them before it had the request, so they are no reply.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.has_unread_bytes():
                connection.abort()
            elif not connection.is_closed:
                return connection
        return None

    def start_connecting(self, handler: ReplyHandler) -> None:
        """Open a connection, or queue the request if the maximum number of connections is reached.

        The handler's `on_upstream_ready` or `on_upstream_failed` is called later.
        """
        if len(self._connections) + self._pending_connections >= self._settings.upstream_connections_most:
            self._waiting[handler] = self.compute_deadline_s()
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
            reason = f"no connection within {self._settings.connect_ms:g} ms"
            self._on_no_connection(handler, "The service did not accept a connection in time.", reason, status=504)
        except OSError as error:
            self._on_no_connection(handler, "The service cannot be reached.", str(error), status=502)
        else:
            # Over TLS, unread bytes can be a part of the handshake.
            if connection.is_closed or (self._tls is None and connection.has_unread_bytes()):
                connection.abort()
                reason = "it sent data or closed before it had a request"
                message = "The service sent data or closed before it had a request."
                self._on_no_connection(handler, message, reason, status=502)
                return
            self._pending_connections -= 1
            if self._is_outage_logged:
                self._is_outage_logged = False
                log.warning("service behind the gateway reached again service=%s", upstream.authority)
            if not handler.on_upstream_ready(connection):
                self.return_connection(connection)

    def _on_no_connection(self, handler: ReplyHandler, message: str, reason: str, *, status: int) -> None:
        """Fail a request for which no connection could be opened, and all waiting ones if none can become free.

        Callers get `message`; the log gets `reason`, once a minute.
        """
        self._pending_connections -= 1
        left_out = self._connect_failures.count_event()
        if left_out is not None:
            self._is_outage_logged = True
            service = self.upstream.authority
            log.warning(
                "service behind the gateway cannot be reached service=%s error=%s earlier_requests=%d",
                *(service, reason, left_out),
            )
        handler.on_upstream_failed(message, status=status)
        self._fail_waiting(message, status)

    def _fail_waiting(self, message: str, status: int) -> None:
        """Fail waiting requests while no connection can become free, some in each iteration of the loop."""
        for _ in range(FAILURES_PER_STEP):
            if not self._waiting or self._connections or self._pending_connections:
                return
            self._waiting.popitem(last=False)[0].on_upstream_failed(message, status=status)
        asyncio.get_running_loop().call_soon(self._fail_waiting, message, status)

    def return_connection(self, connection: UpstreamConnection) -> None:
        """Assign a free connection to the request that has waited longest; without one, keep it idle or close it.

        If bytes follow the reply, the connection is aborted, because the next request must not get them as its reply.
        """
        if self._waiting and connection.has_unread_bytes():
            connection.abort()
            return
        while self._waiting:
            if self._waiting.popitem(last=False)[0].on_upstream_ready(connection):
                return
        if len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
            return
        connection.deadline_s = self._world.monotonic_s() + IDLE_TIMEOUT_S
        self._idle.append(connection)

    def on_connection_made(self, connection: UpstreamConnection) -> None:
        """Count an open connection, until it is lost."""
        self._connections.add(connection)

    def on_connection_lost(self, connection: UpstreamConnection) -> None:
        """Remove a closed connection, and open another one for the request that has waited longest."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self.start_connecting(self._waiting.popitem(last=False)[0])

    def cancel_wait(self, handler: ReplyHandler) -> None:
        """Remove the request of this handler from the queue of waiting requests, if it is in it."""
        self._waiting.pop(handler, None)

    def expire_deadlines(self, now_s: float) -> bool:
        """Fail requests that waited, or whose reply took, too long. Close connections that were idle too long.

        Return whether more are left after `FAILURES_PER_STEP`.
        """
        expired_count = 0
        while self._waiting and now_s >= next(iter(self._waiting.values())):
            if expired_count >= FAILURES_PER_STEP:
                return True
            expired_count += 1
            message = "The service did not reply in time: all connections to it were busy."
            self._waiting.popitem(last=False)[0].on_upstream_failed(message, status=504)
        for connection in list(self._connections):
            if not connection.deadline_s or now_s < connection.deadline_s:
                continue
            if expired_count >= FAILURES_PER_STEP:
                return True
            expired_count += 1
            handler = connection.handler
            connection.deadline_s = 0.0
            connection.abandon()
            if handler is not None:
                handler.on_upstream_failed("The service did not reply in time.", status=504)
        return False

    async def close(self) -> None:
        """Close all connections, and stop opening others."""
        for connection in list(self._connections):
            connection.close()
        await cancel_tasks(*self._tasks)


def _build_tls_context(settings: GatewaySettings) -> ssl.SSLContext:
    """Return the TLS settings for connections to the service, with the configured CA certificate."""
    path = settings.upstream_ca_file
    return get_client_context(ClientTls(ca_file=str(path) if path is not None else "", protocols=("http/1.1",)))
