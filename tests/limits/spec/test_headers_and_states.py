"""The headers of every response, and the table of states."""

import msgspec
import pytest

from tests.limits.builders import HOUR_MS, MINUTE_MS, SECOND_MS, InMemoryLimiter, a_user, anonymous
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.request import QueryFacts

ISSUES = "/repos/acme/site/issues"
FIVE = [f"x-ratelimit-{name}" for name in ("limit", "remaining", "used", "reset", "resource")]


def make_exhausted_limiter() -> tuple[InMemoryLimiter, LimitDecision]:
    """Return a limiter in which an address has used up its hourly limit, and the refusal that follows."""
    limiter = InMemoryLimiter()
    limiter.send_many(60, anonymous())
    return limiter, limiter.send(anonymous())


# -- headers -------------------------------------------------------------------------------------------------------


def test_the_rate_limit_status_is_carried_by_headers_of_admitted_and_refused_responses() -> None:
    limiter, refusal = make_exhausted_limiter()
    admitted = limiter.send(a_user())

    assert [[name for name in FIVE if name in limiter.headers(decision)] for decision in (admitted, refusal)] == [
        FIVE,
        FIVE,
    ]


def test_x_ratelimit_limit_is_the_maximum_number_of_requests() -> None:
    limiter = InMemoryLimiter()

    assert limiter.headers(limiter.send(a_user()))["x-ratelimit-limit"] == "5000"


def test_x_ratelimit_remaining_is_the_requests_remaining_in_the_current_window() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(9, a_user())

    assert limiter.headers(limiter.send(a_user()))["x-ratelimit-remaining"] == "4990"


def test_x_ratelimit_used_is_the_requests_made_in_the_current_window() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(9, a_user())

    assert limiter.headers(limiter.send(a_user()))["x-ratelimit-used"] == "10"


def test_x_ratelimit_reset_is_the_time_at_which_the_window_resets_in_utc_epoch_seconds() -> None:
    limiter = InMemoryLimiter(at_ms=1_800_000_000_000)

    assert limiter.headers(limiter.send(a_user()))["x-ratelimit-reset"] == str(1_800_000_000 + 3_600)


def test_x_ratelimit_resource_is_the_bucket_that_the_request_counted_against() -> None:
    limiter = InMemoryLimiter()

    assert [
        limiter.headers(limiter.send(a_user(), path))["x-ratelimit-resource"] for path in ("/meta", "/search/users")
    ] == [
        "core",
        "search",
    ]


def test_headers_hold_whole_numbers() -> None:
    limiter = InMemoryLimiter(at_ms=1_800_000_000_123)
    headers = limiter.headers(limiter.send(a_user()))

    assert [headers[name].isdecimal() for name in FIVE[:4]] == [True] * 4


def test_retry_after_is_present_on_secondary_limit_responses_in_seconds() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)

    assert limiter.headers(limiter.send(a_user(), ISSUES))["retry-after"] == "65"


# -- states --------------------------------------------------------------------------------------------------------


def test_within_limits_a_counted_request_decreases_remaining_and_increases_used() -> None:
    limiter = InMemoryLimiter()
    first, second = limiter.send(a_user()), limiter.send(a_user())

    assert (first.remaining - second.remaining, second.used - first.used) == (1, 1)


def test_within_limits_a_request_beyond_the_primary_limit_leads_to_primary_exceeded_with_remaining_0() -> None:
    limiter, refusal = make_exhausted_limiter()

    assert (refusal.verdict, limiter.headers(refusal)["x-ratelimit-remaining"]) == (Verdict.PRIMARY, "0")


def test_primary_exceeded_ends_when_time_reaches_x_ratelimit_reset() -> None:
    limiter, refusal = make_exhausted_limiter()
    limiter.now_ms = refusal.reset_s * SECOND_MS - 1
    just_before = limiter.send(anonymous()).verdict
    limiter.now_ms = refusal.reset_s * SECOND_MS

    assert (just_before, limiter.send(anonymous()).remaining) == (Verdict.PRIMARY, 59)


def test_within_limits_a_secondary_condition_leads_to_secondary_exceeded() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)

    assert limiter.send(a_user(), ISSUES).verdict is Verdict.SECONDARY


