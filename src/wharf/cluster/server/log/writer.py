"""Passes decisions to the log: decide, commit, and decide again where somebody was faster."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from wharf.cluster.engines.port import (
    Committed,
    EncodedWrite,
    FollowerBehind,
    LogEngine,
    LogUnavailable,
    WriteConflict,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
    check_write_limits,
)
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.record_history import add_record_history
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.preview import PREVIEW_INDEX, forbid_in_preview, get_current_preview
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ATTEMPTS: Final = 5

LOOP_TURNS_TO_SEND: Final = 3
"""Turns of the loop after which what was said to the log has left: the task begins, its message is gathered with others
of the turn, and the loop writes."""

WriteOperation = Callable[[Replica, DecisionContext], Decision[T]]


class Writer:
    """One process's way to write. It never tries blindly again: an unknown outcome is found out first."""

    def __init__(self, world: World, engine: LogEngine, follower: Follower) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower

    def read_clock(self) -> DecisionContext:
        return DecisionContext(self._world.now_ns(), self._world.new_id)

    async def execute(self, operation: WriteOperation[T]) -> T:
        """Run the decision on the newest state until its write is committed, then give its reply.

        A decision that there is nothing to do, or a refusal, rests on no condition. So it counts only when it was taken
        on a replica that has all that was acknowledged before.
        """
        rehearsal = get_current_preview()
        is_current = False
        attempts = 0
        while True:
            try:
                decision = operation(self._follower.replica, self.read_clock())
            except Refusal:
                if is_current:
                    raise
                decision = None
            except InvalidTransition as illegal:
                if is_current:
                    raise self.refuse_transition(illegal) from illegal
                decision = None
            if rehearsal is not None and decision is not None and (decision.write is not None or is_current):
                rehearsal.record_decision(decision)
                return decision.build_reply(
                    PREVIEW_INDEX if decision.write is not None else self._follower.replica.index
                )
            if decision is not None and decision.write is not None:
                outcome = await self.commit(decision.write)
                if isinstance(outcome, Committed):
                    _log_refused(decision)
                    await self.wait_until_visible(outcome.index)
                    return decision.build_reply(outcome.index)
                attempts += 1
                if attempts == MAX_ATTEMPTS:
                    raise _contended()
            elif decision is not None and is_current:
                _log_refused(decision)
                return decision.build_reply(self._follower.replica.index)
            await self.catch_up()
            is_current = True

    def refuse_transition(self, illegal: InvalidTransition) -> Refusal:
        """Log the step that no table of states has, with its record's story, and make it an answer for the caller."""
        told = add_record_history(self._follower.replica, illegal)
        log.warning("a step was refused: %s", told)
        return Refusal(RefusalCode.CONFLICT, str(told))

    async def catch_up(self) -> None:
        """Until the replica has everything that was acknowledged before this call."""
        try:
            index = await self._engine.barrier()
        except LogUnavailable as away:
            raise Refusal(RefusalCode.UNAVAILABLE, f"nothing was written: {away}") from away
        await self._follower.wait_until_applied(index)

    async def commit(
        self, write: Write, *, lease: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Committed | WriteConflict:
        """Committed or in conflict; every other outcome is found out or raised as a refusal. `meanwhile`: work for the time
        until the log answers.
        """
        forbid_in_preview()
        replica = self._follower.replica
        since = replica.index
        in_force = get_active_format(replica)
        coded = replica.encode_write(write, write_id=self._world.new_id(), lease=lease, cluster_format=in_force)
        too_large = check_write_limits(coded, self._engine.limits)
        if too_large is not None:
            raise Refusal(RefusalCode.TOO_LARGE, f"nothing was written: {too_large}")
        self._follower.cache_write(coded.id, replica.collect_adoptable(write, cluster_format=in_force))
        is_coming = False
        try:
            outcome = await self._sent(coded, meanwhile)
            is_coming = isinstance(outcome, Committed) and replica.index < outcome.index
        except LogUnavailable as away:
            raise Refusal(RefusalCode.UNAVAILABLE, f"nothing was written: {away}") from away
        finally:
            if not is_coming:
                self._follower.discard_cached_write(coded.id)
        match outcome:
            case Committed() | WriteConflict():
                return outcome
            case WriteRejected(why):
                raise Refusal(RefusalCode.UNAVAILABLE, f"nothing was written: {why}")
            case WriteOutcomeUnknown(why):
                log.warning("the outcome of %s %s is unknown (%s); looking for it", write.kind, coded.id, why)
                return await self._find_out(coded.id, since)

    async def _sent(self, coded: EncodedWrite, meanwhile: Callable[[], None] | None) -> WriteOutcome:
        if meanwhile is None:
            return await self._engine.commit(coded)
        committing = self._world.start_task(self._engine.commit(coded), name="commit")
        try:
            for _ in range(LOOP_TURNS_TO_SEND):
                await asyncio.sleep(0)
            meanwhile()
            return await committing
        finally:
            committing.cancel()

    async def _find_out(self, write_id: str, since: int) -> Committed | WriteConflict:
        """A barrier first; then the log says whether the write is there. Once it says no, it never will be."""
        try:
            await self._follower.wait_until_applied(await self._engine.barrier())
            index = self._follower.find_write_index(write_id)
            if index is None:
                index = await self._engine.find_write(write_id, since=since)
        except (LogUnavailable, FollowerBehind, Refusal) as away:
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN,
                f"nobody can tell whether write {write_id} happened ({away}); read before you ask again",
            ) from away
        return WriteConflict(()) if index is None else Committed(index)

    async def wait_until_visible(self, index: int) -> None:
        """Acknowledge nothing before this server's own readers can see it."""
        try:
            await self._follower.wait_until_applied(index)
        except Refusal as refusal:
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN, f"it was written at index {index}, and cannot be shown: {refusal}"
            ) from refusal


def _log_refused(decision: Decision[T]) -> None:
    for refused in decision.invalid_transitions:
        log.warning("a step was refused: %s", refused)


def _contended() -> Refusal:
    return Refusal(
        RefusalCode.CONFLICT,
        f"the records changed {MAX_ATTEMPTS} times while this was being decided; read them and ask again",
    )
