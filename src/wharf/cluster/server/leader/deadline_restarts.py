"""Restarts stored deadlines at the beginning of a term, before any duty of the leader acts on them.

After a restore these are all deadlines of running deployments and of drains, because the restored state is older than the
clock. Without a restore, drains keep their deadline: it is the time at which an operator needs the node. The log records
which restore was handled, so a leader that ends meanwhile leaves the rest to its successor.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from wharf.cluster.controllers.deployments import must_restart_deadlines
from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.operations import stored_deadlines
from wharf.cluster.operations.nodes import drains
from wharf.cluster.server.leader.term import CHANGES_PER_JOB, LeaderTerm
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state.tables import DEPLOYMENTS, NODES
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 0.5
"""How long to wait before deadlines are restarted again after a failed write."""
MAX_DEPLOYMENTS_PER_WRITE: Final = 100
"""How many deployments one write changes. Limits how long this holds the loop: a few milliseconds."""


class DeadlineRestarts:
    """Restarts the deadlines that no leader could watch. Used by the leader."""

    def __init__(self, world: World, follower: Follower, term: LeaderTerm) -> None:
        self._world = world
        self._follower = follower
        self._term = term

    async def run(self) -> None:
        """Restart the deadlines, and retry until that succeeds or the leadership is lost.

        A deployment or drain that is too large to be written keeps its deadline.
        """
        began_ns = self._world.now_ns()
        while self._term.is_leading:
            try:
                await self._restart(began_ns)
            except (Refusal, LogUnavailable) as refusal:
                log.warning("restart of deadlines failed, will retry reason=%s", refusal)
                await asyncio.sleep(RETRY_DELAY_S)
            except Exception:  # Deadlines that were not restarted are no reason to have no leader.
                log.exception("restart of deadlines failed")
                return
            else:
                return

    async def _restart(self, began_ns: int) -> None:
        """Restart the deadlines, then record that those of the restored log were restarted."""
        is_restored = stored_deadlines.are_deadlines_restored(self._follower.replica)
        deployment_count = await self._restart_deployments(began_ns, is_restored=is_restored)
        drain_count = await self._restart_drains() if is_restored else 0
        if is_restored:
            await self._term.execute_if_due(lambda snapshot, _: stored_deadlines.record_restarted_deadlines(snapshot))
        if deployment_count or drain_count:
            log.info(
                "restarted deadlines reason=%s deployments=%s drains=%s",
                "the log was restored" if is_restored else "no leader could watch them",
                deployment_count,
                drain_count,
            )

    async def _restart_deployments(self, began_ns: int, *, is_restored: bool) -> int:
        """Restart the deadlines of deployments, in as many writes as needed. Return how many deployments changed."""
        ids: list[str] = []
        for deployments in self._follower.replica.iter_all_in_steps(DEPLOYMENTS):
            ids += [each.id for each in deployments if must_restart_deadlines(each, began_ns, is_restored=is_restored)]
            await asyncio.sleep(0)
        size = max(1, min(MAX_DEPLOYMENTS_PER_WRITE, self._term.max_changes // CHANGES_PER_JOB))
        count = 0
        for start in range(0, len(ids), size):
            count += await self._restart_together(ids[start : start + size])
        return count

    async def _restart_together(self, ids: Sequence[str]) -> int:
        """Restart the deadlines of these deployments in one write, or in several if they are too large for one.

        Return how many deployments changed.
        """
        try:
            return (
                await self._term.execute_if_due(partial(stored_deadlines.restart_deployments, deployment_ids=ids)) or 0
            )
        except Refusal as refusal:
            if refusal.code is not RefusalCode.TOO_LARGE:
                raise
            if len(ids) == 1:
                log.warning("deadlines of deployment not restarted deployment=%s reason=%s", ids[0], refusal)
                return 0
        middle = len(ids) // 2
        return await self._restart_together(ids[:middle]) + await self._restart_together(ids[middle:])

    async def _restart_drains(self) -> int:
        """Restart the deadlines of all drains. Return how many drains changed."""
        ids: list[str] = []
        for nodes in self._follower.replica.iter_all_in_steps(NODES):
            ids += [node.id for node in nodes if node.drain_strategy is not None]
            await asyncio.sleep(0)
        for node_id in ids:
            try:
                await self._term.execute_if_due(partial(drains.restart_force_deadline, node_id=node_id))
            except Refusal as refusal:
                if refusal.code is not RefusalCode.TOO_LARGE:
                    raise
                log.warning("deadline of drain not restarted node=%s reason=%s", node_id, refusal)
        return len(ids)
