"""Activity counts, and the meter for the CPU time of requests."""

import pytest
from msgspec.structs import replace

from tests.limits.builders import MINUTE_MS, NOON_MS, InMemoryLimiter, a_user, build_rules_text
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.rule import Interface
from wharf.limits.decisions import activity
from wharf.limits.decisions.activity import ActivityCounts, RuleCounts
from wharf.limits.decisions.cpu_meter import MAX_SLICES, CpuMeter, plan_take_back
from wharf.limits.decisions.requests import AdmittedRequest

RULES = """
profile = "none"
[[rule]]
name = "core"
resource = "core"
ceiling = 10
[[rule]]
name = "points"
counts = "points"
ceiling = 4
[[rule]]
name = "quiet"
counts = "points"
ceiling = 2
shadow = true
[[endpoint]]
match = ["GET /free"]
free = true
"""
ADA, EVE = a_user("ada"), a_user("eve")


def send(limiter: InMemoryLimiter, counts: ActivityCounts, caller: Caller = ADA, path: str = "/x") -> LimitDecision:
    """Send a request, and record its decision."""
    decision = limiter.send(caller, path)
    if decision.is_admitted:
        counts.record_admission(decision, caller)
    else:
        counts.record_refusal(decision, caller, limiter.now_ms)
    return decision


