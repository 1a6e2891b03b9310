"""Section 2 of the design: counting. The numbers in test names are its rules."""

import pytest

from tests.limits.builders import (
    CODE_HOST,
    HOUR_MS,
    MINUTE_MS,
    NOON_MS,
    SECOND_MS,
    Desk,
    a_user,
    a_workflow,
    an_installation,
    anonymous,
    only,
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
    desk = Desk(core(10))
    desk.send_many(4, a_user())
    desk.reload(core(6))
    decision = desk.send(a_user())

    assert (decision.limit, decision.used, decision.remaining) == (6, 5, 1)


@pytest.mark.parametrize("ceiling", [1, 3, 5, 100])
def test_2_1_limit_is_used_plus_remaining_always_and_neither_is_negative(ceiling: int) -> None:
    desk = Desk(core(10))
    desk.send_many(4, a_user())
    desk.reload(core(ceiling))
    decision = desk.send(a_user())

    assert (decision.limit, decision.used + decision.remaining, decision.remaining >= 0) == (ceiling, ceiling, True)


def test_2_1_a_change_of_tier_applies_to_the_next_request_and_keeps_count_and_end() -> None:
    desk = Desk()
    before = desk.send(a_user())
    desk.wait(SECOND_MS)
    after = desk.send(a_user(case=CallerClass.USER_ENTERPRISE))

    assert (before.limit, after.limit, after.used, after.reset_s) == (5_000, 15_000, 2, before.reset_s)


def test_2_1_one_user_through_two_apps_has_one_count_and_two_ceilings() -> None:
    desk = Desk()
    desk.send_many(10, a_user(app="app:1"))
    decision = desk.send(a_user(app="app:2", case=CallerClass.USER_ENTERPRISE))

    assert (decision.limit, decision.used) == (15_000, 11)


def test_2_1_a_grant_raises_the_ceiling_and_ends_by_itself() -> None:
    until_ms = NOON_MS + MINUTE_MS
    grant = Grant(owner="user:ada", resource="core", amount=500, until_ms=until_ms, by="ops", reason="a move")
    desk = Desk(grants=[grant])
    during = desk.send(a_user())
    desk.now_ms = until_ms

    assert (during.limit, desk.send(a_user()).limit, desk.send(a_user("eve")).limit) == (5_500, 5_000, 5_000)


def test_2_1_a_changed_window_length_applies_from_the_next_window() -> None:
    desk = Desk(core(10, "1h"))
    first = desk.send(a_user())
    desk.reload(core(10, "1m"))
    same = desk.send(a_user())
    desk.now_ms = first.reset_s * SECOND_MS
    next_one = desk.send(a_user())

    assert (same.reset_s, same.used, next_one.used, next_one.reset_s) == (first.reset_s, 2, 1, first.reset_s + 60)


def test_2_1_a_changed_length_of_a_sliding_window_applies_when_the_count_has_expired() -> None:
    def rules(window: str) -> str:
        return only(f'[[rule]]\nname = "p"\ncounts = "points"\nwindow = "{window}"\nceiling = 5')

    desk = Desk(rules("1m"))
    desk.send_many(5, a_user())
    desk.reload(rules("10s"))
    desk.wait(30 * SECOND_MS)
    still = desk.send(a_user()).is_admitted
    desk.wait(35 * SECOND_MS)
    desk.send_many(5, a_user())
    desk.wait(11 * SECOND_MS)

    assert (still, desk.send(a_user()).is_admitted) == (False, True)


def test_2_1_a_renamed_rule_with_its_previous_name_keeps_its_counters() -> None:
    desk = Desk(core(10))
    desk.send_many(4, a_user())
    desk.reload(core(10).replace('name = "core"', 'name = "rest"\nwas = "core"'))

    assert desk.send(a_user()).used == 5


def test_2_1_a_renamed_rule_without_its_previous_name_starts_at_0() -> None:
    desk = Desk(core(10))
    desk.send_many(4, a_user())
    desk.reload(core(10).replace('name = "core"', 'name = "rest"'))

    assert desk.send(a_user()).used == 1


def test_2_1_the_hash_of_rules_does_not_depend_on_file_and_line() -> None:
    moved = "# a comment\n\n" + core(10)

    assert (
        hash_rules(read_rules(core(10))) == hash_rules(read_rules(moved, "elsewhere.toml")),
        hash_rules(read_rules(core(10))) == hash_rules(read_rules(core(11))),
    ) == (True, False)


# -- 2.2 -----------------------------------------------------------------------------------------------------------


def test_2_2_a_window_starts_at_the_first_admitted_request_and_its_end_is_stored() -> None:
    desk = Desk(core(10))
    desk.wait(777)
    first = desk.send(a_user())
    desk.wait(20 * MINUTE_MS)

    assert (first.result.bucket_end_ms, desk.send(a_user()).result.bucket_end_ms) == (NOON_MS + 777 + HOUR_MS,) * 2


def test_2_2_the_end_is_reported_in_seconds_rounded_up() -> None:
    desk = Desk(core(10), at_ms=NOON_MS + 1)

    assert desk.send(a_user()).reset_s == NOON_MS // SECOND_MS + 3_601


def test_2_2_a_window_has_ended_at_its_end_time() -> None:
    desk = Desk(core(1))
    desk.send(a_user())
    desk.wait(HOUR_MS - 1)
    before = desk.send(a_user()).is_admitted
    desk.wait(1)

    assert (before, desk.send(a_user()).is_admitted) == (False, True)


def test_2_2_an_idle_bucket_is_reported_as_a_new_window_and_not_stored() -> None:
    desk = Desk()
    charge = desk.limiter.rulebook.list_primary_charges(a_user())[0]
    (reading,) = desk.counters.peek([charge], desk.now_ms)

    assert (reading.used, reading.end_ms, len(desk.counters.tables[charge.name])) == (
        0,
        NOON_MS + charge.rule.window_ms,
        0,
    )


def test_2_2_the_status_endpoint_opens_no_window() -> None:
    desk = Desk()
    desk.send(a_user(), "/rate_limit")

    assert len(desk.counters.tables["core"]) == 0


def test_2_2_refusals_open_no_window() -> None:
    desk = Desk()
    for number in range(100):
        desk.send(a_user(), "/zen", holds=True, request_id=f"held{number}")
    refused = desk.send(a_user(), "/search/users")

    assert (refused.verdict, len(desk.counters.tables["search"])) == (Verdict.SECONDARY, 0)


def test_2_2_a_backward_clock_step_resets_no_window() -> None:
    desk = Desk(core(3))
    desk.send_many(3, a_user())
    refused = []
    for step_ms in (SECOND_MS, HOUR_MS, 24 * HOUR_MS):
        desk.now_ms -= step_ms
        refused.append(desk.send(a_user()).verdict)

    assert refused == [Verdict.PRIMARY] * 3


def test_2_2_a_stored_end_later_than_one_window_is_read_as_one_window_from_now() -> None:
    desk = Desk(core(3))
    desk.send(a_user())
    desk.now_ms -= 24 * HOUR_MS
    decision = desk.send(a_user())

    assert (decision.used, decision.result.bucket_end_ms) == (2, desk.now_ms + HOUR_MS)


# -- 2.3 -----------------------------------------------------------------------------------------------------------


def test_2_3_all_limits_are_checked_and_none_is_charged_when_one_refuses() -> None:
    desk = Desk()
    desk.send_many(80, a_user(), ISSUES, method="POST")
    counts = {name: desk.count(name, "user:ada") for name in ("core", "content", "content_hourly")}
    desk.send(a_user(), ISSUES, method="POST")

    assert {name: desk.count(name, "user:ada") for name in counts} == counts


def test_2_3_every_limit_that_was_hit_is_named() -> None:
    desk = Desk('[[rule]]\nname = "content_hourly"\nceiling = 80\n')
    desk.send_many(80, a_user(), ISSUES, method="POST")

    assert desk.send(a_user(), ISSUES, method="POST").list_hit_rules(is_enforced=True) == ["content", "content_hourly"]


def test_2_3_a_decision_lists_every_limit_with_its_count_before_and_after() -> None:
    desk = Desk()
    desk.send(a_user(), ISSUES, method="POST")
    looked_at = {
        seen.rule: (seen.before, seen.after) for seen in desk.send(a_user(), ISSUES, method="POST").list_limits()
    }

    assert looked_at == {
        "core": (1, 2),
        "concurrent": (0, 1),
        "points": (5, 10),
        "cpu": (0, 0),
        "compute": (0, 0),
        "content": (1, 2),
        "content_hourly": (1, 2),
    }


def test_2_3_a_refusal_leaves_counters_as_they_were() -> None:
    desk = Desk(core(1))
    desk.send(a_user())
    (seen,) = desk.send(a_user()).list_limits()

    assert (seen.before, seen.after, seen.is_hit, seen.free_at_ms) == (1, 1, True, NOON_MS + HOUR_MS)


# -- 2.4 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset_ms", [0, 1, 2_500, 4_999])
def test_2_4_never_more_than_the_limit_of_points_in_any_minute(offset_ms: int) -> None:
    desk = Desk(at_ms=NOON_MS + offset_ms)
    desk.send_many(900, a_user(), ISSUES)
    desk.wait(MINUTE_MS - 1)

    assert desk.send(a_user(), ISSUES).verdict is Verdict.SECONDARY


def test_2_4_graphql_mutations_named_in_the_profile_create_content() -> None:
    body = b'{"query": "mutation { a: addComment(id: 1) { id } b: addComment(id: 2) { id } addStar(id: 1) { id } }"}'

    assert QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body).content == 2


