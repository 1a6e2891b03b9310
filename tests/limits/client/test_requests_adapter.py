"""The adapter for the library requests, against a real server."""

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Final

import pytest
import requests

from tests.http_servers import QuietHandler, serving
from wharf.limits.client import MemoryStateStore, SecondaryExceeded
from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.request_costs import build_account_key
from wharf.limits.client.requests_adapter import LimitedAdapter


class Site(QuietHandler):
    """Refuses the next `refusals_left` requests; its resource has an ETag."""

    protocol_version = "HTTP/1.1"
    refusals_left = 0
    received_tags: Final[list[str]] = []

    def do_GET(self) -> None:
        self.received_tags.append(self.headers.get("if-none-match", ""))
        if Site.refusals_left:
            Site.refusals_left -= 1
            self.reply(403, b'{"message":"You have exceeded a secondary rate limit"}', ("retry-after", "2"))
        elif self.headers.get("if-none-match") == '"v1"':
            self.reply(304, b"", ("etag", '"v1"'), ("x-ratelimit-used", "2"), ("x-request-id", "b"))
        else:
            self.reply(200, b"the reply", ("etag", '"v1"'), ("x-ratelimit-used", "1"), ("x-request-id", "a"))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.do_GET() if Site.refusals_left else self.reply(201, body)


@pytest.fixture
def site() -> Iterator[str]:
    Site.refusals_left = 0
    Site.received_tags.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}/x"


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(policy=ClientPolicy(retries_max=0)))
        yield session


def test_a_response_reaches_the_caller(site: str, session: requests.Session) -> None:
    assert (200, b"the reply") == ((response := session.get(site)).status_code, response.content)
    assert b"sent" == session.post(site, data=b"sent").content


def test_an_unchanged_resource_comes_from_the_cache(site: str, session: requests.Session) -> None:
    first, second = session.get(site), session.get(site)

    assert ["", '"v1"'] == Site.received_tags
    assert (first.text, 200, "1") == (second.text, second.status_code, second.headers["x-from-cache"])


def test_a_response_from_the_cache_has_the_current_limit_headers_and_the_other_cached_ones(
    site: str, session: requests.Session
) -> None:
    replies = [session.get(site).headers for _ in range(2)]

    assert [(each["x-ratelimit-used"], each["x-request-id"]) for each in replies] == [("1", "a"), ("2", "a")]


def test_a_limit_that_refuses_all_tries_raises_an_error(site: str, session: requests.Session) -> None:
    Site.refusals_left = 1

    with pytest.raises(SecondaryExceeded, match="refused 1 times"):
        session.get(site)


def test_a_streamed_response_can_be_read_in_pieces(site: str, session: requests.Session) -> None:
    with session.get(site, stream=True) as response:
        assert b"the reply" == b"".join(response.iter_content(3))


def test_a_streamed_body_is_not_sent_twice(site: str, session: requests.Session) -> None:
    Site.refusals_left = 1

    assert 403 == session.get(site, data=iter([b""])).status_code


def test_an_adapter_needs_no_settings(site: str) -> None:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter())

        assert (session.get(site).content, session.get(site).headers["x-from-cache"]) == (b"the reply", "1")


def test_an_adapter_without_a_cache_sends_no_tag(site: str) -> None:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(has_cache=False))
        for _ in range(2):
            session.get(site)

    assert ["", ""] == Site.received_tags


def test_a_304_to_a_request_that_the_caller_made_conditional_is_returned(site: str, session: requests.Session) -> None:
    session.get(site)
    response = session.get(site, headers={"if-none-match": '"v1"'})

    assert (response.status_code, response.content, "x-from-cache" in response.headers) == (304, b"", False)


@pytest.mark.parametrize(("is_streamed", "permits"), [(False, [0, 0]), (True, [1, 0])])
def test_a_request_ends_when_its_body_was_read_or_its_response_is_closed(
    site: str, is_streamed: bool, permits: list[int]
) -> None:
    state_store = MemoryStateStore()

    def count_permits() -> int:
        return state_store.update(build_account_key(site, ""), lambda state: len(state.permits))

    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(state_store=state_store))
        response = session.get(site, stream=is_streamed)
        counts = [count_permits()]
        for _ in range(2):
            response.close()
        assert session.get(site).content == b"the reply"
        counts.append(count_permits())

    assert counts == permits


def test_a_streamed_response_is_not_cached(site: str, session: requests.Session) -> None:
    for _ in range(2):
        session.get(site, stream=True).close()

    assert Site.received_tags == ["", ""]


def test_responses_in_another_format_are_cached_on_their_own(site: str, session: requests.Session) -> None:
    for accepted in ("text/plain", "text/html", "text/plain"):
        session.get(site, headers={"accept": accepted})

    assert Site.received_tags == ["", "", '"v1"']


@pytest.mark.parametrize(
    "headers",
    [{"if-none-match": '"v0"'}, {"range": "bytes=0-2"}, {"if-modified-since": "Sat, 21 Nov 2026 12:00:00 GMT"}],
)
def test_a_request_with_conditions_of_its_own_is_neither_cached_nor_answered_from_the_cache(
    site: str, session: requests.Session, headers: dict[str, str]
) -> None:
    for sent in (headers, {}, headers):
        session.get(site, headers=sent)

    own_tag = headers.get("if-none-match", "")
    assert Site.received_tags == [own_tag, "", own_tag]
