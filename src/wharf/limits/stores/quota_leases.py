"""Quota leases: a process takes a part of a caller's quota at a time and decides by itself until it is used.

What is admitted is charged before, so there is never more than the limit; at least the limit is admitted less what may be
stranded: of each set of counters one lease of each process. Only fixed windows of 1,000 and more are leased. A request that meets any other limit
asks the store. A lease lives a second, ends a margin before its window does, and what is left of it goes back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec

from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import Algorithm, RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.guard import RemoteStore
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.world import World

log = logging.getLogger(__name__)

MIN_CEILING: Final = 1_000
LEASE_TTL_MS: Final = 1_000
WINDOW_MARGIN_MS: Final = 250
MIN_REMAINING_PERCENT: Final = 10
MAX_CACHED_PLANS: Final = 16_384


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 50
    """How much a process takes at a time."""
    processes: int = 8
    """How many share the store. What may be stranded is at most this many times the size."""


class LeasableStore(RemoteStore, Protocol):
    """A store from which quota can be taken for later."""

    def record_admission(self, call: StoreCall, result: TakeResult) -> None: ...
    async def return_quota(self, charge: Charge, amount: int, end_ms: int, lease_id: str) -> bool: ...


class _Lease(msgspec.Struct, eq=False):
    id: str
    charges: tuple[Charge, ...]
    left: int
    before: int
    """The count of the bucket shown, of which the lease's own use is told."""
    befores: tuple[int, ...]
    taken_ms: int
    ends_ms: tuple[int, ...]
    void_ms: int


LeaseKey = tuple[tuple[str, str, int, int], ...]
"""Which counters a lease is of, under which ceilings and at which cost: callers that share them share the lease."""


