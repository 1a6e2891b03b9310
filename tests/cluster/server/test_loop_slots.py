"""Turns on the event loop: one slice of long work in each iteration, in order of arrival."""

import asyncio

from wharf.cluster.server.loop_slots import LoopSlots


async def count_iterations(counts: list[int]) -> None:
    """Increase the count by one in each iteration of the loop."""
    while True:
        counts[0] += 1
        await asyncio.sleep(0)


def test_each_iteration_has_one_slice_and_all_tasks_get_their_share() -> None:
    slices: list[tuple[str, int]] = []

    async def scenario() -> None:
        loop_slots, iteration = LoopSlots(), [0]
        counting = asyncio.ensure_future(count_iterations(iteration))

        async def work(name: str) -> None:
            await loop_slots.begin()
            for _ in range(10):
                slices.append((name, iteration[0]))
                await loop_slots.wait()

        await asyncio.gather(*(work(name) for name in "abcde"))
        counting.cancel()

    asyncio.run(scenario())

    iterations = [iteration for _, iteration in slices]
    assert len(set(iterations)) == len(iterations) == 50
    assert iterations[-1] - iterations[0] <= 2 * 50
    # The first task arrived before the others, so it had one slot more at first.
    assert [name for name, _ in slices] == [*("a" + "abcde" * 9 + "bcde")]


def test_a_single_task_begins_at_once_and_waits_two_iterations_for_its_next_turn() -> None:
    async def scenario() -> list[int]:
        loop_slots, iteration = LoopSlots(), [0]
        counting = asyncio.ensure_future(count_iterations(iteration))
        await asyncio.sleep(0)
        seen = [iteration[0]]
        await loop_slots.begin()
        seen.append(iteration[0])
        await loop_slots.wait()
        seen.append(iteration[0])
        counting.cancel()
        return seen

    first, begun, next_turn = asyncio.run(scenario())
    assert begun == first
    assert 1 <= next_turn - begun <= 2


def test_a_second_task_of_the_same_iteration_waits() -> None:
    async def scenario() -> list[str]:
        loop_slots, done = LoopSlots(), list[str]()

        async def begin(name: str) -> None:
            await loop_slots.begin()
            done.append(name)

        tasks = [asyncio.ensure_future(begin(name)) for name in "ab"]
        await asyncio.sleep(0)
        seen = list(done)
        await asyncio.gather(*tasks)
        return [*seen, "|", *done]

    assert asyncio.run(scenario()) == ["a", "|", "a", "b"]


def test_a_cancelled_task_takes_no_turn_from_the_others() -> None:
    async def scenario() -> list[str]:
        loop_slots, done = LoopSlots(), list[str]()

        async def wait(name: str) -> None:
            await loop_slots.wait()
            done.append(name)

        first, second, third = (asyncio.ensure_future(wait(name)) for name in "abc")
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)
        return done

    assert asyncio.run(scenario()) == ["a", "c"]
