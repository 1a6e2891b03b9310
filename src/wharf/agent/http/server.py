"""Serves an ASGI application on the listening socket that the parent opened: TLS, timeouts, and a bounded shutdown.

The limits of single connections are in `wharf.agent.http.protocol`.
"""

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
from wharf.agent.http.connection_limits import ConnectionLimiter
from wharf.agent.http.parsing_slots import ParsingSlots
from wharf.agent.http.protocol import STALLED_REPLY_TIMEOUT_S, LingeringConnections, build_protocol
from wharf.agent.sockets import LISTEN_BACKLOG, listen_unix
from wharf.agent.tls.contexts import build_server_tls_context, reload_server_tls
from wharf.cluster.api.connection_senders import FindSender
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import SECOND
from wharf.world import World
from wharf.world.tasks import wait_for_event
from wharf.world.tls_listener import TlsListener

MAX_WEBSOCKET_MESSAGE_BYTES: Final = 256 * 1024
"""The longest message of a websocket. Limits the memory of callers without a token, and of commands that do not read their input:
servers and nodes hold up to six such messages of a session. Nodes send 64 KiB at a time, and clients 2 KiB."""
DATE_HEADER_INTERVAL_S: Final = 1.0
"""How often the value of the Date header is updated."""
WEBSOCKET_CLOSE_TIMEOUT_S: Final = 1.0
"""How long websockets may take to close at shutdown. Then they are aborted, because a client that does not read would
delay the shutdown."""
WEBSOCKET_CLOSE_POLL_S: Final = 0.02
"""How often shutdown checks whether all websockets have closed."""
ACCEPTS_PER_ITERATION: Final = 16
"""Connections that are accepted in each iteration of the event loop. libuv accepts only one for each listening descriptor, and
then runs everything else that is due. After an outage, thousands of nodes would be accepted one by one, each with its
request, and a connection of a user would wait behind them for seconds. Accepting takes 0.1 ms, a request up to 1 ms."""
CLIENT_ERROR_MESSAGES: Final = frozenset(
    (
        "Invalid HTTP request received.",
        "Unsupported upgrade request.",
        "ASGI callable returned without completing response.",
    )
)
"""Log messages of uvicorn about invalid requests, and about streams that are cut off because their caller does not read or has
lost access. They are not logged here."""

log = logging.getLogger(__name__)