class QuotaLeaseStore:
    """`clock` gives milliseconds that never step back, or a test's own: only differences to the store's are used."""

    def __init__(
        self,
        store: LeasableStore,
        world: World,
        settings: QuotaSettings | None = None,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.taken_leases = 0
        self.returned_leases = 0
        self._store = store
        self._world = world
        self._settings = settings or QuotaSettings()
        self._clock = clock or (lambda: int(world.monotonic_s() * 1_000))
        self._places: dict[ChargePlan, LeaseKey] = {}
        self._leases: dict[LeaseKey, _Lease] = {}
        self._direct_until_ms: dict[LeaseKey, int] = {}
        self._asked: dict[LeaseKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._sweeper = self._world.start_task(self._keep_sweeping(), name="limits: hand quota back")

    async def close(self) -> None:
        """Hand back what is held."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self.return_all()

    async def return_all(self) -> None:
        for place in list(self._leases):
            self._end(place)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # -- deciding --------------------------------------------------------------------------------------------------

    def _place(self, plan: ChargePlan) -> LeaseKey:
        place = self._places.get(plan)
        if place is None:
            if len(self._places) >= MAX_CACHED_PLANS:
                self._places.clear()
            place = tuple((charge.name, charge.key, charge.ceiling, charge.cost) for charge in plan.charges)
            self._places[plan] = place
        return place

    def take_now(self, call: StoreCall) -> TakeResult | None:
        """Decide by a lease that is held; None when the store has to be asked."""
        place = self._place(call.plan)
        lease = self._leases.get(place)
        if lease is None:
            return None
        cost = call.charges[0].cost
        if lease.left < cost or self._clock() >= lease.void_ms or call.charges is not call.plan.charges:
            self._end(place)
            return None
        lease.left -= cost
        before = lease.before
        lease.before += cost
        taken = TakeResult(True, lease.taken_ms, lease.befores, (), (), (), before, lease.ends_ms[0])
        self._store.record_admission(call, taken)
        return taken

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        if not self._is_leased(call):
            return self._store.start_take(call)
        return self._world.start_task(self._take_leased(call), name="limits: take quota")

    async def take(self, call: StoreCall) -> TakeResult:
        taken = self.take_now(call)
        return taken if taken is not None else await asyncio.shield(self.start_take(call))

    def _is_leased(self, call: StoreCall) -> bool:
        plan = call.plan
        return (
            call.charges is plan.charges
            and not plan.is_free
            and self._direct_until_ms.get(self._place(plan), 0) <= self._clock()
            and all(
                charge.rule.algorithm is Algorithm.WINDOW
                and charge.ceiling >= MIN_CEILING
                and charge.cost == charge.required == call.charges[0].cost
                and not charge.rule.is_partitioned
                for charge in call.charges
            )
        )

    async def _take_leased(self, call: StoreCall) -> TakeResult:
        place = self._place(call.plan)
        asked = self._asked.get(place)
        if asked is None:
            asked = self._asked[place] = self._world.start_task(self._ask_for_lease(call), name="limits: take a lease")
            asked.add_done_callback(lambda _: self._asked.pop(place, None))
        await asked
        taken = self.take_now(call)
        return taken if taken is not None else await self._store.start_take(call)

    async def _ask_for_lease(self, call: StoreCall) -> None:
        """Charge a whole lease, if there is plenty left; else the store decides until the window is over."""
        place, size, asked_ms = self._place(call.plan), self._settings.size * call.charges[0].cost, self._clock()
        readings = await self._store.peek(call.charges)
        least_ms = min(reading.end_ms for reading in readings)
        charges = tuple(msgspec.structs.replace(charge, cost=size, required=size) for charge in call.charges)
        lease = msgspec.structs.replace(call, id=self._world.new_id(), charges=charges)
        if self._has_little_left(call.charges, readings, size):
            self._direct_until_ms[place] = asked_ms + LEASE_TTL_MS
            self._bound_memory()
            return
        taken = await self._store.start_take(lease)
        if not taken.is_admitted:
            self._direct_until_ms[place] = asked_ms + LEASE_TTL_MS
            self._bound_memory()
            return
        self.taken_leases += 1
        ends = tuple(reading.end_ms for reading in await self._store.peek(call.charges))
        if min(ends) < least_ms or taken.bucket_end_ms != ends[0]:
            least_ms = taken.now_ms  # A window ended meanwhile: the lease is void at once, and goes back where it can.
        # Both moments are the store's, so that clocks need not agree: only what passes here since is added.
        lives_ms = min(LEASE_TTL_MS, min(least_ms, *ends) - taken.now_ms - WINDOW_MARGIN_MS)
        if place in self._leases:
            self._end(place)
        self._leases[place] = _Lease(
            lease.id,
            charges,
            size,
            taken.bucket_count_before,
            taken.counts_before,
            taken.now_ms,
            ends,
            asked_ms + lives_ms,
        )

    def _has_little_left(self, charges: Iterable[Charge], readings: Iterable[CounterReading], size: int) -> bool:
        return any(
            charge.ceiling - reading.used - size
            < max(charge.ceiling * MIN_REMAINING_PERCENT // 100, self._settings.processes * size)
            for charge, reading in zip(charges, readings, strict=True)
        )

    def _bound_memory(self) -> None:
        if len(self._direct_until_ms) >= MAX_CACHED_PLANS:
            now_ms = self._clock()
            self._direct_until_ms = {of: ms for of, ms in self._direct_until_ms.items() if ms > now_ms}

    # -- handing back ----------------------------------------------------------------------------------------------

    def _end(self, place: LeaseKey) -> None:
        lease = self._leases.pop(place)
        if not lease.left:
            return
        task = self._world.start_task(self._hand_back(lease), name="limits: hand quota back")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_back(self, lease: _Lease) -> None:
        try:
            for charge, end_ms in zip(lease.charges, lease.ends_ms, strict=True):
                self.returned_leases += await self._store.return_quota(charge, lease.left, end_ms, lease.id)
        except StoreUnavailable:
            log.debug("a lease of quota could not be handed back: it is stranded until its window ends")

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(LEASE_TTL_MS / 2_000)
            now_ms = self._clock()
            for place in [place for place, lease in self._leases.items() if now_ms >= lease.void_ms]:
                self._end(place)

    # -- the rest of the port --------------------------------------------------------------------------------------

    async def release(self, request_id: str) -> None:
        await self._store.release(request_id)

    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]":
        return self._store.start_release(request_id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        return await self._store.renew(request_ids)

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        return await self._store.refund(request_id, reason)

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        await self._store.add_usage(charges, amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        return await self._store.peek(charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        await self._store.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._store.ban(subject, until_ms)

    async def undo(self, call: StoreCall) -> None:
        await self._store.undo(call)

    async def check(self) -> None:
        await self._store.check()

    async def get_ban_end_ms(self, subject: str) -> int:
        return await self._store.get_ban_end_ms(subject)

    async def set_rules(self, rules: RuleSet) -> None:
        """Leases of the old rules go back: their ceilings may no longer hold."""
        await self.return_all()
        await self._store.set_rules(rules)
