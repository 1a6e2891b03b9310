"""Receivers of records for tests: an HTTP server that can go away and return on its port, and syslog receivers."""

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.ports import free_ports
from wharf.sinks.records import RecordSeverity, StreamRecord, encode_record


class ExampleData(msgspec.Struct, frozen=True):
    number: int
    text: str = ""


class ExampleRecord(StreamRecord, frozen=True, kw_only=True, tag="test.example"):
    data: ExampleData


def make_line(number: int, *, text: str = "", severity: RecordSeverity = RecordSeverity.NOTICE) -> bytes:
    """Return an encoded record whose id is the number."""
    return encode_record(
        ExampleRecord(
            id=str(number),
            time="2027-01-15T08:00:00.250Z",
            source="h1/p1",
            severity=severity,
            data=ExampleData(number, text),
        )
    )


def read_ids(lines: bytes) -> list[str]:
    """Return the ids of the records in lines."""
    return [msgspec.json.decode(line)["id"] for line in lines.splitlines()]


class ReceivedRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    """Decompressed."""


Answer = Callable[[ReceivedRequest], tuple[int, dict[str, str], bytes]]


def accept(_request: ReceivedRequest) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b""


class HttpReceiver:
    """An HTTP server of a test. `answer` decides the replies. A request with a 2xx reply counts as accepted."""

    def __init__(self, answer: Answer = accept) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/records"
        self.answer = answer
        self.requests: list[ReceivedRequest] = []
        self.accepted: list[ReceivedRequest] = []
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = ReceivedRequest(self.command, self.path, headers, body)
                receiver.requests.append(request)
                status, reply_headers, reply = receiver.answer(request)
                if 200 <= status < 300:
                    receiver.accepted.append(request)
                self.send_response(status)
                for name, value in {**reply_headers, "content-length": str(len(reply))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply)

            do_PUT = do_POST  # noqa: N815 - The name that `http.server` calls.

            def log_message(self, *_arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_arguments: Any) -> None:
                pass  # A sender that closes its connection is no error here.

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def list_accepted_ids(self) -> list[str]:
        """Return the ids of all records in accepted requests of lines, in order of arrival."""
        return [record_id for request in list(self.accepted) for record_id in read_ids(request.body)]


@contextmanager
def running_receiver(answer: Answer = accept) -> Iterator[HttpReceiver]:
    receiver = HttpReceiver(answer)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


class DatagramReceiver:
    """A syslog receiver of datagrams, over UDP or at the path of a Unix socket."""

    def __init__(self, path: Path | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0) if path is None else str(path))
        self._socket.settimeout(10)
        self.url = f"unix://{path}" if path is not None else f"udp://127.0.0.1:{self._socket.getsockname()[1]}"

    def receive(self, count: int) -> list[bytes]:
        return [self._socket.recv(70_000) for _ in range(count)]

    def close(self) -> None:
        self._socket.close()


class StreamReceiver:
    """A syslog receiver over TCP that can go away and return on its port; or at the path of a Unix socket."""

    def __init__(self, path: Path | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self._path = path
        self._tls = tls
        self.port = 0 if path is not None else free_ports(1)[0]
        self.url = f"unix://{path}" if path is not None else f"tcp://127.0.0.1:{self.port}"
        self.received = b""
        self._connections: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_INET if self._path is None else socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port) if self._path is None else str(self._path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, args=(self._listener,))
        self._thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if self._tls is not None:
                    connection = self._wrap(connection, self._tls)
                self._connections.append(connection)
                while data := connection.recv(65_536):
                    self.received += data

    def _wrap(self, connection: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        """Return the connection with TLS, or closed if the handshake fails."""
        try:
            return tls.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return connection

    def stop(self) -> None:
        if self._listener is None or self._thread is None:
            return
        for open_socket in (self._listener, *self._connections):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        self._connections.clear()
        self._thread.join()
        self._listener = None

    def list_messages(self) -> list[bytes]:
        """Return the messages with their lengths before them (RFC 6587), as far as they are complete."""
        messages, rest = [], self.received
        while b" " in rest:
            length, _, rest = rest.partition(b" ")
            if len(rest) < int(length):
                break
            messages.append(rest[: int(length)])
            rest = rest[int(length) :]
        return messages


class NamedBatch(NamedTuple):
    """A batch of records for tests that call a sink directly."""

    name: str
    lines: list[bytes]
