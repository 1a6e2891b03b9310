"""Locks of variables: the leader hears their holders, and takes a lock away whose holder fell silent.

Renewals are not in the log, so a new leader gives every lock its whole TTL.
"""

import asyncio
from typing import Final

import msgspec

from wharf.cluster.controllers.locks import NEVER_S, HeldLock, LockDeadlines
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


class RenewLockRequest(msgspec.Struct, frozen=True):
    key: VariableKey
    lock_id: str


RENEW_LOCK: Final = RpcMethod("renew-lock", RenewLockRequest, VariableWriteResult)


class LockHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._locks = LockDeadlines()
        self._wake = asyncio.Event()
        brain.follower.batch_listeners.append(self._hear)
        brain.duties.append(self.expire_locks)

    async def renew_lock(self, asked: RenewLockRequest) -> VariableWriteResult:
        """Its holder is alive: the TTL begins anew. Nothing is written."""

        def check(snapshot: Replica, _moment: DecisionContext) -> Decision[VariableWriteResult]:
            held = variables.get_renewable_variable(snapshot, asked.key, asked.lock_id)
            return Decision(None, lambda index: VariableWriteResult(index, held))

        found = await self._brain.execute(check)
        if not self._brain.is_leading:
            raise no_leader()
        if found.variable is not None:
            self._take_note(found.variable)
        return found

    async def expire_locks(self) -> None:
        """From the state, for as long as we lead: wait for the next lock that runs out, and take it away."""
        self._locks = LockDeadlines()
        for variable in self._brain.follower.replica.iter_all(VARIABLES):
            self._take_note(variable)
        while self._brain.is_leading:
            now_s = self._brain.world.monotonic_s()
            for held in self._locks.list_expired(now_s):
                await self._take_away(held)
            self._wake.clear()
            deadline_s = self._locks.next_deadline_s()
            await self._wait(None if deadline_s == NEVER_S else max(0.0, deadline_s - self._brain.world.monotonic_s()))

    async def _take_away(self, held: HeldLock) -> None:
        key = VariableKey(held.namespace, held.path)

        def expire(snapshot: Replica, moment: DecisionContext) -> Decision[VariableWriteResult]:
            if not self._locks.is_expired(held, self._brain.world.monotonic_s()):
                return Decision(None, VariableWriteResult)  # It was renewed in the last moment.
            return variables.expire_lock(snapshot, key, held.lock_id, moment)

        await self._brain.execute(expire)

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _hear(self, batch: Batch) -> None:
        if not self._brain.is_leading:
            return
        replica = self._brain.follower.replica
        for change in batch.changes:
            if change.table != VARIABLES.name:
                continue
            namespace, path = split_key(change.key)
            variable = replica.get(VARIABLES, namespace, path)
            if variable is not None:
                self._take_note(variable)
            else:
                self._locks.update_lock(namespace, path, "", 0, self._brain.world.monotonic_s())

    def _take_note(self, variable: Variable) -> None:
        now_s = self._brain.world.monotonic_s()
        lock = variable.lock
        self._locks.update_lock(
            variable.namespace, variable.path, lock.id if lock else "", lock.ttl if lock else 0, now_s
        )
        self._wake.set()


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    return ((RENEW_LOCK, LockHandlers(brain).renew_lock),)
