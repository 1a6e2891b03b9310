"""Passes decisions to the log: decide, commit, and decide again where somebody was faster."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from wharf.engines.port import Behind, Committed, Conflict, Engine, Outcome, Refused, Unavailable, Unknown
from wharf.model.changes import Write
from wharf.model.refusal import Code, Refusal
from wharf.operations.decision import Decision, Moment
from wharf.server.follower import Follower
from wharf.state import Replica
from wharf.state.formats import format_in_force
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS_MAX: Final = 5

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
        """Run the decision on the newest state until its write is committed, then give its reply."""
        for _ in range(ATTEMPTS_MAX):
            decision = decide(self._follower.replica, self.moment())
            if decision.write is None:
                return decision.reply(self._follower.replica.index)
            outcome = await self.commit(decision.write)
            if isinstance(outcome, Committed):
                await self._follower.reached(outcome.index)
                return decision.reply(outcome.index)
            await self._follower.reached(await self._barrier())
        raise Refusal(
            Code.CONFLICT,
            f"the records changed {ATTEMPTS_MAX} times while this was being decided; read them and ask again",
        )

    async def commit(self, write: Write, *, lease: int = 0) -> Committed | Conflict:
        """Committed or in conflict; every other outcome is found out or raised as a refusal."""
        since = self._follower.replica.index
        replica = self._follower.replica
        coded = replica.encoded(
            write, write_id=self._world.new_id(), lease=lease, cluster_format=format_in_force(replica)
        )
        try:
            outcome: Outcome = await self._engine.commit(coded)
        except Unavailable as away:
            raise Refusal(Code.UNAVAILABLE, f"nothing was written: {away}") from away
        match outcome:
            case Committed() | Conflict():
                return outcome
            case Refused(why):
                raise Refusal(Code.UNAVAILABLE, f"nothing was written: {why}")
            case Unknown(why):
                log.warning("the outcome of %s %s is unknown (%s); looking for it", write.kind, coded.id, why)
                return await self._find_out(coded.id, since)

    async def _find_out(self, write_id: str, since: int) -> Committed | Conflict:
        """A barrier first: whatever was on its way then has arrived or never will (its conditions see later writes)."""
        try:
            await self._follower.reached(await self._engine.barrier())
            index = self._follower.index_of_write(write_id) or await self._engine.find(write_id, since=since)
        except (Unavailable, Behind) as away:
            raise Refusal(
                Code.UNDECIDED, f"nobody can tell whether write {write_id} happened ({away}); read before you ask again"
            ) from away
        return Conflict(()) if index is None else Committed(index)

    async def _barrier(self) -> int:
        try:
            return await self._engine.barrier()
        except Unavailable as away:
            raise Refusal(Code.UNAVAILABLE, f"nothing was written: {away}") from away
