"""Locks of variables: the leader hears their holders, and takes a lock away whose holder fell silent.

Renewals are not in the log, so a new leader gives every lock its whole TTL.
"""

import asyncio
from typing import Final

import msgspec

from wharf.controllers.locks import NEVER, HeldLock, Locks
from wharf.engines.port import Batch
from wharf.model.changes import split_key
from wharf.model.moment import Moment
from wharf.model.refusal import no_leader
from wharf.model.variable import Variable
from wharf.operations import variables
from wharf.operations.decision import Decision
from wharf.operations.variables import VariableKey, VariableWritten
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject
from wharf.state import Replica
from wharf.state.tables import VARIABLES


class Renewal(msgspec.Struct, frozen=True):
    key: VariableKey
    lock_id: str


RENEW_LOCK: Final = Subject("renew-lock", Renewal, VariableWritten)


class LockKeeper:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._locks = Locks()
        self._wake = asyncio.Event()
        brain.follower.listeners.append(self._hear)
        brain.duties.append(self.keep)

    async def renew(self, asked: Renewal) -> VariableWritten:
        """Its holder is alive: the TTL begins anew. Nothing is written."""

        def check(snapshot: Replica, _moment: Moment) -> Decision[VariableWritten]:
            held = variables.renewable(snapshot, asked.key, asked.lock_id)
            return Decision(None, lambda index: VariableWritten(index, held))

        found = await self._brain.decide(check)
        if not self._brain.is_leading:
            raise no_leader()
        if found.variable is not None:
            self._take_note(found.variable)
        return found

    async def keep(self) -> None:
        """From the state, for as long as we lead: wait for the next lock that runs out, and take it away."""
        self._locks = Locks()
        for variable in self._brain.follower.replica.all(VARIABLES):
            self._take_note(variable)
        while self._brain.is_leading:
            now_s = self._brain.world.monotonic_s()
            for held in self._locks.expired(now_s):
                await self._take_away(held)
            self._wake.clear()
            deadline_s = self._locks.next_deadline()
            await self._wait(None if deadline_s == NEVER else max(0.0, deadline_s - self._brain.world.monotonic_s()))

    async def _take_away(self, held: HeldLock) -> None:
        key = VariableKey(held.namespace, held.path)

        def expire(snapshot: Replica, moment: Moment) -> Decision[VariableWritten]:
            if not self._locks.is_expired(held, self._brain.world.monotonic_s()):
                return Decision(None, VariableWritten)  # It was renewed in the last moment.
            return variables.expire(snapshot, key, held.lock_id, moment)

        await self._brain.decide(expire)

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
                self._locks.hear(namespace, path, "", 0, self._brain.world.monotonic_s())

    def _take_note(self, variable: Variable) -> None:
        now_s = self._brain.world.monotonic_s()
        lock = variable.lock
        self._locks.hear(variable.namespace, variable.path, lock.id if lock else "", lock.ttl if lock else 0, now_s)
        self._wake.set()


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    return ((RENEW_LOCK, LockKeeper(brain).renew),)
