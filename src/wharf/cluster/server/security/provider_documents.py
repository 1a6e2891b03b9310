"""Cached documents of identity providers: their configuration and their public keys.

What the documents mean is decided in `logins`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from wharf.world import World

CACHE_TTL_S: Final = 600.0
"""How long a document is used before it is fetched again."""
MIN_REFRESH_INTERVAL_S: Final = 10.0
"""How long a document stays in use before it may be fetched again early. Limits the load that callers without a token can
cause at the provider, because any text can name an unknown key."""
MAX_CACHED_DOCUMENTS: Final = 100
"""Limits memory: the documents that were not fetched for the longest time are deleted."""

DocumentKey = tuple[str, ...]
"""The URL of a document, then the certificates with which its server is verified."""


class _CachedDocument:
    """A document with the monotonic times of its last fetch and its last attempted fetch."""

    def __init__(self, body: bytes, now_s: float) -> None:
        self.body = body
        self.fetched_s = now_s
        self.attempted_s = now_s
        self.lock = asyncio.Lock()
        """Held during an early fetch, so that callers who come meanwhile wait for its result."""


class ProviderDocuments:
    """The cache of provider documents of one process."""

    def __init__(self, world: World, fetch: Callable[[str, tuple[str, ...]], Awaitable[bytes]]) -> None:
        """`fetch` returns the document at a URL, verified with these certificates. Its exceptions are passed on."""
        self._world = world
        self._fetch = fetch
        self._documents: OrderedDict[DocumentKey, _CachedDocument] = OrderedDict()

    async def get(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Return the document at the URL, from the cache if it was fetched less than `CACHE_TTL_S` ago."""
        cached = self._documents.get((url, *ca_pem))
        if cached is not None and self._world.monotonic_s() - cached.fetched_s < CACHE_TTL_S:
            return cached.body
        return await self._fetch_and_store(url, ca_pem)

    async def refresh(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Return the document at the URL, fetched again although it is in the cache.

        Within `MIN_REFRESH_INTERVAL_S` after the last attempt, the cached document is returned.
        """
        cached = self._documents.get((url, *ca_pem))
        if cached is None:
            return await self._fetch_and_store(url, ca_pem)
        async with cached.lock:
            now_s = self._world.monotonic_s()
            if now_s - cached.attempted_s >= MIN_REFRESH_INTERVAL_S:
                cached.attempted_s = now_s
                cached.body = await self._fetch(url, ca_pem)
                cached.fetched_s = now_s
            return cached.body

    async def _fetch_and_store(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Fetch the document and store it in the cache."""
        now_s = self._world.monotonic_s()
        body = await self._fetch(url, ca_pem)
        key = (url, *ca_pem)
        self._documents[key] = _CachedDocument(body, now_s)
        self._documents.move_to_end(key)
        while len(self._documents) > MAX_CACHED_DOCUMENTS:
            self._documents.popitem(last=False)
        return body
