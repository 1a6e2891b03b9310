"""Leadership, and the writes that only a leader may make.

Every write of the leader goes through `LeaderTerm`. It adds a condition on the leader record and the derived changes
(statuses, summaries, counts). The election itself is in `engines.election`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TypeVar

from msgspec.structs import replace

from wharf.cluster.engines.election import Leadership
from wharf.cluster.engines.port import Committed, WriteConflict, WriteLimits
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import LOST_LOG_CODES, NOTHING_WRITTEN_TEXT, Writer
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext

T = TypeVar("T")

RESERVED_CHANGES: Final = 8
"""Changes and conditions left free in each part of a plan for derived changes and the leader's condition."""

CHANGES_PER_JOB: Final = 3
CHANGES_PER_EVALUATION: Final = 4
CHANGES_PER_NODE: Final = 2
"""The most changes, including derived ones, that an update of a job, a new evaluation or a node change needs."""


class LeaderTerm:
    """Knows whether this server leads, and makes the writes that only the leader may make."""

    def __init__(self, limits: WriteLimits, follower: Follower, writer: Writer) -> None:
        self.leadership: Leadership | None = None
        """Set while this server believes that it leads."""
        self.write_lock = asyncio.Lock()
        """Held while a write is decided and committed. The leader's writes change the same statuses and summaries, so
        concurrent ones would only conflict with each other."""
        self._newest_failure: Refusal | None = None
        """Why the log did not execute the newest write that failed, for the writes that waited for it."""
        self._limits = limits
        self._follower = follower
        self._writer = writer

    @property
    def is_leading(self) -> bool:
        """Whether this server holds the leadership and its replica shows the leader record of that election."""
        leadership = self.leadership
        if leadership is None or not leadership.is_held():
            return False
        return self._follower.replica.get_version(LEADER) == leadership.build_condition().version

    @property
    def max_changes(self) -> int:
        """How many changes, each with a condition, a write may have besides derived changes."""
        return min(self._limits.changes, self._limits.conditions) - RESERVED_CHANGES

    @property
    def max_evaluations(self) -> int:
        """How many evaluations, with their derived changes, fit in a write that also changes a node."""
        return max(1, (self.max_changes - CHANGES_PER_NODE) // CHANGES_PER_EVALUATION)

    def build_leader_write(self, write: Write, *, is_derived: bool = False) -> Write:
        """Return the write with its derived changes and the condition that this server still leads.

        `is_derived`: the write contains only derived changes. They must not be derived again, because that would count them
        twice. Raises `Refusal` if this server does not lead.
        """
        if self.leadership is None or not self.is_leading:
            raise no_leader()
        derived = write if is_derived else add_derived_changes(self._follower.replica, write)
        return replace(derived, conditions=[*derived.conditions, self.leadership.build_condition()])

    async def commit(
        self, write: Write, *, meanwhile: Callable[[], Awaitable[None]] | None = None, is_derived: bool = False
    ) -> Committed | WriteConflict:
        """Commit a write as leader, then wait until the replica contains it or the conflicting write.

        The caller holds `write_lock`. `meanwhile` runs while the log processes the write. `is_derived`: see
        `build_leader_write`.
        """
        assert self.write_lock.locked(), "the caller must hold write_lock"
        with self._recording_failures():
            outcome = await self._writer.commit(
                self.build_leader_write(write, is_derived=is_derived), meanwhile=meanwhile
            )
            if isinstance(outcome, Committed):
                await self._follower.wait_until_applied(outcome.index)
            else:
                await self._writer.catch_up()
            return outcome

    async def execute(
        self, operation: Callable[[Replica, DecisionContext], Decision[T]], *, is_long: bool = False
    ) -> T:
        """Run an operation, commit its decision as leader with the derived changes, and return its reply.

        Holds the write lock meanwhile. `is_long`: see `execute_if_due`. Raises `Refusal` if this server does not lead, or
        if the log did not reply to a write for which this one has waited.
        """
        async with self._hold_write_lock():
            first_decision: Decision[T] | None = None
            if is_long and self.is_leading:
                # A refusal counts only after a barrier. `Writer.execute` decides again after one.
                with contextlib.suppress(Refusal, InvalidTransition):
                    first_decision = await self._writer.decide_off_loop(operation)

            def as_leader(snapshot: Replica, context: DecisionContext) -> Decision[T]:
                nonlocal first_decision
                if not self.is_leading:
                    raise no_leader()
                decision, first_decision = first_decision or operation(snapshot, context), None
                return (
                    decision
                    if decision.write is None
                    else replace(decision, write=self.build_leader_write(decision.write))
                )

            return await self._writer.execute(as_leader)

    async def execute_if_due(
        self, operation: Callable[[Replica, DecisionContext], Decision[T] | None], *, is_long: bool = False
    ) -> T | None:
        """Run an operation as leader and commit its decision. Return its reply, or `None` if it has nothing to do now.

        "Nothing to do" is accepted from the replica without a log barrier: the change that makes something due wakes
        the duty again. `is_long`: the operation runs on the thread for long computations, while the replica does not
        change. Like any other, its decision has conditions on the records that it relies on.
        """
        async with self._hold_write_lock():
            current_decision: Decision[T] | None = None
            try:
                if is_long:
                    current_decision = await self._writer.decide_off_loop(operation)
                else:
                    current_decision = operation(self._follower.replica, self._writer.read_clock())
                if current_decision is None or current_decision.write is None:
                    return None
            except (Refusal, InvalidTransition):
                pass  # A refusal counts only after a barrier. `Writer.execute` decides again after one.

            def as_leader(snapshot: Replica, context: DecisionContext) -> Decision[T | None]:
                nonlocal current_decision
                decision, current_decision = current_decision or operation(snapshot, context), None
                if decision is None or decision.write is None:
                    return Decision(None, lambda _index: None)
                return Decision(
                    self.build_leader_write(decision.write),
                    decision.build_reply,
                    decision.invalid_transitions,
                    decision.refused_services,
                )

            return await self._writer.execute(as_leader)

    @contextlib.asynccontextmanager
    async def _hold_write_lock(self) -> AsyncIterator[None]:
        """Hold the write lock.

        Raises `Refusal` if the log did not execute a write for which this one has waited: all that wait find that out
        together. One after the other, each would wait for the log, and a caller would get no reply in time.
        """
        earlier_failure = self._newest_failure
        async with self.write_lock:
            if self._newest_failure is not None and self._newest_failure is not earlier_failure:
                raise Refusal(self._newest_failure.code, self._newest_failure.text)
            with self._recording_failures():
                yield

    @contextlib.contextmanager
    def _recording_failures(self) -> Iterator[None]:
        """Record why the log did not execute a write, for the writes that wait."""
        try:
            yield
        except Refusal as refusal:
            if refusal.code in LOST_LOG_CODES:
                is_known = refusal.code is RefusalCode.UNAVAILABLE and refusal.text.startswith(NOTHING_WRITTEN_TEXT)
                text = refusal.text if is_known else f"{NOTHING_WRITTEN_TEXT}the log did not reply to an earlier write"
                self._newest_failure = Refusal(RefusalCode.UNAVAILABLE, text)
            raise
