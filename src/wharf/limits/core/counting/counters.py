"""All counters of one process, in memory. This is the reference implementation for every store.

A call checks all limits of a request, then charges all of them or none. The time is passed in; decisions about callers
are made in `decision`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from wharf.limits.core.counting.bans import BanRecords
from wharf.limits.core.counting.compiled import USUAL_CALLS, UsualCalls
from wharf.limits.core.counting.leases import ConcurrencyLeases
from wharf.limits.core.counting.recent_results import MAX_REMEMBERED_RESULTS, RecentCall, RecentResults
from wharf.limits.core.counting.segmented_dict import SegmentedDict
from wharf.limits.core.counting.sliding_windows import SlidingWindows
from wharf.limits.core.counting.windows import FixedWindows
from wharf.limits.core.plans import Charge, build_shared_key, get_key_owner
from wharf.limits.core.rule import Algorithm, Rule
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult

EVICTION_BATCH_KEYS: Final = 1_000
"""Keys scanned in one step, so that a step takes less than a millisecond."""
EVICTION_RETRY_MS: Final = 100
"""The delay after an eviction that found nothing, so that not every request scans a full table."""
MAX_FAULT_REFUNDS_PERCENT: Final = 10
"""The share of a ceiling that 5xx replies can refund in one window, so that callers cannot cause server errors for free."""
MAX_RUNNING_MS: Final = 3_600_000
"""A request without an active lease is assumed to have ended without a release after this time."""


class CounterTable(Protocol):
    """The counters of one rule, whatever its algorithm. A key, such as `user:ada`, selects one counter.

    `add` and `get_end_ms` return when a counter will be empty, `get_free_at_ms` when `required` more units fit below the ceiling,
    and `evict_idle` the keys of the empty counters that it removed. Rows are counters as numbers, for snapshots.
    """

    def __contains__(self, key: str) -> bool: ...
    def __len__(self) -> int: ...
    def count_used(self, key: str, now_ms: int) -> int: ...
    def add(self, key: str, cost: int, now_ms: int, request_id: str) -> int: ...
    def take_back(self, key: str, amount: int, now_ms: int) -> None: ...
    def get_end_ms(self, key: str, now_ms: int) -> int: ...
    def get_free_at_ms(self, key: str, required: int, ceiling: int, now_ms: int) -> int: ...
    def reset(self, key: str) -> None: ...
    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]: ...
    def keys(self) -> Iterator[str]: ...
    def dump_row(self, key: str) -> tuple[int, ...] | None: ...
    def load_row(self, key: str, numbers: tuple[int, ...]) -> None: ...


_TABLE_FACTORIES: Final[Mapping[Algorithm, Callable[[Rule], CounterTable]]] = {
    Algorithm.WINDOW: lambda rule: FixedWindows(rule.window_ms),
    Algorithm.SLICES: lambda rule: SlidingWindows(rule.window_ms, rule.slices, is_meter=False),
    Algorithm.METER: lambda rule: SlidingWindows(rule.window_ms, rule.slices, is_meter=True),
    Algorithm.LEASES: lambda _rule: ConcurrencyLeases(),
}


class KeyCounts:
    """The number of counters that each owner has under each rule. Rules limit it with `keys_most`.

    Beyond the maximum, all further requests of the owner share one counter, which is not included in the number.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, SegmentedDict[str, int]] = {}

    def keep_rules(self, old_names: Mapping[str, str]) -> None:
        """Keep the numbers of these rules, and delete all others. `old_names` maps the new name of each rule to its old one.

        A number belongs to the counters of its rule: if the counters start again, the number must do so too. Otherwise
        the owner would share one counter although it has few.
        """
        self._counts = {name: self._counts[old] for name, old in old_names.items() if old in self._counts}

    def count(self, rule: str, owner: str) -> int:
        """Return how many counters an owner has under a rule."""
        counts = self._counts.get(rule)
        return 0 if counts is None else counts.get(owner) or 0

    def add(self, charges: Iterable[Charge]) -> None:
        """Increase the numbers by the counters that these charges opened, one for each charge."""
        for charge in charges:
            self._add(charge.name, charge.owner, 1)

    def add_key(self, rule: str, key: str) -> None:
        """Increase the number for a counter that was loaded from a snapshot, unless it is the owner's shared counter."""
        owner = get_key_owner(key)
        self._add(rule, owner, int(key != build_shared_key(owner)))

    def _add(self, rule: str, owner: str, number: int) -> None:
        counts = self._counts.get(rule)
        if counts is None:
            counts = self._counts[rule] = SegmentedDict()
        counts[owner] = (counts.get(owner) or 0) + number

    def remove(self, rule: str, keys: Iterable[str]) -> None:
        """Decrease the numbers by the removed counters of a rule. The shared counters of owners are not included."""
        counts = self._counts.get(rule)
        if counts is None:
            return
        for key in keys:
            owner = get_key_owner(key)
            if key == build_shared_key(owner):
                continue
            count = counts.get(owner) or 0
            if count > 1:
                counts[owner] = count - 1
            elif owner in counts:
                del counts[owner]


