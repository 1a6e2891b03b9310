"""Takes away what is over and old enough, now and then.

One of the leader's duties. How old is told by `controllers.ages`, what may go by `operations.collection`. It goes in many
small writes, so that the leader does other things in between.
"""

import asyncio
import logging

from wharf.cluster.controllers.collection import CollectionPass, CollectionSettings, list_collection_passes
from wharf.cluster.operations.operator.collection import collect_garbage
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.leader.term import CHANGES_PER_JOB
from wharf.world import World

log = logging.getLogger(__name__)


class CollectionDuty:
    def __init__(self, world: World, brain: Brain, settings: CollectionSettings | None = None) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings or CollectionSettings()
        brain.duties.append(self.run)

    async def run(self) -> None:
        """As long as the brain leads. A new leader begins by waiting: it has more urgent things to do."""
        while self._brain.is_leading:
            await asyncio.sleep(self._settings.interval_s)
            for age in list_collection_passes(self._settings):
                await self._collect(age)

    async def _collect(self, age: CollectionPass) -> None:
        # Each record may take the status and the summary of a job with it.
        most = max(1, self._brain.max_changes // CHANGES_PER_JOB)
        gone = 0
        while step := await self._brain.execute_if_due(
            lambda snapshot, moment: collect_garbage(
                snapshot, age.kind, moment, retention_ns=age.retention_ns, max_changes=most
            )
        ):
            if not step.deleted_count:
                break
            gone += step.deleted_count
            await asyncio.sleep(0)
        if gone:
            log.info("collected %s: %d records", age.kind.value, gone)
