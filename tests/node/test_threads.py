"""Blocking work of one kind delays no work of another kind."""

import asyncio
import threading

from wharf.node.threads import MAX_THREADS, ThreadGroup, run_in_thread


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
