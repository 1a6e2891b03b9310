"""A duty of the leader: decides the steps of jobs again whose needed jobs have ended or were deleted.

`operations.jobs.job_needs` decides. Nothing is stored about the wait: a new leader decides about every job with needs once.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence

from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.jobs.job_needs import may_wait, settle_waiting_job
from wharf.cluster.server.brain import Brain
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.job import Job, JobKey, JobStatus
from wharf.contract.model.refusal import Refusal, RefusalCode

log = logging.getLogger(__name__)


class WaitingJobs:
    """The jobs that wait for others, by the job that they need."""

    def __init__(self) -> None:
        self._needed: dict[JobKey, tuple[JobKey, ...]] = {}
        self._waiting: dict[JobKey, dict[JobKey, None]] = {}

    def update(self, key: JobKey, job: Job | None) -> bool:
        """Store for which jobs a new or changed job waits; `None`: it was deleted. Return whether it waits for any."""
        for needed in self._needed.pop(key, ()):
            waiting = self._waiting[needed]
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[needed]
        if job is None or not may_wait(job):
            return False
        self._needed[key] = needs = tuple({(job.namespace, need.on): None for need in job.depends or ()})
        for needed in needs:
            self._waiting.setdefault(needed, {})[key] = None
        return True

    def iter_waiting(self, needed: JobKey) -> Iterator[JobKey]:
        """Yield the jobs that wait for a job."""
        yield from self._waiting.get(needed, ())


class JobNeedDuty:
    """Ends the wait of jobs for other jobs."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._jobs = WaitingJobs()
        self._due: dict[JobKey, None] = {}
        self._must_restore = True
        self._wake_event = asyncio.Event()
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Decide about waiting jobs while the brain leads, as soon as a job that they need has ended."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake_event.clear()
            if self._must_restore:
                await self._restore()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                await self._settle(key)
            await self._wake_event.wait()

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Find the jobs that a batch concerns. Does nothing unless this server leads.

        A job that begins to wait is due too: a job that it needs may have ended while it was being submitted.
        """
        del batch  # The changed records have all that is needed.
        for table, _, former, job in changed_records:
            if table != JOBS.name:
                continue
            changed: Job = job or former
            has_needs = bool(changed.depends or (former is not None and former.depends))
            has_ended = job is None or job.status is JobStatus.DEAD
            if not (has_needs or has_ended) or not self._brain.is_leading:
                continue
            key = (changed.namespace, changed.id)
            if has_needs and self._jobs.update(key, job):
                self._due[key] = None
            if has_ended:
                self._due |= dict.fromkeys(self._jobs.iter_waiting(key))
            if self._due:
                self._wake_event.set()

    def _on_load(self) -> None:
        """Request that all jobs are examined, because the replica was reloaded."""
        self._must_restore = True
        self._wake_event.set()

    async def _restore(self) -> None:
        """Record all jobs that wait. Other tasks run in between."""
        self._must_restore = False
        self._jobs = waiting = WaitingJobs()
        for jobs in self._brain.replica.iter_all_in_steps(JOBS):
            for job in jobs:
                if job.depends and waiting.update((job.namespace, job.id), job):
                    self._due[job.namespace, job.id] = None
            await asyncio.sleep(0)

    async def _settle(self, key: JobKey) -> None:
        """Decide about a waiting job. A write that can never succeed is logged and skipped."""
        try:
            settled = await self._brain.execute_if_due(
                lambda snapshot, context: settle_waiting_job(snapshot, key, context)
            )
        except Refusal as refusal:
            if refusal.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                log.warning("waiting job not decided namespace=%s job=%s reason=%s", *key, refusal.text)
                return
            raise  # The next run of the duty finds the job in the replica.
        if settled:
            log.info("needed jobs ended namespace=%s job=%s", *key)
