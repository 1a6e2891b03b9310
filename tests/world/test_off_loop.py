"""Work on the thread for long computations of a real process: its caller is released only when it has ended."""

import asyncio
import threading

import pytest

from wharf.world import RealWorld


def test_a_cancelled_caller_waits_until_the_function_has_ended() -> None:
    async def scenario() -> None:
        world, has_begun, may_end, ended = RealWorld(), threading.Event(), threading.Event(), []

        def work() -> None:
            has_begun.set()
            may_end.wait()
            ended.append(True)

        caller = asyncio.ensure_future(world.run_off_loop(work))
        await asyncio.to_thread(has_begun.wait)
        caller.cancel()
        await asyncio.sleep(0)
        caller.cancel()  # Cancelled again while it waits.
        await asyncio.sleep(0)
        assert not caller.done()

        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ended == [True]

    asyncio.run(scenario())


def test_a_function_that_waits_for_the_thread_is_not_started_after_its_caller_was_cancelled() -> None:
    async def scenario() -> None:
        world, may_end, started = RealWorld(), threading.Event(), []
        first = asyncio.ensure_future(world.run_off_loop(may_end.wait))
        second = asyncio.ensure_future(world.run_off_loop(lambda: started.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        may_end.set()
        assert await first
        assert await world.run_off_loop(lambda: "third") == "third"
        assert started == []

    asyncio.run(scenario())


def test_an_error_of_the_function_is_raised_in_its_caller() -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await RealWorld().run_off_loop(lambda: 1 // 0)

    asyncio.run(scenario())
