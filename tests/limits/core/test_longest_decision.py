"""No decision of the limiter takes long, however many callers arrive."""

import gc
import time

import pytest

from tests.fuzz.rounds import IS_FULL_RUN
from tests.limits.builders import NOON_MS, InMemoryLimiter, a_user
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.counting.recent_results import MAX_REMEMBERED_RESULTS
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts

pytestmark = pytest.mark.fuzz

CALLER_COUNT = 1_000_000 if IS_FULL_RUN else 3 * MAX_REMEMBERED_RESULTS + 1_000
"""So many that results are dropped, and that the counters outgrow several sizes of a dict. A million takes 20 s or more, so only
`make fuzz` and `make bench` have so many.
"""
LIMIT_MS = 5.0
ROUND_COUNT = 5
"""Other load can lengthen a single decision. The shortest of the rounds' longest decisions counts."""


def measure_longest_decision_ms(limiter: Limiter) -> float:
    """Return the processor time of the longest decision while callers arrive, each with one request."""
    counters = Counters(limiter.rulebook.rules.rules)
    longest_s = 0.0
    gc.disable()  # Its time depends on all objects of the test process. The benchmark `limits_core` includes it.
    try:
        for number in range(CALLER_COUNT):
            request = RequestFacts(f"r{number}", "GET", "/meta", a_user(f"u{number}"))
            began_s = time.thread_time()
            counters.take(limiter.build_call(request, NOON_MS), NOON_MS)
            counters.release(request.id, NOON_MS)
            longest_s = max(longest_s, time.thread_time() - began_s)
    finally:
        gc.enable()
    return longest_s * 1_000


def test_no_decision_takes_longer_than_five_milliseconds_while_callers_arrive() -> None:
    limiter = InMemoryLimiter().core
    longest_ms = LIMIT_MS
    for _ in range(ROUND_COUNT):
        longest_ms = min(longest_ms, measure_longest_decision_ms(limiter))
        if longest_ms < LIMIT_MS:
            break

    assert longest_ms < LIMIT_MS
