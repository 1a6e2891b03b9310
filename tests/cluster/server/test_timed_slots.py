"""Slots by CPU time: an iteration of the event loop begins tasks until its time is used up."""

import asyncio
from collections import Counter
from collections.abc import Hashable

from wharf.cluster.server.loop_slots import MAX_CPU_S_PER_ITERATION, TimedLoopSlots, continue_in_slot, leave_slots


class CountedLoop:
    """Tasks that begin in slots, with a CPU clock that only they advance, and the iteration in which each began."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.iteration = 0
        self.begun: list[tuple[Hashable, int]] = []
        self.slots = TimedLoopSlots(lambda: self.cpu_s)

    async def work(self, owner: Hashable, cpu_s: float) -> None:
        await self.slots.begin(owner)
        self.begun.append((owner, self.iteration))
        self.cpu_s += cpu_s

    async def run(self, owners: str, cpu_s: float) -> None:
        """Let a task of each owner arrive in the same iteration, and wait until all have begun."""
        async with asyncio.TaskGroup() as tasks:
            for owner in owners:
                tasks.create_task(self.work(owner, cpu_s))
            await self.count_iterations(len(owners))

    async def count_iterations(self, task_count: int) -> None:
        while len(self.begun) < task_count:
            await asyncio.sleep(0)
            self.iteration += 1

    def count_by_iteration(self) -> Counter[int]:
        return Counter(iteration for _, iteration in self.begun)


def test_tasks_that_arrive_together_use_about_the_permitted_time_of_each_iteration() -> None:
    loop, cpu_s = CountedLoop(), MAX_CPU_S_PER_ITERATION * 0.3

    asyncio.run(loop.run("a" * 100, cpu_s))

    assert max(loop.count_by_iteration().values()) == 4  # The fourth begins just before the time is over.
    assert loop.iteration <= 30


def test_tasks_that_take_long_begin_one_in_each_iteration() -> None:
    loop = CountedLoop()

    asyncio.run(loop.run("a" * 50, 2 * MAX_CPU_S_PER_ITERATION))

    assert max(loop.count_by_iteration().values()) == 1
    assert loop.iteration <= 55


def test_short_tasks_begin_in_the_same_iteration() -> None:
    loop = CountedLoop()

    asyncio.run(loop.run("a" * 50, MAX_CPU_S_PER_ITERATION / 100))

    assert set(loop.count_by_iteration()) == {0}


def test_without_a_clock_of_the_cpu_no_task_waits() -> None:
    loop = CountedLoop()

    asyncio.run(loop.run("a" * 500, 0.0))

    assert set(loop.count_by_iteration()) == {0}


def test_owners_take_turns() -> None:
    loop = CountedLoop()

    asyncio.run(loop.run("a" * 90 + "b" * 3, MAX_CPU_S_PER_ITERATION))

    # Tasks that are woken late keep their order, so up to eight of `a` begin first.
    assert max(place for place, (owner, _) in enumerate(loop.begun) if owner == "b") < 20
    assert len(loop.begun) == 93


def test_a_task_begins_in_each_iteration_even_if_other_work_uses_all_its_time() -> None:
    loop = CountedLoop()

    async def run_beside_other_work() -> None:
        async def use_cpu() -> None:
            while True:
                loop.cpu_s += 10 * MAX_CPU_S_PER_ITERATION
                await asyncio.sleep(0)

        other = asyncio.ensure_future(use_cpu())
        await loop.run("a" * 30, MAX_CPU_S_PER_ITERATION)
        other.cancel()

    asyncio.run(run_beside_other_work())

    assert loop.iteration <= 40


def test_cancelled_tasks_leave_their_place_to_the_others() -> None:
    loop = CountedLoop()

    async def cancel_some() -> None:
        tasks = [asyncio.ensure_future(loop.work(number, MAX_CPU_S_PER_ITERATION)) for number in range(40)]
        for number in range(1, 40, 2):  # Some wait for their first slot, some are woken, some are late.
            await asyncio.sleep(0)
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(loop.work("later", 0.0), 5)

    asyncio.run(cancel_some())

    begun = [owner for owner, _ in loop.begun]
    assert set(begun) >= {*range(0, 40, 2), "later"}


def test_tasks_that_waited_for_the_same_event_continue_in_slots() -> None:
    loop = CountedLoop()

    async def run_over_an_event() -> None:
        event = asyncio.Event()

        async def work() -> None:
            await loop.slots.begin("a")
            await event.wait()
            await continue_in_slot()
            loop.begun.append(("a", loop.iteration))
            loop.cpu_s += MAX_CPU_S_PER_ITERATION

        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(work())
            await asyncio.sleep(0)
            event.set()
            await loop.count_iterations(20)

    asyncio.run(run_over_an_event())

    assert max(loop.count_by_iteration().values()) == 1


def test_a_task_that_has_left_the_slots_continues_at_once() -> None:
    loop = CountedLoop()

    async def run() -> None:
        await loop.slots.begin("a")
        loop.cpu_s += MAX_CPU_S_PER_ITERATION
        leave_slots()
        continuing = continue_in_slot()
        try:
            continuing.send(None)
        except StopIteration:
            return
        raise AssertionError("the task waited")

    asyncio.run(run())