def test_2_4_a_reply_can_report_created_content() -> None:
    desk = Desk()
    desk.counters.add_usage(desk.limiter.rulebook.list_content_charges(a_user()), 1, desk.now_ms)

    assert (desk.count("content", "user:ada"), desk.count("content_hourly", "user:ada")) == (1, 1)


def test_2_4_unknown_methods_cost_5() -> None:
    desk = Desk()
    decision = desk.send(a_user(), "/x", method="BREW")

    assert next(charge.cost for charge in decision.charges if charge.name == "points") == 5


# -- 2.5 -----------------------------------------------------------------------------------------------------------


def held(desk: Desk, count: int = 100, *, connection: ConnectionClass = ConnectionClass.PLAIN) -> None:
    for number in range(count):
        desk.send(a_user(), "/zen", holds=True, request_id=f"held{number}", connection=connection)


def test_2_5_a_lease_lasts_30_seconds_unless_it_is_renewed() -> None:
    desk = Desk()
    held(desk)
    desk.wait(LEASE_TTL_MS - 1)
    before = desk.send(a_user()).is_admitted
    desk.wait(1)

    assert (before, desk.send(a_user()).is_admitted) == (False, True)


def test_2_5_one_renewal_keeps_all_slots_of_a_process() -> None:
    desk = Desk()
    held(desk)
    for _ in range(6):
        desk.wait(10 * SECOND_MS)
        desk.counters.renew([f"held{number}" for number in range(100)], desk.now_ms)

    assert desk.send(a_user()).is_admitted is False


