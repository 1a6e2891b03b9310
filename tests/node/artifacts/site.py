"""A web server whose responses a test chooses, including faulty ones."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


class Site:
    """A web server. `answers`: the handler of each path; `headers`: the headers of the last request by path and query."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.closing = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                site.headers[self.path] = {name.lower(): value for name, value in self.headers.items()}
                with contextlib.suppress(OSError):
                    site.answers.get(path, status(404))(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def body(data: bytes, **headers: str) -> Answer:
    """Return a handler that sends this body. A `content_length` that differs from the data is sent unchanged."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"content-length": str(len(data)), **named}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)
        if int(headers.get("content_length", len(data))) != len(data):
            handler.close_connection = True

    return answer


def status(code: int, **headers: str) -> Answer:
    """Return a handler that sends this status without a body."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"content-length": "0", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Send data without end."""
    handler.send_response(200)
    handler.send_header("connection", "close")
    handler.end_headers()
    handler.close_connection = True
    while True:
        handler.wfile.write(b"x" * 65_536)


def dripping(site: Site) -> Answer:
    """Send one byte every 50 ms, forever."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100000")
        handler.end_headers()
        while not site.closing.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    return answer


def silent(site: Site) -> Answer:
    """Return a handler that sends a part of its body and then nothing more."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "10")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.wfile.flush()
        site.closing.wait(30)

    return answer


@contextlib.contextmanager
def running_site() -> Iterator[Site]:
    site = Site()
    try:
        yield site
    finally:
        site.close()
