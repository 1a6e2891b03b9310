"""Logs warnings of a store that still works, such as a lost member of etcd, so that operators act before it fails."""

import asyncio
import logging
from typing import Final

from wharf.cluster.engines.port import LogEngine, LogUnavailable
from wharf.world import World

CHECK_INTERVAL_S: Final = 10.0
"""How often the health of the store is read: two short requests to etcd, as often as its members are checked."""
CHECK_TIMEOUT_S: Final = 10.0
"""How long the store may take to report its health."""
REPEAT_INTERVAL_S: Final = 86_400.0
"""How often a warning is repeated while it is the same: once a day."""

CHANGE_INTERVAL_S: Final = 600.0
"""How often a warning is logged again while its text changes, such as with the free space of a nearly full disk."""

log = logging.getLogger(__name__)


class StoreWarnings:
    """Logs what the store of one server warns of. The follower logs a store that cannot be reached."""

    def __init__(self, world: World, engine: LogEngine) -> None:
        self._world = world
        self._engine = engine
        self._logged_warning = ""
        self._logged_s = 0.0

    async def run(self) -> None:
        """Read the health of the store at an interval and log its warnings, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def check(self) -> None:
        """Log a warning that is new, has changed or was last logged a day ago, and the end of a warning."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                health = await self._engine.read_health()
        except (LogUnavailable, TimeoutError):
            return
        if not health.writable:
            return
        now_s = self._world.monotonic_s()
        interval_s = REPEAT_INTERVAL_S if health.why == self._logged_warning else CHANGE_INTERVAL_S
        is_due = not self._logged_warning or now_s - self._logged_s >= interval_s
        if health.why and is_due:
            log.warning("store has a problem", extra={"why": health.why})
            self._logged_s = now_s
            self._logged_warning = health.why
        elif self._logged_warning and not health.why:
            log.info("store has no problem any more")
            self._logged_warning = ""