def test_2_5_a_slot_is_released_once() -> None:
    desk = Desk()
    held(desk)

    assert [desk.counters.release("held3", desk.now_ms) for _ in range(3)] == [True, False, False]
    assert desk.count("concurrent", "user:ada") == 99


def test_2_5_an_expired_lease_whose_request_still_runs_counts_again_also_above_the_limit() -> None:
    desk = Desk()
    held(desk)
    desk.wait(LEASE_TTL_MS)
    desk.send(a_user(), "/zen", holds=True, request_id="new")
    revived = desk.counters.renew([f"held{number}" for number in range(100)], desk.now_ms)

    assert (revived, desk.count("concurrent", "user:ada")) == (100, 101)


def test_2_5_a_websocket_costs_one_request_and_holds_a_slot_of_its_own_class() -> None:
    desk = Desk()
    held(desk, connection=ConnectionClass.WEBSOCKET)
    plain = desk.send(a_user())
    another = desk.send(a_user(), "/zen", connection=ConnectionClass.WEBSOCKET)

    assert (plain.verdict, plain.used, another.list_hit_rules(is_enforced=True)) == (
        Verdict.ADMITTED,
        101,
        ["concurrent_websockets"],
    )


# -- 2.6 -----------------------------------------------------------------------------------------------------------


def test_2_6_cpu_time_can_exceed_the_ceiling_and_no_wait_is_over_60_seconds() -> None:
    desk = Desk()
    plan = desk.send(a_user()).plan
    desk.counters.add_usage(plan.meter_charges, 100 * 90_000, desk.now_ms)
    refused = desk.send(a_user())

    assert (refused.verdict, (refused.retry_after_s or 0) <= 60) == (Verdict.SECONDARY, True)


