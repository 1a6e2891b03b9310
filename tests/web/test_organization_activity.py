"""The page of the activity of an organization: who sent requests about which resource, as a gateway has counted them."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, running
from tests.agent.test_gateway_activity import TOKEN, a_gateway_process, send_as_ada, write_token
from tests.agent.test_processes import write_agent_config
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.ports import free_ports
from tests.web.browsing import a_browser
from tests.web.strict_html import find_problems
from tests.web.test_limits_pages import HOSTILE, NOW_NS, render
from wharf.contract.model.times import SECOND
from wharf.contract.wire.limits import ACTIVITY_PAGE_ROWS, LimiterStatus, OrganizationActivity, OrganizationActivityRow
from wharf.web.views.limits import ActivityQuery, build_activity_view, build_limits_view, read_activity_query

ACME = ActivityQuery("acme", 60, 2)
ROWS = (
    OrganizationActivityRow(
        actor="user:ada", actor_type="classic_pat", user="ada", is_member=True, resource="acme/site", requests=1_200,
        refused=3, last=NOW_NS - 40 * SECOND,
    ),
    OrganizationActivityRow(
        actor="app:7", actor_type="github_app_user_to_server", user="eve", is_member=False, resource=HOSTILE, requests=2,
        last=NOW_NS,
    ),
    OrganizationActivityRow(
        actor="installation:71", actor_type="installation", resource="acme", requests=1, last=NOW_NS
    ),
    OrganizationActivityRow(actor="user:bob", actor_type="classic_pat", user="bob", resource="acme", last=NOW_NS),
    OrganizationActivityRow(actor="address:anonymous", actor_type="none", resource="acme", last=NOW_NS),
)  # fmt: skip


def test_the_page_shows_who_in_which_resource_how_much_and_when_and_hostile_texts_are_harmless() -> None:
    view = build_activity_view(ACME, OrganizationActivity(organization="acme", rows=ROWS), "", NOW_NS)

    text = render("limit_activity.html", view)

    assert [(row.name, row.credential, row.membership, row.kind) for row in view.rows] == [
        ("ada", "", "member", "token"),
        ("eve", "app:7", "outsider", "app for a user"),
        ("installation:71", "", "not a user", "installation or workflow"),
        ("bob", "", "member or outsider", "token"),
        ("callers without a credential", "", "", ""),
    ]
    assert (view.rows[0].requests, view.rows[0].refused, view.rows[0].age) == (1_200, 3, "40s")
    assert view.sentence == "Requests about acme in the last hour"
    assert HOSTILE not in text


@pytest.mark.parametrize(
    ("page", "has_more", "links"),
    [(1, False, (False, False)), (1, True, (False, True)), (2, True, (True, True)), (3, False, (True, False))],
)
def test_pages_lead_to_the_next_one_while_they_are_full(page: int, has_more: bool, links: tuple[bool, bool]) -> None:
    query = ActivityQuery("acme", 360, page)
    found = OrganizationActivity(organization="acme", page=page, has_more=has_more, rows=ROWS[:1] * ACTIVITY_PAGE_ROWS)

    view = build_activity_view(query, found, "", NOW_NS)

    assert (bool(view.previous_url), bool(view.next_url)) == links
    assert all("organization=acme&minutes=360" in url for url in (view.previous_url, view.next_url) if url)


@pytest.mark.parametrize(
    ("page", "sentence"), [(1, "No requests about acme in the last hour"), (2, "This page has no rows")]
)
def test_an_empty_page_says_so(page: int, sentence: str) -> None:
    view = build_activity_view(ActivityQuery("acme", 60, page), OrganizationActivity(organization="acme"), "", NOW_NS)

    assert view.sentence == sentence


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"organization": " acme ", "minutes": "360", "page": "7"}, ActivityQuery("acme", 360, 7)),
        ({"organization": "acme", "minutes": "999999", "page": "-1"}, ActivityQuery("acme", 60, 1)),
        ({"minutes": "x", "page": "99999"}, ActivityQuery("", 60, 10_000)),
    ],
)
def test_numbers_that_no_page_offers_are_the_usual_ones(query: dict[str, str], expected: ActivityQuery) -> None:
    assert read_activity_query(query) == expected


def test_the_command_and_the_request_of_the_api_show_the_same_page() -> None:
    query = ActivityQuery("a; rm -rf ~", 60, 3)

    assert query.command == "wharf limits activity 'a; rm -rf ~' --group-by actor-resource --since 60m --page 3"
    assert query.api_path == "/v1/limits/organizations/a%3B%20rm%20-rf%20~?minutes=60&page=3"
    assert (ActivityQuery("", 60, 1).command, ActivityQuery("", 60, 1).api_path) == ("", "")


@pytest.mark.parametrize(
    ("has_gateway", "allowed", "is_linked", "is_setting_named"),
    [(True, True, True, False), (False, True, False, True), (True, False, False, False), (False, False, False, False)],
)
def test_the_page_of_limits_leads_to_it_or_names_the_setting_for_those_who_may(
    has_gateway: bool, allowed: bool, is_linked: bool, is_setting_named: bool
) -> None:
    view = build_limits_view(LimiterStatus(is_enabled=False, has_gateway=has_gateway), NOW_NS)

    text = render("limits.html", view, frozenset({"limits.activity"} if allowed else ()))

    assert ("/ui/limits/organization" in text, "limits.gateway_admin" in text) == (is_linked, is_setting_named)


@in_virtual_time
async def test_without_a_gateway_the_page_says_which_settings_to_set() -> None:
    async with ACluster() as cluster:
        browser = a_browser(await cluster.a_server())

        limits = await browser.get("/ui/limits")
        empty = await browser.get("/ui/limits/organization")
        asked = await browser.get("/ui/limits/organization?organization=acme")

        assert "limits.gateway_admin" in limits.text
        assert (empty.status, find_problems(empty.text)) == (200, [])
        assert (asked.status, find_problems(asked.text)) == (400, [])
        assert "this server does not know a gateway: set limits.gateway_admin" in asked.text


def open_page(address: str, path: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(address + path, timeout=ANSWERED_WITHIN_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_page_shows_what_a_real_gateway_has_counted_and_a_sentence_when_it_is_away(tmp_path: Path) -> None:
    token = write_token(tmp_path)
    port, admin_port = free_ports(2)
    settings = f'[limits]\ngateway_admin = "http://127.0.0.1:{admin_port}"\ngateway_token_file = "{token}"\n'
    file = write_agent_config(tmp_path / "a", settings)
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        with a_gateway_process(tmp_path, port, admin_port):
            send_as_ada(port)
            linked = open_page(agent.address, "/ui/limits")
            shown = open_page(agent.address, "/ui/limits/organization?organization=acme")
            unknown = open_page(agent.address, "/ui/limits/organization?organization=emca")
        away = open_page(agent.address, "/ui/limits/organization?organization=acme")

    assert "/ui/limits/organization" in linked[1]
    assert (shown[0], find_problems(shown[1])) == (200, [])
    assert 'ada <span class="detail">member' in shown[1]
    assert (unknown[0], "is not in the directory" in unknown[1]) == (404, True)
    assert (away[0], "nothing listens there; start the gateway" in away[1]) == (503, True)
    assert 'value="acme"' in away[1]
    assert not any(TOKEN in text for _, text in (linked, shown, unknown, away))
