"""A duty of the leader: begins the next run of a flow when the one before it has ended.

`operations.jobs.run_queue` decides. A new leader looks at every flow with runs that have not ended.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.jobs.overlap import get_overlap, has_queue, is_unfinished
from wharf.cluster.operations.jobs.run_queue import begin_next_run
from wharf.cluster.server.brain import Brain
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import JOB_PURGES, JOBS
from wharf.contract.model.jobs.job import Job, JobKey, JobPurge
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world.tasks import wait_for_event

log = logging.getLogger(__name__)

REFUSED_RETRY_S: Final = 60.0
"""Limits how often a write is repeated that was refused because of its content."""


class RunQueueDuty:
    """Begins runs that waited for an earlier run of their flow."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._changed_flows: dict[JobKey, None] = {}
        self._refused_flows: dict[JobKey, float] = {}
        """Flows whose next run could not begin, with the time of the event loop at which the duty tries again."""
        self._must_restore = True
        self._wake_event = asyncio.Event()
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Begin runs while the brain leads, whenever a run of their flow has changed."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake_event.clear()
            if self._must_restore:
                await self._restore()
            while self._changed_flows:
                flow = next(iter(self._changed_flows))
                del self._changed_flows[flow]  # Before the write: a run that it ends changes the flow again.
                await self._begin(flow)
            await wait_for_event(self._wake_event, self._wait_s())
            self._repeat_refused()

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Record the flows of runs that a batch changed or deleted. Does nothing unless this server leads."""
        del batch  # The changed records have all that is needed.
        for table, _, former, record in changed_records:
            # A purge holds the queue until its tasks have stopped. Then it is deleted.
            if table == JOBS.name or (table == JOB_PURGES.name and record is None):
                changed: Job | JobPurge = record or former
                flow = (changed.namespace, changed.parent_id)
                # Also for a run without `Overlap`: it may be older than the setting, and others wait for it.
                if changed.parent_id and has_queue(self._brain.replica, flow) and self._brain.is_leading:
                    self._changed_flows[flow] = None
                    self._wake_event.set()

    def _on_load(self) -> None:
        """Request that all flows are examined, because the replica was reloaded."""
        self._must_restore = True
        self._wake_event.set()

    async def _restore(self) -> None:
        """Record all flows with runs that have not ended. Other tasks run in between."""
        self._must_restore = False
        for jobs in self._brain.replica.iter_all_in_steps(JOBS):
            for job in jobs:
                if job.parent_id and get_overlap(job) and is_unfinished(job):
                    self._changed_flows[job.namespace, job.parent_id] = None
            await asyncio.sleep(0)

    def _wait_s(self) -> float | None:
        """Return the seconds until a refused write is repeated, or `None`."""
        if not self._refused_flows:
            return None
        return max(0.0, min(self._refused_flows.values()) - asyncio.get_running_loop().time())

    def _repeat_refused(self) -> None:
        """Record the flows whose refused writes are due again."""
        now = asyncio.get_running_loop().time()
        for flow in [flow for flow, due in self._refused_flows.items() if due <= now]:
            del self._refused_flows[flow]
            self._changed_flows[flow] = None

    async def _begin(self, flow: JobKey) -> None:
        """Begin the next run of a flow, if it is its turn. A refused write is logged and repeated later."""
        try:
            run_id = await self._brain.execute_if_due(lambda snapshot, context: begin_next_run(snapshot, flow, context))
        except Refusal as refusal:
            if refusal.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                log.warning("run not begun namespace=%s flow=%s reason=%s", *flow, refusal.text)
                # The next change of the flow may be far away, and until then no run of it would begin.
                self._refused_flows[flow] = asyncio.get_running_loop().time() + REFUSED_RETRY_S
                return
            raise  # The next run of the duty finds the flow in the replica.
        if run_id:
            log.info("queued run begins namespace=%s run=%s", flow[0], run_id)
