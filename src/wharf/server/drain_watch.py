"""Watches over nodes that are drained: whatever may leave is told to, and a node that is empty is told so.

One of the leader's duties. What may leave is decided by `controllers.drainer`.
"""

import asyncio
import contextlib
from typing import Final

from wharf.controllers import drainer
from wharf.controllers.drainer import JobKey, Step
from wharf.model.moment import Moment
from wharf.operations.decision import Decision
from wharf.server.brain import Brain
from wharf.state import Replica, Watched
from wharf.state.tables import ALLOCATIONS, NODES
from wharf.state.watches import whole
from wharf.world import World

SECOND_NS: Final = 1_000_000_000
LOOK_AT_LEAST_EVERY_S: Final = 60.0
GATHER_S: Final = 0.2
"""What changes close together is looked at together."""

JOBS_AT_ONCE: Final = 10
"""So that no look holds the leader's loop for long."""


class DrainWatch:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        changed = asyncio.Event()
        replica = self._brain.follower.replica
        while self._brain.is_leading:
            changed.clear()
            watched: list[Watched] = [whole(NODES)]
            if any(node.drain_strategy is not None for node in replica.all(NODES)):
                watched.append(whole(ALLOCATIONS))  # Nobody else's work is of interest while nothing is drained.
            subscription = replica.watches.subscribe(watched, changed.set)
            try:
                await self._look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_s()):
                        await changed.wait()
            finally:
                subscription.end()
            if changed.is_set():
                await asyncio.sleep(GATHER_S)

    async def _look(self) -> None:
        replica = self._brain.follower.replica
        drains = drainer.drains_of(replica, self._world.now_ns())
        if not drains:
            return
        jobs = drainer.jobs_on(replica, drains)
        for first in range(0, len(jobs), JOBS_AT_ONCE):
            some = jobs[first : first + JOBS_AT_ONCE]
            await self._move([key for key in some if drainer.to_move(replica, drains, key)])
            await asyncio.sleep(0)
        for drain in drainer.drains_of(replica, self._world.now_ns()).values():
            if drainer.is_finished(replica, drain):
                await self._finish(drain.node.id)

    async def _move(self, jobs: list[JobKey]) -> None:
        left: tuple[JobKey, ...] = tuple(jobs)

        def decide(snapshot: Replica, moment: Moment) -> Decision[Step]:
            drains = drainer.drains_of(snapshot, moment.now_ns)
            return drainer.move(snapshot, drains, left, moment, changes_max=self._brain.changes_max)

        while left:
            left = (await self._brain.decide(decide)).left

    async def _finish(self, node_id: str) -> None:
        def decide(snapshot: Replica, moment: Moment) -> Decision[bool]:
            decision = drainer.finish(snapshot, node_id, moment)
            if decision is None:
                return Decision(None, lambda _index: False)
            return Decision(decision.write, lambda _index: True)

        await self._brain.decide(decide)

    def _wait_s(self) -> float:
        now_ns = self._world.now_ns()
        deadline_ns = drainer.next_deadline_ns(self._brain.follower.replica, now_ns)
        if deadline_ns is None:
            return LOOK_AT_LEAST_EVERY_S
        return min(LOOK_AT_LEAST_EVERY_S, max(0.01, (deadline_ns - now_ns) / SECOND_NS))