def test_2_6_the_debt_expires_with_its_slices() -> None:
    desk = Desk()
    plan = desk.send(a_user()).plan
    desk.counters.add_usage(plan.meter_charges, 100 * 90_000, desk.now_ms)
    desk.wait(60 * SECOND_MS)

    assert desk.send(a_user()).is_admitted


def test_2_6_a_long_request_is_charged_in_parts_to_the_current_window() -> None:
    desk = Desk()
    plan = desk.send(a_user()).plan
    for _ in range(24):  # Two minutes at full CPU.
        desk.wait(5 * SECOND_MS)
        desk.counters.add_usage(plan.meter_charges, 5_000, desk.now_ms)

    assert desk.count("cpu", "user:ada") == 60_000


def test_2_6_graphql_charges_both_cpu_limits() -> None:
    desk = Desk()
    plan = desk.send(a_user(), "/graphql", method="POST", query=QueryFacts(1, 1)).plan
    desk.counters.add_usage(plan.meter_charges, 700, desk.now_ms)

    assert (desk.count("cpu", "user:ada"), desk.count("graphql_cpu", "user:ada")) == (700, 700)


def test_2_6_excessive_compute_is_30_seconds_in_10_and_reported_only_as_a_secondary_limit() -> None:
    desk = Desk()
    plan = desk.send(a_user()).plan
    desk.counters.add_usage(plan.meter_charges, 30_000, desk.now_ms)
    refused = desk.send(a_user())

    refusal = desk.refusal(refused, a_user())

    assert (refused.list_hit_rules(is_enforced=True), b"secondary rate limit" in refusal.body) == (["compute"], True)
    # Neither its name nor its threshold: the contract has it undisclosed.
    assert [part for part in (b"compute", b"30000") if part in refusal.body + repr(refusal.headers).encode()] == []


# -- 2.7 -----------------------------------------------------------------------------------------------------------


def test_2_7_a_refund_returns_the_primary_charge_only() -> None:
    desk = Desk()
    decision = desk.send(a_user(), ISSUES, request_id="r")
    desk.counters.refund("r", desk.now_ms, is_fault=False)

    assert (desk.count("core", "user:ada"), desk.count("points", f"user:ada {decision.plan.endpoint}")) == (0, 1)


def test_2_7_each_request_is_refunded_once() -> None:
    desk = Desk()
    desk.send_many(5, a_user())
    desk.send(a_user(), request_id="r")

    assert [desk.counters.refund("r", desk.now_ms, is_fault=False) for _ in range(2)] == [True, False]


def test_2_7_a_refund_goes_only_to_the_window_of_the_charge() -> None:
    desk = Desk(core(10, "30s"))
    desk.send(a_user(), request_id="r", holds=True)
    desk.wait(30 * SECOND_MS)
    desk.send(a_user())

    assert (desk.counters.refund("r", desk.now_ms, is_fault=False), desk.count("core", "user:ada")) == (False, 1)


def test_2_7_faults_of_the_service_refund_at_most_a_tenth_of_the_limit_in_a_window() -> None:
    desk = Desk(core(100))
    for number in range(50):
        desk.send(a_user(), request_id=f"f{number}")
    refunds = [desk.counters.refund(f"f{number}", desk.now_ms, is_fault=True) for number in range(50)]

    assert (sum(refunds), desk.count("core", "user:ada")) == (10, 40)


def test_2_7_a_new_window_refunds_its_own_tenth() -> None:
    desk = Desk(core(10))
    refunds = []
    for number in range(4):
        if number == 2:
            desk.wait(HOUR_MS)
        desk.send(a_user(), request_id=f"f{number}")
        refunds.append(desk.counters.refund(f"f{number}", desk.now_ms, is_fault=True))

    assert refunds == [True, False, True, False]


def test_2_7_a_refused_request_has_nothing_to_refund() -> None:
    desk = Desk(core(1))
    desk.send(a_user())
    desk.send(a_user(), request_id="refused")

    assert (desk.counters.refund("refused", desk.now_ms, is_fault=False), desk.count("core", "user:ada")) == (
        False,
        1,
    )


def test_2_7_with_remaining_0_a_conditional_request_is_refused() -> None:
    desk = Desk(core(1))
    desk.send(a_user())

    assert desk.send(a_user()).verdict is Verdict.PRIMARY


# -- 2.8 -----------------------------------------------------------------------------------------------------------


def test_2_8_secondary_limits_count_by_the_owner_of_the_primary_bucket() -> None:
    desk = Desk()
    callers = (a_user(), a_workflow(), an_installation(), anonymous())

    assert [desk.send(caller).charges[1].key for caller in callers] == [
        "user:ada",
        "repository:acme/site",
        "installation:71",
        "address:192.0.2.7",
    ]


def test_2_8_a_secondary_limit_refuses_only_the_requests_that_it_covers() -> None:
    desk = Desk()
    desk.send_many(900, a_user(), ISSUES)

    assert [desk.send(a_user(), path).verdict for path in (ISSUES, "/meta")] == [Verdict.SECONDARY, Verdict.ADMITTED]


# -- 2.9 -----------------------------------------------------------------------------------------------------------


def test_2_9_a_large_file_batch_costs_one_request_not_its_objects() -> None:
    desk = Desk()

    assert desk.send(a_user(), "/a/b.git/info/lfs/objects/batch", method="POST").used == 1


def test_2_9_bodies_over_one_mebibyte_are_not_read() -> None:
    with pytest.raises(QueryTooComplex, match="longer than 1048576 bytes"):
        QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(b" " * ((1 << 20) + 1))
    with pytest.raises(UnreadableBatch, match="longer than 1048576 bytes"):
        count_objects(b" " * ((1 << 20) + 1))


def test_2_9_queries_have_limits_on_tokens_and_depth() -> None:
    long = b'{"query": "{ ' + b"a " * 20_000 + b'}"}'
    deep = b'{"query": "' + b"{ a " * 500 + b"}" * 500 + b'"}'

    for body, what in ((long, "more than 10000 tokens"), (deep, "more than 100 levels")):
        with pytest.raises(QueryTooComplex, match=what):
            QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body)


def test_2_9_a_graphql_array_is_charged_by_entry() -> None:
    body = b'[{"query": "{ a }"}, {"query": "{ a }"}, {"query": "mutation { a }"}]'

    assert QueryCostCalculator(CODE_HOST.graphql).compute_body_cost(body) == QueryFacts(cost=3, points=7)


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

    assert Desk(rules).send(an_installation(repositories=21)).limit == ceiling


# -- 2.11 ----------------------------------------------------------------------------------------------------------


def test_2_11_a_cost_above_the_whole_ceiling_is_a_403_that_says_so_without_retry_after() -> None:
    desk = Desk()
    decision = desk.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=5_001, points=1))
    refusal = desk.refusal(decision, a_user())

    assert (decision.verdict, refusal.status, "retry-after" in dict(refusal.headers)) == (Verdict.NEVER, 403, False)
    assert b"too large to be admitted: it costs 5001, and the limit is 5000" in refusal.body


def test_2_11_requests_that_are_always_refused_lead_to_no_ban() -> None:
    desk = Desk()
    for _ in range(1_000):
        desk.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=5_001, points=1))

    assert desk.counters.bans == {}


def test_a_rule_in_shadow_mode_counts_and_refuses_no_request() -> None:
    desk = Desk('[[rule]]\nname = "points"\nshadow = true\nceiling = 2\n')
    desk.send_many(2, a_user(), ISSUES)
    decision = desk.send(a_user(), ISSUES)

    assert (
        decision.verdict,
        decision.list_hit_rules(is_enforced=False),
        desk.count("points", f"user:ada GET {TEMPLATE}"),
    ) == (
        Verdict.ADMITTED,
        ["points"],
        3,
    )


TEMPLATE = Rulebook(CODE_HOST).get_endpoint("GET", ISSUES).name.partition(" ")[2]


def test_partial_enforcement_holds_for_the_same_share_of_owners_at_every_request() -> None:
    desk = Desk(core(1, more="enforce = 25\n"))
    names = [f"user{number}" for number in range(400)]
    for name in names:
        desk.send(a_user(name))
    refused = [[name for name in names if not desk.send(a_user(name)).is_admitted] for _ in range(2)]

    assert (refused[0] == refused[1], 70 < len(refused[0]) < 130) == (True, True)


def test_an_unlimited_ceiling_is_counted_and_never_reached() -> None:
    desk = Desk('[[rule]]\nname = "core"\nceiling = "unlimited"\n')
    desk.send_many(2_000, a_user(), every_ms=100)

    assert desk.send(a_user()).used == 2_001
