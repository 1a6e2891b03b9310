"""Commits decisions to the log: decide, commit, and decide again after a conflict."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Self, TypeVar

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
from wharf.cluster.server.loop_slots import continue_in_slot
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

NOTHING_WRITTEN_TEXT: Final = "nothing was written: "
"""Begins the text of each refusal of a write that the log did not accept."""
MAX_ATTEMPTS: Final = 5
"""How often a write is decided again after conflicts before the caller gets a refusal."""

LOOP_ITERATIONS_TO_SEND: Final = 3
"""Iterations of the event loop until a message to the log is sent: start the task, gather messages, write to the socket."""

LOST_LOG_CODES: Final = frozenset({RefusalCode.UNAVAILABLE, RefusalCode.OUTCOME_UNKNOWN})
"""How a write is refused if the log or the replica did not reply in time."""

WriteOperation = Callable[[Replica, DecisionContext], Decision[T]]
"""Decides on the replica what to write."""

WaitingWrites = dict[tuple[str, str], deque["asyncio.Future[bool]"]]
"""The records on which writes of this process conflicted, by table and key, with the writes that wait for the slot there.

`False`: the write goes on without a slot.
"""


class Writer:
    """Commits the writes of one process. After a lost reply, it finds out whether the write was committed."""

    def __init__(self, world: World, engine: LogEngine, follower: Follower) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._writes_at_records: WaitingWrites = {}

    def read_clock(self) -> DecisionContext:
        """Return the time and the id generator for one decision."""
        return DecisionContext(self._world.now_ns(), self._world.new_id)

    async def decide_off_loop(self, operation: Callable[[Replica, DecisionContext], T]) -> T:
        """Run an operation on the thread for long computations, while the replica does not change."""
        async with self._follower.apply_lock:
            return await self._world.run_off_loop(partial(operation, self._follower.replica, self.read_clock()))

    async def execute(
        self, operation: WriteOperation[T], *, max_attempts: int = MAX_ATTEMPTS, is_long: bool = False
    ) -> T:
        """Run the operation on the replica and commit its write; repeat this after a conflict, in all `max_attempts` times.

        Return the operation's reply. `is_long`: it reads many records, so it runs on the thread for long computations.

        A refusal, or a decision without a write, has no condition that the log could check. It is accepted only if the
        replica had passed a barrier first. Raises `Refusal`. In a preview, the decision is recorded instead of
        committed.

        After a conflict, writes of this process that need the same record go one after the other, in order of arrival.
        """
        with RecordSlot(self._writes_at_records) as slot:
            return await self._execute_in_slot(operation, slot, max_attempts=max_attempts, is_long=is_long)

    async def _execute_in_slot(
        self, operation: WriteOperation[T], slot: "RecordSlot", *, max_attempts: int, is_long: bool
    ) -> T:
        """Do the work of `execute`. `slot` is taken if other writes of this process need the same record."""
        preview = get_current_preview()
        is_current = False
        attempts = 0
        while True:
            try:
                decision = (
                    await self.decide_off_loop(operation)
                    if is_long
                    else operation(self._follower.replica, self.read_clock())
                )
            except Refusal:
                if is_current:
                    raise
                decision = None
            except InvalidTransition as error:
                if is_current:
                    raise self.refuse_transition(error) from error
                decision = None
            if preview is not None and decision is not None and (decision.write is not None or is_current):
                preview.record_decision(decision)
                return decision.build_reply(
                    PREVIEW_INDEX if decision.write is not None else self._follower.replica.index
                )
            if decision is not None and decision.write is not None:
                if await slot.wait_for_contended(decision.write):
                    continue  # Other writes have changed the record meanwhile.
                outcome = await self.commit(decision.write)
                if isinstance(outcome, Committed):
                    log_rejected_parts(decision)
                    await self.wait_until_visible(outcome.index)
                    return decision.build_reply(outcome.index)
                attempts += 1
                if attempts == max_attempts:
                    raise build_contention_refusal(attempts)
                await slot.take_for_conflict(outcome)
            elif decision is not None and is_current:
                log_rejected_parts(decision)
                return decision.build_reply(self._follower.replica.index)
            await self.catch_up()
            is_current = True

    def refuse_transition(self, error: InvalidTransition) -> Refusal:
        """Log a forbidden state transition with the recent history of its record. Return the refusal for the caller."""
        described = add_record_history(self._follower.replica, error)
        log.warning("state transition rejected reason=%s", described)
        return Refusal(RefusalCode.CONFLICT, str(described))

    async def catch_up(self) -> None:
        """Wait until the replica has every write that was acknowledged before this call. Raises `Refusal`."""
        try:
            index = await self._engine.barrier()
        except LogUnavailable as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"{NOTHING_WRITTEN_TEXT}{error}") from error
        await self._follower.wait_until_applied(index)
        await continue_in_slot()

    async def commit(
        self, write: Write, *, lease: int = 0, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> Committed | WriteConflict:
        """Commit a write. Return `Committed` or `WriteConflict`; raises `Refusal` for every other outcome.

        `meanwhile` is called while the log processes the write. `lease`: the lease that the written records belong to.
        """
        forbid_in_preview()
        encoded = self.encode_write(write, lease=lease)
        replica = self._follower.replica
        self._follower.cache_write(
            encoded.id, replica.collect_adoptable(write, cluster_format=get_active_format(replica))
        )
        return await self.commit_encoded(encoded, meanwhile=meanwhile)

    def encode_write(self, write: Write, *, lease: int = 0) -> EncodedWrite:
        """Return the write as it is sent to the log. Raises `Refusal` if it is larger than the log accepts."""
        replica = self._follower.replica
        encoded = replica.encode_write(
            write, write_id=self._world.new_id(), lease=lease, cluster_format=get_active_format(replica)
        )
        limit_problem = check_write_limits(encoded, self._engine.limits)
        if limit_problem is not None:
            raise Refusal(RefusalCode.TOO_LARGE, f"{NOTHING_WRITTEN_TEXT}{limit_problem}")
        return encoded

    async def commit_encoded(
        self, encoded: EncodedWrite, *, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> Committed | WriteConflict:
        """Commit an encoded write, which another process may have encoded. See `commit`."""
        replica = self._follower.replica
        since_index = replica.index
        will_arrive = False
        try:
            outcome = await self._send(encoded, meanwhile)
            will_arrive = isinstance(outcome, Committed) and replica.index < outcome.index
        except LogUnavailable as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"{NOTHING_WRITTEN_TEXT}{error}") from error
        finally:
            if not will_arrive:
                self._follower.discard_cached_write(encoded.id)
        match outcome:
            case Committed() | WriteConflict():
                return outcome
            case WriteRejected(reason):
                raise Refusal(RefusalCode.UNAVAILABLE, f"{NOTHING_WRITTEN_TEXT}{reason}")
            case WriteOutcomeUnknown(reason):
                log.warning(
                    "write outcome unknown, looking it up kind=%s id=%s reason=%s", encoded.kind, encoded.id, reason
                )
                return await self._resolve_outcome(encoded.id, since_index)

    async def _send(self, encoded: EncodedWrite, meanwhile: Callable[[], Awaitable[None]] | None) -> WriteOutcome:
        """Send the write to the log and return the outcome. `meanwhile` is called as soon as the write is sent."""
        if meanwhile is None:
            return await self._engine.commit(encoded)
        commit_task = self._world.start_task(self._engine.commit(encoded), name="commit")
        try:
            for _ in range(LOOP_ITERATIONS_TO_SEND):
                await asyncio.sleep(0)
            await meanwhile()
            return await commit_task
        finally:
            commit_task.cancel()

    async def _resolve_outcome(self, write_id: str, since_index: int) -> Committed | WriteConflict:
        """Return whether a write with unknown outcome was committed; if not, as a `WriteConflict`. Raises `Refusal`.

        After a barrier, a write that is not in the log will never be there. The log is searched after the index
        `since_index`.
        """
        try:
            await self._follower.wait_until_applied(await self._engine.barrier())
            index = self._follower.find_write_index(write_id)
            if index is None:
                index = await self._engine.find_write(write_id, since=since_index)
        except (LogUnavailable, FollowerBehind, Refusal) as error:
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN,
                f"it is unknown whether write {write_id} was committed ({error}); check the state before you retry",
            ) from error
        return WriteConflict(()) if index is None else Committed(index)

    async def wait_until_visible(self, index: int) -> None:
        """Wait until this server's own readers see the write at `index`.

        Raises `Refusal` with OUTCOME_UNKNOWN if they do not in time: the write is committed all the same.
        """
        try:
            await self._follower.wait_until_applied(index)
        except Refusal as refusal:
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN,
                f"committed at index {index}, but not visible on this server yet: {refusal}",
            ) from refusal
        await continue_in_slot()


class RecordSlot:
    """The slot of one write at one record, as a context manager that gives it to the next write.

    Without slots, of N writes that change the same record together, only one succeeds in each round, and the others use up
    their attempts. A write takes one slot at most, so no two writes wait for each other.
    """

    def __init__(self, waiting: WaitingWrites) -> None:
        self._waiting = waiting
        self._record: tuple[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._record is None:
            return
        if isinstance(error, Refusal) and error.code in LOST_LOG_CODES:
            # The log does not reply. All find that out together, instead of one after the other.
            for future in self._waiting.pop(self._record):
                if not future.done():
                    future.set_result(False)
        else:
            self._pass_on(self._record)

    async def wait_for_contended(self, write: Write) -> bool:
        """Wait if another write has its slot at a record on which this one relies. Return whether it has waited."""
        if self._record is not None or not self._waiting:
            return False
        records = ((condition.table, condition.key) for condition in write.conditions)
        contended = next((record for record in records if record in self._waiting), None)
        if contended is None:
            return False
        await self._take(contended)
        return True

    async def take_for_conflict(self, conflict: WriteConflict) -> None:
        """Take the slot at the first record of the conflict, unless this write has a slot already."""
        if self._record is None and conflict.keys:
            table, key = conflict.keys[0]
            await self._take((table, key))

    async def _take(self, record: tuple[str, str]) -> None:
        waiting = self._waiting.get(record)
        if waiting is None:
            self._waiting[record] = deque()
        else:
            future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            waiting.append(future)
            try:
                has_slot = await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled() and future.result():
                    self._pass_on(record)
                raise
            if not has_slot:
                return
        self._record = record

    def _pass_on(self, record: tuple[str, str]) -> None:
        """Give the slot to the next write that waits for it."""
        waiting = self._waiting[record]
        while waiting:
            future = waiting.popleft()
            if not future.done():  # The write may be cancelled.
                future.set_result(True)
                return
        del self._waiting[record]


def log_rejected_parts(decision: Decision[T]) -> None:
    """Log each forbidden state transition and the refused services that the decision left out."""
    for refused in decision.refused_services:
        log.warning("undeclared services refused allocation=%s count=%d", refused.allocation_id, refused.count)
    for transition in decision.invalid_transitions:
        log.warning("state transition rejected reason=%s", transition)


def build_contention_refusal(attempts: int = MAX_ATTEMPTS) -> Refusal:
    return Refusal(
        RefusalCode.CONFLICT,
        f"{attempts} attempts conflicted with other writes; read the records and retry",
    )
