"""Watches over nodes that are drained: whatever may leave is told to, and a node that is empty is told so.

One of the leader's duties. What may leave is decided by `controllers.drainer`, what is to be looked at told by
`controllers.leaving`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from wharf.cluster.controllers import drains as drainer
from wharf.cluster.controllers.drain_tracker import DrainTracker, JobKey
from wharf.cluster.controllers.drains import DrainStep, NodeDrains
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.watch_loop import MAX_WAIT_S, run_watch_loop
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.times import DecisionContext
from wharf.world import World

SECOND_NS: Final = 1_000_000_000
MAX_JOBS_PER_WRITE: Final = 10
"""So that no look holds the leader's loop for long."""


class DrainDuty:
    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        self._leaving = DrainTracker()
        brain.follower.change_listeners.append(self._hear)
        brain.follower.load_listeners.append(self._begin_anew)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """As long as the brain leads."""
        self._begin_anew()  # What was looked at in a watch that failed is looked at again.
        await run_watch_loop(self._brain, list_watched=self._watched, run_pass=self._look, wait_s=self._wait_s)

    def _begin_anew(self) -> None:
        self._leaving = DrainTracker.from_snapshot(self._brain.follower.replica)

    def _hear(self, batch: Batch, taken: Sequence[AppliedChange]) -> None:
        del batch  # What it did is told beside it.
        self._leaving.update(self._brain.follower.replica, taken)

    def _watched(self) -> list[WatchTarget]:
        """Jobs and their work are of interest only while something is drained."""
        return (
            [watch_table(NODES), watch_table(JOBS), watch_table(ALLOCATIONS)]
            if self._leaving.draining_nodes
            else [watch_table(NODES)]
        )

    async def _look(self) -> None:
        """Whatever changes meanwhile is for the next look, which it wakes."""
        replica = self._brain.follower.replica
        drains = self._drains(replica, self._world.now_ns())
        self._leaving.mark_forced([node_id for node_id, drain in drains.items() if drain.is_forced])
        jobs = self._leaving.take_changed_jobs(replica)
        for first in range(0, len(jobs), MAX_JOBS_PER_WRITE):
            await self._move(jobs[first : first + MAX_JOBS_PER_WRITE])
            await asyncio.sleep(0)
        # As they are now: of a node that is taken here and was not drained above nobody would think again.
        drains = self._drains(replica, self._world.now_ns())
        for node_id in self._leaving.take_changed_nodes():
            if node_id in drains and drainer.is_finished(replica, drains[node_id], self._leaving):
                await self._finish(node_id)
            await asyncio.sleep(0)

    def _drains(self, snapshot: Replica, now_ns: int) -> NodeDrains:
        return drainer.find_drains(snapshot, self._leaving.draining_nodes, now_ns)

    async def _move(self, jobs: list[JobKey]) -> None:
        left: tuple[JobKey, ...] = tuple(jobs)

        def decide(snapshot: Replica, moment: DecisionContext) -> Decision[DrainStep] | None:
            drains, most = self._drains(snapshot, moment.now_ns), self._brain.max_changes
            return drainer.move_allocations(snapshot, drains, left, moment, tracker=self._leaving, max_changes=most)

        while left:
            step = await self._brain.execute_if_due(decide)
            left = () if step is None else step.remaining_jobs  # None: nothing of these may leave any more.

    async def _finish(self, node_id: str) -> None:
        def decide(snapshot: Replica, moment: DecisionContext) -> Decision[NodeWriteResult] | None:
            drains = self._drains(snapshot, moment.now_ns)
            return drainer.finish_drain(snapshot, drains, node_id, moment, tracker=self._leaving)

        await self._brain.execute_if_due(decide)

    def _wait_s(self) -> float:
        now_ns = self._world.now_ns()
        deadline_ns = drainer.next_deadline_ns(self._brain.follower.replica, self._leaving.draining_nodes, now_ns)
        if deadline_ns is None:
            return MAX_WAIT_S
        return max(0.01, (deadline_ns - now_ns) / SECOND_NS)
