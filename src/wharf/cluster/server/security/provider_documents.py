"""Cached documents of identity providers: their configuration and their public keys.

Logins need no token, so everything that they can cause at a provider has a limit: one fetch of a document at a time, whose
result all callers share, and failures that are remembered. What the documents mean is decided in `logins`.
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
FAILURE_TTL_S: Final = 5.0
"""How long a failed fetch is the answer to all callers. Limits the load on a provider that does not work, and lets logins
work again soon after it."""
MAX_CACHED_DOCUMENTS: Final = 100
"""Limits memory: the documents that were not used for the longest time are deleted."""

DocumentKey = tuple[str, ...]
"""The URL of a document, then the certificates with which its server is verified."""


class _CachedDocument:
    """A document, or the error of the last fetch, with monotonic times."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.fetched_s = 0.0
        """When the body was fetched."""
        self.attempted_s = 0.0
        """When the last fetch began."""
        self.failed_s = 0.0
        """When the last fetch failed."""
        self.error: Exception | None = None
        """The error of the last fetch; `None` if it succeeded."""
        self.lock = asyncio.Lock()
        """Held during a fetch, so that callers who come meanwhile wait for its result."""


class ProviderDocuments:
    """The cache of provider documents of one process."""

    def __init__(self, world: World, fetch: Callable[[str, tuple[str, ...]], Awaitable[bytes]]) -> None:
        """`fetch` returns the document at a URL, verified with these certificates. Its exceptions are passed on."""
        self._world = world
        self._fetch = fetch
        self._documents: OrderedDict[DocumentKey, _CachedDocument] = OrderedDict()

    async def get(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Return the document at the URL, from the cache if it was fetched less than `CACHE_TTL_S` ago.

        Raises the error of the last fetch for `FAILURE_TTL_S`.
        """
        document = self._find_document(url, ca_pem)
        body = self._get_valid_body(document)
        if body is not None:
            return body
        async with document.lock:
            body = self._get_valid_body(document)
            return body if body is not None else await self._fetch_again(document, url, ca_pem)

    async def refresh(self, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Return the document at the URL, fetched again although it is in the cache.

        Within `MIN_REFRESH_INTERVAL_S` after the last attempt, the cached document is returned.
        """
        document = self._find_document(url, ca_pem)
        async with document.lock:
            if document.body is not None and self._measure_age_s(document.attempted_s) < MIN_REFRESH_INTERVAL_S:
                return document.body
            return await self._fetch_again(document, url, ca_pem)

    def _find_document(self, url: str, ca_pem: tuple[str, ...]) -> _CachedDocument:
        """Return the cached document, or a new one that is not fetched yet."""
        key = (url, *ca_pem)
        document = self._documents.setdefault(key, _CachedDocument())
        self._documents.move_to_end(key)
        while len(self._documents) > MAX_CACHED_DOCUMENTS:
            self._documents.popitem(last=False)
        return document

    def _get_valid_body(self, document: _CachedDocument) -> bytes | None:
        """Return the body unless it is too old or missing."""
        is_valid = document.body is not None and self._measure_age_s(document.fetched_s) < CACHE_TTL_S
        return document.body if is_valid else None

    async def _fetch_again(self, document: _CachedDocument, url: str, ca_pem: tuple[str, ...]) -> bytes:
        """Fetch the document, unless the last fetch failed a short time ago. The caller holds its lock."""
        if document.error is not None and self._measure_age_s(document.failed_s) < FAILURE_TTL_S:
            raise type(document.error)(*document.error.args)  # A new one: each caller adds its own stack to it.
        document.attempted_s = self._world.monotonic_s()
        try:
            document.body = await self._fetch(url, ca_pem)
        except Exception as error:
            document.error, document.failed_s = error.with_traceback(None), self._world.monotonic_s()
            raise
        document.error, document.fetched_s = None, document.attempted_s
        return document.body

    def _measure_age_s(self, at_s: float) -> float:
        return self._world.monotonic_s() - at_s
