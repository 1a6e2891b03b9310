"""The gateway: listens, tracks the connections of callers, enforces deadlines, and lets running requests finish.

The connections handle the requests; `GatewayEnvironment` holds what they share.
"""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Final

from wharf.limits.config.certificates import load_certificate
from wharf.limits.config.file_watcher import WatchedFile
from wharf.limits.config.settings import Upstream
from wharf.limits.core.callers.addresses import build_address_scope, parse_address
from wharf.limits.core.responses import JSON_TYPE
from wharf.limits.decisions.requests import LocalReply
from wharf.limits.gateway.caller.connection import CallerConnection
from wharf.limits.gateway.environment import GatewayCounts, GatewayEnvironment
from wharf.limits.gateway.sockets import enable_keepalive
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World
from wharf.world.tasks import cancel_tasks
from wharf.world.tls_contexts import build_server_context
from wharf.world.tls_listener import TlsListener

DEADLINE_CHECK_INTERVAL_S: Final = 0.5
CONNECTIONS_PER_STEP: Final = 8_192
"""Connections whose deadlines are checked at a time, which takes 2 ms."""
DEADLINES_PER_STEP: Final = 32
"""Expired deadlines of callers that are handled at a time; limits how long they hold the event loop."""
CERTIFICATE_PURPOSE: Final = "certificate"
"""Names the certificate in the log of watched files."""
LISTEN_BACKLOG: Final = 4_096
"""Connections that the kernel queues before the gateway accepts them; absorbs bursts of new connections."""
MAX_REFUSED_CONNECTIONS: Final = 256
"""Refused connections that are open until their callers have read the reply. Beyond that, they are closed without a reply."""
TOO_MANY_CONNECTIONS: Final = LocalReply(
    429,
    (("content-type", JSON_TYPE), ("cache-control", "no-cache"), ("retry-after", "1")),
    b'{"message":"Your address has too many open connections to this service. Close some, or use one connection for several '
    b'requests.","status":"429"}',
)
"""The reply to a connection of an address that has too many."""


class ConnectionCounts:
    """The number of open connections by address, so that one address cannot occupy all of them.

    `max_per_address` of 0 means no maximum. The table has an entry for each address with an open connection, so the maximum
    number of connections limits its size. An IPv6 caller is counted by its /64 network, as in the rules.
    """

    def __init__(self, max_per_address: int) -> None:
        self._max_per_address = max_per_address
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, peer: str) -> bool:
        """Count a new connection of the address `peer`. Return false, and count nothing, if the address has the maximum."""
        if not self._max_per_address:
            return True
        key = _build_key(peer)
        count = self._counts.get(key, 0)
        if count >= self._max_per_address:
            return False
        self._counts[key] = count + 1
        return True

    def remove(self, peer: str) -> None:
        """Count a closed connection of the address `peer` no longer."""
        if not self._max_per_address:
            return
        key = _build_key(peer)
        count = self._counts[key] - 1
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]


def _build_key(peer: str) -> str:
    """Return the text under which the connections of an address are counted."""
    address = parse_address(peer)
    return peer if address is None else build_address_scope(address)


