"""Cached documents of identity providers: callers share fetches, results and failures."""

import asyncio

import pytest

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.server.security import provider_documents
from wharf.cluster.server.security.provider_documents import (
    CACHE_TTL_S,
    FAILURE_TTL_S,
    MIN_REFRESH_INTERVAL_S,
    ProviderDocuments,
)
from wharf.world import SimulatedWorld


class AProvider:
    """A provider that counts fetches, and replies when it may."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.error: Exception | None = None
        world = SimulatedWorld(1, asyncio.get_running_loop().time)
        self.documents = ProviderDocuments(world, self._fetch)

    async def _fetch(self, url: str, _ca_pem: tuple[str, ...]) -> bytes:
        self.fetched.append(url)
        await self.may_reply.wait()
        if self.error is not None:
            raise self.error
        return f"{url} {len(self.fetched)}".encode()

    async def get(self, url: str = "keys") -> bytes:
        return await self.documents.get(url, ())


async def start(provider: AProvider, count: int) -> list[asyncio.Task[bytes]]:
    """Start several callers of one document, and return their tasks once all wait."""
    tasks = [asyncio.ensure_future(provider.get()) for _ in range(count)]
    await pass_time(0.01)
    return tasks


@in_virtual_time
async def test_callers_of_one_document_wait_for_one_fetch() -> None:
    provider = AProvider()
    provider.may_reply.clear()
    callers = await start(provider, 5)
    provider.may_reply.set()

    assert await asyncio.gather(*callers) == [b"keys 1"] * 5
    assert provider.fetched == ["keys"]


@in_virtual_time
async def test_a_fetch_that_waits_does_not_delay_other_documents() -> None:
    provider = AProvider()
    provider.may_reply.clear()
    callers = await start(provider, 1)
    other = asyncio.ensure_future(provider.get("other"))
    await pass_time(0.01)

    assert provider.fetched == ["keys", "other"]
    provider.may_reply.set()
    await asyncio.gather(*callers, other)


@in_virtual_time
async def test_if_the_caller_that_fetches_leaves_another_one_fetches() -> None:
    provider = AProvider()
    provider.may_reply.clear()
    first, second = await start(provider, 2)
    first.cancel()
    provider.may_reply.set()

    assert (await second, provider.fetched) == (b"keys 2", ["keys", "keys"])


@in_virtual_time
async def test_a_failure_is_shared_for_a_short_time() -> None:
    provider = AProvider()
    provider.error = ValueError("no reply")
    provider.may_reply.clear()
    callers = await start(provider, 5)
    provider.may_reply.set()
    failures = await asyncio.gather(*callers, return_exceptions=True)

    with pytest.raises(ValueError, match="no reply"):
        await provider.get()
    assert [str(failure) for failure in failures] == ["no reply"] * 5
    assert provider.fetched == ["keys"]

    await pass_time(FAILURE_TTL_S)
    provider.error = None
    assert await provider.get() == b"keys 2"


@in_virtual_time
async def test_a_failed_early_fetch_leaves_the_document_in_use() -> None:
    provider = AProvider()
    await provider.get()
    await pass_time(MIN_REFRESH_INTERVAL_S)
    provider.error = ValueError("no reply")
    with pytest.raises(ValueError, match="no reply"):
        await provider.documents.refresh("keys", ())

    assert await provider.documents.refresh("keys", ()) == b"keys 1"
    assert await provider.get() == b"keys 1"
    assert provider.fetched == ["keys", "keys"]


@in_virtual_time
async def test_a_document_is_fetched_again_when_it_is_old() -> None:
    provider = AProvider()
    first = await provider.get()
    await pass_time(CACHE_TTL_S)

    assert (first, await provider.get()) == (b"keys 1", b"keys 2")


@in_virtual_time
async def test_the_documents_that_were_not_used_for_the_longest_time_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_documents, "MAX_CACHED_DOCUMENTS", 2)
    provider = AProvider()
    for url in ("a", "b", "a", "c", "a", "b"):
        await provider.get(url)

    assert provider.fetched == ["a", "b", "c", "b"]
