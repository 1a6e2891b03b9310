"""A cache of responses with their ETag, so that a repeated request for an unchanged resource costs nothing."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_CACHE_BYTES: Final = 16 << 20
MAX_CACHED_BODY_BYTES: Final = 1 << 20


class CachedResponse(NamedTuple):
    tag: str
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes  # As received, still compressed, so that it matches the headers.


class CacheKey(NamedTuple):
    account: str
    url: str
    # Values of the request headers that select a variant of the response.
    vary_values: tuple[str, ...]


class ResponseCache:
    """The most recently used responses, up to a total size of their bodies."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._responses: OrderedDict[CacheKey, CachedResponse] = OrderedDict()
        self._free_bytes = max_bytes
        self._lock = threading.Lock()

    def find(self, key: CacheKey) -> CachedResponse | None:
        with self._lock:
            if key in self._responses:
                self._responses.move_to_end(key)
            return self._responses.get(key)

    def store(self, key: CacheKey, response: CachedResponse) -> None:
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
