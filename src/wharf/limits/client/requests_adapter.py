"""Limits kept for requests: an adapter for its sessions. The library is not one of ours; who uses this has it.

session = requests.Session()
session.mount("https://", LimitedAdapter())
"""

from collections.abc import Callable
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.request_costs import build_account_key, estimate_cost
from wharf.limits.client.response_cache import CachedResponse, CacheKey, ResponseCache
from wharf.limits.client.state_stores import LimitStateStore, MemoryStateStore
from wharf.limits.client.step_runners import StepRunner
from wharf.limits.client.steps import ReceivedResponse, SendStep, WaitNotice, generate_steps
from wharf.world import RealWorld, World


class LimitedAdapter(HTTPAdapter):
    """`ledger` says who shares the budget, `manner` how it behaves, `on_wait` hears of each wait."""

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
        self._manner = policy or ClientPolicy()
        self._on_wait = on_wait
        self._world = world or RealWorld()
        self._tags = ResponseCache() if has_cache else None
        self._driver = StepRunner(state_store or MemoryStateStore(), sleep)

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **options: Any
    ) -> requests.Response:  # The rest goes through as it came.
        """Raises LimitError, and what requests raises."""
        url, body = request.url or "", request.body
        plain = body.encode() if isinstance(body, str) else body
        account = build_account_key(url, _header(request, "authorization"))
        call = estimate_cost(request.method or "GET", url, plain if isinstance(plain, bytes) else b"")
        key = _key_of(request, account)
        kept = self._tags.find(key) if self._tags is not None and key is not None else None
        if kept is not None:
            request.headers["if-none-match"] = kept.tag
        last: list[requests.Response] = []

        def exchange(step: SendStep) -> ReceivedResponse:
            response = super(LimitedAdapter, self).send(request, stream, *args, **options)
            last[:] = [response]
            headers = {name.lower(): value for name, value in response.headers.items()}
            return ReceivedResponse(
                response.status_code, headers, response.content if step.needs_body(response.status_code) else b""
            )

        can_repeat = body is None or isinstance(plain, bytes)
        talk = generate_steps(self._world, self._manner, call, url, can_repeat=can_repeat, on_wait=self._on_wait)
        after = self._driver.run_steps(talk, account, call.endpoint, exchange)
        response = last[0]
        if kept is not None and response.status_code == 304:
            response.close()
            self._driver.update_state(account, after)
            return _from_kept(kept, response)
        if stream:
            self._end_at_close(response, lambda: self._driver.update_state(account, after))
        else:
            try:
                content = response.content
            finally:
                self._driver.update_state(account, after)
            if self._tags is not None and key is not None and _may_be_kept(response):
                raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
                self._tags.store(key, CachedResponse(response.headers["etag"], response.status_code, raw, content))
        return response

    @staticmethod
    def _end_at_close(response: requests.Response, end: Callable[[], object]) -> None:
        close, is_over = response.close, False

        def closed() -> None:
            nonlocal is_over
            close()
            if not is_over:
                is_over = True
                end()

        response.close = closed  # type: ignore[method-assign]  # the library has no hook for it


def _key_of(request: requests.PreparedRequest, account: str) -> CacheKey | None:
    headers = request.headers
    if request.method != "GET" or any(name in headers for name in ("range", "if-none-match", "if-modified-since")):
        return None
    return CacheKey(account, request.url or "", (_header(request, "accept"),))


def _header(request: requests.PreparedRequest, name: str) -> str:
    value = request.headers.get(name, "")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _may_be_kept(response: requests.Response) -> bool:
    no_store = "no-store" in response.headers.get("cache-control", "")
    return response.status_code == 200 and "etag" in response.headers and not no_store


def _from_kept(kept: CachedResponse, response: requests.Response) -> requests.Response:
    """The earlier answer, in the place of one that says that nothing changed."""
    given = requests.Response()
    given.status_code, given.reason, given.url = kept.status, "OK", response.url
    given.request, given.elapsed, given.connection = response.request, response.elapsed, response.connection
    given.headers.update({name.decode("latin-1"): value.decode("latin-1") for name, value in kept.headers})
    given.headers.update(
        {name: value for name, value in response.headers.items() if name.lower().startswith("x-ratelimit-")}
    )
    given.headers["x-from-cache"] = "1"
    given._content, given._content_consumed = kept.body, True  # The library has no public way to fill an answer.
    given.encoding = requests.utils.get_encoding_from_headers(given.headers)
    return given
