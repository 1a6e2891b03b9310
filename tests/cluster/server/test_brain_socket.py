"""The way to the brain of the same server, over a real socket: what a brain that hangs or ends means to who asks it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_on_loop_until
from wharf.cluster.server.rpc.leader import RpcReply
from wharf.cluster.server.rpc.socket import BrainSocketClient, BrainSocketServer
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld

WORLD = RealWorld()
WITHIN_S = 60.0


def on_a_real_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(WITHIN_S):
                await test(tmp_path)

        asyncio.run(bounded())

    return run


class HangingBrain:
    """It answers `quick` at once, everything else when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.goes_on = asyncio.Event()

    async def call(self, name: str, body: bytes) -> RpcReply:
        self.asked += 1
        if name != "quick":
            await self.goes_on.wait()
        return RpcReply(body)


@asynccontextmanager
async def linked(folder: Path, brain: HangingBrain, *, answer_within_s: float) -> AsyncIterator[BrainSocketClient]:
    path = folder / "brain.sock"
    door = BrainSocketServer(WORLD, path, brain)
    await door.open()
    link = BrainSocketClient(WORLD, path, reply_timeout_s=answer_within_s)
    try:
        yield link
    finally:
        await link.close()
        await door.close()


async def refusal_of(link: BrainSocketClient, name: str) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await link.call(name, b"")
    return refused.value


@on_a_real_loop
async def test_a_brain_that_does_not_answer_leaves_a_question_undecided_within_the_bound(tmp_path: Path) -> None:
    async with linked(tmp_path, HangingBrain(), answer_within_s=0.05) as link:
        refusal = await refusal_of(link, "slow")

        assert refusal.code is RefusalCode.OUTCOME_UNKNOWN
        assert (
            refusal.text
            == "this server's scheduler has not answered for 0.05 s; check the current state before you retry"
        )


@on_a_real_loop
async def test_after_a_brain_hung_it_is_asked_anew_and_answers(tmp_path: Path) -> None:
    async with linked(tmp_path, HangingBrain(), answer_within_s=0.5) as link:
        await refusal_of(link, "slow")

        assert await link.call("quick", b"yes") == RpcReply(b"yes")


@on_a_real_loop
async def test_one_slow_question_does_not_end_those_of_a_brain_that_answers_others(tmp_path: Path) -> None:
    brain = HangingBrain()
    async with linked(tmp_path, brain, answer_within_s=0.8) as link:
        slow = asyncio.ensure_future(refusal_of(link, "slow"))
        await wait_on_loop_until(lambda: brain.asked == 1, what="it is asked")
        assert await link.call("quick", b"yes") == RpcReply(b"yes")
        # It begins when half of the first's time is gone, so it has time left when the first has none.
        await asyncio.wait([slow], timeout=0.4)
        later = asyncio.ensure_future(link.call("slower", b"in time"))
        assert (await slow).code is RefusalCode.OUTCOME_UNKNOWN
        brain.goes_on.set()

        assert await later == RpcReply(b"in time")


@on_a_real_loop
async def test_a_brain_that_ends_leaves_a_question_undecided_and_the_next_refused(tmp_path: Path) -> None:
    brain = HangingBrain()
    path = tmp_path / "brain.sock"
    door = BrainSocketServer(WORLD, path, brain)
    await door.open()
    link = BrainSocketClient(WORLD, path)
    asking = asyncio.ensure_future(refusal_of(link, "slow"))
    await wait_on_loop_until(lambda: brain.asked == 1, what="it is asked")
    await door.close()

    assert (await asking).code is RefusalCode.OUTCOME_UNKNOWN
    assert (await refusal_of(link, "slow")).code is RefusalCode.UNAVAILABLE
    await link.close()
