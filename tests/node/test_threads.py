"""Blocking work of one kind delays no work of another kind."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from wharf.node import threads
from wharf.node.fair_queue import ItemOwner
from wharf.node.threads import MAX_THREADS, ThreadGroup, run_in_owned_thread, run_in_thread


def test_a_group_whose_threads_all_hang_delays_no_other_group_and_not_the_event_loop() -> None:
    may_end = threading.Event()

    async def scenario() -> tuple[int, int]:
        hanging = [
            asyncio.ensure_future(run_in_thread(ThreadGroup.VOLUMES, may_end.wait, 60))
            for _ in range(2 * MAX_THREADS[ThreadGroup.VOLUMES])
        ]
        async with asyncio.timeout(10):
            results = await run_in_thread(ThreadGroup.ARTIFACTS, int, "1"), await asyncio.to_thread(int, "2")
        may_end.set()
        await asyncio.wait(hanging)
        return results

    assert (1, 2) == asyncio.run(scenario())


def do_nothing() -> None:
    """Stop nothing: the functions of these tests end by themselves."""


async def start_hanging(owner: ItemOwner, function: Callable[[], object], count: int) -> list[asyncio.Task[object]]:
    """Start functions that hang, and let them take their threads."""
    tasks = [
        asyncio.ensure_future(run_in_owned_thread(ThreadGroup.ARTIFACTS, owner, do_nothing, function))
        for _ in range(count)
    ]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    "other",
    [
        ItemOwner("hostile", "job 0", "other"),
        ItemOwner("hostile", "other", "allocation"),
        ItemOwner("other", "job 0", "allocation 0"),
    ],
    ids=["allocation", "job", "namespace"],
)
def test_an_owner_with_many_hanging_functions_delays_no_other_owner(other: ItemOwner) -> None:
    may_end = threading.Event()
    hostile_count = {"allocation": 1, "job": 1, "namespace": 4}
    level = "namespace" if other.namespace == "other" else "job" if other.job_id == "other" else "allocation"

    async def scenario() -> int:
        hanging = []
        for job in range(hostile_count[level]):
            for allocation in range(1 if level == "allocation" else 4):
                owner = ItemOwner("hostile", f"job {job}", f"allocation {allocation}")
                hanging += await start_hanging(owner, partial(may_end.wait, 60), 100)
        async with asyncio.timeout(10):
            result = await run_in_owned_thread(ThreadGroup.ARTIFACTS, other, do_nothing, int, "1")
        may_end.set()
        await asyncio.wait(hanging)
        return result

    assert 1 == asyncio.run(scenario())


def test_a_canceled_function_that_waits_never_runs_and_frees_its_place() -> None:
    may_end, ran = threading.Event(), threading.Event()
    owner = ItemOwner("n", "j", "a")

    async def scenario() -> None:
        hanging = await start_hanging(owner, partial(may_end.wait, 60), 10)
        [waiting] = await start_hanging(owner, ran.set, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        may_end.set()
        await asyncio.wait(hanging)
        await run_in_owned_thread(ThreadGroup.ARTIFACTS, owner, do_nothing, int, "1")

    asyncio.run(scenario())

    assert not ran.is_set()


def test_a_canceled_caller_stops_its_function_and_returns_after_it() -> None:
    should_stop, began, has_ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        should_stop.wait(60)
        has_ended.set()

    async def scenario() -> None:
        running = asyncio.ensure_future(run_in_owned_thread(ThreadGroup.ARTIFACTS, ItemOwner(), should_stop.set, work))
        assert await asyncio.to_thread(began.wait, 10)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(scenario())

    assert has_ended.is_set()


def test_a_function_counts_for_its_owner_until_it_has_ended_even_if_its_caller_has_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "END_WAIT_S", 0.01)
    may_end, began = threading.Event(), threading.Semaphore(0)
    owner, max_running = ItemOwner("n", "j", "a"), threads.OWNED_LEVELS[ThreadGroup.ARTIFACTS][-1].max_running

    def hang() -> None:
        began.release()
        may_end.wait(60)

    async def scenario() -> tuple[bool, int]:
        calls = await start_hanging(owner, hang, max_running)
        for _ in calls:
            assert await asyncio.to_thread(began.acquire, timeout=10)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        later = asyncio.ensure_future(run_in_owned_thread(ThreadGroup.ARTIFACTS, owner, do_nothing, int, "1"))
        await run_in_owned_thread(ThreadGroup.ARTIFACTS, ItemOwner("n", "j", "b"), do_nothing, int, "2")
        was_done = later.done()
        may_end.set()
        return was_done, await later

    assert (False, 1) == asyncio.run(scenario())


def test_an_error_of_a_function_is_raised_and_frees_its_thread() -> None:
    async def scenario() -> None:
        for _ in range(20):
            with pytest.raises(ValueError, match="invalid literal"):
                await run_in_owned_thread(ThreadGroup.DOWNLOADS, ItemOwner(), do_nothing, int, "x")

    asyncio.run(scenario())
