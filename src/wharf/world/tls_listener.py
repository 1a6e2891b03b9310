"""Accepts TLS connections on a listening socket, with limits for handshakes that are in progress.

The servers of asyncio and uvloop report nothing about handshakes. So a port could not count callers who connect and do not
speak TLS. Here the connections are accepted one by one, which is fast enough: a handshake takes ten times as long.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from wharf.world.ports import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

MAX_HANDSHAKES: Final = 1_000
"""Handshakes in progress on one port. Each takes up to 60 kB of memory, and ends within some round trips to the caller."""
ACCEPT_RETRY_S: Final = 1.0
"""The pause after a connection could not be accepted, such as for lack of file descriptors."""


class TlsListener:
    """A port with TLS. If there are too many handshakes, the oldest is ended, because callers who speak TLS are faster.

    `context` may be changed meanwhile; later connections use its new certificate.
    """

    def __init__(
        self,
        world: World,
        listening: socket.socket,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        timeout_s: float,
        on_rejected: Callable[[], None] | None = None,
    ) -> None:
        """Take over the listening socket. `make_protocol` returns the protocol of a new connection.

        `timeout_s`: how long a handshake may take. `on_rejected` is called for each handshake that is ended because there
        are too many.
        """
        self._world = world
        self._listening = listening
        self._context = context
        self._make_protocol = make_protocol
        self._timeout_s = timeout_s
        self._on_rejected = on_rejected
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        """The handshakes in progress and their connections, the oldest first."""
        self._accepting: asyncio.Task[None] | None = None

    @property
    def handshake_count(self) -> int:
        """The number of handshakes in progress."""
        return len(self._handshakes)

    def start(self, backlog: int) -> None:
        """Listen, and accept connections until `close`. The kernel queues `backlog` connections."""
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._accepting = start_supervised(self._world, self._accept_forever(), name="accept TLS connections")

    def close(self) -> None:
        """Accept no more connections, and end the handshakes in progress. Open connections stay open."""
        if self._accepting is not None:
            self._accepting.cancel()
        for connection in self._handshakes.values():
            _disconnect(connection)

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted any more, and close the listening socket."""
        if self._accepting is not None:
            await cancel_tasks(self._accepting)
        if self._handshakes:
            await asyncio.wait(self._handshakes)
        self._listening.close()

    async def _accept_forever(self) -> None:
        """Accept one connection in each iteration of the event loop, and start its handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("cannot accept a connection, trying again error=%s", error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            self._start_handshake(connection)
            await asyncio.sleep(0)

    def _start_handshake(self, connection: socket.socket) -> None:
        """Start the handshake of a new connection; end the oldest one if there are too many."""
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            _disconnect(self._handshakes.pop(oldest))
            if self._on_rejected is not None:
                self._on_rejected()
        handshake = start_supervised(self._world, self._shake_hands(connection), name="TLS handshake")
        self._handshakes[handshake] = connection
        handshake.add_done_callback(lambda ended: self._handshakes.pop(ended, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        """Perform the handshake, and pass the connection on to its protocol. A failure closes the connection."""
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol, connection, ssl=self._context, ssl_handshake_timeout=self._timeout_s
            )
        except OSError:  # The caller does not speak TLS, is too slow, or has left.
            connection.close()


def _disconnect(connection: socket.socket) -> None:
    """End the handshake of a connection: its task reads the end of the data.

    Its task is not cancelled: the event loops keep a connection open if that happens before its handshake has begun.
    """
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
