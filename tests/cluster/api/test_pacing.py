"""Replies to nodes are paced, so that a burst of placements does not delay the requests of others (ADR 95)."""

import asyncio

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.api.pacing import SLOTS_PER_STEP, STEP_S, ReplyPacer


async def take_slots(pacer: ReplyPacer, count: int) -> list[float]:
    """Request slots at the same time. Return when each got its slot, in seconds from now."""
    began_s = now_s()

    async def take_slot() -> float:
        await pacer.wait_for_slot()
        return now_s() - began_s

    return await asyncio.gather(*(take_slot() for _ in range(count)))


@in_virtual_time
async def test_a_few_callers_get_their_slots_at_once() -> None:
    pacer = ReplyPacer()

    for _ in range(10):
        assert await take_slots(pacer, SLOTS_PER_STEP) == [0.0] * SLOTS_PER_STEP
        await pass_time(2 * STEP_S)


@in_virtual_time
async def test_many_callers_get_their_slots_at_a_limited_rate() -> None:
    steps = 40

    at_s = await take_slots(ReplyPacer(), steps * SLOTS_PER_STEP)

    counts = [sum(round(each / STEP_S) == step for each in at_s) for step in range(steps)]
    assert counts == [SLOTS_PER_STEP] * steps


@in_virtual_time
async def test_a_caller_who_leaves_does_not_use_a_slot() -> None:
    pacer = ReplyPacer()
    await take_slots(pacer, SLOTS_PER_STEP)
    leaving = [asyncio.create_task(pacer.wait_for_slot()) for _ in range(100)]
    await pass_time(STEP_S / 10)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)

    at_s = await take_slots(pacer, SLOTS_PER_STEP)

    assert max(at_s) <= STEP_S
    assert pacer.waiting_count == 0
