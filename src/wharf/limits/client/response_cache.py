"""A cache of responses with their ETag, so that a repeated request for an unchanged resource costs nothing."""

import threading
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

MAX_CACHE_BYTES: Final = 16 << 20
"""Limits the memory for the bodies of all cached responses."""
MAX_CACHED_BODY_BYTES: Final = 1 << 20
"""Responses with longer bodies are not cached."""
CACHE_HEADER: Final = "x-from-cache"
"""Set on responses whose body is from the cache: such a request cost nothing."""
_UNCACHED_REQUEST_HEADERS: Final = ("range", "if-none-match", "if-modified-since")
"""The caller handles partial or conditional responses of such requests itself."""


class CachedResponse(NamedTuple):
    """A cached response."""

    tag: str
    """Its ETag."""
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    """As received, possibly compressed, so that it matches the headers."""


class CacheKey(NamedTuple):
    """The key of a cached response: the requests that it is valid for."""

    account: str
    """Host and hash of the credential."""
    url: str
    vary_values: tuple[str, ...]
    """The values of the request headers that select a variant of the response."""


def can_use_cache(method: str | None, headers: Container[str]) -> bool:
    """Return whether a request may be made conditional and answered from the cache."""
    return method == "GET" and not any(name in headers for name in _UNCACHED_REQUEST_HEADERS)


def is_cacheable(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a response may be cached."""
    return status == 200 and "etag" in headers and "no-store" not in headers.get("cache-control", "")


def select_limit_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the rate limit headers of a 304 response. They replace those of the cached response."""
    return {name: value for name, value in headers if name.lower().startswith("x-ratelimit-")}


class ResponseCache:
    """The most recently used responses, up to a total size of their bodies."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._responses: OrderedDict[CacheKey, CachedResponse] = OrderedDict()
        self._free_bytes = max_bytes
        self._lock = threading.Lock()

    def find(self, key: CacheKey) -> CachedResponse | None:
        """Return the cached response, which becomes the most recently used one; `None` if there is none."""
        with self._lock:
            if key in self._responses:
                self._responses.move_to_end(key)
            return self._responses.get(key)

    def store(self, key: CacheKey, response: CachedResponse) -> None:
        """Store a response, and evict the least recently used ones beyond the maximum size.

        A response with a long body is not stored.
        """
        if len(response.body) > MAX_CACHED_BODY_BYTES:
            return
        with self._lock:
            previous = self._responses.pop(key, None)
            self._free_bytes += len(previous.body) if previous else 0
            self._responses[key] = response
            self._free_bytes -= len(response.body)
            while self._free_bytes < 0:
                _, oldest = self._responses.popitem(last=False)
                self._free_bytes += len(oldest.body)
