"""Decisions during an outage of the store: by the policy of each rule, with this process's share of the limit."""

import pytest
from msgspec.structs import replace

from tests.limits.builders import NOON_MS, a_user
from wharf.limits.core.counting.leases import RETRY_DELAY_MS
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import UNLIMITED
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.rules import read_rules
from wharf.limits.stores import fallback as fallback_module
from wharf.limits.stores.fallback import FallbackCounters

RULES = """
profile = "none"
[[rule]]
name = "core"
resource = "core"
window = "10s"
ceiling = 10
[[rule]]
name = "points"
counts = "points"
window = "10s"
ceiling = 9
[[endpoint]]
match = ["GET /free"]
free = true
"""


class Outage:
    """Fallback counters of one of four processes."""

    def __init__(self, rules: str = RULES) -> None:
        self.rules = read_rules(rules)
        self.counters = FallbackCounters(self.rules, process_count=4)
        self.limiter = Limiter(self.rules)
        self._number = 0

    def call(self, path: str = "/x") -> StoreCall:
        self._number += 1
        return self.limiter.build_call(RequestFacts(f"r{self._number}", "GET", path, a_user()), NOON_MS)

    def take(self, path: str = "/x", *, now_ms: int = NOON_MS) -> TakeResult:
        return self.counters.take(self.call(path), now_ms)

    def record(self, used: int, *, is_admitted: bool = True, end_ms: int = NOON_MS + 5_000, path: str = "/x") -> None:
        """Record a result of the store, with this count before it."""
        result = TakeResult(is_admitted, NOON_MS, (used, 0), (), (), (), used, end_ms)
        self.counters.record_result(self.call(path), result)


def test_a_process_uses_its_share_of_each_limit_rounded_up() -> None:
    outage = Outage()

    results = [outage.take() for _ in range(4)]

    assert [result.is_admitted for result in results] == [True, True, True, False]
    # What is left of the share is reported as what is left of the whole limit.
    assert [result.counts_before for result in results] == [(7, 6), (8, 7), (9, 8), (10, 9)]
    assert [result.bucket_count_before for result in results] == [7, 8, 9, 10]
    assert (results[3].hit_indexes, results[0].bucket_end_ms) == ((0, 1), NOON_MS + 10_000)


@pytest.mark.parametrize(
    ("used", "is_admitted", "admitted"),
    [(0, True, 3), (7, True, 2), (8, True, 1), (8, False, 2), (9, True, 0), (20, True, 0)],
)
def test_a_process_uses_no_more_than_was_left_when_the_store_last_replied(
    used: int, is_admitted: bool, admitted: int
) -> None:
    outage = Outage()
    outage.record(used, is_admitted=is_admitted)

    results = [outage.take() for _ in range(4)]

    assert [result.is_admitted for result in results] == [True] * admitted + [False] * (4 - admitted)
    assert {result.bucket_end_ms for result in results} == {NOON_MS + 5_000}


def test_a_count_of_an_ended_window_is_ignored() -> None:
    outage = Outage()
    outage.record(9, end_ms=NOON_MS)

    result = outage.take()

    assert (result.is_admitted, result.bucket_end_ms) == (True, NOON_MS + 10_000)


def test_a_free_request_changes_no_known_count() -> None:
    outage = Outage()
    outage.record(9, path="/free")

    assert [outage.take().is_admitted for _ in range(3)] == [True] * 3
    free = outage.take("/free")
    assert (free.is_admitted, free.bucket_count_before, free.counts_before) == (False, 10, (9,))


@pytest.mark.parametrize("known_count", [None, 6])
def test_a_free_request_reports_its_bucket_as_other_requests_do(known_count: int | None) -> None:
    outage = Outage()
    if known_count is not None:
        outage.record(known_count)
    taken = outage.take()

    free = outage.take("/free")

    assert free.is_admitted
    assert (free.bucket_count_before, free.bucket_end_ms) == (taken.bucket_count_before + 1, taken.bucket_end_ms)


def make_policy(policy: str, *, rule: str = "points", more: str = "") -> Outage:
    return Outage(RULES.replace(f'name = "{rule}"', f'name = "{rule}"\non_store_loss = "{policy}"\n{more}'))


