"""Limits kept for httpx2: a transport around a transport.

client = httpx2.Client(transport=LimitedTransport())
client = httpx2.AsyncClient(transport=AsyncLimitedTransport())
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import httpx2

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.request_costs import build_account_key, estimate_cost
from wharf.limits.client.response_cache import MAX_CACHED_BODY_BYTES, CachedResponse, CacheKey, ResponseCache
from wharf.limits.client.state_stores import AsyncRedisStateStore, LimitStateStore, MemoryStateStore
from wharf.limits.client.step_runners import AsyncStepRunner, StepRunner
from wharf.limits.client.steps import ReceivedResponse, SendStep, WaitNotice, generate_steps
from wharf.world import RealWorld, World

# Says that the body was kept from an earlier answer, and that this one cost nothing.
CACHE_HEADER: Final = "x-from-cache"


class _Settings:
    """What both transports are given."""

    def __init__(
        self,
        manner: ClientPolicy | None,
        on_wait: Callable[[WaitNotice], None] | None,
        world: World | None,
        keeps_answers: bool,
    ) -> None:
        self.manner = manner or ClientPolicy()
        self.on_wait = on_wait
        self.world = world or RealWorld()
        self.tags = ResponseCache() if keeps_answers else None


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
        self.account = build_account_key(url, request.headers.get("authorization", ""))
        self.call = estimate_cost(request.method, url, body or b"")
        self.talk = generate_steps(
            settings.world, settings.manner, self.call, url, can_repeat=body is not None, on_wait=settings.on_wait
        )
        self._key = self._key_of(url)
        self._kept = settings.tags.find(self._key) if settings.tags is not None and self._key is not None else None
        if self._kept is not None:
            request.headers["if-none-match"] = self._kept.tag

    def _key_of(self, url: str) -> CacheKey | None:
        headers = self._request.headers
        if self._request.method != "GET" or any(
            name in headers for name in ("range", "if-none-match", "if-modified-since")
        ):
            return None
        return CacheKey(self.account, url, (headers.get("accept", ""), headers.get("accept-encoding", "")))

    def is_kept(self, response: httpx2.Response) -> bool:
        """Whether what is kept answers."""
        return response.status_code == 304 and self._kept is not None

    def from_kept(self, response: httpx2.Response) -> httpx2.Response:
        assert self._kept is not None
        headers = httpx2.Headers(list(self._kept.headers))
        headers.update({name: value for name, value in response.headers.items() if name.startswith("x-ratelimit-")})
        headers[CACHE_HEADER] = "1"
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
            kept = CachedResponse(response.headers["etag"], response.status_code, response.headers.raw, body)
            self._settings.tags.store(self._key, kept)


def _heard(response: httpx2.Response, raw: bytes | None) -> ReceivedResponse:
    body = b""
    if raw is not None:
        try:
            body = httpx2.Response(response.status_code, headers=response.headers, content=raw).content
        except httpx2.DecodingError:
            body = b""  # Then the headers alone must tell.
    return ReceivedResponse(response.status_code, response.headers, body)


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
        state_store: LimitStateStore | None = None,
        policy: ClientPolicy | None = None,
        on_wait: Callable[[WaitNotice], None] | None = None,
        has_cache: bool = True,
        world: World | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._inner = inner or httpx2.HTTPTransport()
        self._settings = _Settings(policy, on_wait, world, has_cache)
        self._driver = StepRunner(state_store or MemoryStateStore(), sleep)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises LimitError, and what the transport within raises."""
        exchange = _Exchange(self._settings, request)
        last: list[httpx2.Response] = []

        def send(step: SendStep) -> ReceivedResponse:
            response = self._inner.handle_request(request)
            raw = None
            if step.needs_body(response.status_code):
                raw = _read(response)
                response = _whole(response, raw)
            last[:] = [response]
            return _heard(response, raw)

        after = self._driver.run_steps(exchange.talk, exchange.account, exchange.call.endpoint, send)
        response = last[0]
        end = partial(self._driver.update_state, exchange.account, after)
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
            if self._record is not None and length <= MAX_CACHED_BODY_BYTES:
                pieces.append(piece)
            yield piece
        if self._record is not None and length <= MAX_CACHED_BODY_BYTES:
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
        state_store: LimitStateStore | AsyncRedisStateStore | None = None,
        policy: ClientPolicy | None = None,
        on_wait: Callable[[WaitNotice], None] | None = None,
        has_cache: bool = True,
        world: World | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._inner = inner or httpx2.AsyncHTTPTransport()
        self._settings = _Settings(policy, on_wait, world, has_cache)
        self._driver = AsyncStepRunner(state_store or MemoryStateStore(), self._settings.world, sleep)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises LimitError, and what the transport within raises."""
        exchange = _Exchange(self._settings, request)
        last: list[httpx2.Response] = []

        async def send(step: SendStep) -> ReceivedResponse:
            response = await self._inner.handle_async_request(request)
            raw = None
            if step.needs_body(response.status_code):
                raw = await _read_async(response)
                response = _whole(response, raw)
            last[:] = [response]
            return _heard(response, raw)

        after = await self._driver.run_steps(exchange.talk, exchange.account, exchange.call.endpoint, send)
        response = last[0]

        async def end() -> None:
            await self._driver.update_state(exchange.account, after)

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
            if self._record is not None and length <= MAX_CACHED_BODY_BYTES:
                pieces.append(piece)
            yield piece
        if self._record is not None and length <= MAX_CACHED_BODY_BYTES:
            self._record(b"".join(pieces))

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            end, self._end = self._end, None
            if end is not None:
                await end()