def test_admissions_are_counted_by_rule_and_row_once() -> None:
    limiter, counts = InMemoryLimiter(RULES), ActivityCounts()
    for caller in (ADA, ADA, EVE):
        send(limiter, counts, caller)

    counts.add_admissions_to_rows(NOON_MS + 5)
    counts.add_admissions_to_rows(NOON_MS + 7)

    rows = [(row.minute, row.caller, row.endpoint, row.total, row.last_ms) for row in counts.list_rows()]
    assert rows == [
        (NOON_MS // MINUTE_MS, ADA, "GET /x", 2, NOON_MS + 5),
        (NOON_MS // MINUTE_MS, EVE, "GET /x", 1, NOON_MS + 5),
    ]
    assert counts.admitted == 3
    assert counts.rules == {name: RuleCounts(within=3) for name in ("core", "points", "quiet")}
    assert counts.last_callers == {"user:ada": ADA, "user:eve": EVE}


def test_admissions_of_a_later_minute_have_a_row_of_their_own() -> None:
    limiter, counts = InMemoryLimiter(RULES), ActivityCounts()
    for minute in (0, 0, 1):
        send(limiter, counts)
        counts.add_admissions_to_rows(NOON_MS + minute * MINUTE_MS)

    assert [row.total for row in counts.list_rows()] == [2, 1]


def test_refusals_are_counted_by_verdict_rule_and_row() -> None:
    limiter, counts = InMemoryLimiter(RULES), ActivityCounts()
    for _ in range(6):
        send(limiter, counts)

    counts.add_admissions_to_rows(NOON_MS)

    (row,) = counts.list_rows()
    assert (row.total, row.primary, row.secondary, row.last_ms, row.last_limited_ms) == (6, 0, 2, NOON_MS, NOON_MS)
    assert (counts.verdicts[Verdict.SECONDARY], sum(counts.verdicts.values())) == (2, 2)
    assert counts.rules == {
        "core": RuleCounts(within=4),
        "points": RuleCounts(within=4, refused=2),
        "quiet": RuleCounts(within=4, shadowed=2),
    }


def test_a_refusal_by_a_primary_limit_is_counted_as_such() -> None:
    limiter, counts = InMemoryLimiter(RULES.replace("ceiling = 10", "ceiling = 1")), ActivityCounts()
    for _ in range(2):
        send(limiter, counts)

    (row,) = counts.list_rows()
    assert (row.total, row.primary, row.secondary) == (1, 1, 0)


@pytest.mark.parametrize("verdict", [Verdict.TOO_MANY_OBJECTS, Verdict.TOO_COMPLEX])
def test_a_request_that_no_limit_refused_is_not_counted_as_limited(verdict: Verdict) -> None:
    counts = ActivityCounts()

    counts.record_refusal(replace(InMemoryLimiter(RULES).send(ADA), verdict=verdict), ADA, NOON_MS)

    (row,) = counts.list_rows()
    assert (row.total, row.primary, row.secondary, row.last_ms, row.last_limited_ms) == (1, 0, 0, NOON_MS, 0)


def test_admissions_near_the_limit_are_counted() -> None:
    rules = build_rules_text().replace("1000000", "10")
    limiter, counts = InMemoryLimiter(rules), ActivityCounts()

    seen = []
    for _ in range(10):
        send(limiter, counts)
        seen.append(counts.near_limit)

    assert seen == [0] * 8 + [1, 2]


def test_a_free_request_is_near_the_limit_of_its_bucket() -> None:
    limiter, counts = InMemoryLimiter(RULES.replace("ceiling = 4", "ceiling = 99")), ActivityCounts()
    for _ in range(8):
        limiter.send(ADA)

    send(limiter, counts, path="/free")

    assert counts.near_limit == 1


def test_requests_of_machines_are_counted_without_a_row() -> None:
    counts = ActivityCounts()

    counts.record_machine(["core", "points"])

    assert (counts.admitted, counts.rules, [*counts.list_rows()]) == (
        1,
        {"core": RuleCounts(within=1), "points": RuleCounts(within=1)},
        [],
    )


def test_rows_are_listed_by_time_with_both_ends() -> None:
    limiter, counts = InMemoryLimiter(RULES), ActivityCounts()
    for minute in range(4):
        send(limiter, counts)
        counts.add_admissions_to_rows(NOON_MS + minute * MINUTE_MS)

    def list_minutes(since_ms: int, until_ms: int | None) -> list[int]:
        return [row.minute - NOON_MS // MINUTE_MS for row in counts.list_rows(since_ms=since_ms, until_ms=until_ms)]

    assert list_minutes(NOON_MS + MINUTE_MS + 59_999, None) == [1, 2, 3]
    assert list_minutes(NOON_MS + MINUTE_MS, NOON_MS + 2 * MINUTE_MS) == [1, 2]
    assert list_minutes(0, NOON_MS + MINUTE_MS - 1) == [0]


def test_rows_older_than_a_month_are_deleted() -> None:
    limiter, counts = InMemoryLimiter(RULES), ActivityCounts()
    for minute in range(3):
        send(limiter, counts)
        counts.add_admissions_to_rows(NOON_MS + minute * MINUTE_MS)

    counts.add_admissions_to_rows(NOON_MS + (31 * 24 * 60 + 2) * MINUTE_MS)

    assert [row.minute for row in counts.list_rows()] == [NOON_MS // MINUTE_MS + 2]


def test_the_oldest_rows_and_callers_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_ROWS", 2)
    monkeypatch.setattr(activity, "MAX_LAST_CALLERS", 2)
    limiter, counts = InMemoryLimiter(build_rules_text()), ActivityCounts()
    for minute, login in enumerate(("ada", "bob", "ada", "eve")):
        send(limiter, counts, a_user(login))
        counts.add_admissions_to_rows(NOON_MS + minute // 2 * MINUTE_MS)

    rows = [(row.minute - NOON_MS // MINUTE_MS, row.caller.owner) for row in counts.list_rows()]
    assert rows == [(1, "user:ada"), (1, "user:eve")]
    assert (counts.dropped_rows, [*counts.last_callers]) == (2, ["user:ada", "user:eve"])


# -- CPU time ------------------------------------------------------------------------------------------------------

CPU_RULES = build_rules_text('[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nceiling = 90000')


def make_request(
    caller: Caller = ADA, *, interface: Interface = Interface.REST, rules: str = CPU_RULES
) -> AdmittedRequest:
    decision = InMemoryLimiter(rules).send(caller)
    decision = replace(decision, plan=replace(decision.plan, interface=interface))
    return AdmittedRequest("r", decision, caller, False, 100.0, 100.0)


def take_due(meter: CpuMeter, request: AdmittedRequest, now_s: float) -> int:
    assert request.decision is not None
    return meter.take_due_ms(request, request.decision, now_s)


def test_work_is_the_time_without_pauses() -> None:
    request = make_request()

    request.resume_work(101.0)  # It works already.
    request.pause_work(102.0)
    request.pause_work(103.0)
    assert request.compute_work_ms(110.0) == 2_000
    request.resume_work(104.0)
    assert request.compute_work_ms(105.0) == 3_000


def test_the_work_of_an_ended_request_is_charged() -> None:
    meter, running, paused = CpuMeter(), make_request(), make_request()
    paused.pause_work(100.25)

    assert (take_due(meter, running, 100.5), take_due(meter, paused, 101.0)) == (500, 250)


def test_the_time_that_the_service_measured_replaces_the_work() -> None:
    request = make_request()
    request.measured_ms = 42

    assert take_due(CpuMeter(), request, 200.0) == 42


def test_work_that_was_charged_while_the_request_ran_is_not_charged_again() -> None:
    request = make_request()
    request.charged_ms = 300

    assert take_due(CpuMeter(), request, 100.5) == 200


def test_small_amounts_are_added_up_for_each_owner_until_they_are_charged() -> None:
    meter = CpuMeter()

    amounts = [take_due(meter, make_request(caller), 100.0 + seconds) for caller, seconds in
               ((ADA, 0.0078125), (EVE, 0.0078125), (ADA, 0.0078125), (ADA, 0.009765625))]  # fmt: skip

    # 7.8125 ms twice are 15 ms, and 0.625 ms are left; with 9.765625 ms they are 10 ms.
    assert amounts == [0, 0, 15, 10]


def test_exactly_ten_milliseconds_are_charged() -> None:
    request = make_request()
    request.measured_ms = 10

    assert take_due(CpuMeter(), request, 100.0) == 10


def test_graphql_requests_owe_separately() -> None:
    meter = CpuMeter()

    amounts = [
        take_due(meter, make_request(interface=interface), 100.0078125)
        for interface in (Interface.REST, Interface.GRAPHQL, Interface.GRAPHQL)
    ]

    assert amounts == [0, 0, 15]


def test_a_request_without_a_meter_is_not_charged() -> None:
    request = make_request(rules=build_rules_text())

    assert (take_due(CpuMeter(), request, 200.0), CpuMeter().take_slice_ms(request, 200.0, NOON_MS)) == (0, 0)


def test_too_many_owners_with_small_amounts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.limits.decisions.cpu_meter.MAX_OWNERS", 2)
    meter = CpuMeter()
    for login in ("ada", "bob", "eve"):
        take_due(meter, make_request(a_user(login)), 100.0078125)

    amounts = [take_due(meter, make_request(a_user(login)), 100.0078125) for login in ("eve", "ada")]

    assert amounts == [15, 0]


@pytest.mark.parametrize(("work_s", "expected"), [(4.999, 0), (5.0, 5_000), (7.5, 7_500)])
def test_a_running_request_is_charged_in_slices(work_s: float, expected: int) -> None:
    meter, request = CpuMeter(), make_request()

    assert meter.take_slice_ms(request, 100.0 + work_s, NOON_MS) == expected
    assert request.charged_ms == expected
    assert meter.take_slice_ms(request, 100.0 + work_s, NOON_MS) == 0


def test_slices_continue_after_the_charged_work() -> None:
    meter, request = CpuMeter(), make_request()
    meter.take_slice_ms(request, 106.0, NOON_MS)

    assert (
        meter.take_slice_ms(request, 110.0, NOON_MS),
        meter.take_slice_ms(request, 111.0, NOON_MS),
        request.charged_ms,
    ) == (
        0,
        5_000,
        11_000,
    )


def test_a_request_that_the_service_measures_is_not_charged_in_slices() -> None:
    request = make_request()
    request.measured_ms = 1

    assert CpuMeter().take_slice_ms(request, 200.0, NOON_MS) == 0


def test_a_request_without_a_decision_is_not_charged() -> None:
    request = make_request()
    request.decision = None

    assert CpuMeter().take_slice_ms(request, 200.0, NOON_MS) == 0


def test_only_the_newest_parts_of_a_long_request_are_remembered() -> None:
    meter, request = CpuMeter(), make_request()
    for number in range(1, MAX_SLICES + 3):
        meter.take_slice_ms(request, 100.0 + number * 5, NOON_MS + number)

    assert request.slices is not None
    assert [at_ms - NOON_MS for at_ms, _ in request.slices] == [*range(3, MAX_SLICES + 3)]


@pytest.mark.parametrize(("after_ms", "expected"), [(0, 5_000), (59_999, 5_000), (60_000, 0)])
def test_what_a_limit_does_not_count_any_more_is_not_taken_back(after_ms: int, expected: int) -> None:
    rule = '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nceiling = 90000\nwindow = "1m"'
    request = make_request(rules=build_rules_text(rule))
    request.slices = [(NOON_MS + 3_000, 5_000)]

    assert sum(amount for _, amount in plan_take_back(request, 9_000, NOON_MS + after_ms)) == expected
