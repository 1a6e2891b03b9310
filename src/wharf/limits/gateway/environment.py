"""What all connections of a gateway share: settings, decision service, connection pool, counts and the health pages.

The connections themselves are tracked by `Gateway`.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from email.utils import formatdate
from typing import Final, Protocol

import msgspec

from wharf.limits.config.settings import GatewaySettings, Upstream
from wharf.limits.core.callers.addresses import is_proxy
from wharf.limits.core.paths import BadPath, normalize_path
from wharf.limits.core.responses import JSON_TYPE
from wharf.limits.decisions.requests import IncomingRequest, LocalReply
from wharf.limits.decisions.service import DecisionService
from wharf.limits.gateway.caller.collected_bodies import CollectedBodies
from wharf.limits.gateway.heads import BadHead, HeadReader
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.limits.gateway.upstream import UpstreamPool
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import World

ALIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
SERVER_TARGET: Final = b"*"
"""The target of an OPTIONS request that is about the whole service and no path."""
HEALTH_PATHS: Final = frozenset({ALIVE_PATH, READY_PATH})
MAX_CACHED_PEERS: Final = 4_096
"""Addresses of sockets for which it is stored whether they are proxies. Limits memory."""


class IdleConnection(Protocol):
    """A connection of a caller without a request."""

    def evict(self) -> None:
        """Close the connection at once, because another caller needs its place."""


class GatewayCounts:
    """The numbers of requests, failures and replies of one gateway since it was opened, for the metrics."""

    __slots__ = ("failures", "rejected_by_address", "rejected_connections", "replies", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        """Requests for which the service sent no usable reply."""
        self.rejected_connections = 0
        """Connections that were closed because there were too many in total, or too many handshakes."""
        self.rejected_by_address = 0
        """Connections that were refused because their address had too many."""
        self.replies: dict[int, int] = {}
        """Number of replies by the first digit of their status."""

    def add_reply(self, status: int) -> None:
        """Count a reply by the first digit of its status."""
        status_class = status // 100
        self.replies[status_class] = self.replies.get(status_class, 0) + 1


class GatewayEnvironment:
    """The parts that all connections of one gateway share. `is_bare` turns limits off, to measure what they cost."""

    def __init__(self, limits: RateLimiter, upstream: Upstream, world: World, *, is_bare: bool = False) -> None:
        self.decision_service: Final[DecisionService] = limits.decision_service
        self.settings: Final[GatewaySettings] = limits.settings.gateway
        if self.decision_service.unlisted is not None:
            self.decision_service.unlisted.set_upstream(upstream)
        self.pool: Final = UpstreamPool(upstream, self.settings, world)
        self.counts: Final = GatewayCounts()
        self.head_reader: Final = HeadReader(self.settings.headers_most)
        self.now_s: Final = world.monotonic_s
        self.is_bare: Final = is_bare
        self.collected_bodies: Final = CollectedBodies()
        self.idle_connections: Final[OrderedDict[IdleConnection, None]] = OrderedDict()
        """The connections of callers without a request, the one that is idle for the longest time first."""
        self.is_limiter_page: Final = self.decision_service.is_own_path
        self.head_timeout_s: Final = self.settings.head_ms / 1_000
        self.idle_timeout_s: Final = self.settings.idle_ms / 1_000
        self.is_ending = False
        """Whether the gateway stops after the running requests: every reply then closes its connection."""
        self._date_second = -1
        self._date = ""
        self._limits = limits
        self._world = world
        proxies = limits.settings.proxies
        self.is_proxy: Final[Callable[[str], bool]] = functools.lru_cache(MAX_CACHED_PEERS)(
            lambda peer: is_proxy(peer, proxies)
        )
        """Whether the address of a socket is that of a configured proxy."""
        self._base_path = upstream.base_path.encode("ascii")
        self._authority = upstream.authority.encode("ascii")

    def format_date(self) -> str:
        """Return the current time in the format of the Date header; formatted once a second."""
        second = self._world.now_ns() // 1_000_000_000
        if second != self._date_second:
            self._date_second, self._date = second, formatdate(second, usegmt=True)
        return self._date

    def normalize_target(self, target: bytes) -> bytes:
        """Return a request target with its path in normal form, which is judged and forwarded. Raises `BadHead`."""
        if target == SERVER_TARGET:
            return target
        path, mark, query = target.decode("ascii").partition("?")
        try:
            normal_path = normalize_path(path, self.decision_service.evaluator.rules.paths)
        except BadPath as error:
            raise BadHead(str(error), error.status) from None
        return target if normal_path is path else f"{normal_path}{mark}{query}".encode("ascii")

    def build_request_head(self, request: ProxiedRequest, peer: str, scheme: bytes) -> bytes:
        """Return the head of a request as it is sent to the service, with the headers that the gateway sets.

        `peer` is the address of the caller's socket, and `scheme` is `http` or `https`.
        """
        head = request.head
        base_path = b"" if head.target == SERVER_TARGET else self._base_path
        parts = [b"%b %b%b HTTP/1.1\r\n" % (head.method, base_path, head.target)]
        parts += head.lines
        by_proxy = self.is_proxy(peer)
        if head.proxy_lines and by_proxy:
            parts += head.proxy_lines
        if head.host is None:
            parts.append(b"Host: %b\r\n" % self._authority)
        if head.length:
            if request.chunks is not None:
                parts.append(b"Transfer-Encoding: chunked\r\n")
            else:
                parts.append(b"Content-Length: %d\r\n" % head.length)
        if head.is_websocket:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        # What a caller reports about its own request is passed on only if it is a configured proxy.
        hops = b", ".join([*head.forwarded_for, peer.encode()]) if by_proxy else peer.encode()
        if by_proxy and head.forwarded_proto:
            scheme = head.forwarded_proto
        if request.admitted is None:
            parts.append(b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n\r\n" % (hops, scheme))
        else:
            parts.append(
                b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Wharf-Request-Id: %b\r\n\r\n"
                % (hops, scheme, request.admitted.id.encode())
            )
        return b"".join(parts)

    async def render_health_page(self, incoming: IncomingRequest) -> LocalReply:
        """Return the health page at `/healthz` or `/readyz`. Requests for it are not charged.

        The page has warnings if a watched file was rejected. `/readyz` has status 503 while the gateway stops.
        """
        problems = [file.problem for file in self._limits.watcher.files if file.problem]
        if incoming.path == ALIVE_PATH:
            status, body = 200, {"status": "alive"}
        else:
            status = 503 if self.is_ending else 200
            body = {
                "status": "ending" if self.is_ending else "ready",
                "rules": self.decision_service.evaluator.limiter.rulebook.hash,
            }
        template = await self.decision_service.render_error(incoming, status, "")
        headers = tuple((name, value) for name, value in template.headers if name != "content-type")
        page = {**body, **({"warnings": [line.partition("\n")[0] for line in problems]} if problems else {})}
        return LocalReply(status, (*headers, ("content-type", JSON_TYPE)), msgspec.json.encode(page))
