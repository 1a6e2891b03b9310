"""Drains the node before it shuts down, if configured, and cancels that drain when the node is back."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.nodes.messages import DrainSpec
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.servers.repeated_failures import RepeatedFailures
from wharf.node.credentials import NodeCredentials
from wharf.node.settings import DrainOnShutdownSettings
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

FORCE_DEADLINE_NS: Final = -1
"""The drain deadline that means: stop all allocations at once."""
MIN_RETRY_DELAY_S: Final = 1.0
"""The longest delay after a first failed request; it doubles with each further failure."""
MAX_RETRY_DELAY_S: Final = 10.0
"""The longest delay before a request is repeated. Limits the load of servers that are overloaded."""


class ShutdownDrain:
    """Drains the node before it shuts down, and cancels that drain after the next start.

    `marker_file` exists from the start of the drain until the drain is canceled.
    """

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeCredentials,
        manager: AllocationManager,
        marker_file: Path,
        *,
        settings: DrainOnShutdownSettings,
        timeout_s: float,
    ) -> None:
        self._world = world
        self._client = client
        self._identity = identity
        self._manager = manager
        self._marker_file = marker_file
        self._settings = settings
        self._timeout_s = timeout_s

    async def drain_node(self, has_reported_all: asyncio.Event) -> bool:
        """Drain the node; wait until its allocations have ended and servers have received every end.

        Return whether that was done within the configured time. `has_reported_all` is set while no report is pending.
        System jobs are not waited for if the drain ignores them.
        """
        settings = self._settings
        self._marker_file.touch()
        spec = DrainSpec(
            deadline=FORCE_DEADLINE_NS if settings.force else settings.deadline.ns,
            ignore_system_jobs=settings.ignore_system_jobs,
        )
        log.info("draining the node before shutdown")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send_drain(spec)
                await self._manager.wait_until(
                    lambda: not any(map(self._is_waited_for, self._manager.table.list_live()))
                )
                await has_reported_all.wait()
        except TimeoutError:
            log.error(
                "drain before shutdown did not end in time allocations_left=%s", len(self._manager.table.list_live())
            )
            return False
        return True

    async def cancel_drain(self) -> None:
        """Cancel the drain of the last shutdown, if there was one. A drain that an operator requested remains."""
        if self._marker_file.exists():
            await self._send_drain(None)
            self._marker_file.unlink()

    def _is_waited_for(self, allocation: ManagedAllocation) -> bool:
        """Return whether the drain must move this allocation: all but those of system jobs, if these are ignored."""
        return not (self._settings.ignore_system_jobs and allocation.job.runs_on_every_node)

    async def _send_drain(self, spec: DrainSpec | None) -> None:
        """Send the drain, or `None` to cancel it; repeat until a server has accepted it."""
        failures = RepeatedFailures()
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while True:
            try:
                await self._client.node_agents.leave(self._identity.id, self._identity.secret_id, spec)
                return
            except (Refusal, Unreachable) as error:
                if failures.is_new(error):
                    log.warning("failed to send the drain state of the node error=%s", error)
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))
