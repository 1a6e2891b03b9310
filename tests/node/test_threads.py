"""Blocking work of one kind delays no work of another kind."""

import asyncio
import threading

from wharf.node.threads import MAX_THREADS, MAX_THREADS_OF_OWNER, ThreadGroup, run_in_owned_thread, run_in_thread


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


def test_an_owner_with_many_hanging_functions_delays_no_other_owner() -> None:
    may_end = threading.Event()

    async def scenario() -> int:
        hanging = [
            asyncio.ensure_future(run_in_owned_thread(ThreadGroup.ARTIFACTS, "a", may_end.wait, 60))
            for _ in range(10 * MAX_THREADS[ThreadGroup.ARTIFACTS])
        ]
        async with asyncio.timeout(10):
            result = await run_in_owned_thread(ThreadGroup.ARTIFACTS, "b", int, "1")
        may_end.set()
        await asyncio.wait(hanging)
        return result

    assert 1 == asyncio.run(scenario())


def test_a_function_counts_for_its_owner_until_it_has_ended_even_if_its_caller_is_canceled() -> None:
    may_end, began = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        began.release()
        may_end.wait(60)

    async def scenario() -> tuple[bool, int]:
        calls = [
            asyncio.ensure_future(run_in_owned_thread(ThreadGroup.ARTIFACTS, "a", hang))
            for _ in range(MAX_THREADS_OF_OWNER)
        ]
        for _ in calls:
            assert await asyncio.to_thread(began.acquire, timeout=10)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        later = asyncio.ensure_future(run_in_owned_thread(ThreadGroup.ARTIFACTS, "a", int, "1"))
        await run_in_owned_thread(ThreadGroup.ARTIFACTS, "b", int, "2")
        was_done = later.done()
        may_end.set()
        return was_done, await later

    assert (False, 1) == asyncio.run(scenario())
