"""Activity counts: what they add up to, their limits, and that no step takes long, however many callers send requests."""

import gc
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.attempts import require_cpu
from tests.limits.builders import MINUTE_MS, InMemoryLimiter, a_user
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.counting.counters import EVICTION_BATCH_KEYS, MAX_RUNNING_MS
from wharf.limits.core.decision import LimitDecision
from wharf.limits.decisions import activity
from wharf.limits.decisions.activity import (
    MAX_EXPIRED_ROWS_PER_CALL,
    MAX_PENDING_PLANS,
    RETENTION_MINUTES,
    ActivityCounts,
)

MAX_STEP_S = 0.005


def send_from_callers(limiter: InMemoryLimiter, count: int) -> Iterator[tuple[LimitDecision, Caller]]:
    """Yield an admitted request of each of so many callers."""
    for number in range(count):
        caller = a_user(f"u{number}")
        yield limiter.send(caller), caller


def record_callers(counts: ActivityCounts, limiter: InMemoryLimiter, count: int) -> None:
    for decision, caller in send_from_callers(limiter, count):
        counts.record_admission(decision, caller)
    counts.add_admissions_to_rows(limiter.now_ms)


def test_each_admission_is_in_one_row_and_counted_once_for_each_rule() -> None:
    limiter, counts = InMemoryLimiter(), ActivityCounts()
    for _ in range(2):
        record_callers(counts, limiter, MAX_PENDING_PLANS + 500)

    rows = list(counts.list_rows())
    assert (len(rows), {row.total for row in rows}) == (MAX_PENDING_PLANS + 500, {2})
    assert counts.rules["core"].within == counts.admitted == 2 * (MAX_PENDING_PLANS + 500)


def measure_longest_step_s(limiter: InMemoryLimiter, count: int) -> float:
    """Return the processor time of the longest step while many callers send a request within a second."""
    counts, longest_s = ActivityCounts(), 0.0
    admissions = list(send_from_callers(limiter, count))
    gc.disable()
    try:
        for decision, caller in admissions:
            began_s = time.thread_time()
            counts.record_admission(decision, caller)
            longest_s = max(longest_s, time.thread_time() - began_s)
        began_s = time.thread_time()
        counts.add_admissions_to_rows(limiter.now_ms)
        return max(longest_s, time.thread_time() - began_s)
    finally:
        gc.enable()


def test_no_step_takes_longer_than_five_milliseconds_while_callers_arrive() -> None:
    require_cpu(measure_longest_step_s(InMemoryLimiter(), 30_000), MAX_STEP_S, "a step")


def test_above_the_limit_of_rows_those_of_the_oldest_minute_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_ROWS", 100)
    limiter, counts = InMemoryLimiter(), ActivityCounts()
    first_minute = limiter.now_ms // MINUTE_MS
    record_callers(counts, limiter, 60)
    limiter.wait(MINUTE_MS)
    record_callers(counts, limiter, 80)

    minutes = [row.minute for row in counts.list_rows()]
    assert (len(minutes), minutes.count(first_minute), counts.dropped_rows) == (100, 20, 40)


def test_expired_rows_are_deleted_in_parts() -> None:
    limiter, counts = InMemoryLimiter(), ActivityCounts()
    record_callers(counts, limiter, MAX_EXPIRED_ROWS_PER_CALL + 500)
    limiter.wait((RETENTION_MINUTES + 1) * MINUTE_MS)

    remaining = []
    for _ in range(2):
        counts.add_admissions_to_rows(limiter.now_ms)
        remaining.append(len(list(counts.list_rows())))

    assert remaining == [500, 0]


def test_a_sweep_removes_lost_requests_in_parts() -> None:
    limiter = InMemoryLimiter()
    for number in range(2 * EVICTION_BATCH_KEYS + 500):
        limiter.send(a_user(f"u{number}"), holds=True, request_id=f"r{number}")
    limiter.wait(MAX_RUNNING_MS + 1)

    running_counts = [
        sum(limiter.counters.is_running(f"r{number}") for number in range(2 * EVICTION_BATCH_KEYS + 500))
        for _ in limiter.counters.sweep(limiter.now_ms)
    ]

    decreases = [before - after for before, after in pairwise(running_counts)]
    assert running_counts[-1] == 0
    assert max(decreases) <= EVICTION_BATCH_KEYS