class Counters:
    """The counters of all rules in memory, the ban records, and the results of recent store calls."""

    def __init__(
        self, rules: Sequence[Rule] = (), *, max_keys: int = 1_000_000, usual_calls: UsualCalls | None = USUAL_CALLS
    ) -> None:
        """`usual_calls`: compiled functions for usual calls, if there are any. Without them, Python does the same."""
        self._usual_calls = usual_calls
        self.tables: dict[str, CounterTable] = {}
        self.bans: Final = BanRecords()
        self._rules: dict[str, Rule] = {}
        self._max_keys = max_keys
        self._results: Final = RecentResults()
        self._running: Final = self._results.running
        self._fault_refunds: dict[tuple[str, str], tuple[int, int]] = {}
        self._next_eviction_ms: dict[str, int] = {}
        self._key_counts: Final = KeyCounts()
        self.rules_version = 0
        """How often the rules were set. Charge plans that were decoded for an earlier version are invalid."""
        self.set_rules(rules)

    # -- rules -----------------------------------------------------------------------------------------------------

    def set_rules(self, rules: Sequence[Rule], *, max_keys: int | None = None) -> None:
        """Replace the rules; the counters follow them from now on. `max_keys` limits the counters of each rule.

        A rule keeps the counts of the previous rule with its name, or with the name in its `was`.
        """
        self._max_keys = self._max_keys if max_keys is None else max_keys
        renamed = {rule.was: rule.name for rule in rules if rule.was is not None}
        old = {renamed.get(name, name): (self._rules[name], table) for name, table in self.tables.items()}
        old_names = {renamed.get(name, name): name for name in self.tables}
        self.tables = {rule.name: self._make_table(rule, *old.get(rule.name, (None, None))) for rule in rules}
        self._key_counts.keep_rules(
            {name: old_names[name] for name, table in self.tables.items() if name in old and old[name][1] is table}
        )
        self._rules = {rule.name: rule for rule in rules}
        self.rules_version += 1

    def get_rule(self, name: str) -> Rule | None:
        return self._rules.get(name)

    @property
    def unsaved_rules(self) -> frozenset[str]:
        """Rules whose counts are not saved, because they end with the running requests."""
        return frozenset(name for name, rule in self._rules.items() if rule.algorithm is Algorithm.LEASES)

    def is_running(self, request_id: str) -> bool:
        """Return whether an admitted request has not ended yet."""
        return request_id in self._running

    def _make_table(self, rule: Rule, old_rule: Rule | None, old: CounterTable | None) -> CounterTable:
        """Return the table for a rule: the old one with new settings, or a new one if the algorithm changed."""
        if old is None or old_rule is None or old_rule.algorithm is not rule.algorithm:
            return _TABLE_FACTORIES[rule.algorithm](rule)
        if isinstance(old, FixedWindows):
            old.length_ms = rule.window_ms  # For windows that open from now on.
        elif isinstance(old, SlidingWindows):
            new = SlidingWindows(rule.window_ms, rule.slices, is_meter=rule.algorithm is Algorithm.METER)
            old.length_ms, old.width_ms, old.retention_ms = new.length_ms, new.width_ms, new.retention_ms
        return old

    # -- deciding --------------------------------------------------------------------------------------------------

    def take(self, call: StoreCall, now_ms: int) -> TakeResult:
        """Check every limit of a request, then charge all of them, or none if the request is refused.

        A request is refused if an enforced limit is exceeded or its caller is banned. The result is stored by request
        id: a repeated call with the same id returns it and charges nothing.
        """
        if self._usual_calls is not None:
            usual_result = self._usual_calls.take_usual(self.tables, self.bans, self._results, call, now_ms)
            if usual_result is not None:
                return usual_result
        request_id = call.id
        earlier = self._results.find(request_id)
        if earlier is not None:
            return msgspec.structs.replace(earlier.result, is_repeated=True)
        result = self.take_once(call, now_ms)
        if result.is_admitted:
            self._running[request_id] = RecentCall(call, result)
        else:
            self._results.remember_ended(RecentCall(call, result), now_ms)
        return result

    def take_once(self, call: StoreCall, now_ms: int) -> TakeResult:
        """Check every limit of a request, then charge all of them, or none if the request is refused.

        A request is refused if an enforced limit is exceeded or its caller is banned. Nothing is stored about the
        request: a second call with its id would be charged again, and it cannot be refunded. Use this only where each
        id occurs once.
        """
        plan = call.plan
        record = self.bans.get(plan.ban_subject)
        banned_until_ms = record.banned_until_ms if record is not None and record.is_banned(now_ms) else 0
        charges = call.charges
        new_keys: Sequence[Charge] = ()
        tables = self.tables
        has_checked_keys = False
        while True:
            counts_before: list[int] = []
            hits: list[int] | None = None
            for charge in charges:
                before = tables[charge.name].count_used(charge.key, now_ms)
                counts_before.append(before)
                if before + charge.required > charge.ceiling:
                    hits = hits or []
                    hits.append(len(counts_before) - 1)
            if has_checked_keys:
                break
            has_checked_keys = True
            limited = charges
            for index in plan.overflow_key_indexes:
                if not counts_before[index] and charges[index].key not in tables[charges[index].name]:
                    limited, new_keys = self._apply_key_limits(charges, plan.overflow_key_indexes, now_ms)
                    break
            if limited is charges:
                break
            charges = limited  # Count again, with the overflow keys.
        if banned_until_ms and not plan.is_ban_shadow:
            return self._refuse(call, charges, counts_before, hits or [], now_ms, banned_until_ms=banned_until_ms)
        if hits is not None and any(charges[index].is_enforced for index in hits):
            return self._refuse(call, charges, counts_before, hits, now_ms, banned_until_ms=0)
        end_ms: int | None = None
        for charge in charges:
            if charge.cost:
                charge_end_ms = tables[charge.name].add(charge.key, charge.cost, now_ms, call.id)
                if end_ms is None:
                    end_ms = charge_end_ms
        if new_keys:
            self._key_counts.add(new_keys)
        if plan.is_free or end_ms is None or not charges[0].cost:
            bucket_charge = charges[0] if not plan.is_free else plan.bucket_charge
            end_ms = tables[bucket_charge.name].get_end_ms(bucket_charge.key, now_ms)
        return TakeResult(
            True,
            now_ms,
            tuple(counts_before),
            () if hits is None else tuple(hits),
            () if hits is None else self._list_free_times_ms(charges, hits, now_ms),
            _list_keys(charges) if charges is not call.charges else (),
            counts_before[0]
            if not plan.is_free
            else tables[plan.bucket_charge.name].count_used(plan.bucket_charge.key, now_ms),
            end_ms,
            banned_until_ms,
        )

    def _refuse(
        self,
        call: StoreCall,
        charges: tuple[Charge, ...],
        counts_before: list[int],
        hits: list[int],
        now_ms: int,
        *,
        banned_until_ms: int,
    ) -> TakeResult:
        """Return the result of a refused call. Unless the caller is banned already, record the refusal for a later ban."""
        plan = call.plan
        free_at_ms = self._list_free_times_ms(charges, hits, now_ms)
        bucket_charge = charges[0] if not plan.is_free else plan.bucket_charge
        table = self.tables[bucket_charge.name]
        result = TakeResult(
            False,
            now_ms,
            tuple(counts_before),
            tuple(hits),
            free_at_ms,
            _list_keys(charges) if charges is not call.charges else (),
            table.count_used(bucket_charge.key, now_ms),
            table.get_end_ms(bucket_charge.key, now_ms),
            banned_until_ms,
        )
        if not banned_until_ms:
            self.bans.add_refusal(call, hits, free_at_ms, now_ms)
        return result

    def _list_free_times_ms(self, charges: Sequence[Charge], hits: Iterable[int], now_ms: int) -> tuple[int, ...]:
        """Return when each charge that exceeds its ceiling would fit. `hits` are the indexes of these charges."""
        return tuple(
            self.tables[charge.name].get_free_at_ms(charge.key, charge.required, charge.ceiling, now_ms)
            for charge in (charges[index] for index in hits)
        )

    def _apply_key_limits(
        self, charges: tuple[Charge, ...], indexes: Iterable[int], now_ms: int
    ) -> tuple[tuple[Charge, ...], Sequence[Charge]]:
        """Return all charges, with the overflow key where no further counter may be opened, and the charges that open one.

        The second part has only charges of rules with several counters per owner. `indexes` are those of the charges
        with an overflow key.
        """
        limited: list[Charge] | None = None
        new_keys: list[Charge] = []
        for index in indexes:
            charge = charges[index]
            if charge.key in self.tables[charge.name]:
                continue
            if not self._can_open_key(charge, now_ms):
                limited = limited or list(charges)
                limited[index] = msgspec.structs.replace(charge, key=charge.overflow_key)
            elif charge.rule.is_partitioned:
                new_keys.append(charge)
        return charges if limited is None else tuple(limited), new_keys

    def _can_open_key(self, charge: Charge, now_ms: int) -> bool:
        """Return whether this charge may open a counter: neither its owner nor the table of its rule has the maximum number.

        Idle counters of a full table are evicted first.
        """
        if charge.rule.is_partitioned and self._key_counts.count(charge.name, charge.owner) >= charge.rule.keys_most:
            return False
        if len(self.tables[charge.name]) < self._max_keys:
            return True
        return self._evict_if_due(charge.name, now_ms)

    def _evict_if_due(self, name: str, now_ms: int) -> bool:
        """Remove idle counters of a rule, and return whether any were removed.

        Return `False` without an attempt if the last one found none and is less than `EVICTION_RETRY_MS` ago.
        """
        if now_ms < self._next_eviction_ms.get(name, 0):
            return False
        if self._evict_idle_keys(name, now_ms):
            return True
        self._next_eviction_ms[name] = now_ms + EVICTION_RETRY_MS
        return False

    # -- results of earlier calls -----------------------------------------------------------------------------------

    def release(self, request_id: str, now_ms: int, *, should_remember: bool = True) -> bool:
        """End a request and free its concurrency slots. Return whether it was running.

        Without `should_remember` nothing is stored about the ended request, which is faster. Use it only if no later
        call can have the same id.
        """
        if self._usual_calls is not None and not should_remember:
            return self._usual_calls.release_usual(self.tables, self._results, request_id)
        entry = self._running.pop(request_id, None)
        if entry is None:
            return False
        call, keys = entry.call, entry.result.keys
        for index in call.plan.lease_indexes:
            charge = call.charges[index]
            table = self.tables.get(charge.name)
            if isinstance(table, ConcurrencyLeases):
                table.release(keys[index] if keys else charge.key, request_id)
        if should_remember:
            self._results.remember_ended(entry, now_ms)
        return True

    def get_start_ms(self, request_id: str) -> int | None:
        """Return when a running request was admitted; `None` if it is not running."""
        entry = self._running.get(request_id)
        return None if entry is None else entry.result.now_ms

    def renew(self, request_ids: Iterable[str], now_ms: int) -> int:
        """Extend the leases of requests that still run. Return the number of expired leases that became active again."""
        revived = 0
        for request_id in request_ids:
            entry = self._running.get(request_id)
            if entry is not None:
                revived += sum(table.renew(key, request_id, now_ms) for table, key in self._iter_leases(entry))
        return revived

    def _iter_leases(self, entry: RecentCall) -> Iterator[tuple[ConcurrencyLeases, str]]:
        """Yield the lease table and key of each concurrency charge of a call."""
        call, keys = entry.call, entry.result.keys
        for index in call.plan.lease_indexes:
            table = self.tables.get(call.charges[index].name)
            if isinstance(table, ConcurrencyLeases):
                yield table, keys[index] if keys else call.charges[index].key

    def _holds_lease(self, request_id: str, entry: RecentCall, now_ms: int) -> bool:
        """Return whether a request holds at least one lease that has not expired."""
        return any(table.has_lease(key, request_id, now_ms) for table, key in self._iter_leases(entry))

    def refund(self, request_id: str, now_ms: int, *, is_fault: bool) -> bool:
        """Return the primary charge of a request to the window that it was charged to. Return whether this was done.

        Each request is refunded once, and only while its window is open. `is_fault` is set if the reason is a 5xx
        reply; such refunds are limited to `MAX_FAULT_REFUNDS_PERCENT` of the ceiling.
        """
        entry = self._results.find(request_id)
        if entry is None or not entry.result.is_admitted or entry.call.plan.is_free:
            return False
        charge, result = entry.call.charges[0], entry.result
        table = self.tables.get(charge.name)
        key = result.keys[0] if result.keys else charge.key
        if entry.is_refunded or not isinstance(table, FixedWindows) or result.bucket_end_ms <= now_ms:
            return False
        if is_fault and not self._count_fault_refund(charge, key, result.bucket_end_ms):
            return False
        if not table.refund(key, charge.cost, result.bucket_end_ms):
            return False
        entry.is_refunded = True
        return True

    def _count_fault_refund(self, charge: Charge, key: str, end_ms: int) -> bool:
        """Count a refund that a 5xx reply caused. Return `False` if the window that ends at `end_ms` allows no more of them."""
        counted_end_ms, count = self._fault_refunds.get((charge.name, key), (0, 0))
        count = count if counted_end_ms == end_ms else 0
        if count + charge.cost > charge.ceiling * MAX_FAULT_REFUNDS_PERCENT // 100:
            return False
        if len(self._fault_refunds) >= MAX_REMEMBERED_RESULTS and (charge.name, key) not in self._fault_refunds:
            del self._fault_refunds[next(iter(self._fault_refunds))]
        self._fault_refunds[charge.name, key] = (end_ms, count + charge.cost)
        return True

    # -- beside requests -------------------------------------------------------------------------------------------

    def add_usage(self, charges: Iterable[Charge], amount: int, now_ms: int) -> tuple[Charge, ...]:
        """Charge an amount that is known only after the request. It may exceed the ceiling.

        An amount of 0 or less takes back usage; no count falls below 0, and no counter is opened. Return the charges with the
        keys that were used, which are overflow keys for counters beyond the maximum.
        """
        charges = tuple(charges)
        if amount <= 0:
            charges = tuple(msgspec.structs.replace(charge, key=self._get_counted_key(charge)) for charge in charges)
            for charge in charges:
                self.tables[charge.name].take_back(charge.key, -amount, now_ms)
            return charges
        indexes = [index for index, charge in enumerate(charges) if charge.overflow_key]
        limited, new_keys = self._apply_key_limits(charges, indexes, now_ms)
        for charge in limited:
            self.tables[charge.name].add(charge.key, amount, now_ms, "")
        self._key_counts.add(new_keys)
        return limited

    def peek(self, charges: Iterable[Charge], now_ms: int) -> tuple[CounterReading, ...]:
        """Read counters without opening or charging any."""
        readings = []
        for charge in charges:
            table, key = self.tables[charge.name], self._get_counted_key(charge)
            readings.append(CounterReading(table.count_used(key, now_ms), table.get_end_ms(key, now_ms)))
        return tuple(readings)

    def _get_counted_key(self, charge: Charge) -> str:
        """Return the key under which a charge is counted: the overflow key if the table of its rule is full without it."""
        table = self.tables[charge.name]
        is_overflow = charge.overflow_key and charge.key not in table and len(table) >= self._max_keys
        return charge.overflow_key if is_overflow and not charge.rule.is_partitioned else charge.key

    def reset(self, charges: Iterable[Charge]) -> None:
        """Set the counters of these charges to zero."""
        for charge in charges:
            self.reset_key(charge.name, charge.key)

    def reset_key(self, name: str, key: str) -> None:
        """Remove one counter of the rule `name`, which sets it to zero."""
        if key in self.tables[name]:
            self.tables[name].reset(key)
            self._key_counts.remove(name, [key])

    def ban(self, subject: str, until_ms: int) -> None:
        """Ban a subject until this time. A time in the past ends a ban."""
        self.bans.ban(subject, until_ms)

    def load_row(self, name: str, key: str, numbers: tuple[int, ...]) -> None:
        """Restore a counter of the rule `name` from the numbers in a snapshot."""
        rule = self._rules[name]
        if rule.is_partitioned and key not in self.tables[name]:
            self._key_counts.add_key(name, key)
        self.tables[name].load_row(key, numbers)

    def sweep(self, now_ms: int) -> Iterator[int]:
        """Remove idle counters, and running requests that must have ended without a release.

        Yields the number of removed counters after each batch, so that callers can pause.
        """
        for name in list(self.tables):
            for _ in range(len(self.tables.get(name, ())) // EVICTION_BATCH_KEYS + 1):
                if name in self.tables:
                    yield self._evict_idle_keys(name, now_ms)
        for number, (request_id, entry) in enumerate(list(self._running.items())):
            if number % EVICTION_BATCH_KEYS == EVICTION_BATCH_KEYS - 1:
                yield 0
            is_old = now_ms - entry.result.now_ms > MAX_RUNNING_MS
            if is_old and not self._holds_lease(request_id, entry, now_ms):
                self._running.pop(request_id, None)  # It may have ended during a pause.
        while self._results.free_dropped(EVICTION_BATCH_KEYS):
            yield 0
        yield 0

    def _evict_idle_keys(self, name: str, now_ms: int) -> int:
        """Remove the idle ones among the next `EVICTION_BATCH_KEYS` counters of a rule. Return how many were removed."""
        evicted = self.tables[name].evict_idle(now_ms, max_scanned=EVICTION_BATCH_KEYS)
        self._key_counts.remove(name, evicted)
        return len(evicted)


def _list_keys(charges: Sequence[Charge]) -> tuple[str, ...]:
    return tuple(charge.key for charge in charges)
