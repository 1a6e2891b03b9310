"""Decisions while the store is unavailable: by the rule's policy open, closed, or with a share of the limit.

For rules with the policy `local`, a process admits in one window at most its share of the ceiling, and no more than
was left when the store last replied. Nothing here does I/O.
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
"""Limits the memory for last readings; the oldest are dropped."""


class _LastReading(msgspec.Struct, frozen=True, gc=False):
    """The last count of a bucket that the store reported, and the end of its window."""

    count: int
    end_ms: int


class FallbackCounters:
    """Counters of this process that decide requests while the store is unavailable.

    `process_count` processes share each limit, so each of them may use that part of it.
    """

    def __init__(self, rules: RuleSet, *, process_count: int) -> None:
        self._counters = Counters(rules.counted_rules, max_keys=rules.keys_most)
        self.process_count = process_count
        self._last_readings: OrderedDict[tuple[str, str], _LastReading] = OrderedDict()

    def set_rules(self, rules: RuleSet) -> None:
        self._counters.set_rules(rules.counted_rules, max_keys=rules.keys_most)

    def record_result(self, call: StoreCall, result: TakeResult) -> None:
        """Store the count of the bucket that the store reported in this result, if the call charges it."""
        if not _charges_bucket(call):
            return
        charge = call.charges[0]
        count = result.bucket_count_before + charge.cost * result.is_admitted
        counter = (charge.name, charge.key)
        readings = self._last_readings
        readings[counter] = _LastReading(count, result.bucket_end_ms)
        readings.move_to_end(counter)
        if len(readings) > MAX_KNOWN_BUCKETS:
            readings.popitem(last=False)

    def take(self, call: StoreCall, now_ms: int) -> TakeResult:
        """Return the result of a call while the store is unavailable, by the outage policies of its rules.

        A rule with the policy `closed` refuses; `open` admits; `local` admits up to this process's share of the ceiling.
        The counts in the result are scaled to the whole ceiling, because headers report that.
        """
        charges = tuple(self._limit_to_share(charge, now_ms) for charge in call.charges)
        result = self._counters.take(msgspec.structs.replace(call, charges=charges), now_ms)
        closed_indexes = [
            index
            for index, charge in enumerate(call.charges)
            if charge.rule.on_store_loss is StoreOutagePolicy.CLOSED and charge.is_enforced
        ]
        is_admitted = result.is_admitted and not closed_indexes
        if result.is_admitted and not is_admitted:
            self._counters.refund(call.id, now_ms, is_fault=False)
            self._counters.release(call.id, now_ms)
        free_at_ms = dict(zip(result.hit_indexes, result.free_at_ms, strict=True))
        free_at_ms |= {index: max(free_at_ms.get(index, 0), now_ms + RETRY_DELAY_MS) for index in closed_indexes}
        counts_before = tuple(
            charge.ceiling - max(0, share.ceiling - before)
            for charge, share, before in zip(call.charges, charges, result.counts_before, strict=True)
        )
        bucket_count, bucket_end_ms = result.bucket_count_before, result.bucket_end_ms
        if _charges_bucket(call):
            bucket_count = counts_before[0]
            reading = self._last_readings.get((call.charges[0].name, call.charges[0].key))
            if reading is not None and reading.end_ms > now_ms:
                bucket_end_ms = reading.end_ms
        elif call.plan.is_free:
            bucket_count, bucket_end_ms = msgspec.structs.astuple(self.peek(call.plan.bucket_charge, now_ms))
        return msgspec.structs.replace(
            result,
            is_admitted=is_admitted,
            counts_before=counts_before,
            hit_indexes=tuple(sorted(free_at_ms)),
            free_at_ms=tuple(free_at_ms[index] for index in sorted(free_at_ms)),
            bucket_count_before=bucket_count,
            bucket_end_ms=bucket_end_ms,
            fallback_processes=self.process_count,
        )

    def _limit_to_share(self, charge: Charge, now_ms: int) -> Charge:
        """Return the charge with the share of the ceiling that this process may use during an outage.

        For a fixed window, the share is at most what was left when the store last reported the count. A rule with
        another policy than `local` is counted but not enforced.
        """
        if charge.ceiling >= UNLIMITED:
            return charge
        if charge.rule.on_store_loss is not StoreOutagePolicy.LOCAL:
            # Count it for the headers, but do not enforce it.
            return msgspec.structs.replace(charge, is_enforced=False)
        share = -(-charge.ceiling // self.process_count)
        reading = self._last_readings.get((charge.name, charge.key))
        if charge.rule.algorithm is Algorithm.WINDOW and reading is not None and reading.end_ms > now_ms:
            share = min(share, max(0, charge.ceiling - reading.count))
        return msgspec.structs.replace(charge, ceiling=share)

    def release(self, request_id: str, now_ms: int) -> bool:
        return self._counters.release(request_id, now_ms)

    def peek(self, charge: Charge, now_ms: int) -> CounterReading:
        """Return the value of a counter as `take` decides by it: what remains is what this process would still admit.

        It is scaled to the whole ceiling, because the ceiling is reported too.
        """
        (reading,) = self._counters.peek([charge], now_ms)
        if charge.rule.on_store_loss is StoreOutagePolicy.CLOSED and charge.is_enforced:
            return CounterReading(charge.ceiling, now_ms + RETRY_DELAY_MS)
        share = self._limit_to_share(charge, now_ms)
        last = self._last_readings.get((charge.name, charge.key))
        is_open = charge.rule.algorithm is Algorithm.WINDOW and last is not None and last.end_ms > now_ms
        end_ms = last.end_ms if last is not None and is_open else reading.end_ms
        return CounterReading(charge.ceiling - max(0, share.ceiling - reading.used), end_ms)


def _charges_bucket(call: StoreCall) -> bool:
    """Return whether the first charge of a call is the bucket that the store reports."""
    return bool(call.charges) and (not call.plan.is_free or call.plan.bucket_charge is call.charges[0])
