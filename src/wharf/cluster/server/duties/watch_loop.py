"""The loop of duties that watch tables: run a pass, then wait for a change or the next deadline.

The subscription is rearmed before each pass, so changes during the pass are not missed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from wharf.cluster.server.brain import Brain
from wharf.cluster.state import WatchTarget
from wharf.cluster.state.watches import Subscription
from wharf.world.tasks import wait_for_event

MAX_PASS_INTERVAL_S: Final = 60.0
"""The longest wait between two passes, in case a deadline was computed wrongly or the wall clock was changed."""
MIN_BATCH_DELAY_S: Final = 0.2
MAX_BATCH_DELAY_S: Final = 2.0
"""After a change, wait at least `MIN_BATCH_DELAY_S`, or as long as the last pass took up to this.

Changes that come close together are handled in one pass.
"""


async def run_watch_loop(
    brain: Brain,
    *,
    list_watched: Callable[[], Sequence[WatchTarget]],
    run_pass: Callable[[], Awaitable[None]],
    wait_s: Callable[[], float] = lambda: MAX_PASS_INTERVAL_S,
) -> None:
    """Run `run_pass` while the brain leads: at once, then whenever a watched target changes or a time has passed.

    The time is what `wait_s()` returns, capped at `MAX_PASS_INTERVAL_S`. After a change, a short delay gathers further
    changes. `list_watched` is called before every pass, because the targets may depend on the state.
    """
    replica = brain.replica
    changed = asyncio.Event()
    current_targets: tuple[WatchTarget, ...] = ()
    subscription: Subscription | None = None
    try:
        while brain.is_leading:
            changed.clear()
            targets = tuple(list_watched())
            if subscription is None or targets != current_targets:
                if subscription is not None:
                    subscription.close()
                subscription, current_targets = replica.watches.subscribe(targets, changed.set), targets
            subscription.rearm()
            began_s = brain.world.monotonic_s()
            await run_pass()
            took_s = brain.world.monotonic_s() - began_s
            if await wait_for_event(changed, min(MAX_PASS_INTERVAL_S, wait_s())):
                await asyncio.sleep(min(MAX_BATCH_DELAY_S, max(MIN_BATCH_DELAY_S, took_s)))
    finally:
        if subscription is not None:
            subscription.close()
