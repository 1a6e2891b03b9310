"""Answers that are kept with their tag, so that asking again for what has not changed costs nothing."""

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
    body: bytes  # As it came over the wire, so that the headers stay true.


class CacheKey(NamedTuple):
    account: str
    url: str
    # Headers that change what is answered.
    vary_values: tuple[str, ...]


class ResponseCache:
    """The answers used last, up to a number of bytes."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._kept: OrderedDict[CacheKey, CachedResponse] = OrderedDict()
        self._left = max_bytes
        self._lock = threading.Lock()

    def find(self, key: CacheKey) -> CachedResponse | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def store(self, key: CacheKey, response: CachedResponse) -> None:
        if len(response.body) > MAX_CACHED_BODY_BYTES:
            return
        with self._lock:
            old = self._kept.pop(key, None)
            self._left += len(old.body) if old else 0
            self._kept[key] = response
            self._left -= len(response.body)
            while self._left < 0:
                _, oldest = self._kept.popitem(last=False)
                self._left += len(oldest.body)
