"""Running several coroutines until the first of them ends, and waiting for an event with a timeout."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from wharf.world import World


async def run_until_first(world: World, **coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run coroutines concurrently and cancel the others when the first ends. Keyword names become task names.

    Returns the tasks, all of which have ended, even if this call is cancelled. `cancelled()` is true for those that were
    cancelled.
    """
    tasks = [world.start_task(coroutine, name=name) for name, coroutine in coroutines.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set, or `timeout_s` has passed (`None` and infinity: no limit). Return whether it is set."""
    try:
        async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()
