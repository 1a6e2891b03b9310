"""Serves an ASGI application on the listening socket that the parent holds: TLS, limits of time, and a bounded end."""

import asyncio
import contextlib
import email.utils
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from wharf.agent.errors import StartupError
from wharf.agent.http.protocol import STALLED_REPLY_TIMEOUT_S, ConnectionLimiter, LingeringConnections, build_protocol
from wharf.agent.sockets import LISTEN_BACKLOG, listen_unix
from wharf.agent.tls.contexts import build_server_tls_context, load_authority, load_certificate
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import SECOND
from wharf.world import World

DATE_HEADER_INTERVAL_S: Final = 1.0
WEBSOCKET_CLOSE_TIMEOUT_S: Final = 1.0
"""How long websockets have at the end to say goodbye, in the words of those who talk over them. Then they are cut: who does
not read would hold up the end."""
WEBSOCKET_CLOSE_POLL_S: Final = 0.02
CLIENT_ERROR_MESSAGES: Final = frozenset(("Invalid HTTP request received.", "Unsupported upgrade request."))
"""As uvicorn has them."""

log = logging.getLogger(__name__)


class HttpServer:
    def __init__(
        self, world: World, app: Any, settings: AgentSettings, descriptor: int, *, socket_path: Path | None = None
    ) -> None:  # An ASGI application.
        """`door`: where it listens for the other processes of this server, too. Raises CannotStart when the certificate
        cannot be used."""
        self._listening = [socket.socket(fileno=descriptor)]
        if socket_path is not None:
            self._listening.append(listen_unix(socket_path))
        config = uvicorn.Config(
            app,
            http=build_protocol(ConnectionLimiter(world, max_per_client=settings.limits.http_max_conns_per_client)),
            ws="websockets-sansio",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=LISTEN_BACKLOG,
            timeout_graceful_shutdown=max(1, round(settings.api.shutdown_grace.seconds)),
        )
        config.load()
        self._tls = settings.tls
        self._context = build_server_tls_context(settings.tls) if settings.tls.http else None
        config.ssl = self._context
        self._server = _Server(config, world, handshake_within_s=settings.limits.https_handshake_timeout.seconds)

    async def open(self) -> None:
        logging.getLogger("uvicorn.error").addFilter(self._is_worth_a_line)
        await self._server.startup(sockets=self._listening)

    @staticmethod
    def _is_worth_a_line(record: logging.LogRecord) -> bool:
        """At the end requests that take too long are cut; a traceback of each would only frighten. What a caller got wrong
        is told to the caller: else anybody who can connect could fill the log."""
        if record.msg in CLIENT_ERROR_MESSAGES:
            return False
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))

    async def serve(self, stop: asyncio.Event) -> None:
        """Answer until the event, then end: accept no more, let open requests end, cut what takes too long. Whoever talks
        over a websocket hears of the event, too, and closes it."""
        await self._server.tick_until(stop)
        await self._server.part_with_websockets()
        await self._server.shutdown(sockets=self._listening)

    def reload(self, settings: AgentSettings) -> None:
        """Read the certificate's files again; connections that are made from now on get the new one."""
        if self._context is None:
            return
        try:
            load_certificate(self._context, settings.tls)
            if settings.tls.verify_https_client:
                load_authority(self._context, settings.tls)  # New authorities are added; one that goes needs a restart.
        except StartupError as error:
            log.error("the new certificate cannot be used; the old one stays", extra={"why": str(error)})
            return
        self._tls = settings.tls
        log.info("certificate read again", extra={"file": settings.tls.cert_file})


class _Server(uvicorn.Server):
    """Without signals, which are the parent's business, and without waking ten times a second."""

    def __init__(self, config: uvicorn.Config, world: World, *, handshake_within_s: float) -> None:
        super().__init__(config)
        self._world = world
        self._handshake_within_s = handshake_within_s
        self.lifespan = config.lifespan_class(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As the parent's for sockets that listen already, with a bound for the handshake that it has no option for."""
        loop, config = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]  # as the parent calls it
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        self.servers = []
        for listening in sockets or ():
            # Between processes of one machine the kernel says who may connect.
            tls = config.ssl if listening.family != socket.AF_UNIX else None
            within_s = self._handshake_within_s if tls is not None else None
            self.servers.append(
                await loop.create_server(
                    protocol, sock=listening, ssl=tls, backlog=config.backlog, ssl_handshake_timeout=within_s
                )
            )
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def tick_until(self, until: asyncio.Event) -> None:
        """Keep the Date header true, and cut connections that are closed and do not end."""
        lingering, due_s = LingeringConnections(), 0.0
        while not until.is_set():
            if self._world.monotonic_s() >= due_s:
                due_s = self._world.monotonic_s() + STALLED_REPLY_TIMEOUT_S
                lingering.abort_lingering(connection.transport for connection in list(self.server_state.connections))
            date = email.utils.formatdate(self._world.now_ns() / SECOND, usegmt=True).encode()
            self.server_state.default_headers = [(b"date", date), *self.config.encoded_headers]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_HEADER_INTERVAL_S):
                    await until.wait()

    async def part_with_websockets(self) -> None:
        """Also takes no more connections: nobody new is to begin a talk."""
        for server in self.servers:
            server.close()
        until_s = self._world.monotonic_s() + WEBSOCKET_CLOSE_TIMEOUT_S
        while (open_ := self._unparted()) and self._world.monotonic_s() < until_s:  # noqa: ASYNC110  # The server has none.
            await asyncio.sleep(WEBSOCKET_CLOSE_POLL_S)
        for each in open_:
            each.transport.abort()

    def _unparted(self) -> list[WebSocketsSansIOProtocol]:
        """Those to which a goodbye is still to be said, or is on its way."""
        sockets = [each for each in self.server_state.connections if isinstance(each, WebSocketsSansIOProtocol)]
        return [each for each in sockets if not each.close_sent or each.transport.get_write_buffer_size()]

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        self.should_exit = True
        await super().shutdown(list(sockets or []))
