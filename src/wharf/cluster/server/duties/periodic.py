"""Launches periodic jobs when their time has come.

One of the leader's duties. When that is, is kept by `controllers.launches`; a child is made by `operations.children`.
"""

import asyncio
import contextlib
import logging
from typing import Final

from wharf.cluster.controllers.periodic import DueLaunch, JobKey, LaunchSchedule, launch_if_due
from wharf.cluster.engines.port import Batch
from wharf.cluster.server.brain import Brain
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

log = logging.getLogger(__name__)

SECOND_NS: Final = 1_000_000_000
MAX_WAIT_S: Final = 60.0
"""The wall clock may be stepped while we wait by the other one."""

RESTORED_JOBS_PER_STEP: Final = 20
"""So that no computation holds the leader's loop for long: each of them may take a millisecond."""


class PeriodicLaunchDuty:
    def __init__(self, world: World, brain: Brain, settings: JobSettings) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings
        self._launches = LaunchSchedule()
        self._heard: dict[JobKey, None] = {}
        self._must_restore = True
        self._wake = asyncio.Event()
        brain.follower.batch_listeners.append(self._hear)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """As long as the brain leads."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake.clear()
            if self._must_restore:
                await self._restore()
            self._take_heard()
            for due in self._launches.take_due(self._world.now_ns()):
                await self._launch(due)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._wake.wait()

    def _hear(self, batch: Batch) -> None:
        """Called for every batch, so it only looks and remembers."""
        if not self._brain.is_leading:
            return
        for change in batch.changes:
            if change.table == JOBS.name:
                namespace, _, job_id = change.key.partition(KEY_SEPARATOR)
                key = (namespace, job_id)
                if self._launches.should_track(key, self._brain.follower.replica.get(JOBS, *key)):
                    self._heard[key] = None
                    self._wake.set()

    def _on_load(self) -> None:
        self._must_restore = True
        self._wake.set()

    async def _restore(self) -> None:
        """From the state: a new leader knows nothing else."""
        self._must_restore = False
        self._heard.clear()
        self._launches = launches = LaunchSchedule()
        replica = self._brain.follower.replica
        keys = [(job.namespace, job.id) for job in replica.iter_all(JOBS) if job.is_active_periodic]
        for position, key in enumerate(keys):
            launches.restore_job(replica, key, self._world.now_ns())
            if position % RESTORED_JOBS_PER_STEP == RESTORED_JOBS_PER_STEP - 1:
                await asyncio.sleep(0)

    def _take_heard(self) -> None:
        heard, self._heard = self._heard, {}
        for key in heard:
            self._launches.update_job(key, self._brain.follower.replica.get(JOBS, *key), self._world.now_ns())

    async def _launch(self, due: DueLaunch) -> None:
        try:
            made = await self._brain.execute(
                lambda snapshot, moment: launch_if_due(snapshot, due, moment, self._settings)
            )
        except Refusal as refusal:
            if refusal.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                log.warning("job %s cannot be launched: %s", due.job_key[1], refusal.text)
                return  # The others are due all the same.
            raise  # The next turn finds from the state what was launched and what was not.
        if made is not None:
            log.info("launched %s", made.job_id)

    def _wait_s(self) -> float:
        due_ns = self._launches.next_deadline_ns()
        if due_ns is None:
            return MAX_WAIT_S
        return min(MAX_WAIT_S, max(0.001, (due_ns - self._world.now_ns()) / SECOND_NS))
