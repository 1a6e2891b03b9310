"""Launches periodic jobs when their time has come.

One of the leader's duties. When that is, is kept by `controllers.launches`; a child is made by `operations.children`.
"""

import asyncio
import contextlib
import logging
from typing import Final

from wharf.controllers.launches import Due, JobKey, Launches, launch_if_due
from wharf.engines.port import Batch
from wharf.model.changes import SEPARATOR
from wharf.model.job_settings import JobSettings
from wharf.model.refusal import Code, Refusal
from wharf.server.brain import Brain
from wharf.state.tables import JOBS
from wharf.world import World

log = logging.getLogger(__name__)

SECOND_NS: Final = 1_000_000_000
LOOK_AT_LEAST_EVERY_S: Final = 60.0
"""The wall clock may be stepped while we wait by the other one."""

RESTORED_AT_ONCE: Final = 20
"""So that no computation holds the leader's loop for long: each of them may take a millisecond."""


class Launcher:
    def __init__(self, world: World, brain: Brain, settings: JobSettings) -> None:
        self._world = world
        self._brain = brain
        self._settings = settings
        self._launches = Launches()
        self._heard: dict[JobKey, None] = {}
        self._must_restore = True
        self._wake = asyncio.Event()
        brain.follower.listeners.append(self._hear)
        brain.follower.on_load.append(self._on_load)
        brain.duties.append(self.launch)

    async def launch(self) -> None:
        """As long as the brain leads."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake.clear()
            if self._must_restore:
                await self._restore()
            self._take_heard()
            for due in self._launches.due(self._world.now_ns()):
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
                namespace, _, job_id = change.key.partition(SEPARATOR)
                key = (namespace, job_id)
                if self._launches.concerns(key, self._brain.follower.replica.get(JOBS, *key)):
                    self._heard[key] = None
                    self._wake.set()

    def _on_load(self) -> None:
        self._must_restore = True
        self._wake.set()

    async def _restore(self) -> None:
        """From the state: a new leader knows nothing else."""
        self._must_restore = False
        self._heard.clear()
        self._launches = launches = Launches()
        replica = self._brain.follower.replica
        keys = [(job.namespace, job.id) for job in replica.all(JOBS) if job.is_active_periodic]
        for position, key in enumerate(keys):
            launches.restore(replica, key, self._world.now_ns())
            if position % RESTORED_AT_ONCE == RESTORED_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _take_heard(self) -> None:
        heard, self._heard = self._heard, {}
        for key in heard:
            self._launches.hear(key, self._brain.follower.replica.get(JOBS, *key), self._world.now_ns())

    async def _launch(self, due: Due) -> None:
        try:
            made = await self._brain.decide(
                lambda snapshot, moment: launch_if_due(snapshot, due, moment, self._settings)
            )
        except Refusal as refusal:
            if refusal.code in (Code.INVALID, Code.TOO_LARGE):
                log.warning("job %s cannot be launched: %s", due.key[1], refusal.text)
                return  # The others are due all the same.
            raise  # The next turn finds from the state what was launched and what was not.
        if made is not None:
            log.info("launched %s", made.job_id)

    def _wait_s(self) -> float:
        due_ns = self._launches.next_deadline_ns()
        if due_ns is None:
            return LOOK_AT_LEAST_EVERY_S
        return min(LOOK_AT_LEAST_EVERY_S, max(0.001, (due_ns - self._world.now_ns()) / SECOND_NS))
