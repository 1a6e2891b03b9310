"""RPC to the brain of the same server over a real socket: hanging and ending brains."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_on_loop_until
from wharf.cluster.server.rpc.method import RpcReply
from wharf.cluster.server.rpc.socket import BrainSocketClient, BrainSocketServer
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld

WORLD = RealWorld()
WITHIN_S = 60.0


def run_with_real_time(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        async def run_with_timeout() -> None:
            async with asyncio.timeout(WITHIN_S):
                await test(tmp_path)

        asyncio.run(run_with_timeout())

    return run


class HangingBrain:
    """A brain that replies to `quick` at once, and to every other method when the test sets `released`."""

    def __init__(self) -> None:
        self.call_count = 0
        self.released = asyncio.Event()

    async def call(self, name: str, body: bytes) -> RpcReply:
        self.call_count += 1
        if name != "quick":
            await self.released.wait()
        return RpcReply(body)


@asynccontextmanager
async def connect_to_brain(
    folder: Path, brain: HangingBrain, *, reply_timeout_s: float
) -> AsyncIterator[BrainSocketClient]:
    """Serve the brain on a Unix socket, and yield a client that is connected to it."""
    path = folder / "brain.sock"
    socket_server = BrainSocketServer(WORLD, path, brain)
    await socket_server.open()
    link = BrainSocketClient(WORLD, path, reply_timeout_s=reply_timeout_s)
    try:
        yield link
    finally:
        await link.close()
        await socket_server.close()


async def expect_refusal(link: BrainSocketClient, name: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await link.call(name, b"")
    return caught.value


@run_with_real_time
async def test_the_outcome_of_a_call_without_a_reply_is_unknown_after_the_timeout(tmp_path: Path) -> None:
    async with connect_to_brain(tmp_path, HangingBrain(), reply_timeout_s=0.05) as link:
        refusal = await expect_refusal(link, "slow")

        assert refusal.code is RefusalCode.OUTCOME_UNKNOWN
        assert (
            refusal.text
            == "this server's scheduler process has not replied for 0.05 s; check the current state before you retry"
        )


@run_with_real_time
async def test_a_brain_answers_new_calls_after_it_hung(tmp_path: Path) -> None:
    async with connect_to_brain(tmp_path, HangingBrain(), reply_timeout_s=0.5) as link:
        await expect_refusal(link, "slow")

        assert await link.call("quick", b"yes") == RpcReply(b"yes")


@run_with_real_time
async def test_one_slow_call_does_not_end_the_other_calls(tmp_path: Path) -> None:
    brain = HangingBrain()
    async with connect_to_brain(tmp_path, brain, reply_timeout_s=0.8) as link:
        slow = asyncio.ensure_future(expect_refusal(link, "slow"))
        await wait_on_loop_until(lambda: brain.call_count == 1, what="the call has arrived")
        assert await link.call("quick", b"yes") == RpcReply(b"yes")
        # It starts after half of the first call's timeout, so it has time left when the first has none.
        await asyncio.wait([slow], timeout=0.4)
        later = asyncio.ensure_future(link.call("slower", b"in time"))
        assert (await slow).code is RefusalCode.OUTCOME_UNKNOWN
        brain.released.set()

        assert await later == RpcReply(b"in time")


@run_with_real_time
async def test_when_a_brain_ends_its_open_call_has_an_unknown_outcome_and_the_next_is_refused(tmp_path: Path) -> None:
    brain = HangingBrain()
    path = tmp_path / "brain.sock"
    socket_server = BrainSocketServer(WORLD, path, brain)
    await socket_server.open()
    link = BrainSocketClient(WORLD, path)
    asking = asyncio.ensure_future(expect_refusal(link, "slow"))
    await wait_on_loop_until(lambda: brain.call_count == 1, what="the call has arrived")
    await socket_server.close()

    assert (await asking).code is RefusalCode.OUTCOME_UNKNOWN
    assert (await expect_refusal(link, "slow")).code is RefusalCode.UNAVAILABLE
    await link.close()
