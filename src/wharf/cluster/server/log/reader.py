"""Reads from the replica: consistent reads wait for a log barrier, stale reads do not, blocking reads wait for a
change.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from wharf.cluster.engines.port import LogEngine, LogUnavailable
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.loop_slots import LoopSlots, continue_in_slot
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.times import SECOND
from wharf.contract.wire.times import format_time
from wharf.world import World

LEADER_TIMEOUT_S: Final = 5.0
"""How long a consistent read waits for a leader and the log, and an operation of the leader for a leader."""
KNOWN_OUTAGE_AFTER_S: Final = 10.0
"""After this time without contact to the log, reads no longer wait for `LEADER_TIMEOUT_S`: an election of the store is over."""
KNOWN_OUTAGE_TIMEOUT_S: Final = 1.5
"""How long a read waits then. Less than the 2.5 s in which a client with several servers expects a reply of each, so that
the client receives the reason and does not take this server for a frozen one."""
LEADER_POLL_INTERVAL_S: Final = 0.1
"""How often a waiting read checks for a leader."""
WOKEN_READS_PER_ITERATION: Final = 50
"""Blocking queries that read again in one iteration of the event loop after a change. A read takes 0.02 to 0.3 ms, and one write can
wake thousands."""
CONTACT_LOST_AFTER_S: Final = 5.0
"""After this time without contact to the log, no leader counts as known."""


class ReadResult(msgspec.Struct, frozen=True):
    """The result of a read that a blocking query can wait on."""

    value: object
    index: int
    """Log index of the last change of the value."""
    watched: Sequence[WatchTarget]
    """What to watch for the next change of the value."""


class ChangeWaiter:
    """One blocking query that waits for a change, a timeout or a disconnect. Small, because 10,000 can wait at once."""

    __slots__ = ("_future", "_is_woken", "is_cancelled", "is_timed_out")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False
        self.is_cancelled = False
        self.is_timed_out = False

    def wake(self) -> None:
        """Wake the waiter, or its next `wait`."""
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def cancel(self) -> None:
        """Wake the waiter because the client disconnected."""
        self.is_cancelled = True
        self.wake()

    def time_out(self) -> None:
        """Wake the waiter because its time is over."""
        self.is_timed_out = True
        self.wake()

    async def wait(self) -> None:
        """Wait until woken. Returns at once if `wake` was called since the last wait."""
        if not self._is_woken:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._is_woken = False


class Reader:
    """Consistent and blocking reads of one process, from its replica."""

    def __init__(self, world: World, engine: LogEngine, follower: Follower) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._is_closing = False
        self.hides_store = False
        """Whether `describe_outage` leaves out the addresses of the store, because not every caller may know them."""
        self.close_listeners: list[Callable[[], None]] = []
        """Called when this process stops serving, to end other waiting requests."""
        self._change_waiters: dict[ChangeWaiter, None] = {}
        self._woken_reads = LoopSlots(WOKEN_READS_PER_ITERATION)
        self._barrier_waiters: list[asyncio.Future[int | None]] = []
        self._barrier_task: asyncio.Task[None] | None = None
        self._barrier_failure = ""
        """Why the last barrier failed; empty if it succeeded."""

    def describe_outage(self, *, for_operators: bool = False) -> str:
        """Return since when and why the store of the log does not reply; empty while it replies.

        The reason names the addresses of the store. With `hides_store`, it is only for callers who may read the agent.
        """
        contact_s = self._engine.get_last_contact_s()
        reason = self._follower.outage_reason or self._barrier_failure or "it does not reply"
        detail = f": {reason}" if for_operators or not self.hides_store else ""
        if contact_s is None:
            return f"the store was never reached{detail}"
        silence_s = self._world.monotonic_s() - contact_s
        if silence_s < CONTACT_LOST_AFTER_S and not self._follower.outage_reason:
            return ""
        # Whole seconds: the text stays the same while the outage lasts.
        since = format_time(round(self._world.now_ns() / SECOND - silence_s) * SECOND)
        return f"the store has not replied since {since}{detail}"

    def has_leader(self) -> bool:
        """Whether the replica has a leader record and the log replied within `CONTACT_LOST_AFTER_S`."""
        return self._has_contact() and self._follower.replica.get(LEADER) is not None

    def _has_contact(self) -> bool:
        """Whether the log replied within `CONTACT_LOST_AFTER_S`."""
        contact_s = self._engine.get_last_contact_s()
        return contact_s is not None and self._world.monotonic_s() - contact_s < CONTACT_LOST_AFTER_S

    def _is_outage_known(self) -> bool:
        """Whether the log has not replied for `KNOWN_OUTAGE_AFTER_S`, and the reason is known.

        A short interruption is unlikely then, and the refusal names the reason.
        """
        if not (self._follower.outage_reason or self._barrier_failure):
            return False
        contact_s = self._engine.get_last_contact_s()
        return contact_s is not None and self._world.monotonic_s() - contact_s >= KNOWN_OUTAGE_AFTER_S

    @property
    def waiter_count(self) -> int:
        """How many blocking queries wait now."""
        return len(self._change_waiters)

    def last_contact_ms(self) -> int | None:
        """Return the milliseconds since the last contact with the log; `None` if there was none."""
        contact_s = self._engine.get_last_contact_s()
        return None if contact_s is None else max(0, round((self._world.monotonic_s() - contact_s) * 1_000))

    async def catch_up(self) -> None:
        """Wait until the replica has every write of the region that was acknowledged before this call.

        Raises `Refusal` if there is no leader or the log does not answer within `LEADER_TIMEOUT_S`, or less if the log
        has not answered for a while.
        """
        await self._wait_until_caught_up()
        await continue_in_slot()

    async def _wait_until_caught_up(self) -> None:
        """Wait as `catch_up` does. All that wait continue in the same iteration of the event loop."""
        began_s, is_outage_known = self._world.monotonic_s(), self._is_outage_known()
        if not is_outage_known and await self._is_caught_up():
            return
        limit_s = KNOWN_OUTAGE_TIMEOUT_S if is_outage_known else LEADER_TIMEOUT_S
        try:
            async with asyncio.timeout(began_s + limit_s - self._world.monotonic_s()):
                while not await self._is_caught_up():
                    if self._is_closing:
                        raise no_leader()
                    # Contact with the log returns without a record change, so there is nothing to watch: poll.
                    await asyncio.sleep(LEADER_POLL_INTERVAL_S)
        except TimeoutError:
            raise no_leader() from None

    async def wait_for_leader(self) -> None:
        """Wait until the replica has a leader record, at most as long as a consistent read waits.

        For operations that the leader executes: without a leader, they are then refused.
        """
        if self._follower.replica.get(LEADER) is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_OUTAGE_TIMEOUT_S if self._is_outage_known() else LEADER_TIMEOUT_S):
                while self._follower.replica.get(LEADER) is None:
                    if self._is_closing:
                        return
                    await asyncio.sleep(LEADER_POLL_INTERVAL_S)

    async def _is_caught_up(self) -> bool:
        """Find out the newest index of the log and wait until the replica has reached it. Return whether that succeeded.

        The index is the one that the log has published, or else that of a barrier. Returns false if there is no leader
        or the log does not answer.
        """
        if not self._has_contact():
            await (
                self.read_newest_index()
            )  # Restores contact, or finds out for `describe_outage` why the log does not reply.
        if not self.has_leader():
            return False
        index = self._engine.read_published_index()
        if index is None:
            index = await self.read_newest_index()
        if index is None:
            return False
        if self._follower.replica.index < index:
            await self._follower.wait_until_applied(index)
        return True

    async def read_newest_index(self) -> int | None:
        """Return the newest index of the log, as of this call or later; `None` if the log does not answer in time.

        Callers that arrive before a barrier request starts share it; later callers share the next one. Each caller has
        its own future: this is cheaper than sharing one, and a cancelled caller does not affect the others.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int | None] = loop.create_future()
        timer = loop.call_later(LEADER_TIMEOUT_S, _set_index, future, None)
        self._barrier_waiters.append(future)
        if self._barrier_task is None:
            self._barrier_task = self._world.start_task(self._serve_barriers(), name="barrier")
        try:
            return await future
        finally:
            timer.cancel()

    async def _serve_barriers(self) -> None:
        """Request one barrier after another from the log and give the index to all waiting callers, until none waits."""
        try:
            while self._barrier_waiters:
                waiters, self._barrier_waiters = self._barrier_waiters, []
                index: int | None
                try:
                    index = await self._engine.barrier()
                    self._barrier_failure = ""
                except LogUnavailable as error:
                    index = None
                    self._barrier_failure = str(error)
                except Exception as error:  # Pass unexpected errors to the waiting callers.
                    for future in waiters:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for future in waiters:
                    _set_index(future, index)
        finally:
            self._barrier_task = None

    async def read_blocking(
        self,
        read: Callable[[Replica], ReadResult],
        *,
        index: int,
        wait_s: float,
        on_wait: Callable[[Callable[[], None]], None] = lambda _: None,
        is_caught_up: bool = False,
        wait_for_slot: Callable[[], Awaitable[None]] | None = None,
    ) -> ReadResult:
        """Call `read` until the index of its result exceeds `index` or `wait_s` is over, and return the newest result.

        The watch begins with the first read and is rearmed before each later one, without an await in between, so no
        change is missed. If the replica has not reached `index` when the time is over, raises `Refusal` instead of
        returning an older state. `is_caught_up`:
        the replica already passed a barrier, so a higher `index` belongs to a replaced log and the lower one is
        returned. `on_wait` is called when the wait begins, and receives a function to call when the client disconnects.
        `wait_for_slot` is awaited before a change is returned; the result is then read again, so that it contains all
        changes up to that time.
        """
        result = read(self._follower.replica)
        if self._is_closing:
            return result
        if result.index > index:
            if wait_for_slot is None:
                return result
            await wait_for_slot()
            return read(self._follower.replica)
        waiter = ChangeWaiter()
        subscription = self._follower.replica.watches.subscribe(result.watched, waiter.wake)
        self._change_waiters[waiter] = None
        on_wait(waiter.cancel)
        timer = asyncio.get_running_loop().call_later(wait_s, waiter.time_out)
        try:
            while True:
                if result.index > index or self._is_closing or waiter.is_cancelled:
                    return result
                if waiter.is_timed_out:
                    return self._read_after_timeout(read, 0 if is_caught_up else index)
                await waiter.wait()
                if not self._is_closing:
                    await self._woken_reads.begin()
                if wait_for_slot is not None and not (self._is_closing or waiter.is_cancelled or waiter.is_timed_out):
                    await wait_for_slot()
                subscription.rearm()
                result = read(self._follower.replica)
        finally:
            timer.cancel()
            subscription.close()
            del self._change_waiters[waiter]

    def _read_after_timeout(self, read: Callable[[Replica], ReadResult], index: int) -> ReadResult:
        """Return the result of a blocking query whose time is over.

        Raises `Refusal` if the replica is behind `index`.
        """
        replica_index = self._follower.replica.index
        if replica_index < index:
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                f"this server is at index {replica_index}, behind requested index {index}; retry, or use another server",
            )
        return read(self._follower.replica)

    async def wait_closed(self) -> None:
        """Wait until no barrier request is in flight. Call this after `close`."""
        if self._barrier_task is not None:
            await asyncio.wait([self._barrier_task])

    def close(self) -> None:
        """End all blocking queries: each returns its current result. Also calls `close_listeners`."""
        self._is_closing = True
        for waiter in self._change_waiters:
            waiter.wake()
        for close in self.close_listeners:
            close()


def _set_index(future: asyncio.Future[int | None], index: int | None) -> None:
    """Give the index to a waiting caller, unless it was cancelled or timed out."""
    if not future.done():  # The caller may be cancelled or timed out.
        future.set_result(index)
