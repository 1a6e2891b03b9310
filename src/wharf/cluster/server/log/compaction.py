"""How far back the log's feed must reach: followers that were away for less find their place again.

Forgets the log's oldest batches, once the leader has seen them grow old enough.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from wharf.cluster.engines.port import LogEngine, LogUnavailable
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.log.follower import Follower
from wharf.world import World

LOG_RETENTION_S: Final = 600.0


class LogAgeTracker:
    """Remembers where the log stood when. Instants are of one monotonic clock."""

    def __init__(self, retention_s: float = LOG_RETENTION_S) -> None:
        self._kept_s = retention_s
        self._stood: deque[tuple[float, int]] = deque()

    def record_index(self, now_s: float, index: int) -> None:
        self._stood.append((now_s, index))

    def take_expired_index(self, now_s: float) -> int | None:
        """The newest index that was reached longer ago than is kept; told once. None: there is none."""
        index = None
        while self._stood and self._stood[0][0] <= now_s - self._kept_s:
            index = self._stood.popleft()[1]
        return index


log = logging.getLogger(__name__)

COMPACTION_INTERVAL_S: Final = 60.0


class LogCompactor:
    """Every server notes where the log stood; only the leader compacts. A new one needs no hand-over for that."""

    def __init__(
        self, world: World, engine: LogEngine, follower: Follower, brain: Brain, *, retention_s: float = LOG_RETENTION_S
    ) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._brain = brain
        self._horizon = LogAgeTracker(retention_s)

    async def run(self) -> None:
        """Until cancelled."""
        await self._follower.loaded_event.wait()
        while True:
            await self._step()
            await asyncio.sleep(COMPACTION_INTERVAL_S)

    async def _step(self) -> None:
        now_s = self._world.monotonic_s()
        self._horizon.record_index(now_s, self._follower.replica.index)
        index = self._horizon.take_expired_index(now_s)
        if index is None or not self._brain.is_leading:
            return
        try:
            await self._engine.compact(index)
        except LogUnavailable as away:
            log.warning("the log was not compacted: %s; again in %.0f s", away, COMPACTION_INTERVAL_S)
