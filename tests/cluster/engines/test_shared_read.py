"""Concurrent callers share one read that begins after their calls."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from wharf.cluster.engines.etcd.shared_read import SharedRead
from wharf.cluster.engines.port import LogUnavailable
from wharf.world import RealWorld


class GatedRead:
    """A read that returns the number of reads so far, when the test opens its gate."""

    def __init__(self) -> None:
        self.reads = 0
        self.gates: list[asyncio.Future[None]] = []
        self.began = asyncio.Event()
        self.shared = SharedRead(RealWorld(), self.read, name="test")

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        self.began.set()
        await gate
        return number

    async def wait_until_begun(self) -> None:
        await self.began.wait()
        self.began.clear()

    def start_calls(self, count: int) -> "asyncio.Future[list[int]]":
        return asyncio.ensure_future(gather_results([self.shared.read for _ in range(count)]))


async def gather_results(calls: list[Callable[[], Awaitable[int]]]) -> list[int]:
    return list(await asyncio.gather(*(read_call() for read_call in calls)))


async def test_concurrent_callers_share_one_read() -> None:
    source = GatedRead()
    pending = source.start_calls(1_000)
    await source.wait_until_begun()
    source.gates[0].set_result(None)

    assert await pending == [1] * 1_000
    assert source.reads == 1


async def test_callers_during_a_read_share_the_next_one() -> None:
    source = GatedRead()
    first = source.start_calls(1)
    await source.wait_until_begun()
    later = [source.start_calls(3), source.start_calls(4)]
    await asyncio.sleep(0)
    source.gates[0].set_result(None)
    await source.wait_until_begun()
    source.gates[1].set_result(None)

    assert await first == [1]
    assert await asyncio.gather(*later) == [[2] * 3, [2] * 4]
    assert source.reads == 2


async def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    source = GatedRead()
    impatient, patient = source.start_calls(1), source.start_calls(1)
    await source.wait_until_begun()
    impatient.cancel()
    source.gates[0].set_result(None)

    assert await patient == [1]


async def test_a_failed_read_fails_only_for_its_own_callers() -> None:
    source = GatedRead()
    first = source.start_calls(2)
    await source.wait_until_begun()
    second = source.start_calls(1)
    await asyncio.sleep(0)
    source.gates[0].set_exception(LogUnavailable("away"))
    with pytest.raises(LogUnavailable, match="away"):
        await first
    await source.wait_until_begun()
    source.gates[1].set_result(None)

    assert await second == [2]


async def test_stopping_fails_all_waiting_callers() -> None:
    source = GatedRead()
    first = source.start_calls(1)
    await source.wait_until_begun()
    second = source.start_calls(1)
    await asyncio.sleep(0)
    await source.shared.stop()

    for waiting in (first, second):
        with pytest.raises(LogUnavailable, match="stopped"):
            await waiting
