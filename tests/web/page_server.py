"""Serves stored pages to a real browser, with the headers and the static files of the real server."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer

from tests.http_servers import QuietHandler, serving
from wharf.web.security import PAGE_HEADERS
from wharf.web.static_files import load_static_files

MAX_STREAM_S = 300.0
"""How long a stream stays open at most, if a test does not end."""


class StoredPages(ThreadingHTTPServer):
    """The pages by their path. `end` closes the streams of changes, which send nothing."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, pages: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.pages = dict(pages)
        self.end = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class PageHandler(QuietHandler):
    """Replies with a page, a static file, or a stream without events."""

    server: StoredPages
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "text/event-stream" in self.headers.get("accept", ""):
            self._stream()
            return
        headers = tuple((name.decode(), value.decode()) for name, value in PAGE_HEADERS)
        if file := load_static_files().find(self.path):
            self.reply(
                200, file.content, ("content-type", file.content_type), ("cache-control", "max-age=60"), *headers
            )
        elif (page := self.server.pages.get(self.path)) is not None:
            self.reply(200, page.encode(), ("content-type", "text/html; charset=utf-8"), *headers)
        else:
            self.reply(404, b"")

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):  # The browser has left.
            self.wfile.write(b": .\n\n")
            self.server.end.wait(MAX_STREAM_S)
        self.close_connection = True


@contextmanager
def serving_pages(pages: Mapping[str, str]) -> Iterator[StoredPages]:
    """Serve pages by their paths. The served pages can be replaced."""
    load_static_files()
    with serving(StoredPages(pages)) as server:
        try:
            yield server
        finally:
            server.end.set()
