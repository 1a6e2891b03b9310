"""A service behind the gateway that sends whatever a test wants, over raw sockets in threads of its own.

The threads keep the work of the service out of the measured CPU time of the gateway's event loop.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
READ_TIMEOUT_S = 30.0

Attack = Callable[["ServiceConnection"], None]


class ServiceConnection:
    """One connection of the gateway to the hostile service."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.sent_bytes = 0
        self.has_attacked = False
        """Whether `attack` ran for a request of this connection."""
        self.is_ended = False
        self.received = b""

    def read_head(self) -> bytes:
        """Return the next request head; empty if the gateway closed the connection."""
        while b"\r\n\r\n" not in self.received:
            data = self.socket.recv(65_536)
            if not data:
                return b""
            self.received += data
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        return head

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)
            self.sent_bytes += len(part)

    def send_all(self, parts: Iterable[bytes]) -> None:
        """Send the parts, until the gateway closes the connection."""
        with suppress(OSError):
            for part in parts:
                self.send(part)

    def wait_for_close(self) -> None:
        """Wait until the gateway closes the connection."""
        with suppress(OSError):
            while self.socket.recv(65_536):
                pass

    def reset(self) -> None:
        """Close the connection with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def do_nothing(_connection: ServiceConnection) -> None:
    """Let the connection wait for a request."""


class HostileService:
    """Replies `hello` to requests for `/honest`, and runs `attack` for all others.

    `on_accept` runs for each new connection, before a request is read.
    """

    def __init__(self) -> None:
        self.attack: Attack = lambda connection: connection.send(HELLO)
        self.on_accept: Attack = do_nothing
        self.connections: list[ServiceConnection] = []
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self.connections:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            accepted.settimeout(READ_TIMEOUT_S)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = ServiceConnection(accepted)
            self.connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: ServiceConnection) -> None:
        """Handle the requests of one connection until it is closed."""
        with connection.socket, suppress(OSError):
            self.on_accept(connection)
            while head := connection.read_head():
                self.heads.append(head)
                if head.split(b" ")[1].startswith(b"/honest"):
                    connection.send(HELLO)
                else:
                    connection.has_attacked = True
                    self.attack(connection)
        connection.is_ended = True


@contextmanager
def run_hostile_service() -> Iterator[HostileService]:
    service = HostileService()
    try:
        yield service
    finally:
        service.close()


def send_only(*parts: bytes) -> Attack:
    """Return an attack that sends the parts, and then serves the next request."""

    def attack(connection: ServiceConnection) -> None:
        connection.send(*parts)

    return attack


def send_and_wait(*parts: bytes) -> Attack:
    """Return an attack that sends the parts, and then keeps the connection open."""

    def attack(connection: ServiceConnection) -> None:
        connection.send_all(parts)
        connection.wait_for_close()

    return attack


def send_and_close(*parts: bytes) -> Attack:
    """Return an attack that sends the parts, and then closes the connection."""

    def attack(connection: ServiceConnection) -> None:
        connection.send_all(parts)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
            connection.wait_for_close()

    return attack


def send_and_reset(*parts: bytes) -> Attack:
    """Return an attack that sends the parts, and then resets the connection."""

    def attack(connection: ServiceConnection) -> None:
        connection.send_all(parts)
        connection.reset()

    return attack


def send_endlessly(first: bytes, part: bytes, *, most_bytes: int = 100 << 20) -> Attack:
    """Return an attack that sends `first`, and then `part` again and again, up to 100 MiB."""

    def attack(connection: ServiceConnection) -> None:
        block = part * max(1, 65_536 // len(part))
        # The first block is sent together with `first`, so that the gateway does not pass a valid beginning on alone.
        connection.send_all([first + block])
        connection.send_all(block for _ in range(most_bytes // len(block) - 1))
        connection.wait_for_close()

    return attack