class HttpServer:
    """The HTTP port of one api process, and its Unix socket for the other processes of the server."""

    def __init__(
        self,
        world: World,
        app: Any,  # An ASGI application.
        settings: AgentSettings,
        descriptor: int,
        *,
        socket_path: Path | None = None,
        find_sender: FindSender | None = None,
    ) -> None:
        """`descriptor` is the listening socket of the parent. `socket_path` is a Unix socket to serve as well.

        `find_sender` finds the senders whose connections do not count for their addresses.
        Raises `StartupError` if the certificate cannot be used.
        """
        self._listening = [socket.socket(fileno=descriptor)]
        if socket_path is not None:
            self._listening.append(listen_unix(socket_path))
        config = uvicorn.Config(
            app,
            http=build_protocol(
                ConnectionLimiter(
                    world, max_per_client=settings.limits.http_max_conns_per_client, find_sender=find_sender
                ),
                ParsingSlots(world.cpu_s),
            ),
            ws="websockets-sansio",
            ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
            ws_per_message_deflate=False,  # A few bytes could become megabytes, before the caller has shown a token.
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            # Otherwise uvicorn takes the address of a local caller from X-Forwarded-For. The limiter has its own trusted proxies.
            proxy_headers=False,
            backlog=LISTEN_BACKLOG,
            timeout_graceful_shutdown=max(1, round(settings.api.shutdown_grace.seconds)),
        )
        config.load()
        self._tls = settings.tls
        self._context = build_server_tls_context(settings.tls) if settings.tls.http else None
        config.ssl = self._context
        self._server = _Server(config, world, handshake_timeout_s=settings.limits.https_handshake_timeout.seconds)

    async def open(self) -> None:
        """Start to accept connections."""
        logging.getLogger("uvicorn.error").addFilter(self._should_log)
        await self._server.startup(sockets=self._listening)

    @staticmethod
    def _should_log(record: logging.LogRecord) -> bool:
        """Return whether to log a record of uvicorn.

        Requests canceled at shutdown would only log tracebacks. Errors of clients are sent to the client: anyone who can
        connect could otherwise fill the log.
        """
        if record.msg in CLIENT_ERROR_MESSAGES:
            return False
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then shut down: accept no connections, wait for open requests, abort slow ones.

        Handlers of websockets observe the same event and close their websockets.
        """
        await self._server.tick_until(stop)
        await self._server.close_websockets()
        await self._server.shutdown(sockets=self._listening)

    def reload(self, settings: AgentSettings) -> None:
        """Reload the certificate files. New connections use the new certificate; open ones keep the old one until they close."""
        if self._context is None:
            return
        try:
            reload_server_tls(self._context, settings.tls)
        except StartupError as error:
            log.error("certificate not reloaded; the previous one stays in use", extra={"why": str(error)})
            return
        self._tls = settings.tls
        log.info("certificate reloaded", extra={"file": settings.tls.cert_file})


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and with one wake-up per second instead of ten.

    The parent process handles signals. The class overrides internal methods of uvicorn: check them when upgrading it.
    """

    def __init__(self, config: uvicorn.Config, world: World, *, handshake_timeout_s: float) -> None:
        super().__init__(config)
        self._world = world
        self._handshake_timeout_s = handshake_timeout_s
        self.lifespan = config.lifespan_class(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on sockets that listen already, with limits for TLS handshakes, which uvicorn has no options for."""
        loop, config = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            """Return the protocol of one new connection."""
            return config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn calls it
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        self.servers = []
        for listening in sockets or ():
            is_local = listening.family == socket.AF_UNIX
            # Unix sockets need no TLS: file permissions decide who may connect.
            if config.ssl is not None and not is_local:
                listener = TlsListener(
                    self._world, listening.dup(), config.ssl, protocol, timeout_s=self._handshake_timeout_s
                )
                self.servers.append(listener)  # type: ignore[arg-type]  # It has the methods that uvicorn calls.
                listener.start(config.backlog)
                continue
            copies = 0 if is_local else ACCEPTS_PER_ITERATION - 1
            for descriptor in (listening, *(listening.dup() for _ in range(copies))):
                self.servers.append(await loop.create_server(protocol, sock=descriptor, backlog=config.backlog))
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals, unlike uvicorn."""
        yield

    async def tick_until(self, stop: asyncio.Event) -> None:
        """Until the event is set, update the Date header every second, and abort closing connections whose client does
        not read.
        """
        lingering, next_check_s = LingeringConnections(), 0.0
        while not stop.is_set():
            if self._world.monotonic_s() >= next_check_s:
                next_check_s = self._world.monotonic_s() + STALLED_REPLY_TIMEOUT_S
                lingering.abort_lingering(connection.transport for connection in list(self.server_state.connections))
            date = email.utils.formatdate(self._world.now_ns() / SECOND, usegmt=True).encode()
            self.server_state.default_headers = [(b"date", date), *self.config.encoded_headers]
            await wait_for_event(stop, DATE_HEADER_INTERVAL_S)

    async def close_websockets(self) -> None:
        """Stop accepting connections, wait for websockets to close, and abort the others."""
        for server in self.servers:
            server.close()
        deadline_s = self._world.monotonic_s() + WEBSOCKET_CLOSE_TIMEOUT_S
        while (websockets := self._list_open_websockets()) and self._world.monotonic_s() < deadline_s:  # noqa: ASYNC110  # uvicorn has no event for it.
            await asyncio.sleep(WEBSOCKET_CLOSE_POLL_S)
        for websocket in websockets:
            websocket.transport.abort()

    def _list_open_websockets(self) -> list[WebSocketsSansIOProtocol]:
        """Return the websockets whose close frame is not fully sent yet."""
        websockets = [
            connection
            for connection in self.server_state.connections
            if isinstance(connection, WebSocketsSansIOProtocol)
        ]
        return [
            websocket
            for websocket in websockets
            if not websocket.close_sent or websocket.transport.get_write_buffer_size()
        ]

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Close the listening sockets and wait for open requests."""
        self.should_exit = True
        await super().shutdown(list(sockets or []))
