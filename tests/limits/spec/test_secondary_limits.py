"""The tables of secondary limits and of points, row by row, with the built-in profile."""

import pytest

from tests.limits.builders import CODE_HOST, SECOND_MS, InMemoryLimiter, a_user, anonymous
from wharf.limits.core.decision import Verdict
from wharf.limits.core.graphql import QueryCostCalculator
from wharf.limits.core.request import QueryFacts
from wharf.limits.rules import read_rules

QUERY = QueryFacts(cost=1, points=1)
MUTATION = QueryFacts(cost=1, points=5)
ISSUES = "/repos/acme/site/issues"


def rules_hit(
    limiter: InMemoryLimiter, path: str = "/meta", *, method: str = "GET", query: QueryFacts | None = None
) -> list[str]:
    return limiter.send(a_user(), path, method=method, query=query).list_hit_rules(is_enforced=True)


def test_at_most_100_concurrent_requests_shared_by_rest_and_graphql() -> None:
    limiter = InMemoryLimiter()
    for number in range(100):
        path, query = ("/graphql", QUERY) if number % 2 else ("/meta", None)
        limiter.send(a_user(), path, query=query, holds=True, request_id=f"held{number}")
    rules_of_refusals = [rules_hit(limiter), rules_hit(limiter, "/graphql", query=QUERY)]
    limiter.counters.release("held0", limiter.now_ms)

    assert (rules_of_refusals, limiter.send(a_user()).verdict) == ([["concurrent"], ["concurrent"]], Verdict.ADMITTED)


def test_at_most_900_points_to_a_single_rest_endpoint_per_minute() -> None:
    limiter = InMemoryLimiter()

    assert (limiter.send_many(900, a_user(), ISSUES), rules_hit(limiter, ISSUES)) == (900, ["points"])


def test_points_are_counted_for_each_endpoint_apart() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)

    assert rules_hit(limiter, "/repos/acme/site/pulls") == []


def test_at_most_2000_points_to_the_graphql_endpoint_per_minute() -> None:
    limiter = InMemoryLimiter()
    admitted = sum(limiter.send(a_user(), "/graphql", query=MUTATION).is_admitted for _ in range(400))

    assert (admitted, rules_hit(limiter, "/graphql", query=QUERY)) == (400, ["graphql_points"])


def test_cpu_time_at_most_90_seconds_per_60_seconds_of_real_time() -> None:
    limiter = InMemoryLimiter()
    spend(limiter, "/meta", cpu_ms=89_999, every_ms=50 * SECOND_MS)
    before = rules_hit(limiter)
    spend(limiter, "/meta", cpu_ms=1, every_ms=0)

    assert (before, rules_hit(limiter)) == ([], ["cpu"])


def test_cpu_time_at_most_60_seconds_of_that_for_graphql() -> None:
    limiter = InMemoryLimiter()
    spend(limiter, "/graphql", cpu_ms=60_000, every_ms=50 * SECOND_MS, query=QUERY)

    assert (rules_hit(limiter, "/graphql", query=QUERY), rules_hit(limiter)) == (["graphql_cpu"], [])


def test_requests_that_consume_excessive_compute_in_a_short_period_are_limited() -> None:
    limiter = InMemoryLimiter()
    spend(limiter, "/meta", cpu_ms=30_000, every_ms=0)
    at_once = rules_hit(limiter)
    limiter.wait(10 * SECOND_MS)

    assert (at_once, rules_hit(limiter)) == (["compute"], [])


