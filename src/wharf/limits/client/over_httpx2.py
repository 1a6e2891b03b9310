"""Limits kept for httpx2: a transport around a transport.

client = httpx2.Client(transport=LimitedTransport())
client = httpx2.AsyncClient(transport=AsyncLimitedTransport())
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import httpx2

from wharf.limits.client.calls import account_of, call_of
from wharf.limits.client.conversation import Heard, Send, Waiting, converse
from wharf.limits.client.drivers import AsyncDriver, Driver
from wharf.limits.client.etags import ANSWER_MAX_BYTES, Kept, Key, Tags
from wharf.limits.client.ledgers import AsyncRedisLedger, Ledger, MemoryLedger
from wharf.limits.client.manner import Manner
from wharf.world import RealWorld, World

# Says that the body was kept from an earlier answer, and that this one cost nothing.
KEPT_HEADER: Final = "x-from-cache"


class _Settings:
    """What both transports are given."""

    def __init__(
        self,
        manner: Manner | None,
        on_wait: Callable[[Waiting], None] | None,
        world: World | None,
        keeps_answers: bool,
    ) -> None:
        self.manner = manner or Manner()
        self.on_wait = on_wait
        self.world = world or RealWorld()
        self.tags = Tags() if keeps_answers else None


class _Exchange:
    """One request of the caller: how it counts, and what is kept of its answers."""

    def __init__(self, settings: _Settings, request: httpx2.Request) -> None:
        self._settings = settings
        self._request = request
        try:
            body: bytes | None = request.content
        except httpx2.RequestNotRead:
            body = None  # It streams, so it cannot be sent again.
        url = str(request.url)
        self.account = account_of(url, request.headers.get("authorization", ""))
        self.call = call_of(request.method, url, body or b"")
        self.talk = converse(
            settings.world, settings.manner, self.call, url, can_repeat=body is not None, on_wait=settings.on_wait
        )
        self._key = self._key_of(url)
        self._kept = settings.tags.find(self._key) if settings.tags is not None and self._key is not None else None
        if self._kept is not None:
            request.headers["if-none-match"] = self._kept.tag

    def _key_of(self, url: str) -> Key | None:
        headers = self._request.headers
        if self._request.method != "GET" or any(
            name in headers for name in ("range", "if-none-match", "if-modified-since")
        ):
            return None
        return Key(self.account, url, (headers.get("accept", ""), headers.get("accept-encoding", "")))

    def is_kept(self, response: httpx2.Response) -> bool:
        """Whether what is kept answers."""
        return response.status_code == 304 and self._kept is not None

    def from_kept(self, response: httpx2.Response) -> httpx2.Response:
        assert self._kept is not None
        headers = httpx2.Headers(list(self._kept.headers))
        headers.update({name: value for name, value in response.headers.items() if name.startswith("x-ratelimit-")})
        headers[KEPT_HEADER] = "1"
        return httpx2.Response(
            self._kept.status,
            headers=headers,
            stream=httpx2.ByteStream(self._kept.body),
            extensions=response.extensions,
        )

    def wants(self, response: httpx2.Response) -> bool:
        """Whether the answer should be kept when its body is read."""
        return (
            self._settings.tags is not None
            and self._key is not None
            and response.status_code == 200
            and "etag" in response.headers
            and "no-store" not in response.headers.get("cache-control", "")
        )

    def keep(self, response: httpx2.Response, body: bytes) -> None:
        if self._settings.tags is not None and self._key is not None:
            kept = Kept(response.headers["etag"], response.status_code, response.headers.raw, body)
            self._settings.tags.keep(self._key, kept)


def _heard(response: httpx2.Response, raw: bytes | None) -> Heard:
    body = b""
    if raw is not None:
        try:
            body = httpx2.Response(response.status_code, headers=response.headers, content=raw).content
        except httpx2.DecodingError:
            body = b""  # Then the headers alone must tell.
    return Heard(response.status_code, response.headers, body)


def _whole(response: httpx2.Response, raw: bytes) -> httpx2.Response:
    return httpx2.Response(
        response.status_code, headers=response.headers, stream=httpx2.ByteStream(raw), extensions=response.extensions
    )


class LimitedTransport(httpx2.BaseTransport):
    """`ledger` says who shares the budget, `manner` how it behaves, `on_wait` hears of each wait."""

    def __init__(
        self,
        inner: httpx2.BaseTransport | None = None,
        *,
        ledger: Ledger | None = None,
        manner: Manner | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
        keeps_answers: bool = True,
        world: World | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._inner = inner or httpx2.HTTPTransport()
        self._settings = _Settings(manner, on_wait, world, keeps_answers)
        self._driver = Driver(ledger or MemoryLedger(), sleep)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises LimitError, and what the transport within raises."""
        exchange = _Exchange(self._settings, request)
        last: list[httpx2.Response] = []

        def send(step: Send) -> Heard:
            response = self._inner.handle_request(request)
            raw = None
            if step.needs_body(response.status_code):
                raw = _read(response)
                response = _whole(response, raw)
            last[:] = [response]
            return _heard(response, raw)

        after = self._driver.drive(exchange.talk, exchange.account, exchange.call.endpoint, send)
        response = last[0]
        end = partial(self._driver.change, exchange.account, after)
        if exchange.is_kept(response):
            response.close()
            end()
            return exchange.from_kept(response)
        if response.is_closed:  # A transport that read it whole.
            end()
            return response
        assert isinstance(response.stream, httpx2.SyncByteStream)
        record = (lambda body: exchange.keep(response, body)) if exchange.wants(response) else None
        response.stream = _Stream(response.stream, end, record)
        return response

    def close(self) -> None:
        self._inner.close()


