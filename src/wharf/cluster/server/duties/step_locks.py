"""A duty of the leader: cancels steps and runs that a newer run replaces at a lock. `controllers.step_locks` decides."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from wharf.cluster.controllers.step_locks import MAX_WAITING_STEPS, enforce_lock
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations.decision import Decision
from wharf.cluster.scheduling.capacity.locks import LockName, list_awaited_locks, list_changed_locks
from wharf.cluster.server.brain import Brain
from wharf.cluster.state import Replica
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import EVALUATIONS
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import DecisionContext
from wharf.world.tasks import wait_for_event

log = logging.getLogger(__name__)

MAX_CHECK_INTERVAL_S: Final = 60.0
"""The longest wait for a change, after which the duty only checks whether this server still leads."""


class StepLockDuty:
    """Ends what the policies of locks end, whenever the queue of a lock changes."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._changed_locks: dict[LockName, None] = {}
        self._must_restore = True
        self._wake_event = asyncio.Event()
        brain.follower.change_listeners.append(self._on_batch)
        brain.follower.load_listeners.append(self._on_load)
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Enforce the policies of all locks whose queue has changed, while the brain leads."""
        self._must_restore = True
        while self._brain.is_leading:
            self._wake_event.clear()
            if self._must_restore:
                self._must_restore = False
                self._changed_locks = dict.fromkeys(list_awaited_locks(self._brain.replica))
            while self._changed_locks and self._brain.is_leading:
                lock = next(iter(self._changed_locks))
                del self._changed_locks[lock]
                await self._enforce(lock)
            await wait_for_event(self._wake_event, MAX_CHECK_INTERVAL_S)

    def _on_batch(self, batch: Batch, changed_records: Sequence[AppliedChange]) -> None:
        """Record the locks whose queue a batch changed. Does nothing unless this server leads."""
        del batch  # The changed records have all that is needed.
        for table, _, before, after in changed_records:
            if table != EVALUATIONS.name:
                continue
            changed = list_changed_locks(table, before, after)
            if changed and self._brain.is_leading:
                self._changed_locks |= dict.fromkeys(sorted(changed))
                self._wake_event.set()

    def _on_load(self) -> None:
        """Request that all locks are checked, because the replica was reloaded."""
        self._must_restore = True
        self._wake_event.set()

    async def _enforce(self, lock: LockName) -> None:
        """End what the policy of a lock ends, one write at a time. A write that can never succeed is logged and skipped."""

        def decide(snapshot: Replica, context: DecisionContext) -> Decision[str] | None:
            return enforce_lock(snapshot, lock, context, max_waiting=MAX_WAITING_STEPS)

        try:
            while ended := await self._brain.execute_if_due(decide):
                log.info("ended for lock namespace=%s lock=%s ended=%s", *lock, ended)
        except Refusal as refusal:
            if refusal.code not in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                raise  # The next run of the duty finds the lock in the replica.
            log.warning("lock not enforced namespace=%s lock=%s reason=%s", *lock, refusal.text)