def spend(limiter: InMemoryLimiter, path: str, *, cpu_ms: int, every_ms: int, query: QueryFacts | None = None) -> None:
    """Use CPU time in ten parts, so that no short period has excessive use."""
    plan = limiter.send(a_user(), path, query=query).plan
    for part in range(10):
        limiter.counters.add_usage(plan.meter_charges, cpu_ms // 10 + (cpu_ms % 10 if part == 9 else 0), limiter.now_ms)
        limiter.wait(every_ms // 10)


def test_content_generating_requests_at_most_80_per_minute() -> None:
    limiter = InMemoryLimiter()

    assert (limiter.send_many(80, a_user(), ISSUES, method="POST"), rules_hit(limiter, ISSUES, method="POST")) == (
        80,
        ["content"],
    )


def test_content_generating_requests_at_most_500_per_hour() -> None:
    limiter = InMemoryLimiter()
    admitted = limiter.send_many(500, a_user(), ISSUES, method="POST", every_ms=SECOND_MS)

    assert (admitted, rules_hit(limiter, ISSUES, method="POST")) == (500, ["content_hourly"])


def test_content_counts_actions_through_the_web_interface_rest_and_graphql_together() -> None:
    limiter = InMemoryLimiter()
    creating = QueryFacts(cost=1, points=5, content=1)
    limiter.send_many(40, a_user(), ISSUES, method="POST")
    for _ in range(30):
        limiter.send(a_user(), "/graphql", method="POST", query=creating)
    through_a_page = limiter.core.rulebook.list_content_charges(a_user())
    for _ in range(10):
        limiter.counters.add_usage(through_a_page, 1, limiter.now_ms)

    assert (
        rules_hit(limiter, ISSUES, method="POST"),
        rules_hit(limiter, "/graphql", method="POST", query=creating),
    ) == (["content"], ["content"])


def test_reads_create_no_content() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(80, a_user(), ISSUES, method="POST")

    assert rules_hit(limiter, "/repos/acme/site/issues/1") == []


def test_secondary_limits_can_change_without_notice() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(50, a_user(), ISSUES)
    limiter.reload('[[rule]]\nname = "points"\nceiling = 50\n')

    assert rules_hit(limiter, ISSUES) == ["points"]


def test_lower_content_creation_limits_of_some_endpoints_are_rules() -> None:
    limiter = InMemoryLimiter(
        """
        [[rule]]
        name = "releases"
        match = ["POST /repos/{owner}/{repository}/releases"]
        counts = "content"
        window = "1m"
        ceiling = 5
        """
    )
    limiter.send_many(5, a_user(), "/repos/acme/site/releases", method="POST")

    assert rules_hit(limiter, "/repos/acme/site/releases", method="POST") == ["releases"]


# -- points per request --------------------------------------------------------------------------------------------


def points_of(
    limiter: InMemoryLimiter, method: str, path: str = "/repos/a/b/labels", query: QueryFacts | None = None
) -> int:
    decision = limiter.send(a_user(), path, method=method, query=query)
    return next(charge.cost for charge in decision.charges if charge.rule.counts.value == "points")


def test_graphql_without_mutations_1_point() -> None:
    assert QueryCostCalculator(CODE_HOST.graphql).compute_query_cost("{ viewer { login } }").points == 1


def test_graphql_with_mutations_5_points() -> None:
    assert QueryCostCalculator(CODE_HOST.graphql).compute_query_cost("mutation { addStar(id: 1) { id } }").points == 5


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_most_rest_get_head_options_1_point(method: str) -> None:
    assert points_of(InMemoryLimiter(), method) == 1


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
def test_most_rest_post_patch_put_delete_5_points(method: str) -> None:
    assert points_of(InMemoryLimiter(), method) == 5


def test_some_rest_endpoints_have_a_different_point_cost_that_is_withheld_from_the_public() -> None:
    rules = """
        disclose_secondary = true
        [[endpoint]]
        match = ["GET /repos/{owner}/{repository}/contributors"]
        points = 30
        hidden = true
    """
    limiter = InMemoryLimiter(rules)
    decision = limiter.send(a_user(), "/repos/a/b/contributors")

    assert (
        points_of(limiter, "GET", "/repos/a/b/contributors"),
        '"points";r=' in limiter.headers(decision)["ratelimit"],
    ) == (
        30,
        False,
    )


def test_there_is_no_way_to_query_the_status_of_a_secondary_limit_unless_an_operator_allows_it() -> None:
    limiter = InMemoryLimiter()
    decision = limiter.send(a_user())

    assert '"points"' not in limiter.headers(decision)["ratelimit"]


def test_a_secondary_limit_ends_when_a_request_fits_again() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)
    refusal = limiter.send(a_user(), ISSUES)
    assert refusal.retry_after_s is not None
    limiter.wait(refusal.retry_after_s * SECOND_MS)

    assert limiter.send(a_user(), ISSUES).is_admitted


def test_an_empty_rules_file_selects_the_built_in_profile() -> None:
    assert [rule.name for rule in read_rules("").rules] == [rule.name for rule in CODE_HOST.rules]


def test_anonymous_callers_have_secondary_limits_by_address() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "core"\nceiling = 10000\n')
    limiter.send_many(900, anonymous(), ISSUES)

    assert [limiter.send(anonymous(address), ISSUES).verdict for address in ("192.0.2.7", "192.0.2.8")] == [
        Verdict.SECONDARY,
        Verdict.ADMITTED,
    ]
