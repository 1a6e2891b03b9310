"""The HTTP server of the check endpoint: connections of proxies, with limits on their number, size and time.

`check` decides. The requests of a connection are answered in order, one at a time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from email.utils import formatdate
from typing import Final

import msgspec

from wharf.limits.admin.metrics import Metric
from wharf.limits.config.settings import ServeSettings
from wharf.limits.core.responses import JSON_TYPE
from wharf.limits.decisions.requests import LocalReply
from wharf.limits.gateway.caller.replies import build_reply_head
from wharf.limits.gateway.environment import ALIVE_PATH, READY_PATH
from wharf.limits.gateway.heads import BadHead, RequestHead, read_request_head
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.serving.check import InvalidCheck, build_problem, check_request, read_check
from wharf.world import World

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 * 1024
"""Limits the memory of a connection. A proxy may pass on all headers of its caller."""
MAX_HEADERS: Final = 200
"""More than proxies accept from their callers, because they add some."""
LISTEN_BACKLOG: Final = 1_024
"""Connections that the kernel queues before the server accepts them."""
PROBLEM_INTERVAL_S: Final = 10.0
"""A rejected check is logged at most once in this time: it is a mistake in the configuration of the proxy."""


class CheckServer:
    """Listens for checks of proxies."""

    def __init__(self, limits: RateLimiter, settings: ServeSettings, world: World) -> None:
        self.port = 0
        self.requests = 0
        self.invalid_requests = 0
        self.rejected_connections = 0
        self.settings: Final = settings
        self.connections: Final[set[_CheckConnection]] = set()
        self.decision_service: Final = limits.decision_service
        self.is_ending = False
        self._limits = limits
        self._world = world
        self._server: asyncio.Server | None = None
        self._next_log_s = 0.0
        self._is_idle = asyncio.Event()

    async def open(self) -> None:
        """Start to listen. Raises `OSError` if the address cannot be used."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _CheckConnection(self), self.settings.check_host, self.settings.check_port, backlog=LISTEN_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, finish running checks up to the drain timeout, and close all connections."""
        self.is_ending = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_ms / 1_000):
                while self.connections:
                    self._is_idle.clear()
                    await self._is_idle.wait()
        for connection in list(self.connections):
            connection.abort()

    def list_metrics(self) -> Iterable[Metric]:
        """Return the numbers of checks and connections."""
        yield Metric("check_requests_total", "Requests to the check endpoint.", self.requests)
        yield Metric("check_invalid_total", "Of these, those that could not be decided.", self.invalid_requests)
        yield Metric("check_connections", "Open connections of proxies to the check endpoint.", len(self.connections))
        yield Metric("check_turned_away_total", "Connections rejected above the maximum.", self.rejected_connections)

    def add(self, connection: "_CheckConnection") -> bool:
        """Track a new connection. Return false if it must be closed, because there are too many."""
        if len(self.connections) >= self.settings.connections_most or self.is_ending:
            self.rejected_connections += 1
            return False
        self.connections.add(connection)
        return True

    def discard(self, connection: "_CheckConnection") -> None:
        """Stop tracking a closed connection."""
        self.connections.discard(connection)
        self._is_idle.set()

    def format_date(self) -> str:
        return formatdate(self._world.now_ns() // 1_000_000_000, usegmt=True)

    async def answer(self, head: RequestHead) -> LocalReply:
        """Return the reply to a request of a proxy."""
        self.requests += 1
        path = head.target.partition(b"?")[0]
        if path in (ALIVE_PATH.encode(), READY_PATH.encode()):
            return self._build_health_page(path.decode())
        try:
            service = self.decision_service
            return await check_request(service, read_check(head, self.settings.check_secret, service.carriers))
        except InvalidCheck as problem:
            self.invalid_requests += 1
            self._log_problem(str(problem))
            return build_problem(str(problem), problem.status)
        except Exception:  # Last resort: the proxy must get a reply, and refuses its caller.
            log.exception("check failed")
            return build_problem("the limiter failed; its log has the reason", 500)

    def _log_problem(self, problem: str) -> None:
        """Log why a check was rejected, unless another one was logged recently."""
        now_s = self._world.monotonic_s()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + PROBLEM_INTERVAL_S
            log.warning("check rejected problem=%s", problem)

    def _build_health_page(self, path: str) -> LocalReply:
        """Return the health page, with the problems of rejected files."""
        problems = [file.problem.partition("\n")[0] for file in self._limits.watcher.files if file.problem]
        is_ready = path == ALIVE_PATH or not self.is_ending
        state = "alive" if path == ALIVE_PATH else "ready" if is_ready else "ending"
        body = msgspec.json.encode({"status": state, **({"warnings": problems} if problems else {})})
        return LocalReply(200 if is_ready else 503, (("content-type", JSON_TYPE),), body)


class _CheckConnection(asyncio.Protocol):
    """A connection of a proxy."""

    def __init__(self, server: CheckServer) -> None:
        self._server = server
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_answering = False
        self._is_full = False
        """Whether the proxy does not read its replies."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout of the first request, or close one connection too many."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are no subclasses of asyncio's.
        if not self._server.add(self):
            self.abort()
            return
        self._set_timer(self._server.settings.head_ms)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - The reason makes no difference.
        """Stop the timeout."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._server.discard(self)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if no request is being answered."""
        if not self._is_answering and self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        """Read no further request until the proxy has read its replies."""
        self._is_full = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Continue with the next request."""
        self._is_full = False
        self._update_reading()
        self._begin_next()

    def data_received(self, data: bytes) -> None:
        """Add received bytes, and answer the next request if it is complete."""
        self._buffer += data
        self._begin_next()

    def _set_timer(self, timeout_ms: int) -> None:
        """Replace the timeout of the connection, which closes it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1_000, self.abort)

    def _update_reading(self) -> None:
        """Pause the socket while a request is answered or the proxy does not read, so that the buffer stays small."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_answering or self._is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _begin_next(self) -> None:
        """Answer the next request in the buffer, if it is complete."""
        transport = self._transport
        if self._is_answering or self._is_full or transport is None or transport.is_closing() or not self._buffer:
            return
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(self._buffer) >= MAX_HEAD_BYTES:
                self._refuse(BadHead(f"The head of the request is longer than {MAX_HEAD_BYTES} bytes.", 431))
            else:
                self._set_timer(self._server.settings.head_ms)
            return
        try:
            # Values may be the caller's: one that is not ASCII is refused as the gateway does, with a reply for the caller.
            head = read_request_head(self._buffer, end + 4, max_headers=MAX_HEADERS, is_ascii=False)
        except BadHead as error:
            self._refuse(error)
            return
        self._buffer = self._buffer[end + 4 :]
        self._is_answering = True
        if self._timer is not None:
            self._timer.cancel()
        self._update_reading()
        self._server.decision_service.start_task(self._answer(head))

    def _refuse(self, error: BadHead) -> None:
        """Send an error for a head that cannot be read, and close the connection."""
        self._write(build_problem(str(error), error.status), is_persistent=False, is_head=False)

    async def _answer(self, head: RequestHead) -> None:
        """Answer one request, and continue with the next one."""
        is_persistent = not (head.has_close or head.is_http_10 or head.length or self._server.is_ending)
        try:
            reply = await self._server.answer(head)
        finally:
            self._is_answering = False
        self._write(reply, is_persistent=is_persistent, is_head=head.method == b"HEAD")
        if is_persistent:
            self._set_timer(self._server.settings.idle_ms)
            self._update_reading()
            self._begin_next()

    def _write(self, reply: LocalReply, *, is_persistent: bool, is_head: bool) -> None:
        """Send a reply, and close the connection after it unless it is persistent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        head = build_reply_head(reply, date=self._server.format_date(), is_persistent=is_persistent)
        transport.write(head if is_head else head + reply.body)
        if not is_persistent:
            transport.close()
            self._set_timer(self._server.settings.head_ms)  # A proxy that does not read could keep it open forever.
