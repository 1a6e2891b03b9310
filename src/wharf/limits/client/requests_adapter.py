"""Respects limits in requests: an adapter for its sessions. Wharf does not depend on requests; install it yourself.

session = requests.Session()
session.mount("https://", LimitedAdapter())
"""

from collections.abc import Callable
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.request_costs import build_account_key, estimate_cost
from wharf.limits.client.response_cache import (
    CACHE_HEADER,
    CachedResponse,
    CacheKey,
    ResponseCache,
    can_use_cache,
    is_cacheable,
    select_limit_headers,
)
from wharf.limits.client.state_stores import LimitStateStore, MemoryStateStore
from wharf.limits.client.step_runners import StepRunner
from wharf.limits.client.steps import ReceivedResponse, SendStep, WaitNotice, generate_steps
from wharf.world import RealWorld, World


class LimitedAdapter(HTTPAdapter):
    """An adapter for `requests` sessions that delays requests so that the host does not refuse them.

    Adapters with the same `state_store` share their limits. `on_wait` is called before each wait that a limit requires.
    """

    def __init__(
        self,
        *,
        state_store: LimitStateStore | None = None,
        policy: ClientPolicy | None = None,
        on_wait: Callable[[WaitNotice], None] | None = None,
        has_cache: bool = True,
        world: World | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__()
        self._policy = policy or ClientPolicy()
        self._on_wait = on_wait
        self._world = world or RealWorld()
        self._cache = ResponseCache() if has_cache else None
        self._runner = StepRunner(state_store or MemoryStateStore(), sleep)

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **options: Any
    ) -> requests.Response:  # The other arguments are those of the base class.
        """Send a request when the limits allow it, and return the response, from the cache if it is unchanged.

        Raises `LimitError`, and what `requests` raises.
        """
        url, body = request.url or "", request.body
        encoded_body = body.encode() if isinstance(body, str) else body
        account = build_account_key(url, _get_header(request, "authorization"))
        cost = estimate_cost(request.method or "GET", url, encoded_body if isinstance(encoded_body, bytes) else b"")
        cache = self._cache if can_use_cache(request.method, request.headers) else None
        key = CacheKey(account=account, url=url, vary_values=(_get_header(request, "accept"),))
        cached = cache.find(key) if cache is not None else None
        if cached is not None:
            request.headers["if-none-match"] = cached.tag
        last_response: list[requests.Response] = []

        def exchange(step: SendStep) -> ReceivedResponse:
            """Send the request once, store the response, and return it in the form that `generate_steps` reads."""
            response = super(LimitedAdapter, self).send(request, stream, *args, **options)
            last_response[:] = [response]
            headers = {name.lower(): value for name, value in response.headers.items()}
            return ReceivedResponse(
                response.status_code, headers, response.content if step.needs_body(response.status_code) else b""
            )

        can_repeat = body is None or isinstance(encoded_body, bytes)
        steps = generate_steps(self._world, self._policy, cost, url, can_repeat=can_repeat, on_wait=self._on_wait)
        final_update = self._runner.run_steps(steps, account, cost.endpoint, exchange)
        response = last_response[0]
        if cached is not None and response.status_code == 304:
            response.close()
            self._runner.update_state(account, final_update)
            return _build_cached_response(cached, response)
        if stream:
            self._call_at_close(response, lambda: self._runner.update_state(account, final_update))
            return response
        try:
            content = response.content
        finally:
            self._runner.update_state(account, final_update)
        if cache is not None and is_cacheable(response.status_code, response.headers):
            raw_headers = [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()
            ]
            cache.store(key, CachedResponse(response.headers["etag"], response.status_code, raw_headers, content))
        return response

    @staticmethod
    def _call_at_close(response: requests.Response, on_close: Callable[[], object]) -> None:
        """Replace the `close` method of a response, so that `on_close` is called once, when the response is closed."""
        close, is_closed = response.close, False

        def close_and_call() -> None:
            """Close the response, and call `on_close` the first time."""
            nonlocal is_closed
            close()
            if not is_closed:
                is_closed = True
                on_close()

        response.close = close_and_call  # type: ignore[method-assign]  # the library has no hook for it


def _get_header(request: requests.PreparedRequest, name: str) -> str:
    value = request.headers.get(name, "")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _build_cached_response(cached: CachedResponse, not_modified: requests.Response) -> requests.Response:
    """Return the cached response, with the rate limit headers of the 304 response that confirmed it."""
    response = requests.Response()
    response.status_code, response.reason, response.url = cached.status, "OK", not_modified.url
    response.request, response.elapsed = not_modified.request, not_modified.elapsed
    response.connection = not_modified.connection
    response.headers.update({name.decode("latin-1"): value.decode("latin-1") for name, value in cached.headers})
    response.headers.update(select_limit_headers(not_modified.headers.items()))
    response.headers[CACHE_HEADER] = "1"
    response._content, response._content_consumed = cached.body, True  # The library has no public way to set a body.
    response.encoding = requests.utils.get_encoding_from_headers(response.headers)
    return response
