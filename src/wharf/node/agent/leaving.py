"""What a node does with its work when it ends: it has servers move it away first, and says so when it is back."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from wharf.client import AsyncClient, Unreachable
from wharf.model.job import JobType
from wharf.model.refusal import Refusal
from wharf.node.agent.servers import NodeIdentity
from wharf.node.agent.works import Work, Works
from wharf.node.settings import DrainOnShutdownSettings
from wharf.wire.node_shapes import DrainSpec
from wharf.world import World

log = logging.getLogger(__name__)

AT_ONCE_NS: Final = -1
AGAIN_S: Final = 1.0
OF_SYSTEM: Final = frozenset({JobType.SYSTEM, JobType.SYSBATCH})


class Leaving:
    """`marker`: a file that is there from when it leaves until it has said that it is back."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeIdentity,
        works: Works,
        marker: Path,
        *,
        settings: DrainOnShutdownSettings,
        within_s: float,
    ) -> None:
        self._world = world
        self._client = client
        self._identity = identity
        self._works = works
        self._marker = marker
        self._settings = settings
        self._within_s = within_s

    async def leave(self, has_told_all: asyncio.Event) -> bool:
        """Until nothing runs here that is to be moved, and servers know it. False: not in time."""
        settings = self._settings
        self._marker.touch()
        spec = DrainSpec(
            deadline=AT_ONCE_NS if settings.force else settings.deadline.ns,
            ignore_system_jobs=settings.ignore_system_jobs,
        )
        log.info("the node ends: what it runs is moved away first")
        try:
            async with asyncio.timeout(self._within_s):
                await self._say(spec)
                await self._works.until(lambda: not any(map(self._is_to_move, self._works.live())))
                await has_told_all.wait()
        except TimeoutError:
            log.error("what the node runs was not moved away in time", extra={"left": str(len(self._works.live()))})
            return False
        return True

    async def come_back(self) -> None:
        """After an end of that kind work may come again. An order of somebody else's is left as it is."""
        if self._marker.exists():
            await self._say(None)
            self._marker.unlink()

    def _is_to_move(self, work: Work) -> bool:
        return not (self._settings.ignore_system_jobs and work.job.type in OF_SYSTEM)

    async def _say(self, spec: DrainSpec | None) -> None:
        said = ""
        while True:
            try:
                await self._client.node_agents.leave(self._identity.id, self._identity.secret_id, spec)
                return
            except (Refusal, Unreachable) as error:
                if said != str(error):
                    said = str(error)
                    log.warning("servers cannot be told that the node leaves or is back: %s", error)
            await asyncio.sleep(AGAIN_S)
