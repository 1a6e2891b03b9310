"""Watches over quotas that are used up: when there is room again, what waits for it is tried.

One of the leader's duties. Whether there is room is told by `controllers.quotas`.
"""

import asyncio
import contextlib
from typing import Final

from wharf.controllers import quotas
from wharf.model.evaluation import EvaluationStatus
from wharf.model.moment import Moment
from wharf.operations.decision import Decision
from wharf.operations.evaluations import unblock
from wharf.server.brain import Brain
from wharf.state import Replica, Watched, watches
from wharf.state.tables import ALLOCATIONS, EVALUATIONS_BY_STATUS, NAMESPACES, QUOTAS

GATHER_S: Final = 0.2
"""What ends close together is looked at together."""

LOOK_AT_LEAST_EVERY_S: Final = 60.0


class QuotaWatch:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        replica = self._brain.follower.replica
        changed = asyncio.Event()
        while self._brain.is_leading:
            changed.clear()
            subscription = replica.watches.subscribe(self._watched(), changed.set)
            try:
                await self._try_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AT_LEAST_EVERY_S):
                        await changed.wait()
            finally:
                subscription.end()
            await asyncio.sleep(GATHER_S)

    async def _try_all(self) -> None:
        while quotas.to_try(self._brain.follower.replica, 1):
            if not await self._brain.decide(self._try):
                return

    def _watched(self) -> list[Watched]:
        """Work that ends is of interest only while something waits for it."""
        watched = [
            watches.whole(QUOTAS),
            watches.whole(NAMESPACES),
            watches.those(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED),
        ]
        return [*watched, watches.whole(ALLOCATIONS)] if quotas.waiting(self._brain.follower.replica) else watched

    def _try(self, snapshot: Replica, moment: Moment) -> Decision[bool]:
        found = quotas.to_try(snapshot, self._brain.evaluations_max)
        if not found:
            return Decision(None, lambda _index: False)
        return Decision(unblock(snapshot, found, moment), lambda _index: True)
