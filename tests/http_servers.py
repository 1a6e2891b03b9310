"""HTTP servers of the standard library that serve in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer
from typing import TypeVar

S = TypeVar("S", bound=BaseServer)

POLL_INTERVAL_S = 0.02
"""How long the end of a server takes at most."""


class QuietHandler(BaseHTTPRequestHandler):
    """Handles requests without log lines."""

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(server: S) -> Iterator[S]:
    """Run the server in a thread until the end of the block, and close it."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL_S,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
