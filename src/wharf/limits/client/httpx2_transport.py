"""Respects limits in httpx2: a transport that wraps another transport.

client = httpx2.Client(transport=LimitedTransport())
client = httpx2.AsyncClient(transport=AsyncLimitedTransport())
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import httpx2

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.request_costs import build_account_key, estimate_cost
from wharf.limits.client.response_cache import (
    CACHE_HEADER,
    MAX_CACHED_BODY_BYTES,
    CachedResponse,
    CacheKey,
    ResponseCache,
    can_use_cache,
    is_cacheable,
    select_limit_headers,
)
from wharf.limits.client.state_stores import AsyncRedisStateStore, LimitStateStore, MemoryStateStore
from wharf.limits.client.step_runners import AsyncStepRunner, StepRunner
from wharf.limits.client.steps import ReceivedResponse, SendStep, WaitNotice, generate_steps
from wharf.world import RealWorld, World


class _Settings:
    """The settings of a transport: policy, wait callback, clock and response cache, with defaults."""

    def __init__(
        self,
        policy: ClientPolicy | None,
        on_wait: Callable[[WaitNotice], None] | None,
        world: World | None,
        has_cache: bool,
    ) -> None:
        self.policy = policy or ClientPolicy()
        self.on_wait = on_wait
        self.world = world or RealWorld()
        self.cache = ResponseCache() if has_cache else None


class _Exchange:
    """One request of the application: what it costs, its steps, and the cached response for it."""

    def __init__(self, settings: _Settings, request: httpx2.Request) -> None:
        """Estimate the cost of a request and create its steps; make it conditional if a response for it is cached."""
        self._cache = settings.cache
        try:
            body: bytes | None = request.content
        except httpx2.RequestNotRead:
            body = None  # A streamed body can be sent only once.
        url, headers = str(request.url), request.headers
        self.account = build_account_key(url, headers.get("authorization", ""))
        self.cost = estimate_cost(request.method, url, body or b"")
        self.steps = generate_steps(
            settings.world, settings.policy, self.cost, url, can_repeat=body is not None, on_wait=settings.on_wait
        )
        self._key: CacheKey | None = None
        self._cached: CachedResponse | None = None
        if self._cache is not None and can_use_cache(request.method, headers):
            variant = headers.get("accept", ""), headers.get("accept-encoding", "")
            self._key = CacheKey(account=self.account, url=url, vary_values=variant)
            self._cached = self._cache.find(self._key)
        if self._cached is not None:
            headers["if-none-match"] = self._cached.tag

    def is_unchanged(self, response: httpx2.Response) -> bool:
        """Return whether the response is a 304 which confirms that the cached response is still valid."""
        return response.status_code == 304 and self._cached is not None

    def build_cached_response(self, not_modified: httpx2.Response) -> httpx2.Response:
        """Return the cached response, with the rate limit headers of the 304 response that confirmed it."""
        assert self._cached is not None
        headers = httpx2.Headers(list(self._cached.headers))
        headers.update(select_limit_headers(not_modified.headers.items()))
        headers[CACHE_HEADER] = "1"
        return httpx2.Response(
            self._cached.status,
            headers=headers,
            stream=httpx2.ByteStream(self._cached.body),
            extensions=not_modified.extensions,
        )

    def make_recorder(self, response: httpx2.Response) -> "_BodyRecorder":
        """Return a recorder for the body of a response, which caches the response after its body was read completely.

        If the response may not be cached, the recorder does nothing.
        """
        cache, key = self._cache, self._key
        if cache is None or key is None or not is_cacheable(response.status_code, response.headers):
            return _BodyRecorder(None)
        return _BodyRecorder(
            lambda body: cache.store(
                key, CachedResponse(response.headers["etag"], response.status_code, response.headers.raw, body)
            )
        )


class _BodyRecorder:
    """Collects the pieces of a body, and passes a complete one to a function. Long bodies are not collected."""

    def __init__(self, on_complete: Callable[[bytes], None] | None) -> None:
        self._on_complete = on_complete
        self._pieces: list[bytes] = []
        self._length = 0

    def add(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._length += len(piece)
        if self._on_complete is not None and self._length <= MAX_CACHED_BODY_BYTES:
            self._pieces.append(piece)

    def complete(self) -> None:
        """Pass the body to the function, unless it was too long to be collected."""
        if self._on_complete is not None and self._length <= MAX_CACHED_BODY_BYTES:
            self._on_complete(b"".join(self._pieces))


def _build_received_response(response: httpx2.Response, raw_body: bytes | None) -> ReceivedResponse:
    """Return a response in the form that `generate_steps` reads. A body that cannot be decoded counts as empty."""
    body = b""
    if raw_body is not None:
        try:
            body = httpx2.Response(response.status_code, headers=response.headers, content=raw_body).content
        except httpx2.DecodingError:
            body = b""
    return ReceivedResponse(response.status_code, response.headers, body)


def _replace_body(response: httpx2.Response, raw_body: bytes) -> httpx2.Response:
    """Return a copy of a response whose body is `raw_body`, which was already read from the network."""
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx2.ByteStream(raw_body),
        extensions=response.extensions,
    )


class LimitedTransport(httpx2.BaseTransport):
    """An httpx2 transport that delays requests so that the host does not refuse them.

    Transports with the same `state_store` share their limits. `on_wait` is called before each wait that a limit requires.
    """

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
        self._runner = StepRunner(state_store or MemoryStateStore(), sleep)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request when the limits allow it, and return the response, from the cache if it is unchanged.

        Raises `LimitError`, and what the inner transport raises.
        """
        exchange = _Exchange(self._settings, request)
        last_response: list[httpx2.Response] = []

        def send(step: SendStep) -> ReceivedResponse:
            """Send the request once, store the response, and return it in the form that `generate_steps` reads."""
            response = self._inner.handle_request(request)
            raw_body = None
            if step.needs_body(response.status_code):
                raw_body = _read_body(response)
                response = _replace_body(response, raw_body)
            last_response[:] = [response]
            return _build_received_response(response, raw_body)

        final_update = self._runner.run_steps(exchange.steps, exchange.account, exchange.cost.endpoint, send)
        response = last_response[0]
        end = partial(self._runner.update_state, exchange.account, final_update)
        if exchange.is_unchanged(response):
            response.close()
            end()
            return exchange.build_cached_response(response)
        if response.is_closed:  # The inner transport has read the body already.
            end()
            return response
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _LimitedStream(response.stream, end, exchange.make_recorder(response))
        return response

    def close(self) -> None:
        self._inner.close()


