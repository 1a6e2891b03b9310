"""Takes away what is over and old enough, now and then.

One of the leader's duties. How old is told by `controllers.ages`, what may go by `operations.collection`. It goes in many
small writes, so that the leader does other things in between.
"""

import asyncio
import logging

from wharf.controllers.ages import Age, CollectionSettings, ages
from wharf.operations.collection import collect
from wharf.server.brain import Brain
from wharf.server.leading.term import CHANGES_A_JOB
from wharf.world import World

log = logging.getLogger(__name__)


class Collecting:
    def __init__(self, world: World, brain: Brain, settings: CollectionSettings | None = None) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings or CollectionSettings()
        brain.duties.append(self.collect)

    async def collect(self) -> None:
        """As long as the brain leads. A new leader begins by waiting: it has more urgent things to do."""
        while self._brain.is_leading:
            await asyncio.sleep(self._settings.interval_s)
            for age in ages(self._settings):
                await self._collect(age)

    async def _collect(self, age: Age) -> None:
        # Each record may take the status and the summary of a job with it.
        most = max(1, self._brain.changes_max // CHANGES_A_JOB)
        gone = 0
        while step := await self._brain.act(
            lambda snapshot, moment: collect(
                snapshot, age.kind, moment, older_than_ns=age.older_than_ns, changes_max=most
            )
        ):
            if not step.taken:
                break
            gone += step.taken
            await asyncio.sleep(0)
        if gone:
            log.info("collected %s: %d records", age.kind.value, gone)
