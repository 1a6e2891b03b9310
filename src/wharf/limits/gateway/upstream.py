"""Connections to the service behind the gateway: one request at a time on each, kept and used again.

A connection reads the reply's head and frames its body; what that means for the caller, the caller's side knows.
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
IDLE_TIMEOUT_S: Final = 30.0
MAX_IDLE_CONNECTIONS: Final = 256


class UpstreamConnection(asyncio.Protocol):
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class, only by what they do.

    def connection_lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - Why does not matter to the caller.
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
            self.abort()  # Nothing was asked: whatever this answers, nobody may get it.
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
        caller = self.caller
        assert caller is not None
        try:
            head = read_reply_head(data, end, is_head=caller.is_head_request)
        except BadHead as problem:
            self._fail(str(problem))
            return
        if head.status == 101:
            if not caller.is_upgrade_request or not head.has_upgrade:
                self._fail("the service changed the protocol, and nobody asked for it")
                return
            self.is_tunnel = True
            self.deadline_s = 0.0
            caller.on_tunnel(head, data[end:])
            return
        if head.status < 200:
            if len(data) > end:
                self.data_received(data[end:])  # What comes first is only a word before the reply.
            return
        self._head = head
        self._left = head.length
        if head.length == CHUNKED:
            self._chunks = ChunkReader()
        caller.on_reply_head(head, data[end:])

    def read_body(self, rest: bytes) -> None:
        """The caller's side has written the head, or is about to: what follows is the body."""
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
            except BadChunk as problem:
                self._fail(str(problem))
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
        caller, head = self.caller, self._head
        assert caller is not None
        assert head is not None
        self.caller = None
        self._head = None
        self._chunks = None
        may_stay = head.is_reusable and is_clean and caller.has_sent_all
        # The connection is free before the caller is told: the caller's next request may take it at once.
        if may_stay:
            self.was_used = True
            self.pool.return_connection(self)
        else:
            self.abort()
        caller.on_reply_end(self)

    def _fail(self, why: str) -> None:
        caller = self.caller
        self.caller = None
        self.abort()
        if caller is not None:
            caller.on_bad_reply(why)

    # -- what the caller's side asks for ---------------------------------------------------------------------------

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
    """All connections to one service. Those who find none wait in order."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings, world: World) -> None:
        self.upstream: Final = upstream
        self.opened_connections = 0
        self.pending_connections = 0
        self._settings = settings
        self._world = world
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._waiting: deque[tuple[CallerConnection, float]] = deque()
        """Callers who found no connection, and until when each waits. Whoever is first is also the first to give up."""
        self._tls = _tls_of(settings) if upstream.is_tls else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._silence_s = settings.upstream_ms / 1_000

    def compute_deadline_s(self) -> float:
        return self._world.monotonic_s() + self._silence_s

    def take_idle(self) -> UpstreamConnection | None:
        """A connection that is open and has nothing to do."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    def start_connecting(self, caller: "CallerConnection") -> None:
        """Open a connection for a caller who found none; it is told when there is one, or that there is none."""
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
        # No connection is left that could become free: whoever waits would wait forever.
        waiting, self._waiting = self._waiting, deque()
        for other, _ in waiting:
            other.on_upstream_failed(message, status=status)

    def return_connection(self, connection: UpstreamConnection) -> None:
        """The connection has nothing to do. Whoever waits longest gets it."""
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
        """A caller left who may have waited."""
        for index, (waiting, _) in enumerate(self._waiting):
            if waiting is caller:
                del self._waiting[index]
                return

    def expire_deadlines(self, now_s: float) -> None:
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


def _tls_of(settings: GatewaySettings) -> ssl.SSLContext:
    path = settings.upstream_ca_file
    context = ssl.create_default_context(cafile=str(path) if path is not None else None)
    context.set_alpn_protocols(["http/1.1"])
    return context
