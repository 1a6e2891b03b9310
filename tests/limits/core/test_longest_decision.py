"""No decision of the limiter takes long, however many callers arrive."""

import gc
import time

import pytest

from tests.attempts import is_cpu_limit_kept
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
MAX_DECISION_S = 0.005
ROUND_COUNT = 5
"""Other load can lengthen any decision, but hardly the same one in each round. A decision that is slow by itself is slow in all."""


def list_slow_decisions(limiter: Limiter) -> set[int]:
    """Return the numbers of the decisions above the limit of processor time while callers arrive, each with one request."""
    counters = Counters(limiter.rulebook.rules.rules)
    slow = set()
    gc.disable()  # Its time depends on all objects of the test process. The benchmark `limits_core` includes it.
    try:
        for number in range(CALLER_COUNT):
            request = RequestFacts(f"r{number}", "GET", "/meta", a_user(f"u{number}"))
            began_s = time.thread_time()
            counters.take(limiter.build_call(request, NOON_MS), NOON_MS)
            counters.release(request.id, NOON_MS)
            if not is_cpu_limit_kept(time.thread_time() - began_s, MAX_DECISION_S):
                slow.add(number)
    finally:
        gc.enable()
    return slow


def test_no_decision_takes_longer_than_five_milliseconds_while_callers_arrive() -> None:
    limiter = InMemoryLimiter().core
    slow = list_slow_decisions(limiter)
    for _ in range(ROUND_COUNT - 1):
        if not slow:
            break
        slow &= list_slow_decisions(limiter)

    assert slow == set()
