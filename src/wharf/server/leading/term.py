"""The writes that only a leader may make, good for as long as it leads.

Whoever writes as leader passes here: the leader's record is a condition of every write, and what follows from a write
(statuses, summaries, counts) is added to it. It decides nothing else.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from wharf.engines.port import Bounds, Committed, Conflict
from wharf.model.changes import Write
from wharf.model.machine import TransitionRefused
from wharf.model.moment import Moment
from wharf.model.refusal import Refusal, no_leader
from wharf.operations.decision import Decision
from wharf.operations.derived import with_derived
from wharf.server.follower import Follower
from wharf.server.leadership import Leadership
from wharf.server.writer import Writer
from wharf.state import Replica
from wharf.state.tables import LEADER

T = TypeVar("T")

ROOM_FOR_DERIVED: Final = 8
"""Changes and conditions kept free in each part of a plan: statuses, summaries, the leader's condition."""

CHANGES_A_JOB: Final = 3
CHANGES_AN_EVALUATION: Final = 4
CHANGES_A_NODE: Final = 2
"""What settling a job, making an evaluation, moving a node changes at most, with all that follows."""


class Term:
    """Whether this server leads, and what it writes while it does."""

    def __init__(self, bounds: Bounds, follower: Follower, writer: Writer) -> None:
        self.leadership: Leadership | None = None
        """Set while this server leads as far as it knows."""
        self.writing = asyncio.Lock()
        """The leader writes one thing after the other, each decided when it is its turn: its own writes touch the same
        statuses and summaries all the time, and would only conflict with each other."""
        self._bounds = bounds
        self._follower = follower
        self._writer = writer

    @property
    def is_leading(self) -> bool:
        """Held as far as we know, and the leader's record is still ours as far as the replica has come."""
        leadership = self.leadership
        if leadership is None or not leadership.is_held():
            return False
        return self._follower.replica.version(LEADER) == leadership.condition().version

    @property
    def changes_max(self) -> int:
        """How many changes, each with a condition, a write may have beside what follows from it."""
        return min(self._bounds.changes, self._bounds.conditions) - ROOM_FOR_DERIVED

    @property
    def evaluations_max(self) -> int:
        """How many evaluations, each with what follows from it, fit in a write beside a node's own records."""
        return max(1, (self.changes_max - CHANGES_A_NODE) // CHANGES_AN_EVALUATION)

    def as_leader(self, write: Write) -> Write:
        """The write with all that follows from it, good only while this election lasts."""
        if self.leadership is None or not self.is_leading:
            raise no_leader()
        derived = with_derived(self._follower.replica, write)
        return replace(derived, conditions=[*derived.conditions, self.leadership.condition()])

    async def commit(self, write: Write, *, meanwhile: Callable[[], None] | None = None) -> Committed | Conflict:
        """Commit as leader; afterwards the replica shows what was committed, or what stood in the way. It is decided and
        committed under `writing`. `meanwhile`: work for the time until the log answers.
        """
        assert self.writing.locked(), "the leader writes one thing after the other"
        outcome = await self._writer.commit(self.as_leader(write), meanwhile=meanwhile)
        if isinstance(outcome, Committed):
            await self._follower.reached(outcome.index)
        else:
            await self._writer.catch_up()
        return outcome

    async def decide(self, decide: Callable[[Replica, Moment], Decision[T]]) -> T:
        """Write what is decided as soon as it is its turn, with all that follows from it."""

        def as_leader(snapshot: Replica, moment: Moment) -> Decision[T]:
            if not self.is_leading:
                raise no_leader()
            decision = decide(snapshot, moment)
            return decision if decision.write is None else replace(decision, write=self.as_leader(decision.write))

        async with self.writing:
            return await self._writer.write(as_leader)

    async def act(self, decide: Callable[[Replica, Moment], Decision[T] | None]) -> T | None:
        """Write what is due, if anything is. That nothing is due is believed without asking the log: whoever watches is
        woken by what makes something due.
        """
        async with self.writing:
            first: Decision[T] | None = None
            try:
                first = decide(self._follower.replica, self._writer.moment())
                if first is None or first.write is None:
                    return None
            except (Refusal, TransitionRefused):
                pass  # It counts only on a state that has all that was acknowledged: below it is decided on that.

            def as_leader(snapshot: Replica, moment: Moment) -> Decision[T | None]:
                nonlocal first
                decision, first = first or decide(snapshot, moment), None
                if decision is None or decision.write is None:
                    return Decision(None, lambda _index: None)
                return Decision(self.as_leader(decision.write), decision.reply, decision.refused)

            return await self._writer.write(as_leader)
