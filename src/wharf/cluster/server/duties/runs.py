"""A duty of the leader: ends what has expired of runs. `controllers.runs` keeps the timers and decides."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from wharf.cluster.controllers.runs import RunTimers, expire_run
from wharf.cluster.engines.port import Batch
from wharf.cluster.server.brain import Brain
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import ARRAY_ATTEMPTS
from wharf.contract.model.jobs.job import JobKey
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, SECOND
from wharf.world import World
from wharf.world.tasks import wait_for_event

log = logging.getLogger(__name__)

MAX_CHECK_INTERVAL_S: Final = 60.0
"""Limits how late a timer expires after the wall clock was changed, because the wait uses the monotonic clock."""


class RunDuty:
    """Ends gates, runs and final steps that have expired."""

    def __init__(self, world: World, brain: Brain) -> None:
        self._world = world
        self._brain = brain
        self._timers = RunTimers()
        self._must_restore = True
        self._latest_ns = 0  # The wall clock at the last check.
        self._wake_event = asyncio.Event()
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """End what expires while the brain leads."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake_event.clear()
            now_ns = self._world.now_ns()
            # Timers that expired while the clock was ahead would never expire again.
            self._must_restore |= now_ns < self._latest_ns - MAX_CLOCK_SKEW_NS
            self._latest_ns = now_ns
            if self._must_restore:
                await self._restore()
            for key in self._timers.take_due(now_ns):
                await self._expire(key, now_ns)
            await wait_for_event(self._wake_event, self._wait_s())

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Update the timers of attempts that a batch changed, and wake the duty. Does nothing unless this server leads."""
        del batch  # The changed records have all that is needed.
        for table, key, _, attempt in changed_records:
            if table == ARRAY_ATTEMPTS.name and self._brain.is_leading:
                self._timers.update(key, attempt)
                self._wake_event.set()

    def _on_load(self) -> None:
        """Request that the timers are built again, because the replica was reloaded."""
        self._must_restore = True
        self._wake_event.set()

    async def _restore(self) -> None:
        """Build the timers of all attempts from the replica. Other tasks run in between."""
        self._must_restore = False
        self._timers = timers = RunTimers()
        for attempts in self._brain.replica.iter_all_in_steps(ARRAY_ATTEMPTS):
            for attempt in attempts:
                timers.update(ARRAY_ATTEMPTS.get_key(attempt), attempt)
            await asyncio.sleep(0)

    async def _expire(self, key: JobKey, due_ns: int) -> None:
        """End what has expired of a run. A write that can never succeed is logged and skipped."""
        try:
            expired = await self._brain.execute_if_due(
                lambda snapshot, context: expire_run(snapshot, key, context, due_ns=due_ns)
            )
        except Refusal as refusal:
            if refusal.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                log.warning("run not expired namespace=%s job=%s reason=%s", *key, refusal.text)
                return
            raise  # The next run of the duty finds the timer in the replica.
        if expired:
            log.info("run timer expired namespace=%s job=%s timer=%s", *key, expired)

    def _wait_s(self) -> float:
        """Return the seconds until the next timer expires, at most `MAX_CHECK_INTERVAL_S`."""
        due_ns = self._timers.next_deadline_ns()
        if due_ns is None:
            return MAX_CHECK_INTERVAL_S
        return min(MAX_CHECK_INTERVAL_S, max(0.001, (due_ns - self._world.now_ns()) / SECOND))
