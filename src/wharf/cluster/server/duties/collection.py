"""Duties of the leader at intervals: garbage collection, and ending deletions of host volumes that their server did not
finish.

`controllers.collection` has the retention times; `operations.operator.collection` decides what may be deleted. It
uses many small writes, so that the leader can do other work in between.
"""

import asyncio
import logging
from typing import Final

from wharf.cluster.controllers.collection import CollectionPass, CollectionSettings, list_collection_passes
from wharf.cluster.operations.operator.collection import collect_garbage
from wharf.cluster.operations.volumes import end_old_deletions
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.leader.term import CHANGES_PER_JOB
from wharf.world import World

log = logging.getLogger(__name__)

DELETION_CHECK_INTERVAL_S: Final = 60.0
"""How often volumes are checked. A volume is rarely affected, so a delay of a minute does not matter."""


class CollectionDuty:
    """Deletes finished jobs, evaluations, deployments and nodes after their retention time."""

    def __init__(self, world: World, brain: Brain, settings: CollectionSettings) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Delete what has expired, once per interval, while the brain leads.

        The first pass runs after one interval, because a new leader has more urgent work.
        """
        while self._brain.is_leading:
            await asyncio.sleep(self._settings.interval_s)
            for collection_pass in list_collection_passes(self._settings):
                await self._collect(collection_pass)

    async def _collect(self, collection_pass: CollectionPass) -> None:
        """Delete all expired records of one table, such as evaluations, in as many writes as needed."""
        # Each deleted record may change the status and the summary of a job.
        limit = max(1, self._brain.max_changes // CHANGES_PER_JOB)
        deleted_count = 0
        while step := await self._brain.execute_if_due(
            lambda snapshot, context: collect_garbage(
                snapshot,
                collection_pass.kind,
                context,
                retention_ns=collection_pass.retention_ns,
                results=collection_pass.results,
                max_changes=limit,
            ),
            is_long=True,  # It reads a whole table.
        ):
            if not step.deleted_count:
                break
            deleted_count += step.deleted_count
            await asyncio.sleep(0)
        if deleted_count:
            log.info("collected garbage kind=%s records=%d", collection_pass.kind.value, deleted_count)


class VolumeDuty:
    """Makes volumes usable again whose deletion began long ago and did not end."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Check all volumes at intervals, while the brain leads."""
        while self._brain.is_leading:
            await asyncio.sleep(DELETION_CHECK_INTERVAL_S)
            await self._end_old_deletions()

    async def _end_old_deletions(self) -> None:
        """Make volumes usable again whose deletion began long ago, in as many writes as needed."""
        limit = max(1, self._brain.max_changes // 2)  # Each volume needs a condition for itself and for its node.
        while await self._brain.execute_if_due(
            lambda snapshot, context: end_old_deletions(snapshot, context, max_changes=limit),
            is_long=True,  # It reads a whole table.
        ):
            pass
