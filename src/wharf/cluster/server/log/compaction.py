"""Compacts the log: the leader deletes batches that are older than the retention time, and the oldest ones if the retained
batches are too large.

Followers that were disconnected for a shorter time can continue without a full load.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from wharf.cluster.engines.batch_sizes import MAX_RETAINED_BYTES, BatchSizes
from wharf.cluster.engines.port import LogEngine, LogUnavailable
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.log.follower import Follower
from wharf.contract.model.log import Batch
from wharf.world import World
from wharf.world.tasks import wait_for_event

LOG_RETENTION_S: Final = 600.0
"""How long batches stay in the log, so that a follower can be disconnected for this time."""


class LogAgeTracker:
    """Records at which time the log reached which index. All times are from one monotonic clock, in seconds."""

    def __init__(self, retention_s: float = LOG_RETENTION_S) -> None:
        self._retention_s = retention_s
        self._samples: deque[tuple[float, int]] = deque()

    def record_index(self, now_s: float, index: int) -> None:
        """Record that the log is at `index` now."""
        self._samples.append((now_s, index))

    def take_expired_index(self, now_s: float) -> int | None:
        """Return the highest index that the log had reached when the retention time began, and drop the samples up to
        it.

        Returns `None` if no sample is that old.
        """
        index = None
        while self._samples and self._samples[0][0] <= now_s - self._retention_s:
            index = self._samples.popleft()[1]
        return index


log = logging.getLogger(__name__)

COMPACTION_INTERVAL_S: Final = 60.0
"""How long to wait between two compactions, unless the log becomes too large."""
MIN_COMPACTION_INTERVAL_S: Final = 5.0
"""How long to wait at least between two compactions of a log that is too large. Limits the work of its storage."""


class LogCompactor:
    """Deletes batches from the log that are older than the retention time, or that exceed the maximum size of all batches,
    while this server leads.

    Every server tracks the age and size of the log, so a new leader can compact at once.
    """

    def __init__(
        self,
        world: World,
        engine: LogEngine,
        follower: Follower,
        brain: Brain,
        *,
        retention_s: float = LOG_RETENTION_S,
        max_bytes: int = MAX_RETAINED_BYTES,
    ) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._brain = brain
        self._age_tracker = LogAgeTracker(retention_s)
        self._max_bytes = max_bytes
        self._sizes = BatchSizes()
        self._oversized_event = asyncio.Event()
        follower.batch_listeners.append(self._count_batch)

    def _count_batch(self, batch: Batch) -> None:
        """Add the size of a batch to that of the log, and request a compaction if the log is too large."""
        self._sizes.add_batch(batch.index, sum([len(change.data or b"") for change in batch.changes]))
        if self._sizes.total_bytes > self._max_bytes:
            self._oversized_event.set()

    async def run(self) -> None:
        """Record the log index and compact at intervals, until cancelled."""
        await self._follower.loaded_event.wait()
        while True:
            await self._compact_once()
            await asyncio.sleep(MIN_COMPACTION_INTERVAL_S)
            await wait_for_event(self._oversized_event, COMPACTION_INTERVAL_S - MIN_COMPACTION_INTERVAL_S)

    async def _compact_once(self) -> None:
        """Record the log index and, if this server leads, delete the batches that are too old or exceed the maximum size.

        A server that does not lead stops counting them too, because the leader deletes them.
        """
        now_s = self._world.monotonic_s()
        self._age_tracker.record_index(now_s, self._follower.replica.index)
        expired_index = self._age_tracker.take_expired_index(now_s) or 0
        oversized_index = self._sizes.find_surplus_index(self._max_bytes)
        index = max(expired_index, oversized_index)
        self._sizes.remove_up_to(index)
        self._oversized_event.clear()
        if not index or not self._brain.is_leading:
            return
        try:
            await self._engine.compact(index)
        except LogUnavailable as error:
            log.warning("log compaction failed reason=%s retry_s=%.0f", error, COMPACTION_INTERVAL_S)
