"""A duty of the leader: moves allocations off draining nodes and completes the drain once a node is empty.

`controllers.drains` decides what may move; `controllers.drain_tracker` knows what to check.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from wharf.cluster.controllers import drains as drain_controller
from wharf.cluster.controllers.drain_tracker import DrainTracker
from wharf.cluster.controllers.drains import DrainStep, NodeDrains
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.watch_loop import MAX_PASS_INTERVAL_S, run_watch_loop
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, JOBS, NODES
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.jobs.job import JobKey
from wharf.contract.model.times import SECOND, DecisionContext
from wharf.world import World

MAX_JOBS_PER_WRITE: Final = 10
"""Limits how long one decision blocks the leader's loop."""


MAX_ALLOCATIONS_ON_LOOP: Final = 500
"""With more allocations of the jobs, the decision is made off the event loop."""


class DrainDuty:
    """Moves allocations off draining nodes and completes drains."""

    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        self._tracker = DrainTracker()
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._reset_tracker)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Check drains while the brain leads: when nodes, jobs or allocations change, and when a deadline passes."""
        self._reset_tracker()  # An earlier run may have failed before it finished its checks.
        await run_watch_loop(
            self._brain, list_watched=self._list_watched, run_pass=self._check_drains, wait_s=self._wait_s
        )

    def _reset_tracker(self) -> None:
        """Build the tracker again from the replica."""
        self._tracker = DrainTracker.from_snapshot(self._brain.replica)

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Record in the tracker what a batch changed."""
        del batch  # The changed records have all that is needed.
        self._tracker.update(self._brain.replica, changed_records)

    def _list_watched(self) -> list[WatchTarget]:
        """Return the watched tables. Jobs and allocations matter only while a node drains."""
        return (
            [watch_table(NODES), watch_table(JOBS), watch_table(ALLOCATIONS)]
            if self._tracker.draining_nodes
            else [watch_table(NODES)]
        )

    async def _check_drains(self) -> None:
        """Move allocations of jobs that changed off draining nodes, then complete the drains of nodes that are empty.

        Changes during this pass are handled by the next pass.
        """
        replica = self._brain.replica
        drains = self._find_drains(replica, self._world.now_ns())
        self._tracker.mark_forced([node_id for node_id, drain in drains.items() if drain.is_forced])
        jobs = self._tracker.take_changed_jobs(replica)
        for start in range(0, len(jobs), MAX_JOBS_PER_WRITE):
            await self._move_allocations(jobs[start : start + MAX_JOBS_PER_WRITE])
            await asyncio.sleep(0)
        # Read the drains again: a node whose drain began meanwhile would otherwise be taken and not checked.
        drains = self._find_drains(replica, self._world.now_ns())
        for node_id in self._tracker.take_changed_nodes():
            if node_id in drains and drain_controller.is_finished(replica, drains[node_id], self._tracker):
                await self._finish_drain(node_id)
            await asyncio.sleep(0)

    def _find_drains(self, snapshot: Replica, now_ns: int) -> NodeDrains:
        """Return the drains of all draining nodes at the time `now_ns`."""
        return drain_controller.find_drains(snapshot, self._tracker.draining_nodes, now_ns)

    async def _move_allocations(self, jobs: list[JobKey]) -> None:
        """Move allocations of these jobs off draining nodes, in as many writes as needed."""
        remaining_jobs: tuple[JobKey, ...] = tuple(jobs)

        def decide(snapshot: Replica, context: DecisionContext) -> Decision[DrainStep] | None:
            drains, limit = self._find_drains(snapshot, context.now_ns), self._brain.max_changes
            return drain_controller.move_allocations(
                snapshot, drains, remaining_jobs, context, tracker=self._tracker, max_changes=limit
            )

        while remaining_jobs:
            count = sum(self._brain.replica.count_by_index(ALLOCATIONS_OF_JOB, *key) for key in remaining_jobs)
            step = await self._brain.execute_if_due(decide, is_long=count > MAX_ALLOCATIONS_ON_LOOP)
            remaining_jobs = () if step is None else step.remaining_jobs  # None: nothing left to move now.

    async def _finish_drain(self, node_id: str) -> None:
        """Record the end of a node's drain, unless the node has allocations to move again when the write is decided."""

        def decide(snapshot: Replica, context: DecisionContext) -> Decision[NodeWriteResult] | None:
            drains = self._find_drains(snapshot, context.now_ns)
            return drain_controller.finish_drain(snapshot, drains, node_id, context, tracker=self._tracker)

        await self._brain.execute_if_due(decide)

    def _wait_s(self) -> float:
        """Return the seconds until the next drain deadline; `MAX_PASS_INTERVAL_S` if there is none."""
        now_ns = self._world.now_ns()
        deadline_ns = drain_controller.next_deadline_ns(self._brain.replica, self._tracker.draining_nodes, now_ns)
        if deadline_ns is None:
            return MAX_PASS_INTERVAL_S
        return max(0.01, (deadline_ns - now_ns) / SECOND)
