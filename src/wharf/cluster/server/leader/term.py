"""What the brain asks of an election; `engines.election` answers.

The writes that only a leader may make, good for as long as it leads.

Whoever writes as leader passes here: the leader's record is a condition of every write, and what follows from a write
(statuses, summaries, counts) is added to it. It decides nothing else.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from wharf.cluster.engines.port import Committed, WriteConflict, WriteLimits
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.log import Condition, Write
from wharf.contract.model.refusal import Refusal, no_leader
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext


class Leadership(Protocol):
    """Held from an election until it is lost. Losing it needs no one's word: it ends by itself when not renewed."""

    def is_held(self) -> bool:
        """False in good time before anybody else can be elected."""
        ...

    def build_condition(self) -> Condition:
        """That the leader's record is still the one which this election created. Every leader's write carries it."""
        ...

    async def wait_lost(self) -> None:
        """Returns when the leadership is lost."""
        ...

    async def transfer(self, heir: str) -> bool:
        """End the leadership in favour of another member. False when that could not be written."""
        ...


class Election(Protocol):
    async def campaign(self) -> Leadership:
        """Returns when this member is elected."""
        ...


T = TypeVar("T")

RESERVED_CHANGES: Final = 8
"""Changes and conditions kept free in each part of a plan: statuses, summaries, the leader's condition."""

CHANGES_PER_JOB: Final = 3
CHANGES_PER_EVALUATION: Final = 4
CHANGES_PER_NODE: Final = 2
"""What settling a job, making an evaluation, moving a node changes at most, with all that follows."""


class LeaderTerm:
    """Whether this server leads, and what it writes while it does."""

    def __init__(self, bounds: WriteLimits, follower: Follower, writer: Writer) -> None:
        self.leadership: Leadership | None = None
        """Set while this server leads as far as it knows."""
        self.write_lock = asyncio.Lock()
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
        return self._follower.replica.get_version(LEADER) == leadership.build_condition().version

    @property
    def max_changes(self) -> int:
        """How many changes, each with a condition, a write may have beside what follows from it."""
        return min(self._bounds.changes, self._bounds.conditions) - RESERVED_CHANGES

    @property
    def max_evaluations(self) -> int:
        """How many evaluations, each with what follows from it, fit in a write beside a node's own records."""
        return max(1, (self.max_changes - CHANGES_PER_NODE) // CHANGES_PER_EVALUATION)

    def build_leader_write(self, write: Write) -> Write:
        """The write with all that follows from it, good only while this election lasts."""
        if self.leadership is None or not self.is_leading:
            raise no_leader()
        derived = add_derived_changes(self._follower.replica, write)
        return replace(derived, conditions=[*derived.conditions, self.leadership.build_condition()])

    async def commit(self, write: Write, *, meanwhile: Callable[[], None] | None = None) -> Committed | WriteConflict:
        """Commit as leader; afterwards the replica shows what was committed, or what stood in the way. It is decided and
        committed under `writing`. `meanwhile`: work for the time until the log answers.
        """
        assert self.write_lock.locked(), "the leader writes one thing after the other"
        outcome = await self._writer.commit(self.build_leader_write(write), meanwhile=meanwhile)
        if isinstance(outcome, Committed):
            await self._follower.wait_until_applied(outcome.index)
        else:
            await self._writer.catch_up()
        return outcome

    async def execute(self, operation: Callable[[Replica, DecisionContext], Decision[T]]) -> T:
        """Write what is decided as soon as it is its turn, with all that follows from it."""

        def as_leader(snapshot: Replica, moment: DecisionContext) -> Decision[T]:
            if not self.is_leading:
                raise no_leader()
            decision = operation(snapshot, moment)
            return (
                decision if decision.write is None else replace(decision, write=self.build_leader_write(decision.write))
            )

        async with self.write_lock:
            return await self._writer.execute(as_leader)

    async def execute_if_due(self, operation: Callable[[Replica, DecisionContext], Decision[T] | None]) -> T | None:
        """Write what is due, if anything is. That nothing is due is believed without asking the log: whoever watches is
        woken by what makes something due.
        """
        async with self.write_lock:
            first: Decision[T] | None = None
            try:
                first = operation(self._follower.replica, self._writer.read_clock())
                if first is None or first.write is None:
                    return None
            except (Refusal, InvalidTransition):
                pass  # It counts only on a state that has all that was acknowledged: below it is decided on that.

            def as_leader(snapshot: Replica, moment: DecisionContext) -> Decision[T | None]:
                nonlocal first
                decision, first = first or operation(snapshot, moment), None
                if decision is None or decision.write is None:
                    return Decision(None, lambda _index: None)
                return Decision(
                    self.build_leader_write(decision.write), decision.build_reply, decision.invalid_transitions
                )

            return await self._writer.execute(as_leader)
