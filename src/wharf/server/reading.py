"""Who may read now: default reads pass a barrier, stale ones do not; and how a read waits for a change."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wharf.engines.port import Engine, Unavailable
from wharf.model.refusal import no_leader
from wharf.server.follower import Follower
from wharf.state import Replica, Watched
from wharf.state.tables import LEADER
from wharf.world import World

LEADER_WAIT_S: Final = 5.0
LOOKS_FOR_LEADER: Final = 50
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
        self._waiting: dict[asyncio.Event, None] = {}
        self._barrier_in_flight: asyncio.Task[int] | None = None
        self._barrier_waiting: asyncio.Task[int] | None = None

    def knows_leader(self) -> bool:
        """A live leader record is known, and the log was heard of lately."""
        contact = self.last_contact_ms()
        return (
            self._follower.replica.get(LEADER) is not None and contact is not None and contact < CONTACT_LOST_S * 1_000
        )

    def last_contact_ms(self) -> int | None:
        """How old the newest proof is that the log is there; None: there never was one."""
        at = self._engine.last_contact_s()
        return None if at is None else max(0, round((self._world.monotonic_s() - at) * 1_000))

    async def catch_up(self) -> None:
        """The replica has everything that was acknowledged before this call, by anybody in the region."""
        await self._wait_for_leader()
        try:
            index = await self._shared_barrier()
        except Unavailable as away:
            raise no_leader() from away
        await self._follower.reached(index)

    async def _wait_for_leader(self) -> None:
        if self.knows_leader():
            return
        # Contact comes back without a change of any record, so this looks now and then instead of watching.
        for _ in range(LOOKS_FOR_LEADER):
            await asyncio.sleep(LEADER_WAIT_S / LOOKS_FOR_LEADER)
            if self.knows_leader():
                return
        raise no_leader()

    async def _shared_barrier(self) -> int:
        """One barrier serves every caller that came before it began; those who come later share the next one."""
        if self._barrier_waiting is None:
            before = self._barrier_in_flight
            self._barrier_waiting = self._world.start(self._barrier_after(before), name="barrier")
        return await asyncio.shield(self._barrier_waiting)

    async def _barrier_after(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._barrier_in_flight, self._barrier_waiting = self._barrier_waiting, None
        return await self._engine.barrier()

    async def blocking(self, read: Callable[[Replica], Found], *, index: int, wait_s: float) -> Found:
        """Read until the result's index is above `index`, or until the time is over; then whatever is there.

        Rearm, read, and only then wait, without a pause between: no change can fall in between. A replica that has not
        reached `index` yet waits here too, and so never answers with a lower one before the time is over.
        """
        found = read(self._follower.replica)
        if found.index > index or self._is_closing:
            return found
        changed = asyncio.Event()
        subscription = self._follower.replica.watches.subscribe(found.watched, changed.set)
        self._waiting[changed] = None
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    changed.clear()
                    subscription.rearm()
                    found = read(self._follower.replica)
                    if found.index > index or self._is_closing:
                        return found
                    await changed.wait()
        except TimeoutError:
            return read(self._follower.replica)
        finally:
            subscription.end()
            del self._waiting[changed]

    def close(self) -> None:
        """Every waiter is answered at once with what is there."""
        self._is_closing = True
        for changed in self._waiting:
            changed.set()
