"""Waiting for an event with a timeout, and cancelling tasks."""

import asyncio
import contextlib
import gc

import pytest

from tests.kit.virtual_time import in_virtual_time
from wharf.world import RealWorld, SimulatedWorld, tasks
from wharf.world.tasks import wait_for_event


@in_virtual_time
async def test_the_wait_ends_as_soon_as_the_event_is_set() -> None:
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(2.0, event.set)
    began_s = loop.time()
    assert await wait_for_event(event, 5.0)
    assert loop.time() - began_s == pytest.approx(2.0)


@in_virtual_time
async def test_the_wait_ends_after_the_timeout() -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert not await wait_for_event(asyncio.Event(), 5.0)
    assert loop.time() - began_s == pytest.approx(5.0)


@pytest.mark.parametrize("timeout_s", [None, float("inf")])
@in_virtual_time
async def test_a_wait_without_a_timeout_is_unlimited(timeout_s: float | None) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(1_000_000.0, event.set)
    assert await wait_for_event(event, timeout_s)


@in_virtual_time
async def test_a_wait_for_a_set_event_returns_at_once() -> None:
    event = asyncio.Event()
    event.set()
    assert await wait_for_event(event, 0.0)


async def swallow_once() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


def test_a_coroutine_that_swallows_its_first_cancellation_does_not_block_those_that_run_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "CANCEL_INTERVAL_S", 0.01)

    async def end_at_once() -> int:
        await asyncio.sleep(0)
        return 7

    async def run() -> tuple[bool, int]:
        first, other = await asyncio.wait_for(
            tasks.run_until_first(RealWorld(), first=end_at_once(), other=swallow_once()), 5.0
        )
        return other.cancelled(), first.result()

    assert asyncio.run(run()) == (True, 7)


def test_a_task_that_swallows_its_first_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_INTERVAL_S", 0.01)

    async def run() -> bool:
        task = RealWorld().start_task(swallow_once(), name="stubborn")
        await asyncio.sleep(0)
        await tasks.cancel_tasks(task)
        return task.cancelled()

    assert asyncio.run(run())


def test_cancelling_tasks_that_have_ended_returns_at_once() -> None:
    async def fail() -> None:
        raise ValueError("failed")

    async def run() -> bool:
        task = RealWorld().start_task(fail(), name="failing")
        await asyncio.wait([task])
        await tasks.cancel_tasks(task)
        return task.done()

    assert asyncio.run(run())


def test_the_exception_of_a_task_that_fails_while_it_is_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("the file cannot be closed")

    async def run() -> None:
        task = RealWorld().start_task(fail_when_cancelled(), name="failing")
        await asyncio.sleep(0)
        await tasks.cancel_tasks(task)

    asyncio.run(run())

    (record,) = caplog.records
    assert record.message == "canceled task failed: unexpected error task=failing"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "the file cannot be closed"


def test_the_exception_of_a_task_that_failed_before_it_is_cancelled_is_left_to_its_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ValueError("failed")

    async def run() -> None:
        task = RealWorld().start_task(fail(), name="failing")
        await asyncio.wait([task])
        await tasks.cancel_tasks(task)

    asyncio.run(run())
    gc.collect()

    assert [record.message.splitlines()[0] for record in caplog.records] == ["Task exception was never retrieved"]


def test_closing_a_coroutine_that_waits_for_tasks_only_cancels_them() -> None:
    loop = asyncio.new_event_loop()
    world = SimulatedWorld(1, loop.time)
    waiting = tasks.run_until_first(world, first=asyncio.Event().wait(), second=asyncio.Event().wait())
    waiter = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0))
    started = asyncio.all_tasks(loop) - {waiter}

    waiting.close()

    assert [each.cancelling() for each in started] == [1, 1]
    waiter.cancel()
    loop.run_until_complete(asyncio.gather(waiter, *started, return_exceptions=True))
    loop.close()
