"""Watches over nodes that are drained: whatever may leave is told to, and a node that is empty is told so.

One of the leader's duties. What may leave is decided by `controllers.drainer`.
"""

import asyncio
from typing import Final

from wharf.controllers import drainer
from wharf.controllers.drainer import JobKey, Step
from wharf.model.moment import Moment
from wharf.operations.decision import Decision
from wharf.server.brain import Brain
from wharf.server.leading.watching import LOOK_AT_LEAST_EVERY_S, watch
from wharf.state import Replica, Watched
from wharf.state.tables import ALLOCATIONS, NODES
from wharf.state.watches import whole
from wharf.world import World

SECOND_NS: Final = 1_000_000_000
JOBS_AT_ONCE: Final = 10
"""So that no look holds the leader's loop for long."""


class DrainWatch:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        await watch(self._brain, watched=self._watched, look=self._look, wait_s=self._wait_s)

    def _watched(self) -> list[Watched]:
        """Work of others is of interest only while something is drained."""
        is_draining = any(node.drain_strategy is not None for node in self._brain.follower.replica.all(NODES))
        return [whole(NODES), whole(ALLOCATIONS)] if is_draining else [whole(NODES)]

    async def _look(self) -> None:
        replica = self._brain.follower.replica
        drains = drainer.drains_of(replica, self._world.now_ns())
        if not drains:
            return
        jobs = drainer.jobs_on(replica, drains)
        for first in range(0, len(jobs), JOBS_AT_ONCE):
            some = jobs[first : first + JOBS_AT_ONCE]
            leaving = [key for key in some if drainer.to_move(replica, drains, key)]
            if leaving:
                await self._move(leaving)
            await asyncio.sleep(0)
        # Whatever became of them meanwhile is decided again before it is written, and what became true wakes the next look.
        for drain in drains.values():
            if drainer.is_finished(replica, drain):
                await self._finish(drain.node.id)

    async def _move(self, jobs: list[JobKey]) -> None:
        left: tuple[JobKey, ...] = tuple(jobs)

        def decide(snapshot: Replica, moment: Moment) -> Decision[Step]:
            drains = drainer.drains_of(snapshot, moment.now_ns)
            return drainer.move(snapshot, drains, left, moment, changes_max=self._brain.changes_max)

        while left:
            step = await self._brain.act(decide)
            left = () if step is None else step.left  # None: nothing of these may leave any more.

    async def _finish(self, node_id: str) -> None:
        await self._brain.act(lambda snapshot, moment: drainer.finish(snapshot, node_id, moment))

    def _wait_s(self) -> float:
        now_ns = self._world.now_ns()
        deadline_ns = drainer.next_deadline_ns(self._brain.follower.replica, now_ns)
        if deadline_ns is None:
            return LOOK_AT_LEAST_EVERY_S
        return max(0.01, (deadline_ns - now_ns) / SECOND_NS)
