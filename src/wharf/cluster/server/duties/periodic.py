"""A duty of the leader: launches periodic jobs at their times.

`controllers.periodic` keeps the schedule and decides each launch.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from wharf.cluster.controllers.periodic import DueLaunch, LaunchSchedule, launch_if_due
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.jobs.children import has_large_children
from wharf.cluster.server.brain import Brain
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import JobKey
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, SECOND
from wharf.world import World
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import wait_for_event

log = logging.getLogger(__name__)

MAX_LAUNCH_CHECK_INTERVAL_S: Final = 60.0
"""Limits how late a launch is after the wall clock was changed, because the wait uses the monotonic clock."""
MAX_QUEUED_EVALUATIONS: Final = 1_000
"""With this number of queued evaluations, the periodic jobs of a namespace are not launched. Launches need no caller, so they
could otherwise fill the log faster than evaluations are processed."""


class PeriodicLaunchDuty:
    """Launches periodic jobs."""

    def __init__(self, world: World, brain: Brain, settings: JobSettings) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings
        self._launches = LaunchSchedule()
        self._changed_jobs: dict[JobKey, None] = {}
        self._must_restore = True
        self._latest_ns = 0  # The wall clock at the last check.
        self._wake_event = asyncio.Event()
        self._skipped = LogLimit(world)
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Launch due jobs while the brain leads."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake_event.clear()
            self._notice_clock_change()
            if self._must_restore:
                await self._restore()
            await self._update_schedule()
            for due in self._launches.take_due(self._world.now_ns()):
                await self._launch(due)
            await wait_for_event(self._wake_event, self._wait_s())

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Record which periodic jobs a batch changed and wake the duty. Does nothing unless this server leads."""
        del batch  # The changed records have all that is needed.
        for table, change_key, _, job in changed_records:
            if table != JOBS.name:
                continue
            namespace, _, job_id = change_key.partition(KEY_SEPARATOR)
            key = (namespace, job_id)
            if self._launches.should_track(key, job) and self._brain.is_leading:
                self._changed_jobs[key] = None
                self._wake_event.set()

    def _on_load(self) -> None:
        """Request that the schedule is built again, because the replica was reloaded."""
        self._must_restore = True
        self._wake_event.set()

    def _notice_clock_change(self) -> None:
        """Request that the schedule is built again if the wall clock was set back.

        Launch times that were computed from a later time could be years away.
        """
        now_ns = self._world.now_ns()
        if now_ns < self._latest_ns - MAX_CLOCK_SKEW_NS:
            log.info("clock was set back, computing launches again back_s=%.0f", (self._latest_ns - now_ns) / SECOND)
            self._must_restore = True
        self._latest_ns = now_ns

    async def _restore(self) -> None:
        """Build the launch schedule of all periodic jobs from the replica. Other tasks run in between."""
        self._must_restore = False
        self._changed_jobs.clear()
        self._launches = launches = LaunchSchedule()
        replica = self._brain.replica
        keys: list[JobKey] = []
        for jobs in replica.iter_all_in_steps(JOBS):
            keys += [(job.namespace, job.id) for job in jobs if job.is_active_periodic]
            await asyncio.sleep(0)
        for key in keys:
            launches.restore_job(replica, key, self._world.now_ns())
            await asyncio.sleep(0)  # A job with many schedules takes milliseconds.

    async def _update_schedule(self) -> None:
        """Update the launch times of the jobs that changed since the last call. Other tasks run in between."""
        changed_jobs, self._changed_jobs = self._changed_jobs, {}
        for key in changed_jobs:
            self._launches.update_job(key, self._brain.replica.get(JOBS, *key), self._world.now_ns())
            await asyncio.sleep(0)

    async def _launch(self, due: DueLaunch) -> None:
        """Launch a due job, if it is still due.

        A launch that can never succeed is logged and skipped, and so are those of a namespace with too many evaluations.
        """
        namespace, job_id = due.job_key
        if self._brain.count_queued_evaluations(namespace) >= MAX_QUEUED_EVALUATIONS:
            if (earlier := self._skipped.count_event(namespace)) is not None:
                log.warning(
                    "periodic launch skipped: too many evaluations are queued namespace=%s job=%s queued=%d earlier_launches=%d",
                    namespace,
                    job_id,
                    MAX_QUEUED_EVALUATIONS,
                    earlier,
                )
            return
        try:
            child = await self._brain.execute(
                lambda snapshot, context: launch_if_due(snapshot, due, context, self._settings),
                is_long=has_large_children(self._brain.replica, namespace, job_id),
            )
        except Refusal as refusal:
            if refusal.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                log.warning("periodic launch refused job=%s reason=%s", job_id, refusal.text)
                return  # Other jobs must still be launched.
            raise  # The next run finds out from the replica what was launched.
        if child is not None:
            log.info("launched periodic job child=%s", child.job_id)

    def _wait_s(self) -> float:
        """Return the seconds until the next launch, at most `MAX_LAUNCH_CHECK_INTERVAL_S`."""
        due_ns = self._launches.next_deadline_ns()
        if due_ns is None:
            return MAX_LAUNCH_CHECK_INTERVAL_S
        return min(MAX_LAUNCH_CHECK_INTERVAL_S, max(0.001, (due_ns - self._world.now_ns()) / SECOND))