def _read_body(response: httpx2.Response) -> bytes:
    """Return the body of a response as received, possibly compressed, and close its stream."""
    assert isinstance(response.stream, httpx2.SyncByteStream)
    try:
        return b"".join(response.stream)
    finally:
        response.stream.close()


class _LimitedStream(httpx2.SyncByteStream):
    """The body of a response, recorded while it is read. `on_end` is called once, when it is closed."""

    def __init__(self, inner: httpx2.SyncByteStream, on_end: Callable[[], object], recorder: _BodyRecorder) -> None:
        self._inner = inner
        self._on_end: Callable[[], object] | None = on_end
        self._recorder = recorder

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces of the body, and pass them to the recorder."""
        for piece in self._inner:
            self._recorder.add(piece)
            yield piece
        self._recorder.complete()

    def close(self) -> None:
        """Close the body, then call `on_end` the first time."""
        try:
            self._inner.close()
        finally:
            on_end, self._on_end = self._on_end, None
            if on_end is not None:
                on_end()


class AsyncLimitedTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport for asynchronous clients that delays requests so that the host does not refuse them.

    It is for one event loop. Transports with the same `state_store` share their limits. `on_wait` is called before each
    wait that a limit requires.
    """

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
        self._runner = AsyncStepRunner(state_store or MemoryStateStore(), self._settings.world, sleep)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request when the limits allow it, and return the response, from the cache if it is unchanged.

        Raises `LimitError`, and what the inner transport raises.
        """
        exchange = _Exchange(self._settings, request)
        last_response: list[httpx2.Response] = []

        async def send(step: SendStep) -> ReceivedResponse:
            """Send the request once, store the response, and return it in the form that `generate_steps` reads."""
            response = await self._inner.handle_async_request(request)
            raw_body = None
            if step.needs_body(response.status_code):
                raw_body = await _read_body_async(response)
                response = _replace_body(response, raw_body)
            last_response[:] = [response]
            return _build_received_response(response, raw_body)

        final_update = await self._runner.run_steps(exchange.steps, exchange.account, exchange.cost.endpoint, send)
        response = last_response[0]

        async def end() -> None:
            """Release the permit of the request after its body was read."""
            await self._runner.update_state(exchange.account, final_update)

        if exchange.is_unchanged(response):
            await response.aclose()
            await end()
            return exchange.build_cached_response(response)
        if response.is_closed:  # The inner transport has read the body already.
            await end()
            return response
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _AsyncLimitedStream(response.stream, end, exchange.make_recorder(response))
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _read_body_async(response: httpx2.Response) -> bytes:
    """Return the body of a response as received, possibly compressed, and close its stream."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    try:
        return b"".join([piece async for piece in response.stream])
    finally:
        await response.stream.aclose()


class _AsyncLimitedStream(httpx2.AsyncByteStream):
    """The body of an asynchronous response, recorded while it is read. `on_end` is called once, when it is closed."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, on_end: Callable[[], Awaitable[None]], recorder: _BodyRecorder
    ) -> None:
        self._inner = inner
        self._on_end: Callable[[], Awaitable[None]] | None = on_end
        self._recorder = recorder

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body, and pass them to the recorder."""
        async for piece in self._inner:
            self._recorder.add(piece)
            yield piece
        self._recorder.complete()

    async def aclose(self) -> None:
        """Close the body, then call `on_end` the first time."""
        try:
            await self._inner.aclose()
        finally:
            on_end, self._on_end = self._on_end, None
            if on_end is not None:
                await on_end()
