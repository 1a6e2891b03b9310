"""The engine `memory`: one member's session with a `MemoryLog`, and the simulated connection between them.

For tests and simulations. The session's `FaultInjector` decides which faults occur: slow, lost and refused requests,
lost replies, delayed and cancelled feeds, disconnections and crashes. Time comes from the world, waiting uses only
futures and timers of the running loop, and tasks start through the world, so that one seed replays a whole cluster.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from wharf.cluster.engines.memory.faults import (
    CancelWatchFault,
    CompactFault,
    CrashFault,
    DelayFault,
    EngineOperation,
    Fault,
    FaultInjector,
    LoseReplyFault,
    LoseRequestFault,
    RefuseFault,
)
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    LoadBase,
    LogHealth,
    LogPosition,
    LogUnavailable,
    RestoreOutcomeUnknown,
    StoredRecord,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
)
from wharf.world import World
from wharf.world.tasks import cancel_tasks

T = TypeVar("T")


class MemoryReplyLost(Exception):
    """A request was sent and no reply arrived: it is unknown whether the log executed it."""


class MemoryLogRefusal(Exception):
    """The log refused a request and changed nothing."""


class MemoryEngine:
    """One member's session with a log in memory.

    `timeout_s`: how long the engine waits for a missing reply. `slice_rows`: the number of records in each slice of a
    load.
    """

    def __init__(
        self,
        world: World,
        log: MemoryLog,
        *,
        faults: FaultInjector | None = None,
        is_single_server: bool = True,
        timeout_s: float = 2.0,
        slice_rows: int = 1_000,
    ) -> None:
        self.limits = log.limits
        self.is_single_server = is_single_server
        self.faults = faults if faults is not None else FaultInjector()
        self.world = world
        self.log = log
        self.slice_rows = slice_rows
        self.session_number = 0
        """Counts openings, closings and crashes, so that operations of an earlier session fail."""
        self._closed_reason = "the log in memory was not opened"
        self._timeout_s = timeout_s
        self._contact_s: float | None = None
        self._keepalives: dict[int, asyncio.Task[None]] = {}

    # --- opening and dying ---

    async def open(self) -> None:
        """Begin a session. Raises `LogUnavailable` if the log cannot be reached."""
        self._closed_reason = ""
        self.session_number += 1
        try:
            await self.call_log(EngineOperation.OPEN, lambda: None)
        except LogUnavailable as error:
            self._end_session(str(error))
            raise

    async def close(self) -> None:
        keepalives = list(self._keepalives.values())
        self._end_session("the log in memory was closed")
        await cancel_tasks(*keepalives)

    def crash(self) -> None:
        """Simulate a crash of this process: its operations fail and its leases expire."""
        self._end_session("the connection to the log in memory crashed")

    def _end_session(self, reason: str) -> None:
        """End the session: fail its operations and stop renewing its leases."""
        self._closed_reason = reason
        self.session_number += 1
        for keepalive in self._keepalives.values():
            keepalive.cancel()
        self._keepalives.clear()
        self.log.wake_waiters()

    # --- the simulated connection ---

    def is_disconnected(self) -> bool:
        return self.faults.is_disconnected(now_s=self.world.monotonic_s())

    def require_session(self, session_number: int) -> None:
        """Raise `LogUnavailable` unless the session with this number is still open."""
        if self._closed_reason or session_number != self.session_number:
            raise LogUnavailable(self._closed_reason or "the log in memory was opened again")

    async def simulate_delay(self, for_s: float = 0.0) -> None:
        await asyncio.sleep(for_s)

    def draw_fault(self, operation: EngineOperation) -> Fault | None:
        """Choose the fault for an operation, and apply it if it happens before the operation."""
        fault = self.faults.draw_fault(operation, now_s=self.world.monotonic_s())
        if isinstance(fault, CompactFault):
            self.log.compact(self.log.index + 1)
        if isinstance(fault, CrashFault) and not fault.is_after_operation:
            self.crash()
        return fault

    async def send_request(self, operation: EngineOperation, perform: Callable[[], T]) -> T:
        """Send one request and return its reply, with the faults that occur on the way.

        Raises `LogUnavailable` when the request was never sent, `MemoryReplyLost` when no reply arrived, and
        `MemoryLogRefusal` when the log refused it.
        """
        session_number = self.session_number
        self.require_session(session_number)
        fault = self.draw_fault(operation)
        self.require_session(session_number)
        if self.is_disconnected():
            await self.simulate_delay(self._timeout_s)
            raise LogUnavailable("the log in memory cannot be reached: disconnected")
        sent_s = self.world.monotonic_s()
        delay = fault if isinstance(fault, DelayFault) else DelayFault()
        await self.simulate_delay(delay.request_s)
        if isinstance(fault, LoseRequestFault) or self.is_disconnected() or session_number != self.session_number:
            await self._fail_without_reply(session_number)
        if isinstance(fault, RefuseFault):
            raise MemoryLogRefusal(fault.why)
        reply = perform()
        if isinstance(fault, CrashFault):
            self.crash()
        if isinstance(fault, LoseReplyFault):
            await self._fail_without_reply(session_number)
        await self.simulate_delay(delay.reply_s)
        if self.is_disconnected() or session_number != self.session_number:
            await self._fail_without_reply(session_number)
        self._contact_s = sent_s
        return reply

    async def _fail_without_reply(self, session_number: int) -> None:
        """Wait for the timeout, unless the session has ended, then raise `MemoryReplyLost`."""
        if session_number == self.session_number:
            await self.simulate_delay(self._timeout_s)
        raise MemoryReplyLost(self._closed_reason or "no reply came from the log in memory")

    async def call_log(self, operation: EngineOperation, perform: Callable[[], T]) -> T:
        """Send a request that may be repeated: every failure raises `LogUnavailable`."""
        try:
            return await self.send_request(operation, perform)
        except (MemoryReplyLost, MemoryLogRefusal) as error:
            raise LogUnavailable(str(error)) from error

    # --- the port ---

    def load(self) -> "MemoryLoad":
        return MemoryLoad(self)

    def follow(self, after: int) -> AsyncIterator[Batch]:
        return MemoryFeed(self, after)

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        """Commit a write; a lost reply gives `WriteOutcomeUnknown`."""
        try:
            return await self.send_request(EngineOperation.COMMIT, lambda: self.log.commit(write))
        except MemoryLogRefusal as error:
            return WriteRejected(str(error))
        except MemoryReplyLost as error:
            return WriteOutcomeUnknown(str(error))

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await self.call_log(EngineOperation.FIND, lambda: self.log.find_write(write_id, since))

    def read_published_index(self) -> None:
        """Return `None`: only a barrier returns the newest index."""

    async def barrier(self) -> int:
        return await self.call_log(EngineOperation.BARRIER, lambda: self.log.last_write_index)

    async def grant_lease(self, ttl_s: float) -> "MemoryLease":
        before_s = self.world.monotonic_s()
        lease_id = await self.call_log(EngineOperation.GRANT, lambda: self.log.grant_lease(ttl_s))
        lease = MemoryLease(self, lease_id, ttl_s, before_s + ttl_s)
        self._keepalives[lease_id] = self.world.start_task(lease.keep_alive(), name=f"keepalive of lease {lease_id}")
        return lease

    def stop_keepalive(self, lease_id: int) -> None:
        keepalive = self._keepalives.pop(lease_id, None)
        if keepalive is not None:
            keepalive.cancel()

    async def compact(self, before: int) -> None:
        await self.call_log(EngineOperation.COMPACT, lambda: self.log.compact(before))

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        everything = [record async for records_slice in records for record in records_slice]
        try:
            return await self.send_request(
                EngineOperation.RESTORE, lambda: self.log.replace_records(everything, position)
            )
        except MemoryReplyLost as error:
            raise RestoreOutcomeUnknown(str(error)) from error
        except MemoryLogRefusal as error:
            raise LogUnavailable(str(error)) from error

    async def read_health(self) -> LogHealth:
        log = self.log
        return await self.call_log(
            EngineOperation.HEALTH,
            lambda: LogHealth(writable=not log.full_reason, why=log.full_reason, size_bytes=log.compute_size_bytes()),
        )

    def get_last_contact_s(self) -> float | None:
        if self._contact_s is not None and not self._closed_reason and not self.is_disconnected():
            self._contact_s = self.world.monotonic_s()
        return self._contact_s


class MemoryLoad(LoadBase):
    """A full read: all records are read at one moment and returned in slices."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Read all records and the position at one moment, and yield the records in slices."""
        engine = self._engine
        records, position = await engine.call_log(
            EngineOperation.LOAD, lambda: (engine.log.list_records(), engine.log.get_position())
        )
        for start in range(0, len(records), engine.slice_rows):
            yield records[start : start + engine.slice_rows]
            await engine.simulate_delay()
        self._position = position


