"""Passes decisions to the log: decide, commit, and decide again where somebody was faster."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from wharf.engines.port import (
    Behind,
    Committed,
    Conflict,
    Engine,
    LogWrite,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
    refusal_of,
)
from wharf.model.changes import Write
from wharf.model.machine import TransitionRefused
from wharf.model.refusal import Code, Refusal
from wharf.operations.decision import Decision, Moment
from wharf.operations.story import with_story
from wharf.server.follower import Follower
from wharf.server.rehearsal import INDEX as REHEARSED_INDEX
from wharf.server.rehearsal import current_rehearsal, forbid_in_rehearsal
from wharf.state import Replica
from wharf.state.formats import format_in_force
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS_MAX: Final = 5

TURNS_TO_SEND: Final = 3
"""Turns of the loop after which what was said to the log has left: the task begins, its message is gathered with others
of the turn, and the loop writes."""

Decider = Callable[[Replica, Moment], Decision[T]]


class Writer:
    """One process's way to write. It never tries blindly again: an unknown outcome is found out first."""

    def __init__(self, world: World, engine: Engine, follower: Follower) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower

    def moment(self) -> Moment:
        return Moment(self._world.now_ns(), self._world.new_id)

    async def write(self, decide: Decider[T]) -> T:
        """Run the decision on the newest state until its write is committed, then give its reply.

        A decision that there is nothing to do, or a refusal, rests on no condition. So it counts only when it was taken
        on a replica that has all that was acknowledged before.
        """
        rehearsal = current_rehearsal()
        is_current = False
        attempts = 0
        while True:
            try:
                decision = decide(self._follower.replica, self.moment())
            except Refusal:
                if is_current:
                    raise
                decision = None
            except TransitionRefused as illegal:
                if is_current:
                    raise self.refusal_of_step(illegal) from illegal
                decision = None
            if rehearsal is not None and decision is not None and (decision.write is not None or is_current):
                rehearsal.take(decision)
                return decision.reply(REHEARSED_INDEX if decision.write is not None else self._follower.replica.index)
            if decision is not None and decision.write is not None:
                outcome = await self.commit(decision.write)
                if isinstance(outcome, Committed):
                    _log_refused(decision)
                    await self.show(outcome.index)
                    return decision.reply(outcome.index)
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    raise _contended()
            elif decision is not None and is_current:
                _log_refused(decision)
                return decision.reply(self._follower.replica.index)
            await self.catch_up()
            is_current = True

    def refusal_of_step(self, illegal: TransitionRefused) -> Refusal:
        """Log the step that no table of states has, with its record's story, and make it an answer for the caller."""
        told = with_story(self._follower.replica, illegal)
        log.warning("a step was refused: %s", told)
        return Refusal(Code.CONFLICT, str(told))

    async def catch_up(self) -> None:
        """Until the replica has everything that was acknowledged before this call."""
        try:
            index = await self._engine.barrier()
        except Unavailable as away:
            raise Refusal(Code.UNAVAILABLE, f"nothing was written: {away}") from away
        await self._follower.reached(index)

    async def commit(
        self, write: Write, *, lease: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Committed | Conflict:
        """Committed or in conflict; every other outcome is found out or raised as a refusal. `meanwhile`: work for the time
        until the log answers.
        """
        forbid_in_rehearsal()
        replica = self._follower.replica
        since = replica.index
        in_force = format_in_force(replica)
        coded = replica.encoded(write, write_id=self._world.new_id(), lease=lease, cluster_format=in_force)
        too_large = refusal_of(coded, self._engine.bounds)
        if too_large is not None:
            raise Refusal(Code.TOO_LARGE, f"nothing was written: {too_large}")
        self._follower.hold(coded.id, replica.held(write, cluster_format=in_force))
        is_coming = False
        try:
            outcome = await self._sent(coded, meanwhile)
            is_coming = isinstance(outcome, Committed) and replica.index < outcome.index
        except Unavailable as away:
            raise Refusal(Code.UNAVAILABLE, f"nothing was written: {away}") from away
        finally:
            if not is_coming:
                self._follower.let_go(coded.id)
        match outcome:
            case Committed() | Conflict():
                return outcome
            case Refused(why):
                raise Refusal(Code.UNAVAILABLE, f"nothing was written: {why}")
            case Unknown(why):
                log.warning("the outcome of %s %s is unknown (%s); looking for it", write.kind, coded.id, why)
                return await self._find_out(coded.id, since)

    async def _sent(self, coded: LogWrite, meanwhile: Callable[[], None] | None) -> Outcome:
        if meanwhile is None:
            return await self._engine.commit(coded)
        committing = self._world.start(self._engine.commit(coded), name="commit")
        try:
            for _ in range(TURNS_TO_SEND):
                await asyncio.sleep(0)
            meanwhile()
            return await committing
        finally:
            committing.cancel()

    async def _find_out(self, write_id: str, since: int) -> Committed | Conflict:
        """A barrier first; then the log says whether the write is there. Once it says no, it never will be."""
        try:
            await self._follower.reached(await self._engine.barrier())
            index = self._follower.index_of_write(write_id)
            if index is None:
                index = await self._engine.find(write_id, since=since)
        except (Unavailable, Behind, Refusal) as away:
            raise Refusal(
                Code.UNDECIDED, f"nobody can tell whether write {write_id} happened ({away}); read before you ask again"
            ) from away
        return Conflict(()) if index is None else Committed(index)

    async def show(self, index: int) -> None:
        """Acknowledge nothing before this server's own readers can see it."""
        try:
            await self._follower.reached(index)
        except Refusal as refusal:
            raise Refusal(
                Code.UNDECIDED, f"it was written at index {index}, and cannot be shown: {refusal}"
            ) from refusal


def _log_refused(decision: Decision[T]) -> None:
    for refused in decision.refused:
        log.warning("a step was refused: %s", refused)


def _contended() -> Refusal:
    return Refusal(
        Code.CONFLICT,
        f"the records changed {ATTEMPTS_MAX} times while this was being decided; read them and ask again",
    )