class Gateway:
    """A reverse proxy in front of one service, which applies limits. `is_bare` turns limits off, to measure their cost."""

    def __init__(self, limits: RateLimiter, upstream: Upstream, world: World, *, is_bare: bool = False) -> None:
        self.limits: Final = limits
        self.environment: Final = GatewayEnvironment(limits, upstream, world, is_bare=is_bare)
        self.counts: Final[GatewayCounts] = self.environment.counts
        self.port = 0
        self.connections: Final[set[CallerConnection]] = set()
        self._refused_connections: Final[set[CallerConnection]] = set()
        """Connections of addresses with too many, which end when their caller has read the reply."""
        self._connection_counts: Final = ConnectionCounts(self.environment.settings.connections_per_address)
        self._world = world
        self._servers: Final[list[asyncio.Server | TlsListener]] = []
        self._deadline_task: asyncio.Task[None] | None = None
        self._is_drained = asyncio.Event()

    async def open(self) -> None:
        """Start to listen, and to check deadlines.

        Raises `OSError` if the port is in use, and `InvalidFile` if the certificate cannot be used.
        """
        settings = self.environment.settings
        if settings.certificate_file is not None and settings.key_file is not None:
            await self._open_with_tls(settings.certificate_file, settings.key_file)
        else:
            server = await asyncio.get_running_loop().create_server(
                self._make_connection, settings.host, settings.port, backlog=LISTEN_BACKLOG
            )
            for listening in server.sockets:
                enable_keepalive(listening)  # The sockets of callers inherit it.
            self.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)
        self._deadline_task = self._world.start_task(self._check_deadlines_forever(), name="gateway: check deadlines")

    async def _open_with_tls(self, certificate_file: Path, key_file: Path) -> None:
        """Start to listen for TLS connections on all addresses of the host, and to watch the certificate.

        Raises `OSError` if the port is in use, and `InvalidFile` if the certificate cannot be used.
        """
        settings = self.environment.settings
        context = build_server_context(protocols=("http/1.1",))

        async def apply_certificate(_text: str) -> None:
            load_certificate(context, certificate_file, key_file)

        await apply_certificate("")
        self.limits.watcher.add(
            WatchedFile(certificate_file, CERTIFICATE_PURPOSE, apply_certificate, others=(key_file,))
        )
        found = await asyncio.get_running_loop().getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            listening = socket.create_server(address, family=family)
            enable_keepalive(listening)  # The sockets of callers inherit it.
            self.port = self.port or listening.getsockname()[1]
            listener = TlsListener(
                self._world,
                listening,
                context,
                self._make_connection,
                timeout_s=self.environment.head_timeout_s,
                on_rejected=self._count_rejected,
            )
            self._servers.append(listener)
            listener.start(LISTEN_BACKLOG)

    def _make_connection(self) -> CallerConnection:
        """Return the protocol of a new connection."""
        return CallerConnection(self.environment, self._on_opened, self._on_closed)

    def _count_rejected(self) -> None:
        self.counts.rejected_connections += 1

    async def close(self) -> None:
        """Stop listening, wait for running requests up to the drain timeout, then close all connections."""
        self.environment.is_ending = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            if connection.request is None:
                connection.transport.close()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.environment.settings.drain_ms / 1_000):
                    await self._is_drained.wait()
        for connection in [*self.connections, *self._refused_connections]:
            connection.transport.close()
        for server in self._servers:
            if isinstance(server, TlsListener):
                await server.wait_closed()
        await self.environment.pool.close()
        if self._deadline_task is not None:
            await cancel_tasks(self._deadline_task)

    async def _check_deadlines_forever(self) -> None:
        """Handle the expired deadlines of all connections, every `DEADLINE_CHECK_INTERVAL_S` seconds."""
        while True:
            await asyncio.sleep(DEADLINE_CHECK_INTERVAL_S)
            now_s = self._world.monotonic_s()
            expired_count = 0
            for number, connection in enumerate([*self.connections, *self._refused_connections], 1):
                if number % CONNECTIONS_PER_STEP == 0:
                    await asyncio.sleep(0)
                deadline_s = connection.transport.deadline_s
                if deadline_s and now_s >= deadline_s:
                    connection.on_deadline()
                    expired_count += 1
                    if expired_count % DEADLINES_PER_STEP == 0:
                        await asyncio.sleep(0)
            while True:
                if not self.environment.pool.expire_deadlines(now_s):
                    break
                await asyncio.sleep(0)

    def _on_opened(self, connection: CallerConnection) -> None:
        """Track a new connection. If its address has too many, refuse it.

        If there are too many in total, close the one that is idle for the longest time, or the new one.
        """
        peer = connection.transport.peer
        if not self.environment.is_proxy(peer) and not self._connection_counts.add(peer):
            self._refuse(connection)
            return
        if len(self.connections) >= self.environment.settings.connections_most:
            self.counts.rejected_connections += 1
            idle, _ = self.environment.idle_connections.popitem(last=False)
            idle.evict()
            if idle is connection:
                return
        self.connections.add(connection)

    def _refuse(self, connection: CallerConnection) -> None:
        """Refuse a connection with 429. If many refused ones are open already, close it without a reply."""
        self.counts.rejected_by_address += 1
        self._refused_connections.add(connection)
        if len(self._refused_connections) > MAX_REFUSED_CONNECTIONS:
            connection.evict()
        else:
            connection.refuse(TOO_MANY_CONNECTIONS)

    def _on_closed(self, connection: CallerConnection) -> None:
        """Stop tracking a connection; if it was the last one while the gateway stops, `close` continues."""
        if connection in self._refused_connections:
            self._refused_connections.discard(connection)
            return
        if not self.environment.is_proxy(connection.transport.peer):
            self._connection_counts.remove(connection.transport.peer)
        self.connections.discard(connection)
        if self.environment.is_ending and not self.connections:
            self._is_drained.set()