def test_a_closed_rule_refuses_every_request_and_charges_nothing() -> None:
    outage = make_policy("closed")

    results = [outage.take() for _ in range(5)]

    assert [result.is_admitted for result in results] == [False] * 5
    assert [(result.hit_indexes, result.free_at_ms) for result in results[:1]] == [((1,), (NOON_MS + RETRY_DELAY_MS,))]
    assert results[4].counts_before[0] == 7
    assert not outage.counters.release("r1", NOON_MS)


def test_a_closed_rule_reports_the_later_of_its_own_end_and_the_next_try() -> None:
    outage = make_policy("closed", rule="core")
    charge = outage.call().charges[0]
    outage.counters.take(replace(outage.call(), charges=(replace(charge, cost=10, required=1),)), NOON_MS)
    result = outage.take()

    assert (result.is_admitted, result.hit_indexes) == (False, (0,))
    assert result.free_at_ms == (NOON_MS + RETRY_DELAY_MS,)


def test_a_closed_rule_in_shadow_mode_refuses_nothing() -> None:
    assert make_policy("closed", more="shadow = true").take().is_admitted


def test_an_open_rule_admits_every_request_and_counts_it() -> None:
    outage = make_policy("open", rule="core")
    outage.counters.process_count = 1

    results = [outage.take(now_ms=NOON_MS + number) for number in range(12)]

    assert [result.is_admitted for result in results] == [True] * 9 + [False] * 3  # Refused by `points`.
    assert [result.counts_before[0] for result in results[:3]] == [0, 1, 2]


def test_an_unlimited_bucket_is_not_shared() -> None:
    outage = Outage(RULES.replace("ceiling = 10", 'ceiling = "unlimited"').replace("ceiling = 9", "ceiling = 99"))
    outage.record(UNLIMITED)

    assert [outage.take().is_admitted for _ in range(9)] == [True] * 9


def test_a_running_request_is_released_once() -> None:
    outage = Outage()
    outage.take()

    assert [outage.counters.release("r1", NOON_MS) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("known_count", [None, 0, 6, 8, 10])
def test_a_reading_agrees_with_the_decisions(known_count: int | None) -> None:
    outage = Outage()
    if known_count is not None:
        outage.record(known_count)
    charge = outage.call().charges[0]

    for _ in range(12):
        reading = outage.counters.peek(charge, NOON_MS)
        result = outage.take()
        assert (reading.used, reading.used < charge.ceiling) == (result.bucket_count_before, result.is_admitted)
        if known_count is not None:
            assert reading.end_ms == result.bucket_end_ms


def test_the_end_of_a_reading_is_that_of_the_store_while_its_window_is_open() -> None:
    outage = Outage()
    charge = outage.call().charges[0]
    outage.take()
    outage.record(6)

    readings = [outage.counters.peek(charge, NOON_MS + offset_ms) for offset_ms in (0, 4_999, 5_000)]

    assert [reading.end_ms - NOON_MS for reading in readings] == [5_000, 5_000, 10_000]


@pytest.mark.parametrize(("policy", "used"), [("closed", 10), ("open", 0)])
def test_a_reading_shows_whether_the_policy_admits_requests(policy: str, used: int) -> None:
    outage = make_policy(policy, rule="core")

    assert outage.counters.peek(outage.call().charges[0], NOON_MS).used == used


def test_the_oldest_known_counts_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_module, "MAX_KNOWN_BUCKETS", 2)
    outage = Outage()
    result = TakeResult(True, NOON_MS, (8, 0), (), (), (), 8, NOON_MS + 5_000)

    def call(login: str) -> StoreCall:
        return outage.limiter.build_call(RequestFacts(f"{login}", "GET", "/x", a_user(login)), NOON_MS)

    for login in ("ada", "bob", "ada", "eve"):
        outage.counters.record_result(call(login), result)

    # Of 10, one is left after 9; of an unknown count, the share of one of four processes.
    readings = [outage.counters.peek(call(login).charges[0], NOON_MS).used for login in ("ada", "bob", "eve")]
    assert readings == [9, 7, 9]


def test_new_rules_apply_during_an_outage() -> None:
    outage = Outage()
    rules = read_rules(RULES.replace("ceiling = 10", "ceiling = 4"))
    outage.counters.set_rules(rules)
    outage.limiter = Limiter(rules)

    assert [outage.take().is_admitted for _ in range(2)] == [True, False]
