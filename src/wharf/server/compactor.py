"""Forgets the log's oldest batches, once the leader has seen them grow old enough."""

import asyncio
import logging
from typing import Final

from wharf.controllers.horizon import KEPT_S, Horizon
from wharf.engines.port import Engine, Unavailable
from wharf.server.brain import Brain
from wharf.server.follower import Follower
from wharf.world import World

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0


class Compactor:
    """Every server notes where the log stood; only the leader compacts. A new one needs no hand-over for that."""

    def __init__(
        self, world: World, engine: Engine, follower: Follower, brain: Brain, *, kept_s: float = KEPT_S
    ) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._brain = brain
        self._horizon = Horizon(kept_s)

    async def run(self) -> None:
        """Until cancelled."""
        await self._follower.loaded.wait()
        while True:
            await self._step()
            await asyncio.sleep(EVERY_S)

    async def _step(self) -> None:
        now_s = self._world.monotonic_s()
        self._horizon.note(now_s, self._follower.replica.index)
        index = self._horizon.passed(now_s)
        if index is None or not self._brain.is_leading:
            return
        try:
            await self._engine.compact(index)
        except Unavailable as away:
            log.warning("the log was not compacted: %s; again in %.0f s", away, EVERY_S)
