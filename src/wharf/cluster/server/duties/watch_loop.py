"""The loop of a leader's watch: look, then wait until something that matters changes or the next deadline comes.

What is looked for and what matters is each watch's own. Nothing that changes while it looks is missed: it is subscribed
before.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from wharf.cluster.server.brain import Brain
from wharf.cluster.state import WatchTarget
from wharf.cluster.state.watches import Subscription

MAX_WAIT_S: Final = 60.0
MIN_BATCH_DELAY_S: Final = 0.2
MAX_BATCH_DELAY_S: Final = 2.0
"""What changes close together is looked at together. A look that took longer is rested from for as long as it took: while
thousands of allocations move, the leader has more to do than to look at them move."""


async def run_watch_loop(
    brain: Brain,
    *,
    list_watched: Callable[[], Sequence[WatchTarget]],
    run_pass: Callable[[], Awaitable[None]],
    wait_s: Callable[[], float] = lambda: MAX_WAIT_S,
) -> None:
    """As long as the brain leads. What is `watched` may depend on what there is: it is asked before every look."""
    replica = brain.follower.replica
    changed = asyncio.Event()
    watching: tuple[WatchTarget, ...] = ()
    subscription: Subscription | None = None
    try:
        while brain.is_leading:
            changed.clear()
            wanted = tuple(list_watched())
            if subscription is None or wanted != watching:
                if subscription is not None:
                    subscription.close()
                subscription, watching = replica.watches.subscribe(wanted, changed.set), wanted
            subscription.rearm()
            began_s = brain.world.monotonic_s()
            await run_pass()
            took_s = brain.world.monotonic_s() - began_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(MAX_WAIT_S, wait_s())):
                    await changed.wait()
            if changed.is_set():
                await asyncio.sleep(min(MAX_BATCH_DELAY_S, max(MIN_BATCH_DELAY_S, took_s)))
    finally:
        if subscription is not None:
            subscription.close()
