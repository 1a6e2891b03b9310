"""Quota leases: a process takes a part of a limit in advance and then decides without calling the store.

The lease is charged when it is taken, so a limit is never exceeded. A caller can get less than its limit by the unused
leases of other processes: at most one lease per process. Only fixed windows of 1,000 and more are leased; other
requests call the store. A lease lives for one second, ends before its window does, and its unused part is returned.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.plans import Charge, ChargePlan
from wharf.limits.core.rule import Algorithm, RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.forwarding import ForwardingStore
from wharf.limits.stores.port import StoreUnavailable
from wharf.limits.stores.redis.store import RedisStore
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

MIN_CEILING: Final = 1_000
"""Smaller limits are not leased: unused leases would be too large a part of them."""
LEASE_TTL_MS: Final = 1_000
"""How long a process may use a lease. Longer leases would leave more quota unused in idle processes."""
WINDOW_MARGIN_MS: Final = 250
"""A lease ends this long before its window, so that no request is admitted by an old window."""
MIN_REMAINING_PERCENT: Final = 10
"""If less than this share of a limit is left, the store decides each request, so that all of the limit can be used."""
MAX_CACHED_PLANS: Final = 16_384
"""Limits the memory of the caches, in entries."""


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much quota processes take in advance."""

    size: int = 50
    """How many requests' cost a process takes at a time."""
    processes: int = 8
    """The number of processes that share the store. Unused leases are at most this number times the size."""


class _Lease(msgspec.Struct, eq=False):
    """Quota that this process has taken and not used up."""

    id: str
    """The id under which the store has charged it."""
    charges: tuple[Charge, ...]
    """The counters that it was charged to; their cost is the size of the lease."""
    remaining: int
    """The part that is not used yet."""
    bucket_count: int
    """The count of the bucket that the headers report, including the used part of the lease."""
    counts_before: tuple[int, ...]
    """The count of each counter before the lease was taken."""
    taken_ms: int
    """When it was taken, by the clock of the store."""
    window_ends_ms: tuple[int, ...]
    """The end of each counter's window, by the clock of the store."""
    expires_ms: int
    """When it can no longer be used, by the monotonic clock of this process."""


LeaseKey = tuple[tuple[str, str, int, int], ...]
"""Counters, ceilings and costs of a lease. Callers for whom these are equal share the lease."""


