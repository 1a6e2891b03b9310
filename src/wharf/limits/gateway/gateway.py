"""The gateway: listens, tracks all connections, enforces their deadlines, and lets running requests finish at its end.

Its only own pages are the health and readiness checks.
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
    """The gateway in front of one service. `is_bare` turns limits off completely, to measure their cost."""

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
        """Number of replies by the first digit of their status."""
        self.rejected_connections = 0
        self.port = 0
        self.connections: Final[set[CallerConnection]] = set()
        self._world = world
        self._has_proxies = bool(limits.settings.proxies.trusted or limits.settings.proxies.hops)
        self._base = upstream.base_path.encode("ascii")
        self._authority = upstream.authority.encode("ascii")
        self._server: asyncio.Server | None = None
        self._deadline_task: asyncio.Task[None] | None = None
        self._is_drained = asyncio.Event()

    # -- beginning and end -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Listen. Raises OSError if the port is in use."""
        settings = self.settings
        tls = None
        if settings.certificate_file is not None and settings.key_file is not None:
            tls = _build_tls_context(str(settings.certificate_file), str(settings.key_file))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: CallerConnection(self), settings.host, settings.port, ssl=tls, backlog=LISTEN_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._deadline_task = self._world.start_task(self._check_deadlines_forever(), name="gateway: check deadlines")

    async def close(self) -> None:
        """Stop listening, wait for running requests up to the drain timeout, then close all connections."""
        self.is_ending = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            if connection.proxied is None:
                connection.close()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_drained.wait(), self.settings.drain_ms / 1_000)
        for connection in list(self.connections):
            connection.close()
        await self.pool.close()
        if self._deadline_task is not None:
            self._deadline_task.cancel()
            await asyncio.gather(self._deadline_task, return_exceptions=True)

    async def _check_deadlines_forever(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_INTERVAL_S)
            now_s = self.now_s()
            for connection in list(self.connections):
                if connection.deadline_s and now_s >= connection.deadline_s:
                    connection.on_deadline()
            self.pool.expire_deadlines(now_s)

    # -- called by connections -------------------------------------------------------------------------------------

    def on_connection(self, connection: CallerConnection) -> None:
        """Track a new connection, or close it if there are too many."""
        if len(self.connections) >= self.settings.connections_most:
            self.rejected_connections += 1
            connection.close()
            return
        self.connections.add(connection)

    def on_connection_lost(self, connection: CallerConnection) -> None:
        self.connections.discard(connection)
        if self.is_ending and not self.connections:
            self._is_drained.set()

    def format_date(self) -> str:
        """Return the current time in the format of the Date header."""
        return formatdate(self._world.now_ns() // 1_000_000_000, usegmt=True)

    def count_reply(self, status: int) -> None:
        status_class = status // 100
        self.statuses[status_class] = self.statuses.get(status_class, 0) + 1

    # -- requests to the service -----------------------------------------------------------------------------------

    def build_request_head(self, proxied: ProxiedRequest, peer: str, scheme: bytes) -> bytes:
        """Return the head of a request as it is sent to the service."""
        head = proxied.head
        parts = [b"%b %b%b HTTP/1.1\r\n" % (head.method, self._base, head.target)]
        parts += head.lines
        if head.host is None:
            parts.append(b"Host: %b\r\n" % self._authority)
        if head.length:
            if proxied.chunks is not None:
                parts.append(b"Transfer-Encoding: chunked\r\n")
            else:
                parts.append(b"Content-Length: %d\r\n" % head.length)
        if head.is_websocket:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        # The caller's own X-Forwarded-For is passed on only if trusted proxies are configured.
        hops = b", ".join([*head.forwarded_for, peer.encode()]) if self._has_proxies else peer.encode()
        if proxied.admitted is None:
            parts.append(b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n\r\n" % (hops, scheme))
        else:
            parts.append(
                b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Wharf-Request-Id: %b\r\n\r\n"
                % (hops, scheme, proxied.admitted.id.encode())
            )
        return b"".join(parts)

    # -- pages -----------------------------------------------------------------------------------------------------

    async def render_own_page(self, incoming: IncomingRequest) -> LocalReply:
        """Return the health or readiness page. Requests for it are not counted."""
        problems = [file.problem for file in self.limits.watcher.files if file.problem]
        is_ready = not self.is_ending
        if incoming.path == ALIVE_PATH:
            status, body = 200, {"status": "alive"}
        else:
            status = 200 if is_ready else 503
            body = {
                "status": "ready" if is_ready else "ending",
                "rules": self.decision_service.evaluator.limiter.rulebook.hash,
            }
        template = await self.decision_service.render_error(incoming, status, "")
        headers = tuple((name, value) for name, value in template.headers if name != "content-type")
        page = {**body, **({"warnings": [line.partition("\n")[0] for line in problems]} if problems else {})}
        return LocalReply(status, (*headers, ("content-type", JSON_TYPE)), msgspec.json.encode(page))


def _build_tls_context(certificate_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
