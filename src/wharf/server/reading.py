"""Who may read now: default reads pass a barrier, stale ones do not; and how a read waits for a change."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wharf.engines.port import Engine, Unavailable
from wharf.model.refusal import Code, Refusal, no_leader
from wharf.server.follower import Follower
from wharf.state import Replica, Watched
from wharf.state.tables import LEADER
from wharf.world import World

LEADER_WAIT_S: Final = 5.0
LOOK_FOR_LEADER_S: Final = 0.1
CONTACT_LOST_S: Final = 5.0
"""Without a sign of the log for so long, nobody can say that a leader is known."""


class Found(msgspec.Struct, frozen=True):
    """What a read found, the index that it stands for, and what would change it."""

    value: object
    index: int
    watched: Sequence[Watched]


class Reader:
    """One process's way to read."""

    def __init__(self, world: World, engine: Engine, follower: Follower) -> None:
        self._world = world
        self._engine = engine
        self._follower = follower
        self._is_closing = False
        self.on_close: list[Callable[[], None]] = []
        """Called when this process stops serving: whoever waits elsewhere ends too."""
        self._waiting: dict[asyncio.Event, None] = {}
        self._barrier_in_flight: asyncio.Task[int] | None = None
        self._barrier_waiting: asyncio.Task[int] | None = None

    def knows_leader(self) -> bool:
        """A live leader record is known, and the log was heard of lately."""
        contact = self.last_contact_ms()
        return (
            self._follower.replica.get(LEADER) is not None and contact is not None and contact < CONTACT_LOST_S * 1_000
        )

    @property
    def waiting_count(self) -> int:
        """How many blocking queries wait just now."""
        return len(self._waiting)

    def last_contact_ms(self) -> int | None:
        """How old the newest proof is that the log is there; None: there never was one."""
        at = self._engine.last_contact_s()
        return None if at is None else max(0, round((self._world.monotonic_s() - at) * 1_000))

    async def catch_up(self) -> None:
        """The replica has everything that was acknowledged before this call, by anybody in the region.

        Waits for a leader, and for the log, up to five seconds together.
        """
        try:
            async with asyncio.timeout(LEADER_WAIT_S):
                while not await self._is_caught_up():
                    if self._is_closing:
                        raise no_leader()
                    # Contact comes back without a change of any record, so this looks now and then instead of watching.
                    await asyncio.sleep(LOOK_FOR_LEADER_S)
        except TimeoutError:
            raise no_leader() from None

    async def _is_caught_up(self) -> bool:
        if not self.knows_leader():
            return False
        try:
            index = await self._shared_barrier()
        except Unavailable:
            return False
        await self._follower.reached(index)
        return True

    async def _shared_barrier(self) -> int:
        """One barrier serves every caller that came before it began; those who come later share the next one."""
        if self._barrier_waiting is None:
            before = self._barrier_in_flight
            self._barrier_waiting = self._world.start(self._barrier_after(before), name="barrier")
            self._barrier_waiting.add_done_callback(_look_at)
        return await asyncio.shield(self._barrier_waiting)

    async def _barrier_after(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._barrier_in_flight, self._barrier_waiting = self._barrier_waiting, None
        return await self._engine.barrier()

    async def blocking(
        self,
        read: Callable[[Replica], Found],
        *,
        index: int,
        wait_s: float,
        caller: asyncio.Future[None] | None = None,
        is_caught_up: bool = False,
    ) -> Found:
        """Read until the result's index is above `index`, or until the time is over; then whatever is there.

        Rearm, read, and only then wait, without a pause between: no change can fall in between. A replica that has not
        reached `index` waits here too; if it has not when the time is over, it does not answer with an older state but
        says so; `is_caught_up`: it has all that was acknowledged when it was asked, so an
        index above it is of another past, and the answer tells the lower one. `caller` is done when nobody waits for the
        answer any more.
        """
        found = read(self._follower.replica)
        if found.index > index or self._is_closing:
            return found
        changed = asyncio.Event()
        subscription = self._follower.replica.watches.subscribe(found.watched, changed.set)
        self._waiting[changed] = None

        def on_caller_gone(_: asyncio.Future[None]) -> None:
            changed.set()

        if caller is not None:
            caller.add_done_callback(on_caller_gone)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    changed.clear()
                    subscription.rearm()
                    found = read(self._follower.replica)
                    is_over = self._is_closing or (caller is not None and caller.done())
                    if found.index > index or is_over:
                        return found
                    await changed.wait()
        except TimeoutError:
            return self._read_at_the_end(read, 0 if is_caught_up else index)
        finally:
            subscription.end()
            del self._waiting[changed]
            if caller is not None:
                caller.remove_done_callback(on_caller_gone)

    def _read_at_the_end(self, read: Callable[[Replica], Found], index: int) -> Found:
        standing = self._follower.replica.index
        if standing < index:
            raise Refusal(
                Code.UNAVAILABLE,
                f"this server stands at index {standing}, behind the {index} that you have seen; ask again, or another",
            )
        return read(self._follower.replica)

    async def finish(self) -> None:
        """After `close`: until nothing that was begun for readers is on its way any more."""
        begun = [barrier for barrier in (self._barrier_in_flight, self._barrier_waiting) if barrier is not None]
        if begun:
            await asyncio.wait(begun)

    def close(self) -> None:
        """Every waiter is answered at once with what is there."""
        self._is_closing = True
        for changed in self._waiting:
            changed.set()
        for close in self.on_close:
            close()


def _look_at(barrier: asyncio.Task[int]) -> None:
    """Whoever waited has gone perhaps; what became of the barrier is then of interest to nobody."""
    if not barrier.cancelled():
        barrier.exception()