def _read(response: httpx2.Response) -> bytes:
    assert isinstance(response.stream, httpx2.SyncByteStream)
    try:
        return b"".join(response.stream)
    finally:
        response.stream.close()


class _Stream(httpx2.SyncByteStream):
    """A body that tells when it is over, and what it was."""

    def __init__(
        self, inner: httpx2.SyncByteStream, end: Callable[[], object], record: Callable[[bytes], None] | None
    ) -> None:
        self._inner = inner
        self._end: Callable[[], object] | None = end
        self._record = record

    def __iter__(self) -> Iterator[bytes]:
        pieces: list[bytes] = []
        length = 0
        for piece in self._inner:
            length += len(piece)
            if self._record is not None and length <= ANSWER_MAX_BYTES:
                pieces.append(piece)
            yield piece
        if self._record is not None and length <= ANSWER_MAX_BYTES:
            self._record(b"".join(pieces))

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            end, self._end = self._end, None
            if end is not None:
                end()


class AsyncLimitedTransport(httpx2.AsyncBaseTransport):
    """As `LimitedTransport`, for one event loop."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport | None = None,
        *,
        ledger: Ledger | AsyncRedisLedger | None = None,
        manner: Manner | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
        keeps_answers: bool = True,
        world: World | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._inner = inner or httpx2.AsyncHTTPTransport()
        self._settings = _Settings(manner, on_wait, world, keeps_answers)
        self._driver = AsyncDriver(ledger or MemoryLedger(), self._settings.world, sleep)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises LimitError, and what the transport within raises."""
        exchange = _Exchange(self._settings, request)
        last: list[httpx2.Response] = []

        async def send(step: Send) -> Heard:
            response = await self._inner.handle_async_request(request)
            raw = None
            if step.needs_body(response.status_code):
                raw = await _read_async(response)
                response = _whole(response, raw)
            last[:] = [response]
            return _heard(response, raw)

        after = await self._driver.drive(exchange.talk, exchange.account, exchange.call.endpoint, send)
        response = last[0]

        async def end() -> None:
            await self._driver.change(exchange.account, after)

        if exchange.is_kept(response):
            await response.aclose()
            await end()
            return exchange.from_kept(response)
        if response.is_closed:  # A transport that read it whole.
            await end()
            return response
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        record = (lambda body: exchange.keep(response, body)) if exchange.wants(response) else None
        response.stream = _AsyncStream(response.stream, end, record)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _read_async(response: httpx2.Response) -> bytes:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    try:
        return b"".join([piece async for piece in response.stream])
    finally:
        await response.stream.aclose()


class _AsyncStream(httpx2.AsyncByteStream):
    """A body that tells when it is over, and what it was."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        end: Callable[[], Awaitable[None]],
        record: Callable[[bytes], None] | None,
    ) -> None:
        self._inner = inner
        self._end: Callable[[], Awaitable[None]] | None = end
        self._record = record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces: list[bytes] = []
        length = 0
        async for piece in self._inner:
            length += len(piece)
            if self._record is not None and length <= ANSWER_MAX_BYTES:
                pieces.append(piece)
            yield piece
        if self._record is not None and length <= ANSWER_MAX_BYTES:
            self._record(b"".join(pieces))

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            end, self._end = self._end, None
            if end is not None:
                await end()
