"""A TCP relay between a node and a server, which tests disconnect in one or both directions, or slow down."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

CHUNK_BYTES = 65_536
TO_SERVER, TO_NODE = "to the server", "to the node"
"""The directions of a relay."""


class TcpRelay:
    """A relay. Data that was delayed arrives after the relay is restored, like retransmitted packets."""

    def __init__(self, address: str) -> None:
        self._target = (urlsplit(address).hostname or "", urlsplit(address).port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay_s = 0.0
        """Delay of each chunk of a reply."""
        self.on_chunk: Callable[[str, bytes], None] = lambda *_: None
        """Called with the direction and the data of each chunk before it is forwarded."""
        self._is_closed = threading.Event()
        self._open = {TO_SERVER: threading.Event(), TO_NODE: threading.Event()}
        self._sockets: list[socket.socket] = []
        self.restore()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *directions: str) -> None:
        """Stop forwarding in these directions."""
        for direction in directions:
            self._open[direction].clear()

    def restore(self) -> None:
        """Forward in both directions again."""
        for is_open in self._open.values():
            is_open.set()

    def close(self) -> None:
        self._is_closed.set()
        self.restore()
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        """Connect every caller with the server, until the relay is closed."""
        with contextlib.suppress(OSError):
            while True:
                node_side, _ = self._listener.accept()
                self._sockets.append(node_side)
                server_side = socket.create_connection(self._target)
                self._sockets.append(server_side)
                for direction, source, target in (
                    (TO_SERVER, node_side, server_side),
                    (TO_NODE, server_side, node_side),
                ):
                    threading.Thread(target=self._forward, args=(direction, source, target), daemon=True).start()

    def _forward(self, direction: str, source: socket.socket, target: socket.socket) -> None:
        """Copy data from one socket to the other until either is closed."""
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if direction == TO_NODE and self.delay_s:
                    self._is_closed.wait(self.delay_s)
                self._open[direction].wait()
                self.on_chunk(direction, data)
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def open_relay(address: str) -> Iterator[TcpRelay]:
    relay = TcpRelay(address)
    try:
        yield relay
    finally:
        relay.close()
