"""A TCP relay between a node and a server, which tests disconnect in one or both directions, or slow down."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

CHUNK_BYTES = 65_536


class Way:
    """A relay. Data that are held back arrive after it is restored, as with retransmitted packets."""

    def __init__(self, address: str) -> None:
        self._target = (urlsplit(address).hostname or "", urlsplit(address).port or 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.delay_s = 0.0
        """Before each piece of a reply."""
        self._is_closed = threading.Event()
        self._open = {"there": threading.Event(), "back": threading.Event()}
        self._sockets: list[socket.socket] = []
        self.mend()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *ways: str) -> None:
        """Stop forwarding: `there` is from the node to the server, `back` from the server to the node."""
        for way in ways:
            self._open[way].clear()

    def mend(self) -> None:
        """Forward in both directions again."""
        for is_open in self._open.values():
            is_open.set()

    def close(self) -> None:
        self._is_closed.set()
        self.mend()
        for each in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._sockets.append(near)
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                for way, source, target in (("there", near, far), ("back", far, near)):
                    threading.Thread(target=self._move, args=(way, source, target), daemon=True).start()

    def _move(self, way: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if way == "back" and self.delay_s:
                    self._is_closed.wait(self.delay_s)
                self._open[way].wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def a_way_to(address: str) -> Iterator[Way]:
    way = Way(address)
    try:
        yield way
    finally:
        way.close()
