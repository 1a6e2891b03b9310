"""Watches over nodes that are drained: whatever may leave is told to, and a node that is empty is told so.

One of the leader's duties. What may leave is decided by `controllers.drainer`, what is to be looked at told by
`controllers.leaving`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from wharf.controllers import drainer
from wharf.controllers.drainer import Drains, Step
from wharf.controllers.leaving import JobKey, Leaving
from wharf.engines.port import Batch
from wharf.model.moment import Moment
from wharf.operations.decision import Decision
from wharf.operations.node_writes import NodeWritten
from wharf.server.brain import Brain
from wharf.server.leading.watching import LOOK_AT_LEAST_EVERY_S, watch
from wharf.state import Replica, Watched
from wharf.state.replica import Taken
from wharf.state.tables import ALLOCATIONS, JOBS, NODES
from wharf.state.watches import whole
from wharf.world import World

SECOND_NS: Final = 1_000_000_000
JOBS_AT_ONCE: Final = 10
"""So that no look holds the leader's loop for long."""


class DrainWatch:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        self._leaving = Leaving()
        brain.follower.takers.append(self._hear)
        brain.follower.on_load.append(self._begin_anew)
        brain.duties.append(self.watch)

    async def watch(self) -> None:
        """As long as the brain leads."""
        self._begin_anew()  # What was looked at in a watch that failed is looked at again.
        await watch(self._brain, watched=self._watched, look=self._look, wait_s=self._wait_s)

    def _begin_anew(self) -> None:
        self._leaving = Leaving.of(self._brain.follower.replica)

    def _hear(self, batch: Batch, taken: Sequence[Taken]) -> None:
        del batch  # What it did is told beside it.
        self._leaving.hear(self._brain.follower.replica, taken)

    def _watched(self) -> list[Watched]:
        """Jobs and their work are of interest only while something is drained."""
        return [whole(NODES), whole(JOBS), whole(ALLOCATIONS)] if self._leaving.nodes else [whole(NODES)]

    async def _look(self) -> None:
        """Whatever changes meanwhile is for the next look, which it wakes."""
        replica = self._brain.follower.replica
        drains = self._drains(replica, self._world.now_ns())
        self._leaving.note_forced([node_id for node_id, drain in drains.items() if drain.is_forced])
        jobs = self._leaving.take_jobs(replica)
        for first in range(0, len(jobs), JOBS_AT_ONCE):
            await self._move(jobs[first : first + JOBS_AT_ONCE])
            await asyncio.sleep(0)
        # As they are now: of a node that is taken here and was not drained above nobody would think again.
        drains = self._drains(replica, self._world.now_ns())
        for node_id in self._leaving.take_nodes():
            if node_id in drains and drainer.is_finished(replica, drains[node_id], self._leaving):
                await self._finish(node_id)
            await asyncio.sleep(0)

    def _drains(self, snapshot: Replica, now_ns: int) -> Drains:
        return drainer.drains_of(snapshot, self._leaving.nodes, now_ns)

    async def _move(self, jobs: list[JobKey]) -> None:
        left: tuple[JobKey, ...] = tuple(jobs)

        def decide(snapshot: Replica, moment: Moment) -> Decision[Step] | None:
            drains, most = self._drains(snapshot, moment.now_ns), self._brain.changes_max
            return drainer.move(snapshot, drains, left, moment, leaving=self._leaving, changes_max=most)

        while left:
            step = await self._brain.act(decide)
            left = () if step is None else step.left  # None: nothing of these may leave any more.

    async def _finish(self, node_id: str) -> None:
        def decide(snapshot: Replica, moment: Moment) -> Decision[NodeWritten] | None:
            drains = self._drains(snapshot, moment.now_ns)
            return drainer.finish(snapshot, drains, node_id, moment, leaving=self._leaving)

        await self._brain.act(decide)

    def _wait_s(self) -> float:
        now_ns = self._world.now_ns()
        deadline_ns = drainer.next_deadline_ns(self._brain.follower.replica, self._leaving.nodes, now_ns)
        if deadline_ns is None:
            return LOOK_AT_LEAST_EVERY_S
        return max(0.01, (deadline_ns - now_ns) / SECOND_NS)
