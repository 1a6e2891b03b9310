"""All counters of one process, in memory: checks all limits of a call, then charges all or none.

It is the meaning that every store must have. It takes no decision about callers and reads no clock: moments are given.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from wharf.limits.core.counting.bans import BanRecord, record_refusal
from wharf.limits.core.counting.leases import ConcurrencyLeases
from wharf.limits.core.counting.sliding_windows import SlidingWindows
from wharf.limits.core.counting.windows import FixedWindows
from wharf.limits.core.plans import Charge, build_shared_key, get_key_owner
from wharf.limits.core.rule import Algorithm, BanRules, Rule
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult

MAX_REMEMBERED_RESULTS: Final = 32_768
RESULT_TTL_MS: Final = 60_000
MAX_BAN_RECORDS: Final = 100_000
EVICTION_BATCH_KEYS: Final = 1_000
EVICTION_RETRY_MS: Final = 100
MAX_FAULT_REFUNDS_PERCENT: Final = 10
MAX_RUNNING_MS: Final = 3_600_000


class CounterTable(Protocol):
    """The counts of one rule, whatever its algorithm."""

    def __contains__(self, key: str) -> bool: ...
    def __len__(self) -> int: ...
    def count_used(self, key: str, now_ms: int) -> int: ...
    def add(self, key: str, cost: int, now_ms: int, request_id: str) -> None: ...
    def get_end_ms(self, key: str, now_ms: int) -> int: ...
    def get_free_at_ms(self, key: str, required: int, ceiling: int, now_ms: int) -> int: ...
    def reset(self, key: str) -> None: ...
    def evict_idle(self, now_ms: int, *, max_scanned: int) -> list[str]: ...
    def keys(self) -> Iterator[str]: ...
    def dump_row(self, key: str) -> tuple[int, ...] | None: ...
    def load_row(self, key: str, numbers: tuple[int, ...]) -> None: ...


_MAKERS: Final[Mapping[Algorithm, Callable[[Rule], CounterTable]]] = {
    Algorithm.WINDOW: lambda rule: FixedWindows(rule.window_ms),
    Algorithm.SLICES: lambda rule: SlidingWindows(rule.window_ms, rule.slices, is_meter=False),
    Algorithm.METER: lambda rule: SlidingWindows(rule.window_ms, rule.slices, is_meter=True),
    Algorithm.LEASES: lambda _rule: ConcurrencyLeases(),
}


class _Answered(msgspec.Struct, frozen=True, eq=False, gc=False):
    call: StoreCall
    taken: TakeResult


class Counters:
    def __init__(self, rules: Sequence[Rule] = (), *, max_keys: int = 1_000_000) -> None:
        self.tables: dict[str, CounterTable] = {}
        self.bans: dict[str, BanRecord] = {}
        self._rules: dict[str, Rule] = {}
        self._keys_most = max_keys
        self._running: dict[str, _Answered] = {}
        self._answered: dict[str, _Answered] = {}
        self._answered_before: dict[str, _Answered] = {}
        self._answered_since_ms = 0
        self._given_back: dict[str, int] = {}
        self._faults: dict[tuple[str, str], tuple[int, int]] = {}
        self._evict_again_ms: dict[str, int] = {}
        self._parts: dict[str, dict[str, int]] = {}  # By rule and owner, how many counters there are.
        self.rules_version = 0
        """How often rules were taken: what was made of rules before holds no longer."""
        self.set_rules(rules)

    # -- rules -----------------------------------------------------------------------------------------------------

    def set_rules(self, rules: Sequence[Rule], *, max_keys: int | None = None) -> None:
        """Count by these rules from now on. A rule that keeps its name, or says what it was, keeps its counts."""
        self._keys_most = self._keys_most if max_keys is None else max_keys
        renamed = {rule.was: rule.name for rule in rules if rule.was is not None}
        old = {renamed.get(name, name): (self._rules[name], table) for name, table in self.tables.items()}
        self.tables = {rule.name: self._table_for(rule, *old.get(rule.name, (None, None))) for rule in rules}
        self._parts = {renamed.get(name, name): parts for name, parts in self._parts.items()}
        self._rules = {rule.name: rule for rule in rules}
        self.rules_version += 1

    def get_rule(self, name: str) -> Rule | None:
        return self._rules.get(name)

    @property
    def unsaved_rules(self) -> frozenset[str]:
        """Rules whose counts end with the requests that run."""
        return frozenset(name for name, rule in self._rules.items() if rule.algorithm is Algorithm.LEASES)

    def is_running(self, request_id: str) -> bool:
        """Whether a request that was admitted runs."""
        return request_id in self._running

    def _table_for(self, rule: Rule, old_rule: Rule | None, old: CounterTable | None) -> CounterTable:
        if old is None or old_rule is None or old_rule.algorithm is not rule.algorithm:
            return _MAKERS[rule.algorithm](rule)
        if isinstance(old, FixedWindows):
            old.length_ms = rule.window_ms  # For windows that are opened from now on.
        elif isinstance(old, SlidingWindows):
            new = SlidingWindows(rule.window_ms, rule.slices, is_meter=rule.algorithm is Algorithm.METER)
            old.length_ms, old.width_ms, old.kept_ms = new.length_ms, new.width_ms, new.kept_ms
        return old

    # -- deciding --------------------------------------------------------------------------------------------------

    def take(self, call: StoreCall, now_ms: int) -> TakeResult:
        """Check every limit of a call, then charge all of them, or none if an enforced one has no room."""
        request_id = call.id
        if request_id in self._running or request_id in self._answered or request_id in self._answered_before:
            return self._repeated(request_id)
        taken = self.take_once(call, now_ms)
        if taken.is_admitted:
            self._running[request_id] = _Answered(call, taken)
        else:
            self._remember(_Answered(call, taken), now_ms)
        return taken

    def take_once(self, call: StoreCall, now_ms: int) -> TakeResult:
        """`take` for those who ask once for each request and give nothing back: nothing is remembered of it."""
        plan = call.plan
        record = self.bans.get(plan.ban_subject) if self.bans else None
        banned_until_ms = record.banned_until_ms if record is not None and record.is_banned(now_ms) else 0
        charges = call.charges
        opened: Sequence[Charge] = ()
        tables = self.tables
        for index in plan.bounded_indexes:
            if charges[index].key not in tables[charges[index].name]:
                charges, opened = self._within_bounds(charges, plan.bounded_indexes, now_ms)
                break
        befores: list[int] = []
        hits: list[int] | None = None
        for charge in charges:
            before = tables[charge.name].count_used(charge.key, now_ms)
            befores.append(before)
            if before + charge.required > charge.ceiling:
                hits = hits or []
                hits.append(len(befores) - 1)
        if banned_until_ms and not plan.is_ban_shadow:
            return self._refuse(call, charges, befores, hits or [], now_ms, banned_until_ms=banned_until_ms)
        if hits is not None and any(charges[index].is_enforced for index in hits):
            return self._refuse(call, charges, befores, hits, now_ms, banned_until_ms=0)
        for charge in charges:
            if charge.cost:
                tables[charge.name].add(charge.key, charge.cost, now_ms, call.id)
        if opened:
            self._count_opened(opened)
        shown = charges[0] if not plan.is_free else plan.bucket_charge
        table = tables[shown.name]
        return TakeResult(
            True,
            now_ms,
            tuple(befores),
            () if hits is None else tuple(hits),
            () if hits is None else self._free_at(charges, hits, now_ms),
            _keys(charges) if charges is not call.charges else (),
            befores[0] if not plan.is_free else table.count_used(shown.key, now_ms),
            table.get_end_ms(shown.key, now_ms),
            banned_until_ms,
        )

    def _refuse(
        self,
        call: StoreCall,
        charges: tuple[Charge, ...],
        befores: list[int],
        hits: list[int],
        now_ms: int,
        *,
        banned_until_ms: int,
    ) -> TakeResult:
        plan = call.plan
        free_at_ms = self._free_at(charges, hits, now_ms)
        shown = charges[0] if not plan.is_free else plan.bucket_charge
        table = self.tables[shown.name]
        taken = TakeResult(
            False,
            now_ms,
            tuple(befores),
            tuple(hits),
            free_at_ms,
            _keys(charges) if charges is not call.charges else (),
            table.count_used(shown.key, now_ms),
            table.get_end_ms(shown.key, now_ms),
            banned_until_ms,
        )
        if not banned_until_ms and not plan.is_free:
            self._note_refusal(call, [charges[index] for index in hits], free_at_ms, now_ms)
        return taken

    def _free_at(self, charges: Sequence[Charge], hits: Iterable[int], now_ms: int) -> tuple[int, ...]:
        return tuple(
            self.tables[charge.name].get_free_at_ms(charge.key, charge.required, charge.ceiling, now_ms)
            for charge in (charges[index] for index in hits)
        )

    def _note_refusal(self, call: StoreCall, hit: Sequence[Charge], free_at_ms: Sequence[int], now_ms: int) -> None:
        """Whoever is told to wait and goes on is on the way to a ban. Asking for what can never pass is no such thing."""
        waits = [
            (free_ms, charge.ceiling)
            for charge, free_ms in zip(hit, free_at_ms, strict=True)
            if charge.is_enforced and charge.required <= charge.ceiling
        ]
        if not waits:
            return
        wait_until_ms, ceiling = max(waits)
        subject = call.plan.ban_subject
        if subject not in self.bans and len(self.bans) >= MAX_BAN_RECORDS:
            self._forget_bans(call.ban_rules, now_ms)
        record = self.bans.get(subject, _NEW_RECORD)
        self.bans[subject] = record_refusal(
            record, call.ban_rules, now_ms=now_ms, wait_until_ms=wait_until_ms, ceiling=ceiling
        )

    def _forget_bans(self, rules: BanRules, now_ms: int) -> None:
        kept = {subject: record for subject, record in self.bans.items() if not record.is_expired(now_ms, rules)}
        if len(kept) >= MAX_BAN_RECORDS:  # Then those go who were only refused, the oldest first, never a ban.
            free = [subject for subject, record in kept.items() if not record.is_banned(now_ms)]
            for subject in free[: MAX_BAN_RECORDS // 10]:
                del kept[subject]
        self.bans = kept

    def _within_bounds(
        self, charges: tuple[Charge, ...], indexes: Iterable[int], now_ms: int
    ) -> tuple[tuple[Charge, ...], Sequence[Charge]]:
        """The charges, with the shared key for each counter that would be one too many; and those that will be new."""
        bounded: list[Charge] | None = None
        opened: list[Charge] = []
        for index in indexes:
            charge = charges[index]
            if charge.key in self.tables[charge.name]:
                continue
            if not self._may_open(charge, now_ms):
                bounded = bounded or list(charges)
                bounded[index] = msgspec.structs.replace(charge, key=charge.overflow_key)
            elif charge.rule.is_partitioned:
                opened.append(charge)
        return charges if bounded is None else tuple(bounded), opened

    def _may_open(self, charge: Charge, now_ms: int) -> bool:
        if charge.rule.is_partitioned:
            parts = self._parts.get(charge.name, {})
            if parts.get(charge.owner, 0) >= charge.rule.keys_most:
                return False
        if len(self.tables[charge.name]) < self._keys_most:
            return True
        return self._evict(charge.name, now_ms)

    def _count_opened(self, opened: Iterable[Charge]) -> None:
        for charge in opened:
            parts = self._parts.setdefault(charge.name, {})
            parts[charge.owner] = parts.get(charge.owner, 0) + 1

    def _evict(self, name: str, now_ms: int) -> bool:
        """Make room by forgetting full quotas, and only these."""
        if now_ms < self._evict_again_ms.get(name, 0):
            return False
        if self._forget_full(name, now_ms):
            return True
        self._evict_again_ms[name] = now_ms + EVICTION_RETRY_MS
        return False

    # -- answers that were given -----------------------------------------------------------------------------------

    def _repeated(self, request_id: str) -> TakeResult:
        answered = self._find(request_id)
        assert answered is not None, request_id
        return msgspec.structs.replace(answered.taken, is_repeated=True)

    def _find(self, request_id: str) -> _Answered | None:
        return self._running.get(request_id) or self._answered.get(request_id) or self._answered_before.get(request_id)

    def _remember(self, answered: _Answered, now_ms: int) -> None:
        if len(self._answered) >= MAX_REMEMBERED_RESULTS or now_ms - self._answered_since_ms > RESULT_TTL_MS:
            self._answered_before, self._answered = self._answered, {}
            self._answered_since_ms = now_ms
            self._given_back = {
                request_id: end_ms for request_id, end_ms in self._given_back.items() if end_ms > now_ms
            }
        self._answered[answered.call.id] = answered

    def release(self, request_id: str, now_ms: int, *, should_remember: bool = True) -> bool:
        """The request is over: its slots are free, once. Who makes the ids and asks once for each says that none is asked
        again: then nothing is remembered of it, of which most of the time goes into memory that no cache holds."""
        answered = self._running.pop(request_id, None)
        if answered is None:
            return False
        call, keys = answered.call, answered.taken.keys
        for index in call.plan.lease_indexes:
            charge = call.charges[index]
            table = self.tables.get(charge.name)
            if isinstance(table, ConcurrencyLeases):
                table.release(keys[index] if keys else charge.key, request_id)
        if should_remember:
            self._remember(answered, now_ms)
        return True

    def get_start_ms(self, request_id: str) -> int | None:
        """When a request that runs was admitted."""
        answered = self._running.get(request_id)
        return None if answered is None else answered.taken.now_ms

    def renew(self, request_ids: Iterable[str], now_ms: int) -> int:
        """Hold on to the slots of requests that still run. Returns how many leases had run out and count again."""
        revived = 0
        for request_id in request_ids:
            answered = self._running.get(request_id)
            if answered is not None:
                revived += sum(table.renew(key, request_id, now_ms) for table, key in self._leases_of(answered))
        return revived

    def _leases_of(self, answered: _Answered) -> Iterator[tuple[ConcurrencyLeases, str]]:
        call, keys = answered.call, answered.taken.keys
        for index in call.plan.lease_indexes:
            table = self.tables.get(call.charges[index].name)
            if isinstance(table, ConcurrencyLeases):
                yield table, keys[index] if keys else call.charges[index].key

    def _holds_lease(self, request_id: str, answered: _Answered, now_ms: int) -> bool:
        return any(table.has_lease(key, request_id, now_ms) for table, key in self._leases_of(answered))

    def refund(self, request_id: str, now_ms: int, *, is_fault: bool) -> bool:
        """Return the primary charge, once, into the window that it came from."""
        answered = self._find(request_id)
        if answered is None or not answered.taken.is_admitted or answered.call.plan.is_free:
            return False
        charge, taken = answered.call.charges[0], answered.taken
        table = self.tables.get(charge.name)
        key = taken.keys[0] if taken.keys else charge.key
        if request_id in self._given_back or not isinstance(table, FixedWindows) or taken.bucket_end_ms <= now_ms:
            return False
        if is_fault and not self._is_fault_within(charge, key, taken.bucket_end_ms, now_ms):
            return False
        if not table.refund(key, charge.cost, taken.bucket_end_ms):
            return False
        self._given_back[request_id] = taken.bucket_end_ms
        return True

    def _is_fault_within(self, charge: Charge, key: str, end_ms: int, now_ms: int) -> bool:
        """Whether this fault of the service is among the tenth of the ceiling that a window gives back."""
        of_end_ms, count = self._faults.get((charge.name, key), (0, 0))
        count = count if of_end_ms == end_ms else 0
        if count + charge.cost > charge.ceiling * MAX_FAULT_REFUNDS_PERCENT // 100:
            return False
        if len(self._faults) >= MAX_REMEMBERED_RESULTS:
            self._faults = {of: (end, n) for of, (end, n) in self._faults.items() if end > now_ms}
        self._faults[charge.name, key] = (end_ms, count + charge.cost)
        return True

    # -- beside requests -------------------------------------------------------------------------------------------

    def add_usage(self, charges: Iterable[Charge], amount: int, now_ms: int) -> tuple[Charge, ...]:
        """Charge what is known afterwards. It is charged to now, and may go above the ceiling. Returns what was charged:
        of a counter that would be one too many the shared one is."""
        charges = tuple(charges)
        indexes = [index for index, charge in enumerate(charges) if charge.overflow_key]
        bounded, opened = self._within_bounds(charges, indexes, now_ms)
        for charge in bounded:
            self.tables[charge.name].add(charge.key, amount, now_ms, "")
        self._count_opened(opened)
        return bounded

    def peek(self, charges: Iterable[Charge], now_ms: int) -> tuple[CounterReading, ...]:
        """Look at counters; nothing is opened."""
        readings = []
        for charge in charges:
            table = self.tables[charge.name]
            is_one_too_many = charge.overflow_key and charge.key not in table and len(table) >= self._keys_most
            key = charge.overflow_key if is_one_too_many and not charge.rule.is_partitioned else charge.key
            readings.append(CounterReading(table.count_used(key, now_ms), table.get_end_ms(key, now_ms)))
        return tuple(readings)

    def reset(self, charges: Iterable[Charge]) -> None:
        for charge in charges:
            self.reset_key(charge.name, charge.key)

    def reset_key(self, name: str, key: str) -> None:
        if key in self.tables[name]:
            self.tables[name].reset(key)
            self._uncount(name, [key])

    def ban(self, subject: str, until_ms: int) -> None:
        """Ban by hand, or with a moment that is past, end a ban."""
        record = self.bans.get(subject, _NEW_RECORD)
        self.bans[subject] = msgspec.structs.replace(record, banned_until_ms=until_ms)

    def load_row(self, name: str, key: str, numbers: tuple[int, ...]) -> None:
        """Put back a counter that was saved. The key of a caller is one text, in however many tables it stands."""
        rule = self._rules[name]
        if rule.is_partitioned and key not in self.tables[name]:
            owner = get_key_owner(key)
            parts = self._parts.setdefault(name, {})
            parts[owner] = parts.get(owner, 0) + (key != build_shared_key(owner))
        self.tables[name].load_row(key, numbers)

    def sweep(self, now_ms: int) -> Iterator[int]:
        """Forget full quotas, and requests that ended without a word. Pauses after some, telling how many it forgot."""
        for name in list(self.tables):
            for _ in range(len(self.tables.get(name, ())) // EVICTION_BATCH_KEYS + 1):
                if name in self.tables:
                    yield self._forget_full(name, now_ms)
        lost = [
            request_id
            for request_id, answered in list(self._running.items())
            if now_ms - answered.taken.now_ms > MAX_RUNNING_MS and not self._holds_lease(request_id, answered, now_ms)
        ]
        for request_id in lost:
            del self._running[request_id]
        yield 0

    def _forget_full(self, name: str, now_ms: int) -> int:
        forgotten = self.tables[name].evict_idle(now_ms, max_scanned=EVICTION_BATCH_KEYS)
        self._uncount(name, forgotten)
        return len(forgotten)

    def _uncount(self, name: str, keys: Iterable[str]) -> None:
        """These counters of a rule are gone: their owners may open others."""
        parts = self._parts.get(name, {})
        for key in keys if parts else ():
            owner = get_key_owner(key)
            if key == build_shared_key(owner):
                continue
            left = parts.pop(owner, 0) - 1
            if left > 0:
                parts[owner] = left


_NEW_RECORD: Final = BanRecord()


def _keys(charges: Sequence[Charge]) -> tuple[str, ...]:
    return tuple(charge.key for charge in charges)
