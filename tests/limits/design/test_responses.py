"""Section 5 of the design: replies to callers. The numbers in test names are its rules."""

import msgspec
import pytest

from tests.limits.builders import HOUR_MS, NOON_MS, SECOND_MS, InMemoryLimiter, a_user, anonymous
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.responses import build_status_body

ISSUES = "/repos/acme/site/issues"
BATCH = "/acme/site.git/info/lfs/objects/batch"


def body_of(limiter: InMemoryLimiter, decision: LimitDecision, caller: Caller) -> dict[str, object]:
    return msgspec.json.decode(limiter.refusal(decision, caller).body, type=dict[str, object])


def make_exhausted_limiter(rules: str = "") -> InMemoryLimiter:
    """Return a limiter in which the content limits and the hourly limit of Ada are used up."""
    limiter = InMemoryLimiter('[[rule]]\nname = "core"\nceiling = 80\n' + rules)
    limiter.send_many(80, a_user(), ISSUES, method="POST")
    return limiter


# -- 5.1 -----------------------------------------------------------------------------------------------------------


def test_5_1_a_ban_comes_before_all_limits() -> None:
    limiter = make_exhausted_limiter()
    limiter.counters.ban("token:t1", NOON_MS + 5 * SECOND_MS)

    assert limiter.send(a_user(), ISSUES, method="POST").verdict is Verdict.BANNED


def test_5_1_primary_comes_before_secondary() -> None:
    decision = make_exhausted_limiter().send(a_user(), ISSUES, method="POST")

    assert (decision.verdict, decision.list_hit_rules(is_enforced=True)) == (Verdict.PRIMARY, ["core", "content"])


def test_5_1_among_limits_of_one_kind_the_refusal_names_the_limit_that_ends_last() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "content_hourly"\nceiling = 80\n')
    limiter.send_many(80, a_user(), ISSUES, method="POST")
    charge = limiter.send(a_user(), ISSUES, method="POST").refusing_charge
    assert charge is not None

    assert charge.name == "content_hourly"


def test_5_1_retry_after_is_the_latest_end_of_all_limits_hit() -> None:
    limiter = InMemoryLimiter(
        '[[rule]]\nname = "search"\nceiling = 1\n[[rule]]\nname = "points"\nwindow = "1h"\nceiling = 5\n'
    )
    limiter.send_many(1, a_user(), "/search/x", method="POST")
    decision = limiter.send(a_user(), "/search/x", method="POST")
    ends = [free_ms - NOON_MS for free_ms in decision.result.free_at_ms]

    assert (decision.verdict, (decision.retry_after_s or 0) * 1_000) == (Verdict.PRIMARY, max(ends))


def test_5_1_retry_after_is_rounded_up_and_at_least_1() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "core"\nwindow = "1500ms"\nceiling = 1\n')
    limiter.send(a_user())
    first = limiter.send(a_user()).retry_after_s
    limiter.wait(1_499)

    assert (first, limiter.send(a_user()).retry_after_s) == (2, 1)


def test_5_1_a_full_concurrency_limit_sends_retry_after_1() -> None:
    limiter = InMemoryLimiter()
    for number in range(100):
        limiter.send(a_user(), holds=True, request_id=f"held{number}")

    assert limiter.send(a_user()).retry_after_s == 1


def test_a_wait_of_one_second_is_written_in_the_singular() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "core"\nwindow = "1s"\nceiling = 1\n')
    limiter.send(a_user())

    assert b"Wait 1 second before you try again." in limiter.refusal(limiter.send(a_user()), a_user()).body


def test_5_1_primary_refusals_carry_retry_after_which_is_reset_less_now() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(60, anonymous())
    headers = limiter.headers(limiter.send(anonymous()))

    assert int(headers["retry-after"]) == int(headers["x-ratelimit-reset"]) - limiter.now_ms // SECOND_MS


def test_5_1_on_a_purely_secondary_refusal_remaining_is_the_true_value_above_0() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(80, a_user(), ISSUES, method="POST")
    headers = limiter.headers(limiter.send(a_user(), ISSUES, method="POST"))

    assert (headers["x-ratelimit-resource"], headers["x-ratelimit-remaining"]) == ("core", "4920")


def test_5_1_a_query_that_costs_more_than_is_left_reports_remaining_0() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=4_996, points=1))
    decision = limiter.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=5, points=1))

    assert (decision.verdict, decision.used, decision.remaining) == (Verdict.PRIMARY, 5_000, 0)


# -- 5.2 -----------------------------------------------------------------------------------------------------------


def test_5_2_rest_answers_403() -> None:
    limiter = make_exhausted_limiter()

    assert limiter.refusal(limiter.send(a_user()), a_user()).status == 403


def test_5_2_large_files_answer_429_in_their_own_form() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "lfs"\nceiling = 1\n')
    limiter.send(a_user(), BATCH, method="POST")
    refusal = limiter.refusal(limiter.send(a_user(), BATCH, method="POST"), a_user())
    body = msgspec.json.decode(refusal.body, type=dict[str, object])

    assert (
        refusal.status,
        dict(refusal.headers)["content-type"],
        {"message", "request_id", "documentation_url"} <= set(body),
    ) == (
        429,
        "application/vnd.git-lfs+json",
        True,
    )


def test_5_2_graphql_primary_answers_200_with_errors_of_type_rate_limited() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "graphql"\nceiling = 1\n')
    query = QueryFacts(cost=1, points=1)
    limiter.send(a_user(), "/graphql", method="POST", query=query)
    refusal = limiter.refusal(limiter.send(a_user(), "/graphql", method="POST", query=query), a_user())
    body = msgspec.json.decode(refusal.body, type=dict[str, list[dict[str, object]]])

    assert (refusal.status, body["errors"][0]["type"], dict(refusal.headers)["x-ratelimit-remaining"]) == (
        200,
        "RATE_LIMITED",
        "0",
    )


def test_5_2_graphql_secondary_answers_403_with_the_rest_body() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "graphql_points"\nceiling = 1\n')
    query = QueryFacts(cost=1, points=1)
    limiter.send(a_user(), "/graphql", method="POST", query=query)
    refusal = limiter.refusal(limiter.send(a_user(), "/graphql", method="POST", query=query), a_user())

    assert (refusal.status, b"You have exceeded a secondary rate limit" in refusal.body) == (403, True)


def test_5_2_a_ban_answers_with_the_secondary_body_and_the_cause_banned() -> None:
    limiter = InMemoryLimiter()
    limiter.counters.ban("token:t1", NOON_MS + HOUR_MS)
    decision = limiter.send(a_user())
    body = body_of(limiter, decision, a_user())

    assert (body["cause"], str(body["message"])[:44], limiter.headers(decision)["retry-after"]) == (
        "banned",
        "You have exceeded a secondary rate limit: yo",
        "3600",
    )


@pytest.mark.parametrize("status", [403, 429])
def test_5_2_the_status_can_be_changed_by_rule(status: int) -> None:
    limiter = make_exhausted_limiter(f"status = {status}\n")

    assert limiter.refusal(limiter.send(a_user()), a_user()).status == status


def test_5_2_messages_of_each_kind_contain_the_text_that_clients_search_for() -> None:
    primary = make_exhausted_limiter()
    secondary = InMemoryLimiter()
    secondary.send_many(80, a_user(), ISSUES, method="POST")
    messages = [
        str(body_of(limiter, limiter.send(a_user(), ISSUES, method="POST"), a_user())["message"])
        for limiter in (primary, secondary)
    ]

    assert [("API rate limit exceeded" in text, "secondary rate" in text) for text in messages] == [
        (True, False),
        (False, True),
    ]


def test_5_2_documentation_urls_have_an_ending_for_each_kind_of_limit() -> None:
    primary = make_exhausted_limiter()
    secondary = InMemoryLimiter()
    secondary.send_many(80, a_user(), ISSUES, method="POST")

    assert [
        str(body_of(limiter, limiter.send(a_user(), ISSUES, method="POST"), a_user())["documentation_url"]).partition(
            "#"
        )[2]
        for limiter in (primary, secondary)
    ] == ["about-primary-rate-limits", "about-secondary-rate-limits"]


# -- 5.3 -----------------------------------------------------------------------------------------------------------


def test_5_3_a_secondary_limit_is_disclosed_only_in_its_own_refusal() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "content"\nceiling = 2\n')
    admitted = limiter.send(a_user(), ISSUES, method="POST")
    limiter.send(a_user(), ISSUES, method="POST")
    refusal = limiter.send(a_user(), ISSUES, method="POST")

    assert ['"content"' in limiter.headers(decision)["ratelimit"] for decision in (admitted, refusal)] == [False, True]


def test_5_3_a_primary_refusal_names_no_secondary_limit_that_was_hit_too() -> None:
    limiter = make_exhausted_limiter()
    decision = limiter.send(a_user(), ISSUES, method="POST")

    assert (body_of(limiter, decision, a_user())["violated"], decision.list_hit_rules(is_enforced=True)) == (
        ["core"],
        ["core", "content"],
    )


def test_5_3_disclose_secondary_adds_them_to_ratelimit() -> None:
    limiter = InMemoryLimiter("disclose_secondary = true")
    headers = limiter.headers(limiter.send(a_user()))

    assert (headers["ratelimit"], headers["ratelimit-policy"]) == (
        '"core";r=4999;t=3600, "concurrent";r=99, "points";r=899;t=60, "cpu";r=90000;t=60',
        '"core";q=5000;w=3600, "concurrent";q=100;qu="concurrent-requests", "points";q=900;qu="points";w=60, '
        '"cpu";q=90000;qu="cpu_ms";w=60',
    )


Bucket = dict[str, int]


def status_of(limiter: InMemoryLimiter, caller: Caller) -> tuple[dict[str, Bucket], Bucket]:
    """Return the resources and the rate of the status endpoint."""
    book = limiter.core.rulebook
    pairs = [
        list(zip(charges, limiter.counters.peek(charges, limiter.now_ms), strict=True))
        for charges in (book.list_primary_charges(caller), book.list_secondary_charges(caller))
    ]
    body = msgspec.json.decode(build_status_body(limiter.rules, *pairs))
    return body["resources"], body["rate"]


def test_5_3_disclose_secondary_adds_them_to_the_status_endpoint() -> None:
    undisclosed, disclosed = (
        status_of(InMemoryLimiter(rules), a_user())[0] for rules in ("", "disclose_secondary = true")
    )

    assert sorted(disclosed.keys() - undisclosed.keys()) == [
        "concurrent",
        "concurrent_websockets",
        "content",
        "content_hourly",
        "cpu",
        "graphql_cpu",
        "graphql_points",
    ]


def test_5_3_the_status_shows_every_bucket_and_repeats_core_as_rate() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user())
    resources, rate = status_of(limiter, a_user())

    assert (resources["core"], rate, resources["search"]) == (
        {"limit": 5_000, "used": 1, "remaining": 4_999, "reset": (NOON_MS + HOUR_MS) // 1_000},
        resources["core"],
        {"limit": 30, "used": 0, "remaining": 30, "reset": NOON_MS // 1_000 + 60},
    )


def test_5_3_a_hidden_rule_is_visible_to_operators_only() -> None:
    limiter = InMemoryLimiter('disclose_secondary = true\n[[rule]]\nname = "content"\nceiling = 1\nhidden = true\n')
    limiter.send(a_user(), ISSUES, method="POST")
    decision = limiter.send(a_user(), ISSUES, method="POST")
    visible_text = str(limiter.refusal(decision, a_user())) + str(status_of(limiter, a_user()))

    assert ('"content";q' in visible_text, "'content':" in visible_text, decision.list_hit_rules(is_enforced=True)) == (
        False,
        False,
        ["content"],
    )


# -- 5.4 -----------------------------------------------------------------------------------------------------------


def test_5_4_the_status_endpoint_costs_one_point_and_a_slot() -> None:
    decision = InMemoryLimiter().send(a_user(), "/rate_limit")

    assert {charge.name: charge.cost for charge in decision.charges if charge.cost} == {"concurrent": 1, "points": 1}


def test_5_4_the_status_endpoint_replies_with_remaining_0_while_the_primary_limit_is_used_up() -> None:
    limiter = make_exhausted_limiter()
    decision = limiter.send(a_user(), "/rate_limit")

    assert (decision.verdict, decision.remaining) == (Verdict.ADMITTED, 0)


def test_5_4_the_status_endpoint_is_refused_by_its_points_a_slot_or_a_ban_only() -> None:
    limiter = InMemoryLimiter()
    plan = limiter.send(a_user(), "/rate_limit").plan

    assert [charge.name for charge in plan.charges] == ["concurrent", "points"]
    limiter.counters.ban("token:t1", NOON_MS + HOUR_MS)
    assert limiter.send(a_user(), "/rate_limit").verdict is Verdict.BANNED


def test_5_4_the_status_endpoint_never_leads_to_a_ban() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "points"\nceiling = 1\n[points]\nwrite = 1\n')
    for _ in range(5_000):
        limiter.send(a_user(), "/rate_limit")
        limiter.wait(100)

    assert limiter.counters.bans == {}
