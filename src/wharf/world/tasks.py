"""Works that go on side by side until one of them is over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from wharf.world import World


async def run_until_first(world: World, **works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Start them all, by their names; when the first is over, end the others. All have ended when this comes back, also
    when it is cancelled; those that were ended say `cancelled()`."""
    tasks = [world.start_task(work, name=name) for name, work in works.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks
