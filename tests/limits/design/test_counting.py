"""Section 2 of the design: counting. The numbers in test names are its rules."""

import pytest

from tests.limits.builders import (
    CODE_HOST,
    HOUR_MS,
    MINUTE_MS,
    NOON_MS,
    SECOND_MS,
    InMemoryLimiter,
    a_user,
    a_workflow,
    an_installation,
    anonymous,
    build_rules_text,
)
from wharf.limits.core.callers.caller import CallerClass
from wharf.limits.core.counting.leases import LEASE_TTL_MS
from wharf.limits.core.decision import Verdict
from wharf.limits.core.graphql import QueryCostCalculator, QueryTooComplex
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.limiter import Grant
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.rule import ConnectionClass
from wharf.limits.core.rulebook import Rulebook, hash_rules
from wharf.limits.rules import read_rules

ISSUES = "/repos/acme/site/issues"


def core(ceiling: int, window: str = "1h", *, more: str = "") -> str:
    return f'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nwindow = "{window}"\nceiling = {ceiling}\n{more}'


# -- 2.1 -----------------------------------------------------------------------------------------------------------


def test_2_1_a_counter_survives_a_changed_ceiling() -> None:
    limiter = InMemoryLimiter(core(10))
    limiter.send_many(4, a_user())
    limiter.reload(core(6))
    decision = limiter.send(a_user())

    assert (decision.limit, decision.used, decision.remaining) == (6, 5, 1)


@pytest.mark.parametrize("ceiling", [1, 3, 5, 100])
def test_2_1_limit_always_equals_used_plus_remaining_and_neither_is_negative(ceiling: int) -> None:
    limiter = InMemoryLimiter(core(10))
    limiter.send_many(4, a_user())
    limiter.reload(core(ceiling))
    decision = limiter.send(a_user())

    assert (decision.limit, decision.used + decision.remaining, decision.remaining >= 0) == (ceiling, ceiling, True)


def test_2_1_a_change_of_tier_applies_to_the_next_request_and_keeps_count_and_end() -> None:
    limiter = InMemoryLimiter()
    before = limiter.send(a_user())
    limiter.wait(SECOND_MS)
    after = limiter.send(a_user(case=CallerClass.USER_ENTERPRISE))

    assert (before.limit, after.limit, after.used, after.reset_s) == (5_000, 15_000, 2, before.reset_s)


def test_2_1_one_user_through_two_apps_has_one_count_and_two_ceilings() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(10, a_user(app="app:1"))
    decision = limiter.send(a_user(app="app:2", case=CallerClass.USER_ENTERPRISE))

    assert (decision.limit, decision.used) == (15_000, 11)


def test_2_1_a_grant_raises_the_ceiling_until_it_expires() -> None:
    until_ms = NOON_MS + MINUTE_MS
    grant = Grant(owner="user:ada", resource="core", amount=500, until_ms=until_ms, by="ops", reason="a move")
    limiter = InMemoryLimiter(grants=[grant])
    during = limiter.send(a_user())
    limiter.now_ms = until_ms

    assert (during.limit, limiter.send(a_user()).limit, limiter.send(a_user("eve")).limit) == (5_500, 5_000, 5_000)


def test_2_1_a_changed_window_length_applies_from_the_next_window() -> None:
    limiter = InMemoryLimiter(core(10, "1h"))
    first = limiter.send(a_user())
    limiter.reload(core(10, "1m"))
    same_window = limiter.send(a_user())
    limiter.now_ms = first.reset_s * SECOND_MS
    next_window = limiter.send(a_user())

    assert (same_window.reset_s, same_window.used, next_window.used, next_window.reset_s) == (
        first.reset_s,
        2,
        1,
        first.reset_s + 60,
    )


def test_2_1_a_changed_length_of_a_sliding_window_applies_when_the_count_has_expired() -> None:
    def rules(window: str) -> str:
        return build_rules_text(f'[[rule]]\nname = "p"\ncounts = "points"\nwindow = "{window}"\nceiling = 5')

    limiter = InMemoryLimiter(rules("1m"))
    limiter.send_many(5, a_user())
    limiter.reload(rules("10s"))
    limiter.wait(30 * SECOND_MS)
    is_admitted_early = limiter.send(a_user()).is_admitted
    limiter.wait(35 * SECOND_MS)
    limiter.send_many(5, a_user())
    limiter.wait(11 * SECOND_MS)

    assert (is_admitted_early, limiter.send(a_user()).is_admitted) == (False, True)


def test_2_1_a_renamed_rule_with_its_previous_name_keeps_its_counters() -> None:
    limiter = InMemoryLimiter(core(10))
    limiter.send_many(4, a_user())
    limiter.reload(core(10).replace('name = "core"', 'name = "rest"\nwas = "core"'))

    assert limiter.send(a_user()).used == 5


def test_2_1_a_renamed_rule_without_its_previous_name_starts_at_0() -> None:
    limiter = InMemoryLimiter(core(10))
    limiter.send_many(4, a_user())
    limiter.reload(core(10).replace('name = "core"', 'name = "rest"'))

    assert limiter.send(a_user()).used == 1


def test_2_1_the_hash_of_rules_does_not_depend_on_file_and_line() -> None:
    moved_text = "# a comment\n\n" + core(10)

    assert (
        hash_rules(read_rules(core(10))) == hash_rules(read_rules(moved_text, "elsewhere.toml")),
        hash_rules(read_rules(core(10))) == hash_rules(read_rules(core(11))),
    ) == (True, False)


# -- 2.2 -----------------------------------------------------------------------------------------------------------


def test_2_2_a_window_starts_at_the_first_admitted_request_and_its_end_is_stored() -> None:
    limiter = InMemoryLimiter(core(10))
    limiter.wait(777)
    first = limiter.send(a_user())
    limiter.wait(20 * MINUTE_MS)

    assert (first.result.bucket_end_ms, limiter.send(a_user()).result.bucket_end_ms) == (NOON_MS + 777 + HOUR_MS,) * 2


def test_2_2_the_end_is_reported_in_seconds_rounded_up() -> None:
    limiter = InMemoryLimiter(core(10), at_ms=NOON_MS + 1)

    assert limiter.send(a_user()).reset_s == NOON_MS // SECOND_MS + 3_601


def test_2_2_a_window_has_ended_at_its_end_time() -> None:
    limiter = InMemoryLimiter(core(1))
    limiter.send(a_user())
    limiter.wait(HOUR_MS - 1)
    before = limiter.send(a_user()).is_admitted
    limiter.wait(1)

    assert (before, limiter.send(a_user()).is_admitted) == (False, True)


def test_2_2_an_idle_bucket_is_reported_as_a_new_window_and_not_stored() -> None:
    limiter = InMemoryLimiter()
    charge = limiter.core.rulebook.list_primary_charges(a_user())[0]
    (reading,) = limiter.counters.peek([charge], limiter.now_ms)

    assert (reading.used, reading.end_ms, len(limiter.counters.tables[charge.name])) == (
        0,
        NOON_MS + charge.rule.window_ms,
        0,
    )


def test_2_2_the_status_endpoint_opens_no_window() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user(), "/rate_limit")

    assert len(limiter.counters.tables["core"]) == 0


def test_2_2_refusals_open_no_window() -> None:
    limiter = InMemoryLimiter()
    for number in range(100):
        limiter.send(a_user(), "/zen", holds=True, request_id=f"held{number}")
    refusal = limiter.send(a_user(), "/search/users")

    assert (refusal.verdict, len(limiter.counters.tables["search"])) == (Verdict.SECONDARY, 0)


def test_2_2_a_backward_clock_step_resets_no_window() -> None:
    limiter = InMemoryLimiter(core(3))
    limiter.send_many(3, a_user())
    refusals = []
    for step_ms in (SECOND_MS, HOUR_MS, 24 * HOUR_MS):
        limiter.now_ms -= step_ms
        refusals.append(limiter.send(a_user()).verdict)

    assert refusals == [Verdict.PRIMARY] * 3


def test_2_2_a_stored_end_later_than_one_window_is_read_as_one_window_from_now() -> None:
    limiter = InMemoryLimiter(core(3))
    limiter.send(a_user())
    limiter.now_ms -= 24 * HOUR_MS
    decision = limiter.send(a_user())

    assert (decision.used, decision.result.bucket_end_ms) == (2, limiter.now_ms + HOUR_MS)


# -- 2.3 -----------------------------------------------------------------------------------------------------------


def test_2_3_all_limits_are_checked_and_none_is_charged_when_one_refuses() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(80, a_user(), ISSUES, method="POST")
    counts = {name: limiter.count(name, "user:ada") for name in ("core", "content", "content_hourly")}
    limiter.send(a_user(), ISSUES, method="POST")

    assert {name: limiter.count(name, "user:ada") for name in counts} == counts


def test_2_3_every_limit_that_was_hit_is_named() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "content_hourly"\nceiling = 80\n')
    limiter.send_many(80, a_user(), ISSUES, method="POST")

    assert limiter.send(a_user(), ISSUES, method="POST").list_hit_rules(is_enforced=True) == [
        "content",
        "content_hourly",
    ]


def test_2_3_a_decision_lists_every_limit_with_its_count_before_and_after() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user(), ISSUES, method="POST")
    counts_by_rule = {
        limit.rule: (limit.before, limit.after) for limit in limiter.send(a_user(), ISSUES, method="POST").list_limits()
    }

    assert counts_by_rule == {
        "core": (1, 2),
        "concurrent": (0, 1),
        "points": (5, 10),
        "cpu": (0, 0),
        "compute": (0, 0),
        "content": (1, 2),
        "content_hourly": (1, 2),
    }


def test_2_3_a_refusal_changes_no_counter() -> None:
    limiter = InMemoryLimiter(core(1))
    limiter.send(a_user())
    (limit,) = limiter.send(a_user()).list_limits()

    assert (limit.before, limit.after, limit.is_hit, limit.free_at_ms) == (1, 1, True, NOON_MS + HOUR_MS)


# -- 2.4 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset_ms", [0, 1, 2_500, 4_999])
def test_2_4_never_more_than_the_limit_of_points_in_any_minute(offset_ms: int) -> None:
    limiter = InMemoryLimiter(at_ms=NOON_MS + offset_ms)
    limiter.send_many(900, a_user(), ISSUES)
    limiter.wait(MINUTE_MS - 1)

    assert limiter.send(a_user(), ISSUES).verdict is Verdict.SECONDARY


def test_2_4_graphql_mutations_named_in_the_profile_create_content() -> None:
    body = b'{"query": "mutation { a: addComment(id: 1) { id } b: addComment(id: 2) { id } addStar(id: 1) { id } }"}'

    assert QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body).content == 2


def test_2_4_a_reply_can_report_created_content() -> None:
    limiter = InMemoryLimiter()
    limiter.counters.add_usage(limiter.core.rulebook.list_content_charges(a_user()), 1, limiter.now_ms)

    assert (limiter.count("content", "user:ada"), limiter.count("content_hourly", "user:ada")) == (1, 1)


def test_2_4_unknown_methods_cost_5() -> None:
    limiter = InMemoryLimiter()
    decision = limiter.send(a_user(), "/x", method="BREW")

    assert next(charge.cost for charge in decision.charges if charge.name == "points") == 5


# -- 2.5 -----------------------------------------------------------------------------------------------------------


def hold_slots(
    limiter: InMemoryLimiter, count: int = 100, *, connection: ConnectionClass = ConnectionClass.PLAIN
) -> None:
    for number in range(count):
        limiter.send(a_user(), "/zen", holds=True, request_id=f"held{number}", connection=connection)


def test_2_5_a_lease_lasts_30_seconds_unless_it_is_renewed() -> None:
    limiter = InMemoryLimiter()
    hold_slots(limiter)
    limiter.wait(LEASE_TTL_MS - 1)
    before = limiter.send(a_user()).is_admitted
    limiter.wait(1)

    assert (before, limiter.send(a_user()).is_admitted) == (False, True)


def test_2_5_one_renewal_keeps_all_slots_of_a_process() -> None:
    limiter = InMemoryLimiter()
    hold_slots(limiter)
    for _ in range(6):
        limiter.wait(10 * SECOND_MS)
        limiter.counters.renew([f"held{number}" for number in range(100)], limiter.now_ms)

    assert limiter.send(a_user()).is_admitted is False


def test_2_5_a_slot_is_released_once() -> None:
    limiter = InMemoryLimiter()
    hold_slots(limiter)

    assert [limiter.counters.release("held3", limiter.now_ms) for _ in range(3)] == [True, False, False]
    assert limiter.count("concurrent", "user:ada") == 99


def test_2_5_an_expired_lease_counts_again_if_its_request_still_runs_even_above_the_limit() -> None:
    limiter = InMemoryLimiter()
    hold_slots(limiter)
    limiter.wait(LEASE_TTL_MS)
    limiter.send(a_user(), "/zen", holds=True, request_id="new")
    revived = limiter.counters.renew([f"held{number}" for number in range(100)], limiter.now_ms)

    assert (revived, limiter.count("concurrent", "user:ada")) == (100, 101)


def test_2_5_a_websocket_costs_one_request_and_holds_a_slot_of_its_own_class() -> None:
    limiter = InMemoryLimiter()
    hold_slots(limiter, connection=ConnectionClass.WEBSOCKET)
    http_request = limiter.send(a_user())
    websocket = limiter.send(a_user(), "/zen", connection=ConnectionClass.WEBSOCKET)

    assert (http_request.verdict, http_request.used, websocket.list_hit_rules(is_enforced=True)) == (
        Verdict.ADMITTED,
        101,
        ["concurrent_websockets"],
    )


# -- 2.6 -----------------------------------------------------------------------------------------------------------


def test_2_6_cpu_time_can_exceed_the_ceiling_and_no_wait_is_over_60_seconds() -> None:
    limiter = InMemoryLimiter()
    plan = limiter.send(a_user()).plan
    limiter.counters.add_usage(plan.meter_charges, 100 * 90_000, limiter.now_ms)
    refusal = limiter.send(a_user())

    assert (refusal.verdict, (refusal.retry_after_s or 0) <= 60) == (Verdict.SECONDARY, True)


def test_2_6_the_debt_expires_with_its_slices() -> None:
    limiter = InMemoryLimiter()
    plan = limiter.send(a_user()).plan
    limiter.counters.add_usage(plan.meter_charges, 100 * 90_000, limiter.now_ms)
    limiter.wait(60 * SECOND_MS)

    assert limiter.send(a_user()).is_admitted


def test_2_6_a_long_request_is_charged_in_parts_to_the_current_window() -> None:
    limiter = InMemoryLimiter()
    plan = limiter.send(a_user()).plan
    for _ in range(24):  # Two minutes at full CPU.
        limiter.wait(5 * SECOND_MS)
        limiter.counters.add_usage(plan.meter_charges, 5_000, limiter.now_ms)

    assert limiter.count("cpu", "user:ada") == 60_000


def test_2_6_graphql_charges_both_cpu_limits() -> None:
    limiter = InMemoryLimiter()
    plan = limiter.send(a_user(), "/graphql", method="POST", query=QueryFacts(1, 1)).plan
    limiter.counters.add_usage(plan.meter_charges, 700, limiter.now_ms)

    assert (limiter.count("cpu", "user:ada"), limiter.count("graphql_cpu", "user:ada")) == (700, 700)


def test_2_6_excessive_compute_is_30_seconds_in_10_and_reported_only_as_a_secondary_limit() -> None:
    limiter = InMemoryLimiter()
    plan = limiter.send(a_user()).plan
    limiter.counters.add_usage(plan.meter_charges, 30_000, limiter.now_ms)
    refused = limiter.send(a_user())

    refusal = limiter.refusal(refused, a_user())

    assert (refused.list_hit_rules(is_enforced=True), b"secondary rate limit" in refusal.body) == (["compute"], True)
    # The contract discloses neither its name nor its threshold.
    assert [part for part in (b"compute", b"30000") if part in refusal.body + repr(refusal.headers).encode()] == []


# -- 2.7 -----------------------------------------------------------------------------------------------------------


def test_2_7_a_refund_returns_the_primary_charge_only() -> None:
    limiter = InMemoryLimiter()
    decision = limiter.send(a_user(), ISSUES, request_id="r")
    limiter.counters.refund("r", limiter.now_ms, is_fault=False)

    assert (limiter.count("core", "user:ada"), limiter.count("points", f"user:ada {decision.plan.endpoint}")) == (0, 1)


def test_2_7_each_request_is_refunded_once() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(5, a_user())
    limiter.send(a_user(), request_id="r")

    assert [limiter.counters.refund("r", limiter.now_ms, is_fault=False) for _ in range(2)] == [True, False]


def test_2_7_a_refund_goes_only_to_the_window_of_the_charge() -> None:
    limiter = InMemoryLimiter(core(10, "30s"))
    limiter.send(a_user(), request_id="r", holds=True)
    limiter.wait(30 * SECOND_MS)
    limiter.send(a_user())

    assert (limiter.counters.refund("r", limiter.now_ms, is_fault=False), limiter.count("core", "user:ada")) == (
        False,
        1,
    )


def test_2_7_faults_of_the_service_refund_at_most_a_tenth_of_the_limit_in_a_window() -> None:
    limiter = InMemoryLimiter(core(100))
    for number in range(50):
        limiter.send(a_user(), request_id=f"f{number}")
    refunds = [limiter.counters.refund(f"f{number}", limiter.now_ms, is_fault=True) for number in range(50)]

    assert (sum(refunds), limiter.count("core", "user:ada")) == (10, 40)


def test_2_7_a_new_window_refunds_its_own_tenth() -> None:
    limiter = InMemoryLimiter(core(10))
    refunds = []
    for number in range(4):
        if number == 2:
            limiter.wait(HOUR_MS)
        limiter.send(a_user(), request_id=f"f{number}")
        refunds.append(limiter.counters.refund(f"f{number}", limiter.now_ms, is_fault=True))

    assert refunds == [True, False, True, False]


def test_2_7_a_refused_request_has_nothing_to_refund() -> None:
    limiter = InMemoryLimiter(core(1))
    limiter.send(a_user())
    limiter.send(a_user(), request_id="refused")

    assert (limiter.counters.refund("refused", limiter.now_ms, is_fault=False), limiter.count("core", "user:ada")) == (
        False,
        1,
    )


def test_2_7_with_remaining_0_a_conditional_request_is_refused() -> None:
    limiter = InMemoryLimiter(core(1))
    limiter.send(a_user())

    assert limiter.send(a_user()).verdict is Verdict.PRIMARY


# -- 2.8 -----------------------------------------------------------------------------------------------------------


def test_2_8_secondary_limits_count_by_the_owner_of_the_primary_bucket() -> None:
    limiter = InMemoryLimiter()
    callers = (a_user(), a_workflow(), an_installation(), anonymous())

    assert [limiter.send(caller).charges[1].key for caller in callers] == [
        "user:ada",
        "repository:acme/site",
        "installation:71",
        "address:192.0.2.7",
    ]


def test_2_8_a_secondary_limit_refuses_only_the_requests_that_it_covers() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)

    assert [limiter.send(a_user(), path).verdict for path in (ISSUES, "/meta")] == [Verdict.SECONDARY, Verdict.ADMITTED]


# -- 2.9 -----------------------------------------------------------------------------------------------------------


def test_2_9_a_large_file_batch_costs_one_request_not_its_objects() -> None:
    limiter = InMemoryLimiter()

    assert limiter.send(a_user(), "/a/b.git/info/lfs/objects/batch", method="POST").used == 1


def test_2_9_bodies_over_one_mebibyte_are_not_read() -> None:
    with pytest.raises(QueryTooComplex, match="longer than 1048576 bytes"):
        QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(b" " * ((1 << 20) + 1))
    with pytest.raises(UnreadableBatch, match="longer than 1048576 bytes"):
        count_objects(b" " * ((1 << 20) + 1))


def test_2_9_queries_have_limits_on_tokens_and_depth() -> None:
    long = b'{"query": "{ ' + b"a " * 20_000 + b'}"}'
    deep = b'{"query": "' + b"{ a " * 500 + b"}" * 500 + b'"}'

    for body, reason in ((long, "more than 10000 tokens"), (deep, "more than 100 levels")):
        with pytest.raises(QueryTooComplex, match=reason):
            QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body)


def test_2_9_a_graphql_array_is_charged_by_entry() -> None:
    body = b'[{"query": "{ a }"}, {"query": "{ a }"}, {"query": "mutation { a }"}]'

    assert QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body) == QueryFacts(
        cost=3, points=7, has_mutations=True
    )


@pytest.mark.parametrize(("name", "points"), [("Read", 1), ("Write", 5)])
def test_2_9_the_chosen_operation_decides_query_or_mutation(name: str, points: int) -> None:
    body = b'{"query": "query Read { a } mutation Write { a }", "operationName": "' + name.encode() + b'"}'

    assert QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body).points == points


# -- 2.10 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per_item", "ceiling"), [("all", 5_000 + 21 * 50), ("beyond", 5_000 + 50)])
def test_2_10_21_repositories_are_1050_more_or_with_beyond_50(per_item: str, ceiling: int) -> None:
    rules = f"""
        [[rule]]
        name = "core"
        [rule.scale]
        per_repository = 50
        per_user = 50
        most = 12500
        per_item = "{per_item}"
    """

    assert InMemoryLimiter(rules).send(an_installation(repositories=21)).limit == ceiling


# -- 2.11 ----------------------------------------------------------------------------------------------------------


def test_2_11_a_cost_above_the_whole_ceiling_is_a_403_with_this_reason_and_without_retry_after() -> None:
    limiter = InMemoryLimiter()
    decision = limiter.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=5_001, points=1))
    refusal = limiter.refusal(decision, a_user())

    assert (decision.verdict, refusal.status, "retry-after" in dict(refusal.headers)) == (
        Verdict.EXCEEDS_CEILING,
        403,
        False,
    )
    assert b"too large to be admitted: it costs 5001, and the limit is 5000" in refusal.body


def test_2_11_requests_that_are_always_refused_lead_to_no_ban() -> None:
    limiter = InMemoryLimiter()
    for _ in range(1_000):
        limiter.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=5_001, points=1))

    assert limiter.counters.bans == {}


def test_a_rule_in_shadow_mode_counts_and_refuses_no_request() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "points"\nshadow = true\nceiling = 2\n')
    limiter.send_many(2, a_user(), ISSUES)
    decision = limiter.send(a_user(), ISSUES)

    assert (
        decision.verdict,
        decision.list_hit_rules(is_enforced=False),
        limiter.count("points", f"user:ada GET {TEMPLATE}"),
    ) == (
        Verdict.ADMITTED,
        ["points"],
        3,
    )


TEMPLATE = Rulebook(CODE_HOST).get_endpoint("GET", ISSUES).name.partition(" ")[2]


def test_partial_enforcement_holds_for_the_same_share_of_owners_at_every_request() -> None:
    limiter = InMemoryLimiter(core(1, more="enforce = 25\n"))
    names = [f"user{number}" for number in range(400)]
    for name in names:
        limiter.send(a_user(name))
    refused_names = [[name for name in names if not limiter.send(a_user(name)).is_admitted] for _ in range(2)]

    assert (refused_names[0] == refused_names[1], 70 < len(refused_names[0]) < 130) == (True, True)


def test_an_unlimited_ceiling_is_counted_and_never_reached() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "core"\nceiling = "unlimited"\n')
    limiter.send_many(2_000, a_user(), every_ms=100)

    assert limiter.send(a_user()).used == 2_001