class QuotaLeaseStore(ForwardingStore):
    """A wrapper around the Redis store that decides requests by quota leases if possible, and forwards everything else.

    `clock` gives monotonic milliseconds; only its differences are used.
    """

    def __init__(
        self,
        store: RedisStore,
        world: World,
        settings: QuotaSettings | None = None,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(store)
        self.taken_leases = 0
        self.returned_leases = 0
        self._redis_store = store
        self._world = world
        self._settings = settings or QuotaSettings()
        self._clock = clock or (lambda: int(world.monotonic_s() * 1_000))
        self._lease_keys: BoundedCache[ChargePlan, LeaseKey] = BoundedCache(MAX_CACHED_PLANS)
        self._leases: dict[LeaseKey, _Lease] = {}
        # Until when the store decides the calls of a lease key, because too little quota was left for a lease.
        self._direct_until_ms: dict[LeaseKey, int] = {}
        self._lease_requests: dict[LeaseKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._sweeper = self._world.start_task(self._keep_sweeping(), name="limits: return quota")

    async def close(self) -> None:
        """Stop the periodic task, and return the unused parts of all leases to the store."""
        if self._sweeper is not None:
            await cancel_tasks(self._sweeper)
        await asyncio.gather(*self._lease_requests.values(), return_exceptions=True)
        await self.return_all()

    async def return_all(self) -> None:
        """End all leases and wait until their unused parts are returned."""
        for key in list(self._leases):
            self._end_lease(key)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # -- deciding --------------------------------------------------------------------------------------------------

    def _get_lease_key(self, plan: ChargePlan) -> LeaseKey:
        """Return the key of the quota lease that requests with this charge plan can use."""
        key = self._lease_keys.get(plan)
        if key is None:
            key = tuple((charge.name, charge.key, charge.ceiling, charge.cost) for charge in plan.charges)
            self._lease_keys.store(plan, key)
        return key

    def take_now(self, call: StoreCall) -> TakeResult | None:
        """Admit a request by an existing quota lease and return the result; return `None` if the store must be called.

        A lease that has expired or is too small is ended.
        """
        key = self._get_lease_key(call.plan)
        lease = self._leases.get(key)
        if lease is None:
            return None
        cost = call.charges[0].cost
        if lease.remaining < cost or self._clock() >= lease.expires_ms or call.charges is not call.plan.charges:
            self._end_lease(key)
            return None
        lease.remaining -= cost
        before = lease.bucket_count
        lease.bucket_count += cost
        result = TakeResult(True, lease.taken_ms, lease.counts_before, (), (), (), before, lease.window_ends_ms[0])
        self._redis_store.record_admission(call, result)
        return result

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Start to charge a request, and return a future for the result. If possible, a quota lease is taken first."""
        if not self._can_lease(call):
            return self._store.start_take(call)
        return self._world.start_task(self._take_leased(call), name="limits: take quota")

    async def take(self, call: StoreCall) -> TakeResult:
        result = self.take_now(call)
        return result if result is not None else await asyncio.shield(self.start_take(call))

    def _can_lease(self, call: StoreCall) -> bool:
        """Return whether a quota lease can be taken for the call.

        Every limit must be a fixed window with a high ceiling and the same cost, without grants. A recent attempt must
        not have found too little quota.
        """
        plan = call.plan
        return (
            call.charges is plan.charges
            and not plan.is_free
            and self._direct_until_ms.get(self._get_lease_key(plan), 0) <= self._clock()
            and all(
                charge.rule.algorithm is Algorithm.WINDOW
                and charge.ceiling >= MIN_CEILING
                and charge.cost == charge.required == call.charges[0].cost
                and not charge.rule.is_partitioned
                for charge in call.charges
            )
        )

    async def _take_leased(self, call: StoreCall) -> TakeResult:
        """Take a quota lease, or wait until another request has taken it, and admit the call by it; else call the store."""
        key = self._get_lease_key(call.plan)
        request = self._lease_requests.get(key)
        if request is None:
            request = self._lease_requests[key] = self._world.start_task(
                self._request_lease(call), name="limits: take a lease"
            )
            request.add_done_callback(lambda _: self._lease_requests.pop(key, None))
        await request
        result = self.take_now(call)
        return result if result is not None else await self._store.start_take(call)

    async def _request_lease(self, call: StoreCall) -> None:
        """Take a quota lease for calls with this charge plan, if enough is left of every limit.

        Otherwise the store decides these calls for the next `LEASE_TTL_MS`.
        """
        key, size, requested_ms = (
            self._get_lease_key(call.plan),
            self._settings.size * call.charges[0].cost,
            self._clock(),
        )
        readings = await self._store.peek(call.charges)
        first_end_ms = min(reading.end_ms for reading in readings)
        charges = tuple(msgspec.structs.replace(charge, cost=size, required=size) for charge in call.charges)
        lease = msgspec.structs.replace(call, id=self._world.new_id(), charges=charges)
        if self._has_little_left(call.charges, readings, size):
            self._direct_until_ms[key] = requested_ms + LEASE_TTL_MS
            self._drop_old_entries()
            return
        result = await self._store.start_take(lease)
        if not result.is_admitted:
            self._direct_until_ms[key] = requested_ms + LEASE_TTL_MS
            self._drop_old_entries()
            return
        self.taken_leases += 1
        window_ends_ms = tuple(reading.end_ms for reading in await self._store.peek(call.charges))
        if min(window_ends_ms) < first_end_ms or result.bucket_end_ms != window_ends_ms[0]:
            first_end_ms = result.now_ms  # A window ended meanwhile: end the lease at once.
        # Both times are the store's, so the clocks need not agree; only the time passed here is added.
        lifetime_ms = min(LEASE_TTL_MS, min(first_end_ms, *window_ends_ms) - result.now_ms - WINDOW_MARGIN_MS)
        if key in self._leases:
            self._end_lease(key)
        self._leases[key] = _Lease(
            lease.id,
            charges,
            size,
            result.bucket_count_before,
            result.counts_before,
            result.now_ms,
            window_ends_ms,
            requested_ms + lifetime_ms,
        )

    def _has_little_left(self, charges: Iterable[Charge], readings: Iterable[CounterReading], size: int) -> bool:
        """Return whether a lease of this size would leave too little of one of these limits."""
        return any(
            charge.ceiling - reading.used - size
            < max(charge.ceiling * MIN_REMAINING_PERCENT // 100, self._settings.processes * size)
            for charge, reading in zip(charges, readings, strict=True)
        )

    def _drop_old_entries(self) -> None:
        """Remove expired entries from `_direct_until_ms` if it has become too large."""
        if len(self._direct_until_ms) >= MAX_CACHED_PLANS:
            now_ms = self._clock()
            self._direct_until_ms = {
                key: until_ms for key, until_ms in self._direct_until_ms.items() if until_ms > now_ms
            }

    # -- returning leases ----------------------------------------------------------------------------------------------

    def _end_lease(self, key: LeaseKey) -> None:
        """Remove a quota lease, and return its unused part to the store in the background."""
        lease = self._leases.pop(key)
        if not lease.remaining:
            return
        task = self._world.start_task(self._return_lease(lease), name="limits: return quota")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _return_lease(self, lease: _Lease) -> None:
        """Return the unused part of a quota lease to the store. If the store is unavailable, that part is lost."""
        try:
            for charge, end_ms in zip(lease.charges, lease.window_ends_ms, strict=True):
                self.returned_leases += await self._redis_store.return_quota(charge, lease.remaining, end_ms, lease.id)
        except StoreUnavailable:
            log.debug("quota lease not returned lease=%s amount=%s", lease.id, lease.remaining)

    async def _keep_sweeping(self) -> None:
        """End expired quota leases, twice in each `LEASE_TTL_MS`, until the task is cancelled."""
        while True:
            await asyncio.sleep(LEASE_TTL_MS / 2_000)
            now_ms = self._clock()
            for key in [key for key, lease in self._leases.items() if now_ms >= lease.expires_ms]:
                self._end_lease(key)

    async def set_rules(self, rules: RuleSet) -> None:
        """Return all quota leases, because ceilings may have changed, and replace the rules of the store."""
        await self.return_all()
        await super().set_rules(rules)
