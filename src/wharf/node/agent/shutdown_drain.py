"""What a node does with its work when it ends: it has servers move it away first, and says so when it is back."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.nodes.messages import DrainSpec
from wharf.node.agent.allocations.manager import AllocationManager, ManagedAllocation
from wharf.node.agent.servers.session import NodeCredentials
from wharf.node.settings import DrainOnShutdownSettings
from wharf.world import World

log = logging.getLogger(__name__)

FORCE_DEADLINE_NS: Final = -1
RETRY_DELAY_S: Final = 1.0
SYSTEM_JOB_TYPES: Final = frozenset({JobType.SYSTEM, JobType.SYSBATCH})


class ShutdownDrain:
    """`marker`: a file that is there from when it leaves until it has said that it is back."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeCredentials,
        allocations: AllocationManager,
        marker_file: Path,
        *,
        settings: DrainOnShutdownSettings,
        timeout_s: float,
    ) -> None:
        self._world = world
        self._client = client
        self._identity = identity
        self._works = allocations
        self._marker = marker_file
        self._settings = settings
        self._within_s = timeout_s

    async def drain_node(self, has_told_all: asyncio.Event) -> bool:
        """Until nothing runs here that is to be moved, and servers know it. False: not in time."""
        settings = self._settings
        self._marker.touch()
        spec = DrainSpec(
            deadline=FORCE_DEADLINE_NS if settings.force else settings.deadline.ns,
            ignore_system_jobs=settings.ignore_system_jobs,
        )
        log.info("the node ends: what it runs is moved away first")
        try:
            async with asyncio.timeout(self._within_s):
                await self._say(spec)
                await self._works.wait_until(lambda: not any(map(self._is_to_move, self._works.list_live())))
                await has_told_all.wait()
        except TimeoutError:
            log.error(
                "what the node runs was not moved away in time", extra={"left": str(len(self._works.list_live()))}
            )
            return False
        return True

    async def cancel_drain(self) -> None:
        """After an end of that kind work may come again. An order of somebody else's is left as it is."""
        if self._marker.exists():
            await self._say(None)
            self._marker.unlink()

    def _is_to_move(self, work: ManagedAllocation) -> bool:
        return not (self._settings.ignore_system_jobs and work.job.type in SYSTEM_JOB_TYPES)

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
            await asyncio.sleep(RETRY_DELAY_S)
