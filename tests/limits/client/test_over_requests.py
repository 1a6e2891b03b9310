"""The same client under the library requests, against a real server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import pytest
import requests

from wharf.limits.client import SecondaryExceeded
from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.requests_adapter import LimitedAdapter


class Site(BaseHTTPRequestHandler):
    """Refuses as many requests as it is told, and knows a tag."""

    protocol_version = "HTTP/1.1"
    refusals_left = 0
    seen: Final[list[str]] = []

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("if-none-match", ""))
        if Site.refusals_left:
            Site.refusals_left -= 1
            self._answer(403, b'{"message":"You have exceeded a secondary rate limit"}', {"retry-after": "2"})
        elif self.headers.get("if-none-match") == '"v1"':
            self._answer(304, b"", {"etag": '"v1"'})
        else:
            self._answer(200, b"the answer", {"etag": '"v1"'})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.do_GET() if Site.refusals_left else self._answer(201, body, {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def site() -> Iterator[str]:
    Site.refusals_left = 0
    Site.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/x"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(policy=ClientPolicy(retries_max=0)))
        yield session


def test_an_answer_comes_through(site: str, session: requests.Session) -> None:
    assert (200, b"the answer") == ((given := session.get(site)).status_code, given.content)
    assert b"sent" == session.post(site, data=b"sent").content


def test_what_has_not_changed_comes_from_what_was_kept(site: str, session: requests.Session) -> None:
    first, second = session.get(site), session.get(site)

    assert ["", '"v1"'] == Site.seen
    assert (first.text, 200, "1") == (second.text, second.status_code, second.headers["x-from-cache"])


def test_a_refusal_that_stays_ends_in_an_error(site: str, session: requests.Session) -> None:
    Site.refusals_left = 1

    with pytest.raises(SecondaryExceeded, match="still after 1 tries"):
        session.get(site)


def test_a_stream_can_be_read_piece_by_piece(site: str, session: requests.Session) -> None:
    with session.get(site, stream=True) as given:
        assert b"the answer" == b"".join(given.iter_content(3))


def test_a_body_that_streams_is_not_sent_twice(site: str, session: requests.Session) -> None:
    Site.refusals_left = 1

    assert 403 == session.get(site, data=iter([b""])).status_code
