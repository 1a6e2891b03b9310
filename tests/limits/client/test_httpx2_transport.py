"""The httpx2 transports, for threads and for tasks: which bodies are cached, and when a request has ended."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx2
import pytest

from tests.limits.client.host import Clock, Host
from wharf.limits.client import MemoryStateStore
from wharf.limits.client.httpx2_transport import AsyncLimitedTransport, LimitedTransport
from wharf.limits.client.request_costs import build_account_key
from wharf.limits.client.response_cache import MAX_CACHED_BODY_BYTES

URL = "https://code.example/repos/o/r/issues"
NO_HEADERS: Mapping[str, str] = {}


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a response. It records whether it was closed."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


class Sender:
    """Sends requests through a transport to a host whose responses a test gives."""

    def __init__(self, responses: list[httpx2.Response], *, is_async: bool, has_cache: bool = True) -> None:
        self.requests: list[httpx2.Request] = []
        self.state_store = MemoryStateStore()
        self._responses = responses
        self._is_async = is_async
        clock = Clock()
        self._options: dict[str, Any] = {"state_store": self.state_store, "world": clock, "has_cache": has_cache}

    def _reply(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self._responses.pop(0)

    def send(
        self, count: int, *, method: str = "GET", is_read: bool = True, headers: Mapping[str, str] = NO_HEADERS
    ) -> list[httpx2.Response]:
        """Send requests one after the other, and read their responses."""
        if self._is_async:
            return asyncio.run(self._send_async(count, method, headers, is_read=is_read))
        inner = _Inner(self)
        with httpx2.Client(transport=LimitedTransport(inner, **self._options)) as client:
            responses = []
            for _ in range(count):
                with client.stream(method, URL, headers=headers) as response:
                    if is_read:
                        response.read()
                responses.append(response)
            return responses

    async def _send_async(
        self, count: int, method: str, headers: Mapping[str, str], *, is_read: bool
    ) -> list[httpx2.Response]:
        async with httpx2.AsyncClient(transport=AsyncLimitedTransport(_Inner(self), **self._options)) as client:
            responses = []
            for _ in range(count):
                async with client.stream(method, URL, headers=headers) as response:
                    if is_read:
                        await response.aread()
                responses.append(response)
            return responses

    def count_permits(self) -> int:
        """Return how many requests have not ended."""
        return self.state_store.update(build_account_key(URL, ""), lambda state: len(state.permits))


class _Inner(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """The inner transport of a `Sender`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._sender._reply(request)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._sender._reply(request)


every_kind = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def make_response(*pieces: bytes, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> httpx2.Response:
    return httpx2.Response(status, headers={"etag": '"v1"', **headers}, stream=Body(*pieces))


@every_kind
@pytest.mark.parametrize(
    ("size", "is_cached"), [(0, True), (1, True), (MAX_CACHED_BODY_BYTES, True), (MAX_CACHED_BODY_BYTES + 1, False)]
)
def test_a_body_of_up_to_a_mebibyte_is_cached(is_async: bool, size: int, is_cached: bool) -> None:
    pieces = [b"x" * (size // 2), b"y" * (size - size // 2)]
    second = make_response(status=304) if is_cached else make_response(b"new")
    sender = Sender([make_response(*pieces), second], is_async=is_async)

    responses = sender.send(2)

    assert ["if-none-match" in request.headers for request in sender.requests] == [False, is_cached]
    assert responses[0].content == b"".join(pieces)
    assert responses[1].content == (responses[0].content if is_cached else b"new")
    assert ("x-from-cache" in responses[1].headers) is is_cached


@every_kind
@pytest.mark.parametrize(
    ("method", "sent", "received", "status"),
    [
        ("POST", {}, {}, 200),
        ("GET", {"range": "bytes=0-1"}, {}, 200),
        ("GET", {}, {"cache-control": "no-store"}, 200),
        ("GET", {}, {}, 404),
    ],
)
def test_other_responses_are_not_cached(
    is_async: bool, method: str, sent: dict[str, str], received: dict[str, str], status: int
) -> None:
    responses = [make_response(b"x", status=status, headers=received) for _ in range(2)]
    sender = Sender(responses, is_async=is_async)
    sender.send(2, method=method, headers=sent)

    assert ["if-none-match" in request.headers for request in sender.requests] == [False, False]


@every_kind
def test_a_body_that_was_not_read_completely_is_not_cached(is_async: bool) -> None:
    sender = Sender([make_response(b"x"), make_response(b"y")], is_async=is_async)
    sender.send(2, is_read=False)

    assert ["if-none-match" in request.headers for request in sender.requests] == [False, False]


@every_kind
def test_without_a_cache_no_request_is_conditional(is_async: bool) -> None:
    sender = Sender([make_response(b"x"), make_response(b"y")], is_async=is_async, has_cache=False)

    assert [response.content for response in sender.send(2)] == [b"x", b"y"]
    assert ["if-none-match" in request.headers for request in sender.requests] == [False, False]


@every_kind
def test_a_response_from_the_cache_has_the_limit_headers_of_its_confirmation(is_async: bool) -> None:
    first = make_response(b"x", headers={"x-ratelimit-used": "1", "x-other": "first"})
    second = make_response(status=304, headers={"x-ratelimit-used": "2", "x-other": "second"})
    body = second.stream
    sender = Sender([first, second], is_async=is_async)

    response = sender.send(2)[1]

    assert (response.status_code, response.headers["x-ratelimit-used"], response.headers["x-other"]) == (
        200,
        "2",
        "first",
    )
    assert isinstance(body, Body)
    assert body.is_closed


@every_kind
def test_a_304_to_a_request_that_the_caller_made_conditional_is_returned(is_async: bool) -> None:
    sender = Sender([make_response(status=304)], is_async=is_async)

    (response,) = sender.send(1, headers={"if-none-match": '"mine"'})

    assert (response.status_code, sender.requests[0].headers["if-none-match"]) == (304, '"mine"')


@every_kind
@pytest.mark.parametrize(
    "responses",
    [
        [make_response(b"x")],
        [httpx2.Response(200, content=b"read already")],
        [make_response(b"x"), make_response(status=304)],
    ],
)
def test_each_request_ends(is_async: bool, responses: list[httpx2.Response]) -> None:
    copies = [
        httpx2.Response(r.status_code, headers=r.headers, content=b"read already")
        if r.is_closed
        else make_response(b"x", status=r.status_code)
        for r in responses
    ]
    sender = Sender(copies, is_async=is_async)
    sender.send(len(copies))

    assert sender.count_permits() == 0


def test_closing_a_client_closes_the_inner_transport() -> None:
    closed = []

    class Closing(Host):
        def close(self) -> None:
            closed.append("sync")

    with httpx2.Client(transport=LimitedTransport(Closing(Clock()))):
        pass

    assert closed == ["sync"]
