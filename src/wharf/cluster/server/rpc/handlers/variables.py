"""RPC handlers and leader duty for locks of variables: renewal and expiry.

Renewals are not written to the log, so a new leader gives every lock its full TTL.
"""

import asyncio
from typing import Final

import msgspec

from wharf.cluster.controllers.deadlines import NEVER_S
from wharf.cluster.controllers.locks import HeldLock, LockDeadlines
from wharf.cluster.engines.port import Batch
from wharf.cluster.operations import variables
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.variables import VariableKey, VariableWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import VARIABLES
from wharf.contract.model.log import split_key
from wharf.contract.model.refusal import no_leader
from wharf.contract.model.times import DecisionContext
from wharf.contract.model.variables import Variable
from wharf.world.tasks import wait_for_event


class RenewLockRequest(msgspec.Struct, frozen=True):
    """A request to restart the TTL of the lock `lock_id` of a variable."""

    key: VariableKey
    lock_id: str


RENEW_LOCK: Final = RpcMethod("renew-lock", RenewLockRequest, VariableWriteResult)


class LockHandlers:
    """Renews locks of variables, and releases those whose TTL has passed."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._locks = LockDeadlines()
        self._wake_event = asyncio.Event()
        brain.follower.batch_listeners.append(self._on_batch)
        brain.duties.append(self.expire_locks)

    async def renew_lock(self, request: RenewLockRequest) -> VariableWriteResult:
        """Restart the TTL of a lock in the leader's memory; nothing is written. Return the variable.

        Raises `Refusal` if the lock is not held or this server does not lead.
        """

        def check(snapshot: Replica, _context: DecisionContext) -> Decision[VariableWriteResult]:
            lock = variables.get_renewable_variable(snapshot, request.key, request.lock_id)
            return Decision(None, lambda index: VariableWriteResult(index, lock))

        result = await self._brain.execute(check)
        if not self._brain.is_leading:
            raise no_leader()
        if result.variable is not None:
            self._update_deadline(result.variable)
        return result

    async def expire_locks(self) -> None:
        """Release each lock whose TTL has passed, while the brain leads. A duty of the leader."""
        self._locks = LockDeadlines()
        for variables_of_step in self._brain.replica.iter_all_in_steps(VARIABLES):
            for variable in variables_of_step:
                self._update_deadline(variable)
            await asyncio.sleep(0)
        while self._brain.is_leading:
            now_s = self._brain.world.monotonic_s()
            for lock in self._locks.list_expired(now_s):
                await self._expire_lock(lock)
            self._wake_event.clear()
            deadline_s = self._locks.next_deadline_s()
            await self._wait(None if deadline_s == NEVER_S else max(0.0, deadline_s - self._brain.world.monotonic_s()))

    async def _expire_lock(self, lock: HeldLock) -> None:
        """Release the lock in the log, unless it was renewed since its deadline passed."""
        key = VariableKey(lock.namespace, lock.path)

        def expire(snapshot: Replica, context: DecisionContext) -> Decision[VariableWriteResult]:
            if not self._locks.is_expired(lock, self._brain.world.monotonic_s()):
                return Decision(None, VariableWriteResult)  # The lock was renewed meanwhile.
            return variables.expire_lock(snapshot, key, lock.lock_id, context)

        await self._brain.execute(expire)

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for a changed lock or the timeout."""
        await wait_for_event(self._wake_event, timeout_s)

    def _on_batch(self, batch: Batch) -> None:
        """Update the deadline of each lock whose variable a batch changed or deleted.

        Does nothing unless this server leads.
        """
        replica = self._brain.replica
        for change in batch.changes:
            if change.table != VARIABLES.name or not self._brain.is_leading:
                continue
            namespace, path = split_key(change.key)
            variable = replica.get(VARIABLES, namespace, path)
            if variable is not None:
                self._update_deadline(variable)
            else:
                self._locks.update_lock(namespace, path, "", 0, self._brain.world.monotonic_s())

    def _update_deadline(self, variable: Variable) -> None:
        """Restart the deadline of the variable's lock, or remove it if the variable has no lock.

        Wakes the expiry loop.
        """
        now_s = self._brain.world.monotonic_s()
        variable_lock = variable.lock
        self._locks.update_lock(
            variable.namespace,
            variable.path,
            variable_lock.id if variable_lock else "",
            variable_lock.ttl if variable_lock else 0,
            now_s,
        )
        self._wake_event.set()


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of locks with their handlers."""
    return ((RENEW_LOCK, LockHandlers(brain).renew_lock),)
