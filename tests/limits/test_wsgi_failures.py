"""The WSGI middleware around applications that fail: the reply, the charges, and what the server is told."""

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from tests.limits.decision_services import ADA, DIRECTORY, count_slots, count_used
from tests.waiting import wait_until
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.limits.wsgi import Application, Environ, LimitsMiddleware, StartResponse
from wharf.world import RealWorld

LIMIT_HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-used", "x-github-request-id")


class Broken(Exception):
    """The error of an application."""


class Server:
    """Calls an application as a WSGI server does, and records the reply and the error that it sees."""

    def __init__(self, folder: Path) -> None:
        (folder / "people.toml").write_text(DIRECTORY)
        (folder / "rules.toml").write_text('[[rule]]\nname = "core"\nceiling = 90\n')
        (folder / "limits.toml").write_text('rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n')
        self.limiter = RateLimiter(load_settings(folder / "limits.toml"), RealWorld())
        self.service = self.limiter.decision_service
        self.cpu_s = 0.0
        self.application: Application = lambda _environ, _start: []
        self.middleware = LimitsMiddleware(
            lambda environ, start: self.application(environ, start),
            lambda: self.limiter,
            read_cpu_s=lambda: self.cpu_s,
        )
        self.starts: list[tuple[str, dict[str, str]]] = []
        """Status and headers of each call of `start_response` that a server accepts."""
        self.written = b""
        self.error: BaseException | None = None

    def request(self, *, method: str = "GET") -> None:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": "/x",
            "REMOTE_ADDR": "192.0.2.7",
            "HTTP_AUTHORIZATION": f"token {ADA}",
            "wsgi.input": io.BytesIO(),
        }

        def write(data: bytes) -> None:
            self.written += data

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            if self.starts and exc_info is None:
                raise AssertionError("start_response was called twice")
            if self.written and exc_info is not None:
                raise exc_info[1].with_traceback(exc_info[2])
            self.starts.append((status, dict(headers)))
            return write

        parts: Iterable[bytes] = ()
        try:
            parts = self.middleware(environ, start)
            for part in parts:
                assert self.starts, "a part of the body came before start_response was called"
                write(part)
        except Exception as error:
            self.error = error
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
        wait_until(lambda: not self.service.running_requests, what="the request has ended")

    @property
    def used(self) -> int:
        return count_used(self.service, "core")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.middleware.close()


def start_then_raise(_environ: Environ, start: StartResponse) -> Iterable[bytes]:
    start("200 OK", [("content-type", "text/plain")])
    raise Broken


def raise_at_once(_environ: Environ, _start: StartResponse) -> Iterable[bytes]:
    raise Broken


def raise_before_the_first_part(environ: Environ, start: StartResponse) -> Iterator[bytes]:
    start("200 OK", [])
    if environ["PATH_INFO"]:
        raise Broken
    yield b""


def raise_after_an_empty_part(_environ: Environ, start: StartResponse) -> Iterator[bytes]:
    start("200 OK", [])
    yield b""
    raise Broken


def raise_midway(_environ: Environ, start: StartResponse) -> Iterator[bytes]:
    start("200 OK", [])
    yield b"hello"
    raise Broken


def raise_after_write(_environ: Environ, start: StartResponse) -> Iterable[bytes]:
    start("200 OK", [])(b"hello")
    raise Broken


@pytest.mark.parametrize(
    "application", [raise_at_once, start_then_raise, raise_before_the_first_part, raise_after_an_empty_part]
)
def test_an_application_that_raises_before_its_reply_is_refunded_and_answered_with_500(
    server: Server, application: Application
) -> None:
    server.application = application
    server.request()

    status, headers = server.starts[-1]
    assert status == "500 Internal Server Error"
    assert [name for name in LIMIT_HEADERS if name not in headers] == []
    assert (headers["x-ratelimit-used"], headers["content-length"]) == ("0", str(len(server.written)))
    assert (server.used, count_slots(server.service)) == (0, 0)


