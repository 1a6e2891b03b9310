"""The WSGI middleware does what the ASGI one does, from threads."""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.limits.front.desks import ADA, DIRECTORY, Heard, held, used
from tests.waiting import wait_until
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.limits.wsgi import Environ, LimitsMiddleware, StartResponse
from wharf.world import RealWorld


class Site:
    """An application under the middleware, called as a WSGI server does."""

    def __init__(self, folder: Path) -> None:
        (folder / "people.toml").write_text(DIRECTORY)
        (folder / "rules.toml").write_text('[[rule]]\nname = "core"\nceiling = 3\n')
        (folder / "limits.toml").write_text('rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n')
        self.limits = RateLimiter(load_settings(folder / "limits.toml"), RealWorld())
        self.status = "200 OK"
        self.headers: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.cpu_s = 0.0
        self.middleware = LimitsMiddleware(self._serve, lambda: self.limits, read_cpu_s=lambda: self.cpu_s)

    def _serve(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        self.bodies.append(environ["wsgi.input"].read())
        self.cpu_s += 0.25
        start(self.status, self.headers)
        return [b"hello ", b"there"]

    def ask(self, path: str = "/things", *, method: str = "GET", body: bytes = b"", **more: str) -> Heard:
        heard = Heard()
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "REMOTE_ADDR": "192.0.2.7",
            "HTTP_AUTHORIZATION": f"token {ADA}",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **more,
        }

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            heard.status, heard.headers = int(status[:3]), dict(headers)

        reply = self.middleware(environ, start)
        heard.body = b"".join(reply)
        close = getattr(reply, "close", None)
        if close is not None:
            close()
        return heard


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.middleware.close()


def test_replies_carry_the_limits_and_refusals_their_cause(site: Site) -> None:
    heard = [site.ask() for _ in range(4)]

    assert [(h.status, h.headers["x-ratelimit-remaining"]) for h in heard] == [
        (200, "2"),
        (200, "1"),
        (200, "0"),
        (403, "0"),
    ]
    assert heard[0].body == b"hello there"
    assert heard[3].json()["cause"] == "primary"


def test_an_unchanged_reply_costs_nothing(site: Site) -> None:
    site.status = "304 Not Modified"

    assert site.ask(HTTP_IF_NONE_MATCH='"1"').headers["x-ratelimit-used"] == "0"


def test_the_cpu_time_of_the_thread_is_charged_and_the_slot_is_free(site: Site) -> None:
    site.ask()
    desk = site.limits.decision_service

    wait_until(lambda: not held(desk), what="the slot is free")
    assert used(desk, "cpu") == 250


def test_a_query_is_read_before_and_by_the_application_too(site: Site) -> None:
    heard = site.ask("/graphql", method="POST", body=b'{"query": "{ viewer { login } }"}')

    assert heard.headers["x-ratelimit-resource"] == "graphql"
    assert site.bodies == [b'{"query": "{ viewer { login } }"}']


def test_the_status_page_is_answered_without_the_application(site: Site) -> None:
    assert site.ask("/rate_limit").json()["rate"]["limit"] == 3
    assert site.bodies == []


def test_an_application_that_raises_frees_its_slot(site: Site) -> None:
    def breaks(_environ: Environ, _start: StartResponse) -> Iterable[bytes]:
        raise LookupError("broken")

    site.middleware._application = breaks
    with pytest.raises(LookupError):
        site.ask()

    wait_until(lambda: not held(site.limits.decision_service), what="the slot is free")
