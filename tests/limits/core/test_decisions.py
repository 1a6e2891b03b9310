"""Decisions from results of a store, and what callers see of them: numbers, headers, bodies and messages."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.limits.builders import NOON_MS, InMemoryLimiter, a_user, anonymous
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import EvaluatedLimit, LimitDecision, Verdict, build_decision
from wharf.limits.core.limiter import Grant, Limiter, find_objects_problem
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.responses import build_bucket_headers, build_headers, build_refusal, build_status_body
from wharf.limits.core.rule import UNLIMITED, RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.decisions.headers import HeaderWriter, build_token_headers, filter_reply_headers, get_reason_phrase
from wharf.limits.rules import read_rules

RULES = """
profile = "none"
[[rule]]
name = "core"
resource = "rest"
window = "60s"
ceiling = 10
objects_most = 3
[[rule]]
name = "points"
counts = "points"
window = "30s"
ceiling = 8
[[rule]]
name = "quiet"
counts = "points"
ceiling = 4
shadow = true
[[rule]]
name = "secret"
counts = "points"
hidden = true
ceiling = 99
[[rule]]
name = "slots"
counts = "connections"
ceiling = 3
[[rule]]
name = "made"
counts = "content"
ceiling = 5
[[endpoint]]
match = "GET /free"
free = true
[[endpoint]]
match = "POST /graphql"
interface = "graphql"
[[endpoint]]
match = "POST /batch"
interface = "large_files"
"""
READ_RULES = read_rules(RULES)
INDEXES = {"core": 0, "points": 1, "quiet": 2, "secret": 3, "slots": 4}


def make_call(
    path: str = "/x", *, caller: Caller | None = None, method: str = "GET", rules: RuleSet = READ_RULES, **facts: Any
) -> StoreCall:
    return Limiter(rules).build_call(RequestFacts("r1", method, path, caller or a_user(), **facts), NOON_MS)


def decide(
    *hits: tuple[str, int],
    path: str = "/x",
    method: str = "GET",
    count: int = 4,
    banned_s: int = 0,
    is_admitted: bool = False,
    caller: Caller | None = None,
    rules: RuleSet = READ_RULES,
    end_ms: int = NOON_MS + 60_000,
) -> LimitDecision:
    """Return the decision after limits were hit; each hit is the name of a rule and the milliseconds until it is free."""
    call = make_call(path, method=method, caller=caller, rules=rules)
    result = TakeResult(
        is_admitted,
        NOON_MS,
        tuple(count for _ in call.charges),
        tuple(INDEXES[name] for name, _ in hits),
        tuple(NOON_MS + wait_ms for _, wait_ms in hits),
        (),
        count,
        end_ms,
        NOON_MS + banned_s * 1_000 if banned_s else 0,
    )
    return build_decision("r1", call.plan, call.charges, result)


# -- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "banned_s", "verdict", "name", "retry_s"),
    [
        ([("core", 5_000)], 0, Verdict.PRIMARY, "core", 5),
        ([("points", 5_000)], 0, Verdict.SECONDARY, "points", 5),
        ([("core", 5_000), ("points", 9_000)], 0, Verdict.PRIMARY, "core", 9),
        ([("points", 5_000), ("secret", 9_000)], 0, Verdict.SECONDARY, "secret", 9),
        ([("points", 9_000), ("secret", 5_000)], 0, Verdict.SECONDARY, "points", 9),
        ([("points", 5_000), ("secret", 5_000)], 0, Verdict.SECONDARY, "points", 5),
        ([("points", 5_000), ("quiet", 9_000)], 0, Verdict.SECONDARY, "points", 5),
        ([], 7, Verdict.BANNED, None, 7),
        ([("core", 9_000)], 7, Verdict.BANNED, None, 9),
        ([("quiet", 9_000)], 7, Verdict.BANNED, None, 7),
        ([("points", 1)], 0, Verdict.SECONDARY, "points", 1),
        ([("points", 1_000)], 0, Verdict.SECONDARY, "points", 1),
        ([("points", 1_001)], 0, Verdict.SECONDARY, "points", 2),
        ([("points", -5_000)], 0, Verdict.SECONDARY, "points", 1),
    ],
)
def test_a_refusal_names_the_limit_that_ends_last(
    hits: list[tuple[str, int]], banned_s: int, verdict: Verdict, name: str | None, retry_s: int
) -> None:
    decision = decide(*hits, banned_s=banned_s)

    refusing = decision.refusing_charge
    assert (decision.verdict, None if refusing is None else refusing.name, decision.retry_after_s) == (
        verdict,
        name,
        retry_s,
    )
    assert not decision.is_admitted


@pytest.mark.parametrize(("required", "verdict"), [(8, Verdict.PRIMARY), (9, Verdict.EXCEEDS_CEILING)])
def test_a_request_that_can_never_fit_is_refused_for_that_reason(required: int, verdict: Verdict) -> None:
    call = make_call()
    charges = (call.charges[0], replace(call.charges[1], required=required), *call.charges[2:])
    result = TakeResult(False, NOON_MS, (0,) * 5, (0, 1), (NOON_MS + 5, NOON_MS + 5), (), 0, NOON_MS)

    decision = build_decision("r1", call.plan, charges, result)

    assert decision.verdict is verdict
    assert (decision.retry_after_s is None) is (verdict is Verdict.EXCEEDS_CEILING)


def test_a_ban_in_shadow_mode_is_not_the_reason_for_a_refusal() -> None:
    rules = read_rules(RULES + "[ban]\nshadow = true\n")

    assert decide(("points", 5_000), banned_s=9, rules=rules).verdict is Verdict.SECONDARY


# -- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "hits", "is_admitted", "count", "used"),
    [
        ("/x", [], True, 4, 5),
        ("/x", [], True, 9, 10),
        ("/x", [], True, 12, 10),
        ("/free", [], True, 4, 4),
        ("/x", [("points", 5)], False, 4, 4),
        ("/x", [("core", 5)], False, 4, 10),
    ],
)
def test_used_and_remaining_are_those_after_the_request(
    path: str, hits: list[tuple[str, int]], is_admitted: bool, count: int, used: int
) -> None:
    decision = decide(*hits, path=path, is_admitted=is_admitted, count=count)

    assert (decision.limit, decision.used, decision.remaining) == (10, used, 10 - used)


@pytest.mark.parametrize(("end_ms", "reset_s"), [(5_000, 5), (5_001, 6), (5_999, 6)])
def test_the_reset_is_rounded_up_to_a_second(end_ms: int, reset_s: int) -> None:
    assert decide(is_admitted=True, end_ms=end_ms).reset_s == reset_s


def test_every_evaluated_limit_is_listed() -> None:
    decision = decide(("points", 5_000), ("quiet", 9_000))

    limits = list(decision.list_limits())
    assert [limit.rule for limit in limits] == ["core", "points", "quiet", "secret", "slots"]
    assert limits[1] == EvaluatedLimit(
        "points", "user:ada", 4, 4, 8, 1, True, True, NOON_MS + 5_000, "rules.toml", limits[1].line
    )
    assert (limits[2].is_enforced, limits[2].is_hit, limits[0].is_hit, limits[0].free_at_ms) == (
        False,
        True,
        False,
        None,
    )
    assert (decision.list_hit_rules(is_enforced=True), decision.list_hit_rules(is_enforced=False)) == (
        ["points"],
        ["quiet"],
    )


def test_an_admitted_request_lists_its_counts_after_it_under_the_keys_that_were_charged() -> None:
    decision = decide(is_admitted=True)
    decision = replace(decision, result=replace(decision.result, keys=tuple("abcde")))

    assert [(limit.key, limit.before, limit.after) for limit in decision.list_limits()] == [
        (key, 4, 5) for key in "abcde"
    ]


# -- headers -------------------------------------------------------------------------------------------------------


def read_headers(decision: LimitDecision, rules: RuleSet = READ_RULES) -> dict[str, str]:
    return dict(build_headers(decision, rules))


def test_an_admitted_request_shows_its_bucket_only() -> None:
    assert read_headers(decide(is_admitted=True, end_ms=NOON_MS + 1_001)) == {
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "5",
        "x-ratelimit-used": "5",
        "x-ratelimit-reset": str(NOON_MS // 1_000 + 2),
        "x-ratelimit-resource": "rest",
        "ratelimit-policy": '"core";q=10;w=60',
        "ratelimit": '"core";r=5;t=2',
    }


def test_a_refusal_shows_the_secondary_limit_that_refused_too() -> None:
    headers = read_headers(decide(("points", 5_000)))

    assert headers["ratelimit-policy"] == '"core";q=10;w=60, "points";q=8;qu="points";w=30'
    assert headers["ratelimit"] == '"core";r=6;t=60, "points";r=0;t=5'
    assert headers["retry-after"] == "5"


def test_a_hidden_limit_is_never_shown() -> None:
    assert read_headers(decide(("secret", 5_000)))["ratelimit-policy"] == '"core";q=10;w=60'


def test_disclosed_limits_are_shown_with_what_is_left_unless_they_are_in_shadow_mode() -> None:
    rules = read_rules("disclose_secondary = true\n" + RULES)
    for is_admitted, core, points in ((True, 5, 3), (False, 6, 4)):
        hits = [] if is_admitted else [("secret", 9_000)]
        headers = read_headers(decide(*hits, is_admitted=is_admitted, count=4, rules=rules), rules)

        assert headers["ratelimit-policy"] == (
            '"core";q=10;w=60, "points";q=8;qu="points";w=30, "slots";q=3;qu="concurrent-requests"'
        )
        assert headers["ratelimit"] == f'"core";r={core};t=60, "points";r={points};t=30, "slots";r=0'


@pytest.mark.parametrize(
    ("hidden_path", "per_endpoint", "is_shown"),
    [("/x", True, False), ("/other", True, True), ("/other", False, False), (None, False, True), (None, True, True)],
)
def test_points_that_would_disclose_a_hidden_cost_are_not_shown(
    hidden_path: str | None, per_endpoint: bool, is_shown: bool
) -> None:
    text = "disclose_secondary = true\n" + RULES.replace(
        'window = "30s"', f'window = "30s"\nper_endpoint = {str(per_endpoint).lower()}'
    )
    if hidden_path is not None:
        text += f'[[endpoint]]\nmatch = "GET {hidden_path}"\nhidden = true\n'
    rules = read_rules(text)
    headers = read_headers(decide(is_admitted=True, rules=rules), rules)

    assert ('"points";r=' in headers["ratelimit"]) is is_shown
    assert '"points";q=8' in headers["ratelimit-policy"]
    assert '"slots";r=' in headers["ratelimit"]


def test_a_bucket_without_a_decision_is_shown_as_it_is() -> None:
    charge = make_call().charges[0]

    headers = dict(build_bucket_headers(charge, CounterReading(12, NOON_MS + 500), NOON_MS))

    assert (headers["x-ratelimit-used"], headers["x-ratelimit-remaining"], headers["x-ratelimit-reset"]) == (
        "10",
        "0",
        str(NOON_MS // 1_000 + 1),
    )
    assert headers["ratelimit"] == '"core";r=0;t=1'
    assert (
        dict(build_bucket_headers(charge, CounterReading(0, NOON_MS - 500), NOON_MS))["ratelimit"] == '"core";r=10;t=0'
    )


@pytest.mark.parametrize("end_ms", [NOON_MS - 5_000, NOON_MS, NOON_MS + 1, NOON_MS + 1_000, NOON_MS + 59_001])
@pytest.mark.parametrize("count", [0, 9, 10, 15])
@pytest.mark.parametrize("path", ["/x", "/free"])
def test_headers_from_templates_equal_those_of_the_core(path: str, count: int, end_ms: int) -> None:
    decision = decide(is_admitted=True, path=path, count=count, end_ms=end_ms)
    expected = [(name.encode(), value.encode()) for name, value in build_headers(decision, READ_RULES)]
    writer = HeaderWriter(READ_RULES, "x-id")

    for _ in range(2):
        assert writer.render_pairs("r1", decision) == [*expected, (b"x-id", b"r1")]
        assert writer.render_block("r1", decision) == b"".join(
            b"%s: %s\r\n" % pair for pair in [*expected, (b"x-id", b"r1")]
        )


def test_full_caches_of_templates_change_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.limits.decisions.headers.MAX_HEADER_TEMPLATES", 1)
    writer = HeaderWriter(READ_RULES, "x-id")
    decision = decide(is_admitted=True)
    granted = replace(decision, charges=(replace(decision.charges[0], ceiling=77), *decision.charges[1:]))

    limits = [dict(writer.render_pairs("r1", each))[b"x-ratelimit-limit"] for each in (decision, granted, decision)]

    assert limits == [b"10", b"77", b"10"]


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (a_user(), ()),
        (replace(a_user(), scopes=("repo", "r\u00e9po", "a\x07", "user")), (("x-oauth-scopes", "repo, user"),)),
        (
            replace(a_user(), expires_ms=1_800_000_000_999),
            (("github-authentication-token-expiration", "2027-01-15 08:00:00 UTC"),),
        ),
        (
            replace(a_user(), scopes=("repo",), expires_ms=0),
            (("x-oauth-scopes", "repo"), ("github-authentication-token-expiration", "1970-01-01 00:00:00 UTC")),
        ),
    ],
)
def test_scopes_and_expiry_of_a_token_are_shown(caller: Caller, expected: tuple[tuple[str, str], ...]) -> None:
    assert build_token_headers(caller) == expected


@pytest.mark.parametrize(
    ("headers", "passed", "measured_ms", "is_content"),
    [
        (
            [(b"X-RateLimit-Limit", b"1"), (b"ratelimit", b"2"), (b"RateLimit-Policy", b"3"), (b"a", b"4")],
            [3],
            None,
            False,
        ),
        ([(b"x-ratelimit-other", b"1"), (b"x-wharf", b"2")], [0, 1], None, False),
        ([(b"X-Wharf-Cpu-Ms", b"12"), (b"x-wharf-content", b"1"), (b"x-wharf-x", b"")], [], 12, True),
        ([(b"x-wharf-cpu-ms", b"9" * 9), (b"x-wharf-content", b"2")], [], int("9" * 9), False),
        ([(b"x-wharf-cpu-ms", b"9" * 10)], [], None, False),
        ([(b"x-wharf-content", b"/wiki/{page}")], [], None, True),
        ([(b"x-wharf-content", b"/" + b"x" * 600)], [], None, True),
        ([(b"x-wharf-cpu-ms", b"-1")], [], None, False),
    ],
)
def test_marks_and_limit_headers_of_the_service_are_taken_out(
    headers: list[tuple[bytes, bytes]], passed: list[int], measured_ms: int | None, is_content: bool
) -> None:
    found, marks = filter_reply_headers(headers, replaces_limits=True)

    assert (found, marks.measured_ms, marks.is_content) == (
        [headers[index] for index in passed],
        measured_ms,
        is_content,
    )
    assert [pair for pair in filter_reply_headers(headers, replaces_limits=False)[0] if pair not in found] == [
        pair for pair in headers if pair not in found and not pair[0].lower().startswith(b"x-wharf-")
    ]


@pytest.mark.parametrize(("status", "phrase"), [(200, "OK"), (429, "Too Many Requests"), (299, "Unknown")])
def test_a_status_has_its_phrase(status: int, phrase: str) -> None:
    assert get_reason_phrase(status) == phrase


# -- refusals ------------------------------------------------------------------------------------------------------


def refuse(decision: LimitDecision, caller: Caller | None = None, rules: RuleSet = READ_RULES) -> tuple[int, Any]:
    refusal = build_refusal(decision, caller or a_user(), rules)
    return refusal.status, msgspec.json.decode(refusal.body)


def test_a_primary_refusal_has_message_cause_and_limit() -> None:
    assert refuse(decide(("core", 1_000), ("points", 500))) == (
        403,
        {
            "message": "API rate limit exceeded for user ada. Wait 1 second before you try again. Request ID r1.",
            "documentation_url": "/docs/rate-limits#about-primary-rate-limits",
            "status": "403",
            "cause": "primary",
            "limit": {
                "name": "core",
                "scope": ["caller"],
                "counts": "requests",
                "allowed": 10,
                "window_seconds": 60,
                "resets_in_seconds": 1,
            },
            "violated": ["core"],
        },
    )


@pytest.mark.parametrize(
    ("hits", "banned_s", "message", "violated"),
    [
        ([("points", 2_000)], 0, "You have exceeded a secondary rate limit. Wait 2 seconds", ["points"]),
        ([("points", 2_000), ("quiet", 1_000), ("secret", 500)], 0, "You have exceeded a secondary rate limit. Wait 2", ["points"]),
        ([("secret", 2_000)], 0, "You have exceeded a secondary rate limit. Wait 2 seconds", None),
        (
            [],
            3,
            "You have exceeded a secondary rate limit: you continued to send requests while you were limited, so all "
            "requests are refused for some time.",
            None,
        ),
    ],
)  # fmt: skip
def test_a_secondary_refusal_names_only_limits_that_are_not_hidden(
    hits: list[tuple[str, int]], banned_s: int, message: str, violated: list[str] | None
) -> None:
    status, body = refuse(decide(*hits, banned_s=banned_s))

    assert (status, body.get("violated"), "limit" in body) == (403, violated, violated is not None)
    assert body["message"].startswith(message)
    assert body["documentation_url"].endswith("#about-secondary-rate-limits")


def test_a_concurrency_limit_has_no_window() -> None:
    _, body = refuse(decide(("slots", 1_000)))

    assert body["limit"] == {
        "name": "slots",
        "scope": ["caller"],
        "counts": "connections",
        "allowed": 3,
        "resets_in_seconds": 1,
    }


def test_a_limit_on_content_says_what_it_blocks() -> None:
    limiter = InMemoryLimiter(
        RULES.replace("ceiling = 5", "ceiling = 1") + '[[endpoint]]\nmatch = "POST /made"\npoints = 1\ncontent = true\n'
    )
    limiter.send(a_user(), "/made", method="POST")
    _, body = refuse(limiter.send(a_user(), "/made", method="POST"), rules=limiter.rules)

    assert "temporarily blocked from content creation" in body["message"]


def test_callers_without_a_credential_learn_how_to_get_more() -> None:
    _, body = refuse(decide(("core", 1_000), caller=anonymous()), anonymous())

    assert body["message"].startswith(
        "API rate limit exceeded for 192.0.2.7. Requests with an accepted credential have a higher limit. Wait 1 second"
    )


@pytest.mark.parametrize(
    ("ceiling", "caller", "message"),
    [
        (0, a_user(), "Requests of this kind are not allowed here; waiting does not help. Contact the operator"),
        (0, anonymous(), "Requests of this kind are not allowed here; waiting does not help. Send a credential."),
        (8, a_user(), "This request is too large to be admitted: it costs 9, and the limit is 8. Request less"),
    ],
)
def test_a_request_that_never_fits_learns_why(ceiling: int, caller: Caller, message: str) -> None:
    call = make_call(caller=caller)
    charges = (call.charges[0], replace(call.charges[1], required=9, ceiling=ceiling), *call.charges[2:])
    result = TakeResult(False, NOON_MS, (0,) * 5, (1,), (NOON_MS + 5,), (), 0, NOON_MS)
    status, body = refuse(build_decision("r1", call.plan, charges, result), caller)

    assert (status, body["cause"], "resets_in_seconds" in body["limit"]) == (403, "never", False)
    assert body["message"].startswith(message)


def test_the_size_of_a_hidden_limit_is_not_told() -> None:
    call = make_call()
    charges = (*call.charges[:3], replace(call.charges[3], required=100), *call.charges[4:])
    result = TakeResult(False, NOON_MS, (0,) * 5, (3,), (NOON_MS + 5,), (), 0, NOON_MS)

    assert refuse(build_decision("r1", call.plan, charges, result))[1]["message"].startswith(
        "This request is too large to be admitted. Request less"
    )


@pytest.mark.parametrize(
    ("path", "method", "hit", "status", "keys"),
    [
        ("/graphql", "POST", "core", 200, ["errors"]),
        ("/graphql", "POST", "points", 403, ["message", "documentation_url", "status", "cause", "limit", "violated"]),
        ("/batch", "POST", "core", 429, ["message", "documentation_url", "request_id", "cause", "limit", "violated"]),
    ],
)
def test_each_interface_has_its_own_format(path: str, method: str, hit: str, status: int, keys: list[str]) -> None:
    decision = decide((hit, 1_000), path=path, method=method)

    found_status, body = refuse(decision)
    assert (found_status, list(body)) == (status, keys)
    content_type = dict(build_refusal(decision, a_user(), READ_RULES).headers)["content-type"]
    assert ("git-lfs" in content_type) is (path == "/batch")


def test_a_graphql_error_has_the_type_that_clients_check() -> None:
    _, body = refuse(decide(("core", 1_000), path="/graphql", method="POST"))

    (error,) = body["errors"]
    assert (error["type"], error["extensions"]["cause"]) == ("RATE_LIMITED", "primary")


def test_a_rule_can_set_the_status_of_its_refusals() -> None:
    rules = read_rules(RULES.replace('window = "30s"', 'window = "30s"\nstatus = 429'))

    assert [refuse(decide((name, 1_000), rules=rules), rules=rules)[0] for name in ("points", "core")] == [429, 403]


@pytest.mark.parametrize(("verdict", "status"), [(Verdict.TOO_MANY_OBJECTS, 413), (Verdict.TOO_COMPLEX, 400)])
def test_the_content_of_a_request_can_be_refused(verdict: Verdict, status: int) -> None:
    limiter, call = Limiter(READ_RULES), make_call("/batch", method="POST")
    decision = limiter.build_unread_refusal(
        call, CounterReading(4, NOON_MS + 9), NOON_MS, verdict=verdict, problem="Bad."
    )

    found, body = refuse(decision)
    assert (found, body["message"], body["cause"], "limit" in body) == (
        status,
        "Bad. Request ID r1.",
        verdict.value,
        False,
    )
    assert (decision.used, decision.retry_after_s, decision.result.bucket_end_ms) == (4, None, NOON_MS + 9)


@pytest.mark.parametrize(("objects", "is_refused"), [(None, False), (3, False), (4, True)])
def test_a_batch_has_a_maximum_of_objects(objects: int | None, is_refused: bool) -> None:
    assert bool(find_objects_problem(make_call("/batch").plan, objects)) is is_refused


def test_a_bucket_without_a_maximum_of_objects_allows_any_number() -> None:
    plan = make_call("/batch", rules=read_rules(RULES.replace("objects_most = 3", ""))).plan

    assert find_objects_problem(plan, 10**9) == ""


# -- the status page -----------------------------------------------------------------------------------------------


def test_the_status_page_lists_buckets_and_disclosed_limits() -> None:
    rules = read_rules("disclose_secondary = true\n" + RULES)
    charges = {charge.name: charge for charge in make_call(rules=rules).charges}
    reading = CounterReading(3, NOON_MS + 1)
    secondaries = [(charges[name], reading) for name in ("points", "secret", "slots")]

    def build(rule_set: RuleSet) -> Any:
        return msgspec.json.decode(
            build_status_body(rule_set, [(charges["core"], CounterReading(12, NOON_MS))], secondaries)
        )

    bucket = {"limit": 10, "used": 10, "remaining": 0, "reset": NOON_MS // 1_000}
    assert build(READ_RULES) == {"resources": {"rest": bucket}, "rate": bucket}
    assert build(rules)["resources"] == {
        "rest": bucket,
        "points": {"limit": 8, "used": 3, "remaining": 5, "reset": NOON_MS // 1_000 + 1},
        "slots": {"limit": 3, "used": 3, "remaining": 0},
    }
    hiding = read_rules("disclose_secondary = true\n" + RULES + '[[endpoint]]\nmatch = "GET /h"\nhidden = true\n')
    assert build(hiding)["resources"]["points"] == {"limit": 8, "reset": NOON_MS // 1_000 + 1}


def test_the_first_bucket_of_a_name_and_the_first_without_patterns_are_shown() -> None:
    rules = read_rules('profile = "none"\n' + "".join(
        f'[[rule]]\nname = "{name}"\nresource = "{resource}"\nceiling = {ceiling}\n{more}'
        for name, resource, ceiling, more in (
            ("a", "x", 1, 'match = "GET /a"\n'), ("b", "y", 2, ""), ("c", "y", 3, ""), ("d", "x", 4, 'match = "GET /d"\n')
        )
    ))  # fmt: skip
    charges = Limiter(rules).rulebook.list_primary_charges(a_user())
    body = msgspec.json.decode(build_status_body(rules, [(charge, CounterReading(0, NOON_MS)) for charge in charges]))

    assert ({name: bucket["limit"] for name, bucket in body["resources"].items()}, body["rate"]["limit"]) == (
        {"x": 1, "y": 2},
        2,
    )


# -- grants --------------------------------------------------------------------------------------------------------


def make_grant(owner: str = "user:ada", resource: str = "rest", amount: int = 5, until_ms: int = NOON_MS + 1) -> Grant:
    return Grant(owner=owner, resource=resource, amount=amount, until_ms=until_ms, by="ops", reason="")


@pytest.mark.parametrize(
    ("grants", "ceiling"),
    [
        ([make_grant()], 15),
        ([make_grant(), make_grant(amount=2)], 17),
        ([make_grant(until_ms=NOON_MS), make_grant(amount=2)], 12),
        ([make_grant(until_ms=NOON_MS)], 10),
        ([make_grant(owner="user:eve")], 10),
        ([make_grant(resource="core")], 10),
    ],
)
def test_grants_raise_the_ceiling_of_their_bucket(grants: list[Grant], ceiling: int) -> None:
    limiter = Limiter(READ_RULES, grants)
    for each in (limiter, limiter.copy_with_rules(READ_RULES)):
        call = each.build_call(RequestFacts("r1", "GET", "/x", a_user()), NOON_MS)

        assert [charge.ceiling for charge in call.charges] == [ceiling, 8, 4, 99, 3]
        assert (call.charges is call.plan.charges) is (ceiling == 10)


def test_a_grant_changes_no_free_request_and_no_unlimited_bucket() -> None:
    limiter = Limiter(READ_RULES, [make_grant()])
    free = limiter.build_call(RequestFacts("r1", "GET", "/free", a_user()), NOON_MS)
    unlimited = replace(make_call().charges[0], ceiling=UNLIMITED)

    assert free.charges is free.plan.charges
    assert limiter.apply_grants(unlimited, NOON_MS) is unlimited


def test_a_grant_changes_no_free_request_that_charges_nothing() -> None:
    rules = read_rules(
        'profile = "none"\n[[rule]]\nname = "core"\nresource = "rest"\nceiling = 10\n'
        '[[endpoint]]\nmatch = "GET /free"\nfree = true\n'
    )

    call = Limiter(rules, [make_grant()]).build_call(RequestFacts("r1", "GET", "/free", a_user()), NOON_MS)

    assert call.charges == ()


def test_a_query_charges_its_points() -> None:
    call = make_call("/graphql", method="POST", query=QueryFacts(cost=3, points=2, content=4))

    assert [(charge.name, charge.cost) for charge in call.charges] == [
        ("core", 1),
        ("points", 2),
        ("quiet", 2),
        ("secret", 2),
        ("slots", 1),
        ("made", 4),
    ]
