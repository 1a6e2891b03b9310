"""Connections to the service behind the gateway, and the pool that reuses them. Each carries one request at a time.

A connection parses the reply; the caller's side of the gateway decides what to do with it.
"""

import asyncio
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from wharf.limits.config.settings import GatewaySettings, Upstream
from wharf.limits.gateway.chunks import BadChunk, ChunkReader
from wharf.limits.gateway.heads import CHUNKED, UNTIL_CLOSE, BadHead, ReplyHead, read_reply_head
from wharf.world import World

if TYPE_CHECKING:
    from wharf.limits.gateway.caller.connection import CallerConnection

MAX_HEAD_BYTES: Final = 256 * 1024
"""A longer reply head is an error; limits memory."""
IDLE_TIMEOUT_S: Final = 30.0
MAX_IDLE_CONNECTIONS: Final = 256


class UpstreamConnection(asyncio.Protocol):
    """One connection to the service. `caller` is the connection whose request it carries, or `None` while idle."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_head",
        "_left",
        "_transport",
        "caller",
        "deadline_s",
        "is_closed",
        "is_tunnel",
        "pool",
        "was_used",
    )

    def __init__(self, pool: "UpstreamPool") -> None:
        self.pool = pool
        self.caller: CallerConnection | None = None
        self.deadline_s = 0.0
        self.is_closed = False
        self.is_tunnel = False
        self.was_used = False
        self._buffer = b""
        self._head: ReplyHead | None = None
        self._left = 0
        self._chunks: ChunkReader | None = None
        self._transport: asyncio.Transport | None = None

    # -- the transport's calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it.

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - Why does not matter to the caller.
        self.is_closed = True
        self.pool.on_connection_lost(self)
        caller = self.caller
        if caller is None:
            return
        self.caller = None
        if self.is_tunnel:
            caller.on_tunnel_closed()
        elif self._head is not None and self._left == UNTIL_CLOSE:
            caller.on_reply_end(None)
        else:
            caller.on_upstream_lost(self, was_used=self.was_used and self._head is None and not self._buffer)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        if self.caller is not None:
            self.caller.on_upstream_full(self)

    def resume_writing(self) -> None:
        if self.caller is not None:
            self.caller.on_upstream_drained(self)

    def data_received(self, data: bytes) -> None:
        caller = self.caller
        if caller is None:
            self.abort()  # Data without a request must not reach any caller.
            return
        if self.is_tunnel:
            caller.write(data)
            return
        self.deadline_s = self.pool.compute_deadline_s()
        if self._head is None:
            data = self._buffer + data if self._buffer else data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                if len(data) > MAX_HEAD_BYTES:
                    self._fail("the head of the reply is too long")
                return
            self._buffer = b""
            self._read_head(data, end + 4)
        else:
            self._read_body(data)

    # -- the reply -------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes, end: int) -> None:
        """Parse the head of a reply and pass it to the caller's side."""
        caller = self.caller
        assert caller is not None
        try:
            head = read_reply_head(data, end, is_head=caller.is_head_request)
        except BadHead as error:
            self._fail(str(error))
            return
        if head.status == 101:
            if not caller.is_upgrade_request or not head.has_upgrade:
                self._fail("the service changed the protocol although no upgrade was requested")
                return
            self.is_tunnel = True
            self.deadline_s = 0.0
            caller.on_tunnel(head, data[end:])
            return
        if head.status < 200:
            if len(data) > end:
                self.data_received(data[end:])  # An informational reply: the final one follows.
            return
        self._head = head
        self._left = head.length
        if head.length == CHUNKED:
            self._chunks = ChunkReader()
        caller.on_reply_head(head, data[end:])

    def read_body(self, rest: bytes) -> None:
        """Process the first bytes of the body. The caller's side calls this after it has built the head."""
        self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        caller = self.caller
        assert caller is not None
        if self._left == UNTIL_CLOSE:
            if data:
                caller.on_reply_body(data)
            return
        if self._left == CHUNKED:
            assert self._chunks is not None
            try:
                body = self._chunks.feed(data)
            except BadChunk as error:
                self._fail(str(error))
                return
            if body:
                caller.on_reply_body(body)
            if self._chunks.is_done and self.caller is caller:
                self._end(is_clean=not self._chunks.rest)
            return
        if len(data) > self._left:
            data, is_clean = data[: self._left], False
        else:
            is_clean = True
        self._left -= len(data)
        if data:
            caller.on_reply_body(data)
        if not self._left and self.caller is caller:
            self._end(is_clean=is_clean)

    def _end(self, *, is_clean: bool) -> None:
        """End the reply. The connection is reused if nothing follows the reply and the request was sent completely."""
        caller, head = self.caller, self._head
        assert caller is not None
        assert head is not None
        self.caller = None
        self._head = None
        self._chunks = None
        can_reuse = head.is_reusable and is_clean and caller.has_sent_all
        # Return the connection first, so that the caller's next request can use it at once.
        if can_reuse:
            self.was_used = True
            self.pool.return_connection(self)
        else:
            self.abort()
        caller.on_reply_end(self)

    def _fail(self, reason: str) -> None:
        caller = self.caller
        self.caller = None
        self.abort()
        if caller is not None:
            caller.on_bad_reply(reason)

    # -- called by the caller's side -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.resume_reading()

    def abort(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()


class UpstreamPool:
    """All connections to one service. Callers wait in order while all connections are busy."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings, world: World) -> None:
        self.upstream: Final = upstream
        self.opened_connections = 0
        self.pending_connections = 0
        self._settings = settings
        self._world = world
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._waiting: deque[tuple[CallerConnection, float]] = deque()
        """Waiting callers with their deadlines, in order of both arrival and deadline."""
        self._tls = _build_tls_context(settings) if upstream.is_tls else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reply_timeout_s = settings.upstream_ms / 1_000

    def compute_deadline_s(self) -> float:
        """Return the time until which the service must send the next bytes."""
        return self._world.monotonic_s() + self._reply_timeout_s

    def take_idle(self) -> UpstreamConnection | None:
        """Return an open idle connection, or `None`."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    def start_connecting(self, caller: "CallerConnection") -> None:
        """Open a connection for a caller, or queue the caller if the maximum number of connections is reached.

        The caller's `on_upstream_ready` or `on_upstream_failed` is called later.
        """
        if len(self._all) + self.pending_connections >= self._settings.upstream_connections_most:
            self._waiting.append((caller, self.compute_deadline_s()))
            return
        self.pending_connections += 1
        task = self._world.start_task(self._connect(caller), name="gateway: connect to the service")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, caller: "CallerConnection") -> None:
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
            self._on_no_connection(caller, "The service does not accept connections.", status=504)
        except OSError:
            self._on_no_connection(caller, "The service cannot be reached.", status=502)
        else:
            self.pending_connections -= 1
            self.opened_connections += 1
            self._all.add(connection)
            if not caller.on_upstream_ready(connection):
                self.return_connection(connection)

    def _on_no_connection(self, caller: "CallerConnection", message: str, *, status: int) -> None:
        self.pending_connections -= 1
        caller.on_upstream_failed(message, status=status)
        if self._all or self.pending_connections:
            return
        # No connection is left that could become free, so the waiting callers would wait until their deadline.
        waiting, self._waiting = self._waiting, deque()
        for waiting_caller, _ in waiting:
            waiting_caller.on_upstream_failed(message, status=status)

    def return_connection(self, connection: UpstreamConnection) -> None:
        """Give a free connection to the caller that has waited longest, or keep it as idle."""
        while self._waiting:
            if self._waiting.popleft()[0].on_upstream_ready(connection):
                return
        if len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
            return
        connection.deadline_s = self._world.monotonic_s() + IDLE_TIMEOUT_S
        self._idle.append(connection)

    def on_connection_lost(self, connection: UpstreamConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self.start_connecting(self._waiting.popleft()[0])

    def cancel_wait(self, caller: "CallerConnection") -> None:
        """Remove a caller from the queue, if it is in it."""
        for index, (waiting, _) in enumerate(self._waiting):
            if waiting is caller:
                del self._waiting[index]
                return

    def expire_deadlines(self, now_s: float) -> None:
        """Fail the callers whose wait or whose reply has taken too long, and close connections that were idle too long."""
        while self._waiting and now_s >= self._waiting[0][1]:
            message = "The service did not answer in time: all connections to it were busy."
            self._waiting.popleft()[0].on_upstream_failed(message, status=504)
        for connection in list(self._all):
            if not connection.deadline_s or now_s < connection.deadline_s:
                continue
            caller = connection.caller
            connection.caller = None
            connection.abort()
            if caller is not None:
                caller.on_upstream_failed("The service did not answer in time.", status=504)

    async def close(self) -> None:
        for connection in list(self._all):
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _build_tls_context(settings: GatewaySettings) -> ssl.SSLContext:
    path = settings.upstream_ca_file
    context = ssl.create_default_context(cafile=str(path) if path is not None else None)
    context.set_alpn_protocols(["http/1.1"])
    return context
