"""What is decided when the store cannot be asked: by each rule open, closed, or with a bounded share of its own.

A process admits, by rules that fall back to local counting, at most the smaller of what was last known to remain and its
share of the limit in a window. It asks nobody and waits for nothing.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.counting.leases import RETRY_DELAY_MS
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import UNLIMITED, Algorithm, RuleSet, StoreOutagePolicy
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult

MAX_KNOWN_BUCKETS: Final = 65_536


class _Known(msgspec.Struct, frozen=True, gc=False):
    count: int
    end_ms: int


class FallbackCounters:
    """`processes`: among how many the limits are shared while nobody counts for all."""

    def __init__(self, rules: RuleSet, *, process_count: int) -> None:
        self._counters = Counters(rules.rules, max_keys=rules.keys_most)
        self.process_count = process_count
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def set_rules(self, rules: RuleSet) -> None:
        self._counters.set_rules(rules.rules, max_keys=rules.keys_most)

    def record_result(self, call: StoreCall, result: TakeResult) -> None:
        """Remember what the store last said of the bucket that headers show: the one that lasts long."""
        if call.plan.is_free or not call.charges:
            return
        charge = call.charges[0]
        count = result.bucket_count_before + charge.cost * result.is_admitted
        place = (charge.name, charge.key)
        known = self._known
        known[place] = _Known(count, result.bucket_end_ms)
        known.move_to_end(place)
        if len(known) > MAX_KNOWN_BUCKETS:
            known.popitem(last=False)

    def take(self, call: StoreCall, now_ms: int) -> TakeResult:
        """Decide by the rules' own policies."""
        charges = tuple(self._bounded(charge, now_ms) for charge in call.charges)
        counted = self._counters.take(msgspec.structs.replace(call, charges=charges), now_ms)
        closed = [
            index
            for index, charge in enumerate(call.charges)
            if charge.rule.on_store_loss is StoreOutagePolicy.CLOSED and charge.is_enforced
        ]
        admitted = counted.is_admitted and not closed
        if counted.is_admitted and not admitted:
            self._counters.refund(call.id, now_ms, is_fault=False)
            self._counters.release(call.id, now_ms)
        frees = dict(zip(counted.hit_indexes, counted.free_at_ms, strict=True))
        frees |= {index: max(frees.get(index, 0), now_ms + RETRY_DELAY_MS) for index in closed}
        told = tuple(
            charge.ceiling - max(0, own.ceiling - before)
            for charge, own, before in zip(call.charges, charges, counted.counts_before, strict=True)
        )
        shown_end_ms = counted.bucket_end_ms
        if not call.plan.is_free:
            known = self._known.get((call.charges[0].name, call.charges[0].key))
            if known is not None and known.end_ms > now_ms:
                shown_end_ms = known.end_ms
        return msgspec.structs.replace(
            counted,
            is_admitted=admitted,
            counts_before=told,
            hit_indexes=tuple(sorted(frees)),
            free_at_ms=tuple(frees[index] for index in sorted(frees)),
            bucket_count_before=told[0] if told and not call.plan.is_free else counted.bucket_count_before,
            bucket_end_ms=shown_end_ms,
        )

    def _bounded(self, charge: Charge, now_ms: int) -> Charge:
        if charge.ceiling >= UNLIMITED:
            return charge
        if charge.rule.on_store_loss is not StoreOutagePolicy.LOCAL:
            # Counted so that headers tell something, and bound to nothing here.
            return msgspec.structs.replace(charge, is_enforced=False)
        share = -(-charge.ceiling // self.process_count)
        known = self._known.get((charge.name, charge.key))
        if charge.rule.algorithm is Algorithm.WINDOW and known is not None and known.end_ms > now_ms:
            share = min(share, max(0, charge.ceiling - known.count))
        return msgspec.structs.replace(charge, ceiling=share)

    def release(self, request_id: str, now_ms: int) -> bool:
        return self._counters.release(request_id, now_ms)

    def peek(self, charge: Charge, now_ms: int) -> CounterReading:
        """What is told of a counter that cannot be looked at: what was last known, else a full quota."""
        known = self._known.get((charge.name, charge.key))
        if known is not None and known.end_ms > now_ms:
            return CounterReading(known.count, known.end_ms)
        (reading,) = self._counters.peek([charge], now_ms)
        return reading