def test_limited_callers_that_continue_stay_limited() -> None:
    limiter, _ = make_exhausted_limiter()

    assert {limiter.send(anonymous()).verdict for _ in range(20)} == {Verdict.PRIMARY}


def test_limited_callers_that_continue_may_be_banned() -> None:
    limiter = InMemoryLimiter()
    app = a_user(app="app:9")
    limiter.send_many(10, app, "/search/code", every_ms=100)
    verdicts = set()
    for _ in range(4 * 600):
        verdicts.add(limiter.send(app, "/search/code").verdict)
        limiter.wait(100)

    assert Verdict.BANNED in verdicts


# -- errors --------------------------------------------------------------------------------------------------------


def body_of(limiter: InMemoryLimiter, decision: LimitDecision) -> dict[str, object]:
    return msgspec.json.decode(limiter.refusal(decision, anonymous()).body, type=dict[str, object])


def test_1_a_primary_limit_answers_403_or_429_with_remaining_0() -> None:
    limiter, refused = make_exhausted_limiter()
    refusal = limiter.refusal(refused, anonymous())

    assert (refusal.status, dict(refusal.headers)["x-ratelimit-remaining"]) == (403, "0")


def test_2_a_secondary_limit_answers_403_or_429_with_a_message_stating_that_a_secondary_limit_was_exceeded() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)
    refusal = limiter.refusal(limiter.send(a_user(), ISSUES), a_user())

    assert (refusal.status, b"You have exceeded a secondary rate limit" in refusal.body) == (403, True)


def test_3_a_client_that_waits_for_reset_after_a_primary_exceedance_is_admitted() -> None:
    limiter, refusal = make_exhausted_limiter()
    limiter.now_ms = refusal.reset_s * SECOND_MS

    assert limiter.send(anonymous()).is_admitted


def test_4_a_client_that_waits_for_retry_after_is_admitted() -> None:
    limiter, refusal = make_exhausted_limiter()
    limiter.wait((refusal.retry_after_s or 0) * SECOND_MS)

    assert limiter.send(anonymous()).is_admitted


def test_4_remaining_is_above_0_on_a_purely_secondary_refusal_so_that_clients_do_not_wait_for_reset() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)

    assert limiter.headers(limiter.send(a_user(), ISSUES))["x-ratelimit-remaining"] == "4100"


def test_4_a_client_that_waits_a_minute_after_a_points_limit_is_admitted_within_the_next_slice() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), ISSUES)
    limiter.wait(MINUTE_MS + 5 * SECOND_MS)

    assert limiter.send(a_user(), ISSUES).is_admitted


def test_6_the_body_of_an_error_is_json_with_message_and_documentation_url() -> None:
    limiter, refusal = make_exhausted_limiter()
    body = body_of(limiter, refusal)

    assert (str(body["message"]).startswith("API rate limit exceeded for 192.0.2.7."), body["documentation_url"]) == (
        True,
        "/docs/rate-limits#about-primary-rate-limits",
    )


# -- endpoints -----------------------------------------------------------------------------------------------------


def test_get_rate_limit_does_not_count_against_the_primary_limit() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user())

    assert limiter.send(a_user(), "/rate_limit").remaining == 4_999


def test_get_rate_limit_can_count_against_a_secondary_limit() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(900, a_user(), "/rate_limit")

    assert limiter.send(a_user(), "/rate_limit").verdict is Verdict.SECONDARY


def test_get_meta_counts_like_any_request() -> None:
    assert InMemoryLimiter().send(a_user(), "/meta").remaining == 4_999


def test_a_separate_graphql_api_has_its_own_primary_limit() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user(), "/graphql", method="POST", query=QueryFacts(cost=51, points=1))

    assert [limiter.send(a_user()).remaining, limiter.send(a_user(), "/graphql", method="POST").remaining] == [
        4_999,
        4_948,
    ]


@pytest.mark.parametrize("path", ["/search/users", "/search/code"])
def test_search_endpoints_have_more_restrictive_primary_limits(path: str) -> None:
    limiter = InMemoryLimiter()

    assert limiter.send(a_user(), path).limit < limiter.send(a_user()).limit


def test_a_window_lasts_an_hour_from_the_first_request() -> None:
    limiter = InMemoryLimiter()
    first = limiter.send(a_user())
    limiter.wait(HOUR_MS - 1)

    assert limiter.send(a_user()).reset_s == first.reset_s
