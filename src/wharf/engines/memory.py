"""The engine `memory`: a member's door to a `MemoryLog`, and the roads between them.

For tests and simulation. Everything that can go wrong on the way goes wrong here, as the door's `Faults` say: slow,
lost and refused requests, lost replies, late and cancelled feeds, cut lines, crashes. Time comes from the world,
waiting is done on futures and timers of the running loop, and tasks start through the world only, so that a whole
cluster replays from one seed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from wharf.engines.faults import (
    CancelWatch,
    CompactAll,
    Crash,
    Delay,
    Fault,
    Faults,
    LoseReply,
    LoseRequest,
    Operation,
    Refuse,
)
from wharf.engines.memory_log import MemoryLog
from wharf.engines.port import Batch, Health, LogWrite, Outcome, Refused, Row, Standing, Unavailable, Unknown
from wharf.world import World

T = TypeVar("T")


class ReplyLost(Exception):
    """The request was sent and no reply came: nobody can tell here whether the log did what was asked."""


class LogSaysNo(Exception):
    """The log refused and did nothing."""


class MemoryEngine:
    """`timeout_s` is how long the door waits for a reply that does not come, `slice_rows` the rows a load gives at once."""

    def __init__(
        self,
        world: World,
        log: MemoryLog,
        *,
        faults: Faults | None = None,
        single_server: bool = True,
        timeout_s: float = 2.0,
        slice_rows: int = 1_000,
    ) -> None:
        self.bounds = log.bounds
        self.single_server = single_server
        self.faults = faults if faults is not None else Faults()
        self.world = world
        self.log = log
        self.slice_rows = slice_rows
        self.life = 0  # Counts the times that the door was opened or died, so that what was begun before ends.
        self._why_shut = "the log in memory was not opened"
        self._timeout_s = timeout_s
        self._contact_s: float | None = None
        self._keepalives: dict[int, asyncio.Task[None]] = {}

    # --- opening and dying ---

    async def open(self) -> None:
        self._why_shut = ""
        self.life += 1
        try:
            await self.exchange(Operation.OPEN, lambda: None)
        except Unavailable as error:
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
        self.life += 1
        for keepalive in self._keepalives.values():
            keepalive.cancel()
        self._keepalives.clear()
        self.log.wake()

    # --- the road to the log and back ---

    def is_cut(self) -> bool:
        return self.faults.is_cut(now_s=self.world.monotonic_s())

    def require(self, life: int) -> None:
        """Raise unless the door has been open all the time since `life`."""
        if self._why_shut or life != self.life:
            raise Unavailable(self._why_shut or "the door to the log in memory was opened anew")

    async def travel(self, for_s: float = 0.0) -> None:
        await asyncio.sleep(for_s)

    def strike(self, operation: Operation) -> Fault | None:
        fault = self.faults.strike(operation, now_s=self.world.monotonic_s())
        if isinstance(fault, CompactAll):
            self.log.compact(self.log.index + 1)
        if isinstance(fault, Crash) and not fault.after:
            self.crash()
        return fault

    async def send(self, operation: Operation, act: Callable[[], T]) -> T:
        """One request and its reply, with what befalls them on the way.

        Raises `Unavailable` when the request was never sent, `ReplyLost` when it was sent in vain, `LogSaysNo`.
        """
        life = self.life
        self.require(life)
        fault = self.strike(operation)
        self.require(life)
        if self.is_cut():
            await self.travel(self._timeout_s)
            raise Unavailable("the log in memory cannot be reached: the line to it is cut")
        sent_s = self.world.monotonic_s()
        delay = fault if isinstance(fault, Delay) else Delay()
        await self.travel(delay.request_s)
        if isinstance(fault, LoseRequest) or self.is_cut() or life != self.life:
            await self._lose(life)
        if isinstance(fault, Refuse):
            raise LogSaysNo(fault.why)
        reply = act()
        if isinstance(fault, Crash):
            self.crash()
        if isinstance(fault, LoseReply):
            await self._lose(life)
        await self.travel(delay.reply_s)
        if self.is_cut() or life != self.life:
            await self._lose(life)
        self._contact_s = sent_s
        return reply

    async def _lose(self, life: int) -> None:
        if life == self.life:
            await self.travel(self._timeout_s)
        raise ReplyLost(self._why_shut or "no reply came from the log in memory")

    async def exchange(self, operation: Operation, act: Callable[[], T]) -> T:
        """As `send`, for requests that may be asked again: whatever goes wrong is `Unavailable`."""
        try:
            return await self.send(operation, act)
        except (ReplyLost, LogSaysNo) as error:
            raise Unavailable(str(error)) from error

    # --- the port ---

    def load(self) -> "MemoryLoad":
        return MemoryLoad(self)

    def follow(self, after: int) -> AsyncIterator[Batch]:
        return MemoryFeed(self, after)

    async def commit(self, write: LogWrite) -> Outcome:
        try:
            return await self.send(Operation.COMMIT, lambda: self.log.commit(write))
        except LogSaysNo as error:
            return Refused(str(error))
        except ReplyLost as error:
            return Unknown(str(error))

    async def find(self, write_id: str, *, since: int) -> int | None:
        return await self.exchange(Operation.FIND, lambda: self.log.find(write_id, since))

    async def barrier(self) -> int:
        return await self.exchange(Operation.BARRIER, lambda: self.log.head)

    async def grant(self, ttl_s: float) -> "MemoryLease":
        before_s = self.world.monotonic_s()
        lease_id = await self.exchange(Operation.GRANT, lambda: self.log.grant(ttl_s))
        lease = MemoryLease(self, lease_id, ttl_s, before_s + ttl_s)
        self._keepalives[lease_id] = self.world.start(lease.keep_alive(), name=f"keepalive of lease {lease_id}")
        return lease

    def stop_keepalive(self, lease_id: int) -> None:
        keepalive = self._keepalives.pop(lease_id, None)
        if keepalive is not None:
            keepalive.cancel()

    async def compact(self, before: int) -> None:
        await self.exchange(Operation.COMPACT, lambda: self.log.compact(before))

    async def restore(self, rows: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
        everything = [row async for some in rows for row in some]
        return await self.exchange(Operation.RESTORE, lambda: self.log.replace(everything, standing))

    async def health(self) -> Health:
        log = self.log
        return await self.exchange(
            Operation.HEALTH, lambda: Health(writable=not log.full, why=log.full, size_bytes=log.size_bytes())
        )

    def last_contact_s(self) -> float | None:
        if self._contact_s is not None and not self._why_shut and not self.is_cut():
            self._contact_s = self.world.monotonic_s()
        return self._contact_s


class MemoryLoad:
    """A full read: the rows are taken at one moment and handed out in slices."""

    def __init__(self, door: MemoryEngine) -> None:
        self._door = door
        self._standing: Standing | None = None

    async def slices(self) -> AsyncIterator[Sequence[Row]]:
        door = self._door
        rows, standing = await door.exchange(Operation.LOAD, lambda: (door.log.rows(), door.log.standing()))
        for start in range(0, len(rows), door.slice_rows):
            yield rows[start : start + door.slice_rows]
            await door.travel()
        self._standing = standing

    async def standing(self) -> Standing:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing


class MemoryFeed:
    """Batches as they come, to one follower."""

    def __init__(self, door: MemoryEngine, after: int) -> None:
        self._door = door
        self._after = after
        self._life = door.life
        self._epoch = door.log.epoch

    def __aiter__(self) -> "MemoryFeed":
        return self

    async def __anext__(self) -> Batch:
        door = self._door
        await door.travel()
        while True:
            await self._require_line()
            batch = door.log.next_after(self._after, self._epoch)
            if batch is not None:
                break
            await door.log.moved()
        fault = door.strike(Operation.FEED)
        if isinstance(fault, CancelWatch):
            raise Unavailable("the log in memory ended the feed")
        if isinstance(fault, Delay):
            await door.travel(fault.request_s + fault.reply_s)
        await self._require_line()
        self._after = batch.index
        return batch

    async def _require_line(self) -> None:
        door = self._door
        door.require(self._life)
        if door.is_cut():
            await door.travel(0.0)
            raise Unavailable("the feed of the log in memory broke off: the line is cut")


class MemoryLease:
    """Kept alive by a task of its own for as long as the door lives and the log agrees."""

    def __init__(self, door: MemoryEngine, lease_id: int, ttl_s: float, valid_until_s: float) -> None:
        self.id = lease_id
        self._door = door
        self._ttl_s = ttl_s
        self._valid_until_s = valid_until_s

    def valid_until_s(self) -> float:
        return self._valid_until_s

    async def revoke(self) -> None:
        self._valid_until_s = float("-inf")
        self._door.stop_keepalive(self.id)
        await self._door.exchange(Operation.REVOKE, lambda: self._door.log.revoke(self.id))

    async def keep_alive(self) -> None:
        door = self._door
        pause_s = self._ttl_s / 3
        while True:
            await door.travel(pause_s)
            sent_s = door.world.monotonic_s()
            try:
                held = await door.exchange(Operation.KEEPALIVE, lambda: door.log.renew(self.id))
            except Unavailable:
                # The lease may still live; a renewal that comes through in time saves it.
                pause_s = self._ttl_s / 10
                continue
            if not held:
                return
            self._valid_until_s = max(self._valid_until_s, sent_s + self._ttl_s)
            pause_s = self._ttl_s / 3
