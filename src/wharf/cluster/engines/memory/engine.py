"""The engine `memory`: a member's door to a `MemoryLog`, and the roads between them.

For tests and simulation. Everything that can go wrong on the way goes wrong here, as the door's `Faults` say: slow,
lost and refused requests, lost replies, late and cancelled feeds, cut lines, crashes. Time comes from the world,
waiting is done on futures and timers of the running loop, and tasks start through the world only, so that a whole
cluster replays from one seed.
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
    LogHealth,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
)
from wharf.world import World

T = TypeVar("T")


class MemoryReplyLost(Exception):
    """The request was sent and no reply came: nobody can tell here whether the log did what was asked."""


class MemoryLogRefusal(Exception):
    """The log refused and did nothing."""


class MemoryEngine:
    """`timeout_s` is how long the door waits for a reply that does not come, `slice_rows` the rows a load gives at once."""

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
        self.session_number = (
            0  # Counts the times that the door was opened or died, so that what was begun before ends.
        )
        self._why_shut = "the log in memory was not opened"
        self._timeout_s = timeout_s
        self._contact_s: float | None = None
        self._keepalives: dict[int, asyncio.Task[None]] = {}

    # --- opening and dying ---

    async def open(self) -> None:
        self._why_shut = ""
        self.session_number += 1
        try:
            await self.call_log(EngineOperation.OPEN, lambda: None)
        except LogUnavailable as error:
            self._shut(str(error))
            raise

    async def close(self) -> None:
        keepalives = list(self._keepalives.values())
        self._shut("the log in memory was closed")
        await asyncio.gather(*keepalives, return_exceptions=True)

    def crash(self) -> None:
        """The door dies here and now. What it had begun fails; its leases run out."""
        self._shut("the door to the log in memory crashed")

    def _shut(self, why: str) -> None:
        self._why_shut = why
        self.session_number += 1
        for keepalive in self._keepalives.values():
            keepalive.cancel()
        self._keepalives.clear()
        self.log.wake_waiters()

    # --- the road to the log and back ---

    def is_disconnected(self) -> bool:
        return self.faults.is_disconnected(now_s=self.world.monotonic_s())

    def require_session(self, life: int) -> None:
        """Raise unless the door has been open all the time since `life`."""
        if self._why_shut or life != self.session_number:
            raise LogUnavailable(self._why_shut or "the door to the log in memory was opened anew")

    async def simulate_delay(self, for_s: float = 0.0) -> None:
        await asyncio.sleep(for_s)

    def draw_fault(self, operation: EngineOperation) -> Fault | None:
        fault = self.faults.draw_fault(operation, now_s=self.world.monotonic_s())
        if isinstance(fault, CompactFault):
            self.log.compact(self.log.index + 1)
        if isinstance(fault, CrashFault) and not fault.is_after_operation:
            self.crash()
        return fault

    async def send_request(self, operation: EngineOperation, perform: Callable[[], T]) -> T:
        """One request and its reply, with what befalls them on the way.

        Raises `Unavailable` when the request was never sent, `ReplyLost` when it was sent in vain, `LogSaysNo`.
        """
        life = self.session_number
        self.require_session(life)
        fault = self.draw_fault(operation)
        self.require_session(life)
        if self.is_disconnected():
            await self.simulate_delay(self._timeout_s)
            raise LogUnavailable("the log in memory cannot be reached: the line to it is cut")
        sent_s = self.world.monotonic_s()
        delay = fault if isinstance(fault, DelayFault) else DelayFault()
        await self.simulate_delay(delay.request_s)
        if isinstance(fault, LoseRequestFault) or self.is_disconnected() or life != self.session_number:
            await self._lose(life)
        if isinstance(fault, RefuseFault):
            raise MemoryLogRefusal(fault.why)
        reply = perform()
        if isinstance(fault, CrashFault):
            self.crash()
        if isinstance(fault, LoseReplyFault):
            await self._lose(life)
        await self.simulate_delay(delay.reply_s)
        if self.is_disconnected() or life != self.session_number:
            await self._lose(life)
        self._contact_s = sent_s
        return reply

    async def _lose(self, life: int) -> None:
        if life == self.session_number:
            await self.simulate_delay(self._timeout_s)
        raise MemoryReplyLost(self._why_shut or "no reply came from the log in memory")

    async def call_log(self, operation: EngineOperation, perform: Callable[[], T]) -> T:
        """As `send`, for requests that may be asked again: whatever goes wrong is `Unavailable`."""
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
        try:
            return await self.send_request(EngineOperation.COMMIT, lambda: self.log.commit(write))
        except MemoryLogRefusal as error:
            return WriteRejected(str(error))
        except MemoryReplyLost as error:
            return WriteOutcomeUnknown(str(error))

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await self.call_log(EngineOperation.FIND, lambda: self.log.find_write(write_id, since))

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
        everything = [row async for some in records for row in some]
        return await self.call_log(EngineOperation.RESTORE, lambda: self.log.replace_records(everything, position))

    async def read_health(self) -> LogHealth:
        log = self.log
        return await self.call_log(
            EngineOperation.HEALTH,
            lambda: LogHealth(writable=not log.full_reason, why=log.full_reason, size_bytes=log.compute_size_bytes()),
        )

    def get_last_contact_s(self) -> float | None:
        if self._contact_s is not None and not self._why_shut and not self.is_disconnected():
            self._contact_s = self.world.monotonic_s()
        return self._contact_s


class MemoryLoad:
    """A full read: the rows are taken at one moment and handed out in slices."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._door = engine
        self._standing: LogPosition | None = None

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        door = self._door
        rows, standing = await door.call_log(
            EngineOperation.LOAD, lambda: (door.log.list_records(), door.log.get_position())
        )
        for start in range(0, len(rows), door.slice_rows):
            yield rows[start : start + door.slice_rows]
            await door.simulate_delay()
        self._standing = standing

    async def get_position(self) -> LogPosition:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing


class MemoryFeed:
    """Batches as they come, to one follower."""

    def __init__(self, engine: MemoryEngine, after: int) -> None:
        self._door = engine
        self._after = after
        self._life = engine.session_number
        self._epoch = engine.log.epoch

    def __aiter__(self) -> "MemoryFeed":
        return self

    async def __anext__(self) -> Batch:
        door = self._door
        await door.simulate_delay()
        while True:
            await self._require_line()
            batch = door.log.find_next_batch(self._after, self._epoch)
            if batch is not None:
                break
            await door.log.wait_changed()
        fault = door.draw_fault(EngineOperation.FEED)
        if isinstance(fault, CancelWatchFault):
            raise LogUnavailable("the log in memory ended the feed")
        if isinstance(fault, DelayFault):
            await door.simulate_delay(fault.request_s + fault.reply_s)
        await self._require_line()
        self._after = batch.index
        return batch

    async def _require_line(self) -> None:
        door = self._door
        door.require_session(self._life)
        if door.is_disconnected():
            await door.simulate_delay(0.0)
            raise LogUnavailable("the feed of the log in memory broke off: the line is cut")


class MemoryLease:
    """Kept alive by a task of its own for as long as the door lives and the log agrees."""

    def __init__(self, engine: MemoryEngine, lease_id: int, ttl_s: float, valid_until_s: float) -> None:
        self.id = lease_id
        self._door = engine
        self._ttl_s = ttl_s
        self._valid_until_s = valid_until_s

    def get_valid_until_s(self) -> float:
        return self._valid_until_s

    async def revoke(self) -> None:
        self._valid_until_s = float("-inf")
        self._door.stop_keepalive(self.id)
        await self._door.call_log(EngineOperation.REVOKE, lambda: self._door.log.revoke_lease(self.id))

    async def keep_alive(self) -> None:
        door = self._door
        pause_s = self._ttl_s / 3
        while True:
            await door.simulate_delay(pause_s)
            sent_s = door.world.monotonic_s()
            try:
                held = await door.call_log(EngineOperation.KEEPALIVE, lambda: door.log.renew_lease(self.id))
            except LogUnavailable:
                # The lease may still live; a renewal that comes through in time saves it.
                pause_s = self._ttl_s / 10
                continue
            if not held:
                return
            self._valid_until_s = max(self._valid_until_s, sent_s + self._ttl_s)
            pause_s = self._ttl_s / 3
