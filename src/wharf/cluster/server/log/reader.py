"""Who may read now: default reads pass a barrier, stale ones do not; and how a read waits for a change."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wharf.cluster.engines.port import LogEngine, LogUnavailable
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.world import World

LEADER_TIMEOUT_S: Final = 5.0
LEADER_POLL_INTERVAL_S: Final = 0.1
CONTACT_LOST_AFTER_S: Final = 5.0
"""Without a sign of the log for so long, nobody can say that a leader is known."""


class ReadResult(msgspec.Struct, frozen=True):
    """What a read found, the index that it stands for, and what would change it."""

    value: object
    index: int
    watched: Sequence[WatchTarget]


class ChangeWaiter:
    """One who waits for a change, for the end of its time, or until nobody wants to know any more. Ten thousand of them
    wait at once, so it holds no more than it needs."""

    __slots__ = ("_future", "_is_woken", "is_cancelled", "is_timed_out")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False
        self.is_cancelled = False
        self.is_timed_out = False

    def wake(self) -> None:
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.wake()

    def time_out(self) -> None:
        self.is_timed_out = True
        self.wake()

    async def wait(self) -> None:
        """Until it is woken, or was since it waited last."""
        if not self._is_woken:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._is_woken = False


class Reader:
    """One process's way to read."""

    def __init__(self, world: World, engine: LogEngine, follower: Follower) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._is_closing = False
        self.close_listeners: list[Callable[[], None]] = []
        """Called when this process stops serving: whoever waits elsewhere ends too."""
        self._waiting: dict[ChangeWaiter, None] = {}
        self._before_barrier: list[asyncio.Future[int | None]] = []
        self._barriers: asyncio.Task[None] | None = None

    def has_leader(self) -> bool:
        """A live leader record is known, and the log was heard of lately."""
        at = self._engine.get_last_contact_s()
        if at is None or self._world.monotonic_s() - at >= CONTACT_LOST_AFTER_S:
            return False
        return self._follower.replica.get(LEADER) is not None

    @property
    def waiter_count(self) -> int:
        """How many blocking queries wait just now."""
        return len(self._waiting)

    def last_contact_ms(self) -> int | None:
        """How old the newest proof is that the log is there; None: there never was one."""
        at = self._engine.get_last_contact_s()
        return None if at is None else max(0, round((self._world.monotonic_s() - at) * 1_000))

    async def catch_up(self) -> None:
        """The replica has everything that was acknowledged before this call, by anybody in the region.

        Waits for a leader, and for the log, up to five seconds together.
        """
        began_s = self._world.monotonic_s()
        if await self._is_caught_up():
            return
        try:
            async with asyncio.timeout(began_s + LEADER_TIMEOUT_S - self._world.monotonic_s()):
                while not await self._is_caught_up():
                    if self._is_closing:
                        raise no_leader()
                    # Contact comes back without a change of any record, so this looks now and then instead of watching.
                    await asyncio.sleep(LEADER_POLL_INTERVAL_S)
        except TimeoutError:
            raise no_leader() from None

    async def _is_caught_up(self) -> bool:
        if not self.has_leader():
            return False
        index = await self._next_barrier()
        if index is None:
            return False
        if self._follower.replica.index < index:
            await self._follower.wait_until_applied(index)
        return True

    async def _next_barrier(self) -> int | None:
        """The index of the log when it was asked after this call; None where it does not answer in time.

        One barrier serves every caller that came before it began; those who come later share the next one. Each waits
        for a future of its own, which costs less than sharing one, and one who leaves takes nothing from the others.
        """
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[int | None] = loop.create_future()
        late = loop.call_later(LEADER_TIMEOUT_S, _answer, passed, None)
        self._before_barrier.append(passed)
        if self._barriers is None:
            self._barriers = self._world.start_task(self._ask_for_barriers(), name="barrier")
        try:
            return await passed
        finally:
            late.cancel()

    async def _ask_for_barriers(self) -> None:
        """As long as somebody waits for one."""
        try:
            while self._before_barrier:
                served, self._before_barrier = self._before_barrier, []
                index: int | None
                try:
                    index = await self._engine.barrier()
                except LogUnavailable:
                    index = None
                except Exception as error:  # The top of a task: whoever waits must hear of it.
                    for passed in served:
                        if not passed.done():
                            passed.set_exception(error)
                    continue
                for passed in served:
                    _answer(passed, index)
        finally:
            self._barriers = None

    async def read_blocking(
        self,
        read: Callable[[Replica], ReadResult],
        *,
        index: int,
        wait_s: float,
        on_disconnect: Callable[[Callable[[], None]], None] = lambda _: None,
        is_caught_up: bool = False,
    ) -> ReadResult:
        """Read until the result's index is above `index`, or until the time is over; then whatever is there.

        Rearm, read, and only then wait, without a pause between: no change can fall in between. A replica that has not
        reached `index` waits here too; if it has not when the time is over, it does not answer with an older state but
        says so; `is_caught_up`: it has all that was acknowledged when it was asked, so an
        index above it is of another past, and the answer tells the lower one. `on_gone` is told what to call when
        nobody waits for the answer any more.
        """
        found = read(self._follower.replica)
        if found.index > index or self._is_closing:
            return found
        waiter = ChangeWaiter()
        subscription = self._follower.replica.watches.subscribe(found.watched, waiter.wake)
        self._waiting[waiter] = None
        on_disconnect(waiter.cancel)
        timer = asyncio.get_running_loop().call_later(wait_s, waiter.time_out)
        try:
            while True:
                subscription.rearm()
                found = read(self._follower.replica)
                if found.index > index or self._is_closing or waiter.is_cancelled:
                    return found
                if waiter.is_timed_out:
                    return self._read_at_the_end(read, 0 if is_caught_up else index)
                await waiter.wait()
        finally:
            timer.cancel()
            subscription.close()
            del self._waiting[waiter]

    def _read_at_the_end(self, read: Callable[[Replica], ReadResult], index: int) -> ReadResult:
        standing = self._follower.replica.index
        if standing < index:
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                f"this server stands at index {standing}, behind the {index} that you have seen; ask again, or another",
            )
        return read(self._follower.replica)

    async def wait_closed(self) -> None:
        """After `close`: until nothing that was begun for readers is on its way any more."""
        if self._barriers is not None:
            await asyncio.wait([self._barriers])

    def close(self) -> None:
        """Every waiter is answered at once with what is there."""
        self._is_closing = True
        for waiter in self._waiting:
            waiter.wake()
        for close in self.close_listeners:
            close()


def _answer(passed: asyncio.Future[int | None], index: int | None) -> None:
    if not passed.done():  # It may have left, or waited too long.
        passed.set_result(index)
