"""The pages of the rate limits: who is limited, by which rule, until when; grants, bans, and what a request would cost."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api.limited_server import ADDRESS, LimitedServer
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import CONFIRMED, a_browser
from tests.web.strict_html import find_problems
from wharf.contract.model.times import SECOND
from wharf.contract.wire import limits
from wharf.web.app import render_page
from wharf.web.page import Page, Visitor
from wharf.web.views.limits import (
    build_caller_view,
    build_cost_view,
    build_limits_view,
    build_refusal_rows,
    describe_ceilings,
    name_caller,
)
from wharf.web.views.overview import build_overview

NOW_NS = 1_700_000_000 * SECOND
HOSTILE = '<img src=x onerror="alert(1)">'
ALL_RIGHTS = frozenset({"limits.grant", "limits.end_grants", "limits.ban", "limits.end_ban"})


def a_status(**fields: Any) -> limits.LimiterStatus:
    """Return a status with one entry of each kind, whose texts are hostile."""
    until = NOW_NS + 40 * SECOND
    usual: dict[str, Any] = {
        "rules": (limits.LimitRule(name="core", bucket="core", counts="requests", window=60 * SECOND,
                                   ceilings={"user": 200, "none": 60}, refused=1_200, source="rules.toml:2"),),
        "limited": (limits.LimitedCaller(caller="address:192.0.2.7", rule="core", until=until, refused=15),),
        "refusals": (limits.LimitRefusal(request_id="R1", at=NOW_NS, caller="user:ada", method="GET", path=HOSTILE,
                                         rule="core", ceiling=60, until=until, verdict="primary"),),
        "callers": (limits.CallerActivity(caller="user:ada", token_name=HOSTILE, requests=9, endpoint="GET /*"),),
        "grants": (limits.LimitGrant(caller="user:ada", bucket="core", amount=5, until=until, by="eve", reason=HOSTILE),),
        "grant_count": 1,
        "bans": (limits.LimitBan(subject="address:192.0.2.9", until=until, reason=HOSTILE, message=HOSTILE, is_enforced=False),),
        "ban_count": 1,
    }  # fmt: skip
    return limits.LimiterStatus(is_enabled=True, minutes=60, **{**usual, **fields})


def render(template: str, view: Any, allowed: frozenset[str] = ALL_RIGHTS) -> str:
    page = Page(template, "Limits", view, section="cluster")
    text = render_page(page, notice="", origin="", visitor=Visitor(), allowed=allowed).decode()
    assert find_problems(text) == []
    return text


def test_the_page_says_who_is_limited_by_which_rule_and_until_when_and_why_callers_are_banned() -> None:
    view = build_limits_view(a_status(), NOW_NS)

    text = render("limits.html", view)

    (limited,), (ban,) = view.limited, view.bans
    assert view.sentence == "1 caller is limited"
    assert (limited.caller.text, limited.reason, limited.remaining, limited.refused) == ("192.0.2.7", "core", "40s", 15)
    assert (ban.reason, ban.state) == (HOSTILE, "recorded only")
    assert HOSTILE not in text
    assert "<img src=x" not in text
    assert text.count('method="post"') == 4


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"limited": ()}, "Nobody is limited"),
        ({"off_until": NOW_NS + SECOND}, "An operator has switched all limits off"),
    ],
)
def test_the_first_sentence_says_whether_anything_is_limited(fields: dict[str, Any], sentence: str) -> None:
    assert build_limits_view(a_status(**fields), NOW_NS).sentence == sentence


def test_without_limits_the_page_says_how_to_switch_them_on() -> None:
    text = render("limits.html", build_limits_view(limits.LimiterStatus(is_enabled=False), NOW_NS))

    assert "Rate limits are off" in text
    assert "enabled = true" in text


def test_a_reader_sees_no_forms() -> None:
    assert 'method="post"' not in render("limits.html", build_limits_view(a_status(), NOW_NS), frozenset())


def test_equal_refusals_that_followed_each_other_are_one_row() -> None:
    first, other = a_status().refusals[0], limits.LimitRefusal(request_id="R2", at=NOW_NS, caller="user:eve")

    rows = build_refusal_rows((first, first, other, first), NOW_NS)

    assert [(row.count, row.reason) for row in rows] == [(2, "core, 60 at most"), (1, ""), (1, "core, 60 at most")]


@pytest.mark.parametrize(
    ("ceilings", "text"),
    [
        ({"user": 200, "client": 200, "none": 60}, "200 with a token, 60 without a token"),
        ({"user": 100, "none": 100}, "100"),
        ({"machine": None}, "no limit for nodes and servers"),
    ],
)
def test_the_ceilings_of_equal_callers_are_named_once(ceilings: dict[str, int | None], text: str) -> None:
    assert describe_ceilings(ceilings) == text


def test_a_token_is_named_if_its_name_is_known() -> None:
    accessor = "0a1b2c3d-1111-4222-8333-444455556666"

    names = [name_caller(f"user:{accessor}", name) for name in ("ci", "")]

    assert [(each.text, each.id) for each in names] == [("ci", accessor), ("token 0a1b2c3d", accessor)]


def test_the_page_of_a_caller_shows_its_counters_and_what_is_used_up() -> None:
    counters = (
        limits.LimitCounter(rule="core", bucket="core", used=60, ceiling=60, resets_in=36 * SECOND),
        limits.LimitCounter(rule="cpu", counts="cpu_ms", used=3, ceiling=90_000, resets_in=36 * SECOND),
        limits.LimitCounter(rule="waiting", ceiling=10_000),
    )
    caller = limits.CallerLimits(caller="address:192.0.2.7", ban_subject="address:192.0.2.7", counters=counters)

    view = build_caller_view(caller, a_status(), NOW_NS)

    assert (view.sentence, view.unused, view.buckets) == (
        "Limited by core for 36s, until 2023-11-14 22:13 UTC",
        1,
        ("core",),
    )
    assert [(row.rule, row.percent, row.level) for row in view.counters] == [
        ("core", 100, "full"),
        ("cpu", 1, "normal"),
    ]
    page = render("limited_caller.html", view)
    assert "/limits/bans" in page
    assert re.findall('<td class="number">([^<]*)</td>', page) == ["60", "60", "3 ms", "90\u202f000 ms"]


def test_the_page_of_a_cost_says_which_rule_would_refuse() -> None:
    charge = limits.RequestCharge(rule="core", bucket="core", cost=1, used=60, ceiling=60, is_exceeded=True)
    cost = limits.RequestEstimate(
        caller="user:ada", endpoint="GET /*", is_admitted=False, rule="core", charges=(charge,)
    )

    view = build_cost_view("user:ada", "GET", HOSTILE, cost)

    assert (view.sentence, view.charges[0].state) == ("It would be refused by core", "would refuse")
    assert HOSTILE not in render("limit_cost.html", view)


@pytest.mark.parametrize(
    ("has_limited", "is_enforced", "sentence"),
    [
        (True, True, "1 caller is limited and 1 caller is banned"),
        (True, False, "1 caller is limited"),
        (False, True, "1 caller is banned"),
        (False, False, "Nobody is limited"),
    ],
)
def test_the_page_counts_banned_callers_before_their_next_request(
    has_limited: bool, is_enforced: bool, sentence: str
) -> None:
    ban = limits.LimitBan(subject="address:192.0.2.9", until=NOW_NS + SECOND, is_enforced=is_enforced)
    fields = {} if has_limited else {"limited": ()}

    assert build_limits_view(a_status(bans=(ban,), **fields), NOW_NS).sentence == sentence


def test_the_refusals_of_a_limited_caller_are_those_of_the_whole_period() -> None:
    caller = limits.CallerActivity(caller="address:192.0.2.7", requests=9_000, refused=7_029, endpoint="GET /*")

    (row,) = build_limits_view(a_status(callers=(caller,)), NOW_NS).limited

    assert row.refused == 7_029


def test_the_overview_names_the_limits_that_refuse_most() -> None:
    view = build_overview([], [], [], [], [], "leader", a_status(), (), NOW_NS, has_ready_nodes=True)

    (trouble,) = view.troubles
    assert trouble.text == "The limit core has refused 1,200 requests in the last hour"
    assert (trouble.detail, trouble.url) == ("1 caller is limited now", "/ui/limits")


def test_the_forms_grant_and_ban_with_a_reason_and_end_both(tmp_path: Path) -> None:
    @in_virtual_time
    async def visit() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            limited, browser = LimitedServer(server, tmp_path), a_browser(server)
            await limited.send(times=4)
            fields = {"bucket": "core", "amount": "2", "duration": "1h", "reason": "an import"}

            granted = await browser.post("/ui/limits/grants", {"caller": ADDRESS, **fields})
            banned = await browser.post(
                "/ui/limits/bans", {"subject": ADDRESS, "duration": "1h", "reason": "a flood", **CONFIRMED}
            )
            shown = (await browser.get("/ui/limits")).text
            caller = (await browser.get("/ui/limits/callers/address%3A192.0.2.7")).text
            cost = (await browser.get("/ui/limits/cost?caller=address:192.0.2.7&path=/v1/jobs")).text
            await browser.post("/ui/limits/callers/address%3A192.0.2.7/end-ban")
            await browser.post("/ui/limits/callers/address%3A192.0.2.7/end-grants?bucket=core")
            status = await server.client.limits.read()
            wrong = await browser.post("/ui/limits/grants", {"caller": ADDRESS, **fields, "reason": ""})

            assert (granted.status, granted.get_header("location")) == (303, "/ui/limits/callers/address%3A192.0.2.7")
            assert banned.status == 303
            assert "an import" in shown
            assert "a flood" in shown
            assert "recorded only" in shown
            assert "Not limited" in caller
            assert "only record such bans" in caller
            assert "It would be admitted" in cost
            assert (status.grants, status.bans) == ((), ())
            assert (wrong.status, "say why" in wrong.text) == (400, True)

    visit()
