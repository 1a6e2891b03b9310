"""Bodies that a handler reads in parts, such as snapshots: time limits for callers that send slowly."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.asgi import Message
from wharf.cluster.api.requests.body import MIN_STREAMED_BYTES_PER_S, PART_TIMEOUT_S, BodyTimeout, iterate_body


class Upload:
    """A caller that sends parts of this size, one after each interval."""

    def __init__(self, part_bytes: int, interval_s: float, count: int) -> None:
        self._part = bytes(part_bytes)
        self._interval_s = interval_s
        self._remaining = count

    async def receive(self) -> Message:
        await pass_time(self._interval_s)
        self._remaining -= 1
        return {"type": "http.request", "body": self._part, "more_body": self._remaining > 0}


async def receive_all(parts: AsyncIterator[bytes], *, store_s: float = 0.0) -> int:
    """Return how many bytes arrived. Each part takes `store_s` to be stored."""
    received = 0
    async for part in parts:
        received += len(part)
        await pass_time(store_s)
    return received


@in_virtual_time
async def test_an_upload_without_progress_ends() -> None:
    with pytest.raises(BodyTimeout):
        await receive_all(iterate_body(Upload(1, PART_TIMEOUT_S + 1, 2).receive))


@in_virtual_time
async def test_an_upload_below_the_minimum_rate_ends() -> None:
    began_s = asyncio.get_running_loop().time()

    with pytest.raises(BodyTimeout):
        await receive_all(iterate_body(Upload(MIN_STREAMED_BYTES_PER_S // 2, 1.0, 1_000_000).receive))

    assert asyncio.get_running_loop().time() - began_s < 3 * PART_TIMEOUT_S


@in_virtual_time
async def test_an_upload_above_the_minimum_rate_may_take_long() -> None:
    upload = Upload(MIN_STREAMED_BYTES_PER_S * 2, 1.0, 1_000)

    assert await receive_all(iterate_body(upload.receive)) == MIN_STREAMED_BYTES_PER_S * 2 * 1_000


@in_virtual_time
async def test_the_time_to_store_an_upload_does_not_count_against_its_caller() -> None:
    assert await receive_all(iterate_body(Upload(1, 0.1, 20).receive), store_s=PART_TIMEOUT_S) == 20
