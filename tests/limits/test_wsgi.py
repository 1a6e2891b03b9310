"""The WSGI middleware: limit headers, charges and slots, for a server with threads."""

import asyncio
import io
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.limits.decision_services import ADA, DIRECTORY, RecordedReply, count_slots, count_used
from tests.waiting import wait_until
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter, load_settings
from wharf.limits.wsgi import MAX_REOPEN_DELAY_S, MIN_REOPEN_DELAY_S, Environ, LimitsMiddleware, StartResponse
from wharf.world import RealWorld
from wharf.world.simulated import SimulatedWorld


class WsgiCaller:
    """An application behind the middleware, and a caller that calls it as a WSGI server does."""

    def __init__(self, folder: Path, *, rules: str = '[[rule]]\nname = "core"\nceiling = 3\n') -> None:
        (folder / "people.toml").write_text(DIRECTORY)
        (folder / "rules.toml").write_text(rules)
        (folder / "limits.toml").write_text('rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n')
        self.limits = RateLimiter(load_settings(folder / "limits.toml"), RealWorld())
        self.status = "200 OK"
        self.headers: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        """The bodies that the application has read."""
        self.cpu_s = 0.0
        self.now_s = 0.0
        self.openings = 0
        self.middleware = LimitsMiddleware(
            self._application,
            self._make_limiter,
            read_cpu_s=lambda: self.cpu_s,
            world=SimulatedWorld(1, lambda: self.now_s),
        )

    def _make_limiter(self) -> RateLimiter:
        self.openings += 1
        return self.limits

    def _application(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        self.bodies.append(environ["wsgi.input"].read())
        self.cpu_s += 0.25
        start(self.status, self.headers)
        return [b"hello ", b"there"]

    def request(
        self, path: str = "/things", *, method: str = "GET", body: bytes = b"", **variables: str
    ) -> RecordedReply:
        """Send a request, and return the reply. `variables` are added to the environ."""
        reply = RecordedReply()
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "REMOTE_ADDR": "192.0.2.7",
            "HTTP_AUTHORIZATION": f"token {ADA}",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **variables,
        }

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            reply.status, reply.headers = int(status[:3]), dict(headers)

        parts = self.middleware(environ, start)
        reply.body = b"".join(parts)
        close = getattr(parts, "close", None)
        if close is not None:
            close()
        return reply


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[WsgiCaller]:
    caller = WsgiCaller(tmp_path)
    yield caller
    caller.middleware.close()


def test_replies_have_the_limit_headers_and_refusals_their_cause(caller: WsgiCaller) -> None:
    replies = [caller.request() for _ in range(4)]

    assert [(reply.status, reply.headers["x-ratelimit-remaining"]) for reply in replies] == [
        (200, "2"),
        (200, "1"),
        (200, "0"),
        (403, "0"),
    ]
    assert replies[0].body == b"hello there"
    assert replies[3].json()["cause"] == "primary"


def test_an_unchanged_reply_costs_nothing(caller: WsgiCaller) -> None:
    caller.status = "304 Not Modified"

    assert caller.request(HTTP_IF_NONE_MATCH='"1"').headers["x-ratelimit-used"] == "0"


def test_the_cpu_time_of_the_thread_is_charged_and_the_slot_is_freed(caller: WsgiCaller) -> None:
    caller.request()
    decision_service = caller.limits.decision_service

    wait_until(lambda: not count_slots(decision_service), what="the slot is freed")
    assert count_used(decision_service, "cpu") == 250


def test_a_graphql_query_is_read_for_the_decision_and_again_by_the_application(caller: WsgiCaller) -> None:
    reply = caller.request("/graphql", method="POST", body=b'{"query": "{ viewer { login } }"}')

    assert reply.headers["x-ratelimit-resource"] == "graphql"
    assert caller.bodies == [b'{"query": "{ viewer { login } }"}']


def test_the_middleware_serves_the_status_page(caller: WsgiCaller) -> None:
    assert caller.request("/rate_limit").json()["rate"]["limit"] == 3
    assert caller.bodies == []


def list_limiter_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "limits"]


def test_a_limiter_that_cannot_open_leaves_no_thread_and_opens_later(tmp_path: Path) -> None:
    caller = WsgiCaller(tmp_path)
    before = list_limiter_threads()
    (tmp_path / "data").write_text("a file where the data folder belongs")

    for _ in range(3):
        with pytest.raises(LimiterStartError):
            caller.request()
        assert list_limiter_threads() == before
        caller.now_s += MAX_REOPEN_DELAY_S

    (tmp_path / "data").unlink()
    assert caller.request().status == 200
    caller.middleware.close()
    assert list_limiter_threads() == before


def test_a_limiter_that_cannot_open_is_not_tried_again_by_every_request(tmp_path: Path) -> None:
    caller = WsgiCaller(tmp_path)
    (tmp_path / "data").write_text("a file where the data folder belongs")

    for _ in range(200):
        caller.now_s += 0.5
        with pytest.raises(LimiterStartError):
            caller.request()
    tried = caller.openings
    with pytest.raises(LimiterStartError, match=r"The next attempt is possible in \d+\.\d s"):
        caller.request()

    assert 4 < tried < 14


def test_a_limiter_that_cannot_be_made_leaves_no_thread() -> None:
    def make_limiter() -> RateLimiter:
        raise OSError("no settings")

    middleware = LimitsMiddleware(lambda _environ, _start: [], make_limiter)
    before = list_limiter_threads()

    with pytest.raises(OSError, match="no settings"):
        middleware({}, lambda *_: lambda _data: None)

    assert list_limiter_threads() == before


def test_after_an_opening_that_succeeded_the_next_failure_waits_as_briefly_as_the_first(tmp_path: Path) -> None:
    caller = WsgiCaller(tmp_path)
    data = tmp_path / "data"

    def fail_once() -> float:
        """Return the time until the next attempt after a failure."""
        with pytest.raises(LimiterStartError):
            caller.request()
        tried, since_s = caller.openings, caller.now_s
        while caller.openings == tried:
            caller.now_s += 0.25
            with pytest.raises(LimiterStartError):
                caller.request()
        return caller.now_s - since_s

    data.write_text("a file where the data folder belongs")
    for _ in range(6):
        fail_once()
        caller.now_s += MAX_REOPEN_DELAY_S
    data.unlink()
    assert caller.request().status == 200
    caller.middleware.close()
    shutil.rmtree(data)
    data.write_text("a file where the data folder belongs")

    assert fail_once() <= 2 * MIN_REOPEN_DELAY_S


def test_a_closed_middleware_closes_the_loop_of_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = []

    def new_loop() -> asyncio.AbstractEventLoop:
        loops.append(asyncio.SelectorEventLoop())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", new_loop)
    caller = WsgiCaller(tmp_path)
    caller.middleware.close()  # Not open yet.
    caller.request()
    was_closed = loops[0].is_closed()
    for _ in range(2):
        caller.middleware.close()

    assert (was_closed, [loop.is_closed() for loop in loops]) == (False, [True])