@pytest.mark.parametrize("application", [raise_at_once, raise_before_the_first_part, raise_midway])
def test_the_server_sees_the_error_of_the_application(server: Server, application: Application) -> None:
    server.application = application
    server.request()

    assert isinstance(server.error, Broken)


@pytest.mark.parametrize("application", [raise_midway, raise_after_write])
def test_after_the_first_byte_the_reply_stays_as_it_is_and_costs_as_much(
    server: Server, application: Application
) -> None:
    server.application = application
    server.request()

    assert [status for status, _ in server.starts] == ["200 OK"]
    assert (server.written, server.used, count_slots(server.service)) == (b"hello", 1, 0)


def test_the_error_reply_to_head_has_no_body(server: Server) -> None:
    server.application = raise_at_once
    server.request(method="HEAD")

    assert (server.written, int(server.starts[-1][1]["content-length"]) > 0) == (b"", True)


def test_the_cpu_time_of_an_application_that_raises_is_charged(server: Server) -> None:
    def work_then_raise(_environ: Environ, _start: StartResponse) -> Iterable[bytes]:
        server.cpu_s += 1.5
        raise Broken

    server.application = work_then_raise
    server.request()

    assert count_used(server.service, "cpu") == 1_500


def test_an_application_can_replace_its_reply_by_an_error(server: Server) -> None:
    def replace_the_reply(_environ: Environ, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [("x-wharf-content", "1")])
        try:
            raise Broken
        except Broken:
            start("503 Service Unavailable", [("x-wharf-content", "1")], sys.exc_info())
        return [b"sorry"]

    server.application = replace_the_reply
    server.request()

    assert [(status, headers["x-ratelimit-used"]) for status, headers in server.starts] == [
        ("200 OK", "1"),
        ("503 Service Unavailable", "0"),
    ]
    assert (server.written, server.used, count_used(server.service, "content")) == (b"sorry", 0, 1)


def test_an_error_after_the_first_byte_is_not_refunded_although_the_application_reports_it(server: Server) -> None:
    def fail_late(_environ: Environ, start: StartResponse) -> Iterator[bytes]:
        start("200 OK", [])
        yield b"hello"
        try:
            raise Broken
        except Broken:
            start("500 Internal Server Error", [], sys.exc_info())

    server.application = fail_late
    server.request()

    assert ([status for status, _ in server.starts], server.used) == (["200 OK"], 1)
    assert isinstance(server.error, Broken)


def test_a_body_that_cannot_be_closed_ends_its_request(server: Server) -> None:
    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"hello"])

        def close(self) -> None:
            raise Broken

    def serve(_environ: Environ, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [])
        return Body()

    server.application = serve
    with pytest.raises(Broken):
        server.request()

    wait_until(lambda: not server.service.running_requests, what="the request has ended")
    assert (server.written, server.used) == (b"hello", 1)


def test_an_interrupt_is_passed_on_at_once(server: Server) -> None:
    def interrupt(_environ: Environ, _start: StartResponse) -> Iterable[bytes]:
        raise KeyboardInterrupt

    server.application = interrupt
    with pytest.raises(KeyboardInterrupt):
        server.request()

    wait_until(lambda: not server.service.running_requests, what="the request has ended")
    assert server.starts == []


def test_a_real_server_sends_the_limit_headers_and_logs_the_error(server: Server) -> None:
    class QuietHandler(WSGIRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def get_stderr(self) -> Any:
            return errors

    errors = io.StringIO()
    server.application = raise_at_once
    with make_server("127.0.0.1", 0, server.middleware, WSGIServer, QuietHandler) as httpd:
        thread = threading.Thread(target=httpd.handle_request)
        thread.start()
        connection = HTTPConnection("127.0.0.1", httpd.server_port)
        connection.request("GET", "/x", headers={"authorization": f"token {ADA}"})
        reply = connection.getresponse()
        body = reply.read()
        thread.join()

    assert (reply.status, reply.headers["x-ratelimit-used"], b"Server Error" in body) == (500, "0", True)
    assert "Broken" in errors.getvalue()