class MemoryFeed:
    """Batches for one follower, in log order."""

    def __init__(self, engine: MemoryEngine, after: int) -> None:
        self._engine = engine
        self._after = after
        self._session_number = engine.session_number
        self._epoch = engine.log.epoch

    def __aiter__(self) -> "MemoryFeed":
        return self

    async def __anext__(self) -> Batch:
        engine = self._engine
        await engine.simulate_delay()
        while True:
            await self._require_connection()
            batch = engine.log.find_next_batch(self._after, self._epoch)
            if batch is not None:
                break
            await engine.log.wait_changed()
        fault = engine.draw_fault(EngineOperation.FEED)
        if isinstance(fault, CancelWatchFault):
            raise LogUnavailable("the log in memory ended the feed")
        if isinstance(fault, DelayFault):
            await engine.simulate_delay(fault.request_s + fault.reply_s)
        await self._require_connection()
        self._after = batch.index
        return batch

    async def _require_connection(self) -> None:
        """Raise `LogUnavailable` when the session has ended or is disconnected."""
        engine = self._engine
        engine.require_session(self._session_number)
        if engine.is_disconnected():
            await engine.simulate_delay(0.0)
            raise LogUnavailable("the feed of the log in memory ended: disconnected")


class MemoryLease:
    """A lease that a task renews while the session is open and the log accepts renewals."""

    def __init__(self, engine: MemoryEngine, lease_id: int, ttl_s: float, valid_until_s: float) -> None:
        self.id = lease_id
        self._engine = engine
        self._ttl_s = ttl_s
        self._valid_until_s = valid_until_s

    def get_valid_until_s(self) -> float:
        return self._valid_until_s

    async def revoke(self) -> None:
        self._valid_until_s = float("-inf")
        self._engine.stop_keepalive(self.id)
        await self._engine.call_log(EngineOperation.REVOKE, lambda: self._engine.log.revoke_lease(self.id))

    async def keep_alive(self) -> None:
        """Renew the lease three times in its time to live, until the log reports that it has ended."""
        engine = self._engine
        pause_s = self._ttl_s / 3
        while True:
            await engine.simulate_delay(pause_s)
            sent_s = engine.world.monotonic_s()
            try:
                is_renewed = await engine.call_log(EngineOperation.KEEPALIVE, lambda: engine.log.renew_lease(self.id))
            except LogUnavailable:
                # The lease may still be valid. A later renewal can still arrive in time.
                pause_s = self._ttl_s / 10
                continue
            if not is_renewed:
                return
            self._valid_until_s = max(self._valid_until_s, sent_s + self._ttl_s)
            pause_s = self._ttl_s / 3
