"""The gateway: listens, knows all connections, looks at the clock for them, and ends without cutting anyone off.

It answers for itself only whether it lives and whether it is ready; all else is the desk's or the service's.
"""

import asyncio
import contextlib
import logging
import ssl
from email.utils import formatdate
from typing import Final

import msgspec

from wharf.limits.config.settings import GatewaySettings, Upstream
from wharf.limits.core.responses import JSON_TYPE
from wharf.limits.decisions.requests import IncomingRequest, LocalReply
from wharf.limits.decisions.service import DecisionService
from wharf.limits.gateway.caller.connection import CallerConnection
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.limits.gateway.upstream import UpstreamPool
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World

log = logging.getLogger(__name__)

CLOCK_INTERVAL_S: Final = 0.5
LISTEN_BACKLOG: Final = 4_096
ALIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"


class Gateway:
    """`is_bare`: without limits at all, to measure what they cost."""

    def __init__(self, limits: RateLimiter, upstream: Upstream, world: World, *, is_bare: bool = False) -> None:
        self.limits: Final = limits
        self.decision_service: Final[DecisionService] = limits.decision_service
        self.settings: Final[GatewaySettings] = limits.settings.gateway
        self.pool: Final = UpstreamPool(upstream, self.settings, world)
        self.now_s: Final = world.monotonic_s
        self.is_bare: Final = is_bare
        self.own_paths: Final = frozenset({ALIVE_PATH, READY_PATH})
        self.is_page: Final = self.decision_service.pages.is_own_path
        self.head_s: Final = self.settings.head_ms / 1_000
        self.idle_s: Final = self.settings.idle_ms / 1_000
        self.is_ending = False
        self.requests = 0
        self.failures = 0
        self.statuses: Final[dict[int, int]] = {}
        """Replies by the hundred of their status."""
        self.rejected_connections = 0
        self.port = 0
        self.connections: Final[set[CallerConnection]] = set()
        self._world = world
        self._has_proxies = bool(limits.settings.proxies.trusted or limits.settings.proxies.hops)
        self._base = upstream.base_path.encode("ascii")
        self._authority = upstream.authority.encode("ascii")
        self._server: asyncio.Server | None = None
        self._clock: asyncio.Task[None] | None = None
        self._all_gone = asyncio.Event()

    # -- beginning and end -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        settings = self.settings
        tls = None
        if settings.certificate_file is not None and settings.key_file is not None:
            tls = _tls_of(str(settings.certificate_file), str(settings.key_file))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: CallerConnection(self), settings.host, settings.port, ssl=tls, backlog=LISTEN_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._clock = self._world.start_task(self._keep_looking_at_clock(), name="gateway: look at the clock")

    async def close(self) -> None:
        """Take no more connections, let running requests end within a bound, then close all."""
        self.is_ending = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            if connection.exchange is None:
                connection.close()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), self.settings.drain_ms / 1_000)
        for connection in list(self.connections):
            connection.close()
        await self.pool.close()
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)

    async def _keep_looking_at_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_INTERVAL_S)
            now_s = self.now_s()
            for connection in list(self.connections):
                if connection.deadline_s and now_s >= connection.deadline_s:
                    connection.on_deadline()
            self.pool.expire_deadlines(now_s)

    # -- what connections tell -------------------------------------------------------------------------------------

    def on_connection(self, connection: CallerConnection) -> None:
        if len(self.connections) >= self.settings.connections_most:
            self.rejected_connections += 1
            connection.close()
            return
        self.connections.add(connection)

    def on_connection_lost(self, connection: CallerConnection) -> None:
        self.connections.discard(connection)
        if self.is_ending and not self.connections:
            self._all_gone.set()

    def format_date(self) -> str:
        """The moment, as replies that are ours tell it."""
        return formatdate(self._world.now_ns() // 1_000_000_000, usegmt=True)

    def count_reply(self, status: int) -> None:
        kind = status // 100
        self.statuses[kind] = self.statuses.get(kind, 0) + 1

    # -- what is sent to the service -------------------------------------------------------------------------------

    def build_request_head(self, exchange: ProxiedRequest, peer: str, proto: bytes) -> bytes:
        """The head of a request as the service gets it."""
        head = exchange.head
        parts = [b"%b %b%b HTTP/1.1\r\n" % (head.method, self._base, head.target)]
        parts += head.lines
        if head.host is None:
            parts.append(b"Host: %b\r\n" % self._authority)
        if head.length:
            if exchange.chunks is not None:
                parts.append(b"Transfer-Encoding: chunked\r\n")
            else:
                parts.append(b"Content-Length: %d\r\n" % head.length)
        if head.is_websocket:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        # What a caller says of earlier hops is only repeated where proxies in front of us are known.
        hops = b", ".join([*head.forwarded_for, peer.encode()]) if self._has_proxies else peer.encode()
        if exchange.passage is None:
            parts.append(b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n\r\n" % (hops, proto))
        else:
            parts.append(
                b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Wharf-Request-Id: %b\r\n\r\n"
                % (hops, proto, exchange.passage.id.encode())
            )
        return b"".join(parts)

    # -- pages -----------------------------------------------------------------------------------------------------

    async def render_own_page(self, arrival: IncomingRequest) -> LocalReply:
        """Whether the process lives, and whether its rules are loaded. Neither is charged to anyone."""
        problems = [file.problem for file in self.limits.watcher.files if file.problem]
        is_ready = not self.is_ending
        if arrival.path == ALIVE_PATH:
            status, body = 200, {"status": "alive"}
        else:
            status = 200 if is_ready else 503
            body = {
                "status": "ready" if is_ready else "ending",
                "rules": self.decision_service.evaluator.limiter.rulebook.hash,
            }
        told = await self.decision_service.render_error(arrival, status, "")
        kept = tuple((name, value) for name, value in told.headers if name != "content-type")
        page = {**body, **({"warnings": [line.partition("\n")[0] for line in problems]} if problems else {})}
        return LocalReply(status, (*kept, ("content-type", JSON_TYPE)), msgspec.json.encode(page))


def _tls_of(certificate_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
