"""Distinguishes a frozen server from a slow one while a reply of that server is awaited.

A blocking query or a large job may take minutes, so its own silence proves nothing. A small request that needs no work
does: a server that answers neither is frozen or cut off.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from wharf.contract.client.transport import Unreachable
from wharf.world import World
from wharf.world.failover import MAX_PART_S
from wharf.world.tasks import cancel_tasks

PROBE_PATH: Final = "/v1/status/leader"
"""The endpoint of probes: every server answers it from memory, whether it leads or not."""
PROBE_DELAY_S: Final = 0.4
"""Seconds until the first probe. Spares ordinary requests the cost of a probe."""
PROBE_TIMEOUT_S: Final = MAX_PART_S
"""Seconds for the reply to a probe. Together with the delay it is less than 3 s."""
PROBE_INTERVAL_S: Final = 5.0
"""Seconds between a probe's reply and the next probe. Limits the load of requests that take minutes."""


async def wait_until_silent(send_probe: Callable[[], Awaitable[object]]) -> None:
    """Send probes to a server until it does not answer one.

    `send_probe` sends a small request to the server, and raises `Unreachable` if it gets no reply.
    """
    while True:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await send_probe()
        except (TimeoutError, Unreachable):
            return
        await asyncio.sleep(PROBE_INTERVAL_S)


@asynccontextmanager
async def end_if_silent(world: World, send_probe: Callable[[], Awaitable[object]], server: str) -> AsyncIterator[None]:
    """Return a context manager that raises `Unreachable` when the server does not answer a probe.

    `send_probe` sends a small request to the server, and raises `Unreachable` if it gets no reply. `server` names the
    server in the error.
    """
    loop, is_silent = asyncio.get_running_loop(), False
    probing: asyncio.Task[None] | None = None
    limit = asyncio.timeout(None)

    async def probe() -> None:
        nonlocal is_silent
        await wait_until_silent(send_probe)
        is_silent = True
        limit.reschedule(loop.time())

    def start_probing() -> None:
        nonlocal probing
        probing = world.start_task(probe(), name=f"probes of {server}")

    timer = loop.call_later(PROBE_DELAY_S, start_probing)
    try:
        async with limit:
            try:
                yield
            finally:
                timer.cancel()
                if probing is not None:
                    await cancel_tasks(probing)
    except TimeoutError:
        if not is_silent:
            raise
        raise Unreachable(f"{server} does not reply, not even to a probe", is_sent=True) from None
