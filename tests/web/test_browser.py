"""The pages of a real cluster in Chromium: live changes, many tabs, keys, a lost server, and no complaint of the browser."""

import os
import random
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.waiting import wait_until
from tests.web.chromium import Tabs, running_browser
from tests.web.signed_in_cluster import Refused, SignedInCluster, running_cluster

pytestmark = pytest.mark.needs_program("chromium")
READ_PAGES = (
    "/ui", "/ui/jobs", "/ui/jobs/shop", "/ui/jobs/shop/timeline", "/ui/jobs/shop/logs", "/ui/jobs/talk/logs?q=early+7",
    "/ui/jobs/shop/versions", "/ui/jobs/shop/actions", "/ui/run", "/ui/fleet", "/ui/nodes", "/ui/search?q=sho", "/ui/queue",
    "/ui/jobs/pipeline",
    "/ui/namespaces", "/ui/quotas", "/ui/pools", "/ui/services", "/ui/variables", "/ui/volumes", "/ui/servers", "/ui/activity",
    "/ui/access", "/ui/access/tokens", "/ui/access/policies",
)  # fmt: skip
"""The pages without an ID in their address. Those of an allocation and a node are added."""
_TASK = {"Name": "main", "Driver": "mock", "Config": {"run_for": "1s"}}
RUN = {
    "ID": "pipeline",
    "Type": "batch",
    "TaskGroups": [
        {"Name": "ship", "Tasks": [_TASK], "Gate": {"Ask": "Release to production?"}},
        {"Name": "tidy", "Tasks": [_TASK], "Depends": [{"On": "ship"}]},
    ],
}
"""A run that waits for an answer."""
SCRIPT = "for i in $(seq 300); do echo early $i; done; while true; do echo later; sleep 0.5; done"
LIVE_PAGES = ("/ui", "/ui/jobs", "/ui/jobs/shop", "/ui/nodes", "/ui/queue", "/ui/activity")
CHANGES = 8
"""How many random changes one run of the property test makes."""
TAB_COUNTS = (7, pytest.param(12, marks=pytest.mark.faults))
"""A browser opens at most six connections to a server."""
SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(2, 21)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[SignedInCluster]:
    """A cluster with a job of simulated tasks, one that waits, and one that prints lines."""
    folder: Path = tmp_path_factory.mktemp("pages")
    with running_cluster(folder, browser) as cluster:
        cluster.register("shop")
        cluster.register("huge", memory=900_000)
        cluster.ask("PUT", "/v1/jobs", {"Job": RUN})
        cluster.register("talk", count=1, Driver="raw_exec", Config={"command": "/bin/sh", "args": ["-c", SCRIPT]})
        wait_until(lambda: list_running(cluster, "shop") and list_running(cluster, "talk"), what="both jobs run")
        yield cluster


def list_running(cluster: SignedInCluster, job_id: str) -> list[str]:
    """Return the IDs of the running allocations of a job."""
    allocations = cluster.ask("GET", f"/v1/job/{job_id}/allocations")
    return [each["ID"] for each in allocations if each["ClientStatus"] == "running"]


def list_pages(cluster: SignedInCluster) -> list[str]:
    """Return the address of each read page."""
    allocation = cluster.ask("GET", f"/v1/allocation/{list_running(cluster, 'talk')[0]}")
    below = f"/ui/allocations/{allocation['ID']}"
    return [*READ_PAGES, below, f"{below}/logs", f"{below}/files", f"/ui/nodes/{allocation['NodeID']}"]


@pytest.fixture(scope="module")
def operators_tabs(cluster: SignedInCluster) -> Iterator[Tabs]:
    """The tabs of a person who is signed in, of all tests: a new person takes half a second of a processor."""
    with cluster.signed_in_tabs(color_scheme="dark") as tabs:
        tabs.park("/ui/access")
        yield tabs


@pytest.fixture
def tabs(operators_tabs: Tabs) -> Iterator[Tabs]:
    """The tabs of a person who is signed in. They are closed at the end of the test."""
    yield operators_tabs
    operators_tabs.check()


def test_no_read_page_makes_the_browser_complain(cluster: SignedInCluster, tabs: Tabs) -> None:
    open_all(cluster, tabs)


@pytest.mark.faults
def test_no_read_page_makes_the_browser_complain_without_scripts(cluster: SignedInCluster) -> None:
    with cluster.signed_in_tabs(java_script_enabled=False) as tabs:
        open_all(cluster, tabs)


def open_all(cluster: SignedInCluster, tabs: Tabs) -> None:
    page = tabs.open("/ui")
    for path in list_pages(cluster):
        reply = page.goto(path)
        assert reply is not None
        assert (path, reply.status, page.locator("h1").count()) == (path, 200, 1)


def test_links_lead_through_the_pages_without_scripts(cluster: SignedInCluster) -> None:
    with cluster.signed_in_tabs(java_script_enabled=False) as tabs:
        page = tabs.open("/ui")
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_role("link", name="shop").click()

        expect(page.get_by_role("heading", level=1)).to_contain_text("shop")


def test_a_change_of_the_cluster_appears_without_a_reload_and_keeps_what_is_typed(
    cluster: SignedInCluster, tabs: Tabs
) -> None:
    page = tabs.open("/ui/jobs")
    search = page.get_by_role("searchbox")
    search.fill("half a wo")

    cluster.register("fresh")

    row = page.get_by_role("row").filter(has_text="fresh")
    expect(row).to_contain_text("2 of 2 running")
    expect(search).to_have_value("half a wo")
    expect(search).to_be_focused()


def test_rows_keep_their_places_under_the_pointer(cluster: SignedInCluster, tabs: Tabs) -> None:
    cluster.register("middle")
    page = tabs.open("/ui/jobs")
    names, row = page.locator("[data-row] th a"), page.get_by_role("row").filter(has_text="middle")
    expect(row).to_contain_text("2 of 2 running")
    row.hover()
    shown = names.all_inner_texts()

    cluster.register("above", count=1)  # It is the first of the list.
    expect(page.locator("#live-state")).to_contain_text("New rows: 1")
    cluster.register("middle", count=1)
    expect(row).to_contain_text("1 of 1 running")
    assert names.all_inner_texts() == shown

    page.get_by_role("heading", level=1).hover()
    expect(names.first).to_have_text("above")
    expect(page.locator("#live-state")).to_have_text("")


@pytest.mark.parametrize("count", TAB_COUNTS)
def test_many_tabs_load_and_stay_live_over_one_stream(cluster: SignedInCluster, tabs: Tabs, count: int) -> None:
    pages = [tabs.open("/ui/nodes") for _ in range(count)]
    node = next(node["ID"] for node in cluster.ask("GET", "/v1/nodes") if node["Name"] != socket.gethostname())

    cluster.ask("PUT", f"/v1/node/{node}/eligibility", {"Eligibility": "ineligible"})

    for page in pages:
        page.bring_to_front()
        expect(page.get_by_role("cell", name="ineligible")).to_be_visible()
    cluster.ask("PUT", f"/v1/node/{node}/eligibility", {"Eligibility": "eligible"})


READ_LIVE = """async (isFresh) => {
  const root = isFresh
    ? new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html")
    : document;
  const age = /\\b\\d+(\\.\\d+)?(ns|us|ms|s|m|h|d)(\\d+[smh])*\\b/g;
  return root.getElementById("live").innerHTML.replace(age, "AGE").replace(/\\d{4}-[-\\d]+T[:\\d]+Z/g, "TIME");
}"""
"""Returns the content of a page as it is shown, or as a reload would show it. Ages depend on the time of the look."""


def change_at_random(cluster: SignedInCluster, chance: random.Random, nodes: list[str]) -> None:
    """Change the cluster in one of the ways that pages show."""
    name = chance.choice(("shop", "other", "third"))
    match chance.randrange(5):
        case 0 | 1:
            cluster.register(name, count=chance.randrange(1, 6))
        case 2:
            cluster.ask("DELETE", f"/v1/job/{name}")
        case 3:
            node, eligible = chance.choice(nodes), chance.choice(("eligible", "ineligible"))
            cluster.ask("PUT", f"/v1/node/{node}/eligibility", {"Eligibility": eligible})
        case _:
            spec = chance.choice(({"Deadline": 60_000_000_000}, None))
            cluster.ask("PUT", f"/v1/node/{chance.choice(nodes)}/drain", {"DrainSpec": spec, "MarkEligible": True})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_that_was_open_during_changes_equals_the_page_loaded_again(
    cluster: SignedInCluster, seed: int, tabs: Tabs
) -> None:
    chance = random.Random(seed)
    nodes = [node["ID"] for node in cluster.ask("GET", "/v1/nodes") if node["Name"] != socket.gethostname()]
    cluster.register("other")
    pages = [tabs.open(path) for path in LIVE_PAGES]
    for _ in range(CHANGES):
        with suppress(Refused):  # Such as work for a node that is being drained.
            change_at_random(cluster, chance, nodes)
    for page in pages:
        wait_until_equal(page)


def wait_until_equal(page: Page) -> None:
    """Wait until the page shows what a reload would show."""
    page.bring_to_front()

    def is_equal() -> bool:
        return bool(page.evaluate(READ_LIVE, False) == page.evaluate(READ_LIVE, True))

    wait_until(is_equal, what=f"{page.url} is up to date", within_s=30.0)


def test_a_page_says_that_the_server_is_away_and_recovers_by_itself(cluster: SignedInCluster, tabs: Tabs) -> None:
    page = tabs.open("/ui/jobs")
    page.locator("#live-state[data-connected=yes]").wait_for(state="attached")
    api = wait_until(lambda: cluster.agent.child("api"), what="the API runs")

    os.kill(api, signal.SIGKILL)
    expect(page.locator("#live-state")).to_contain_text("The connection to the server is lost")
    wait_until(lambda: is_answering(cluster), what="the API runs again")
    cluster.register("after")

    expect(page.get_by_role("link", name="after")).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("")
    tabs.forgive("ERR_")  # Updates of the page while the server was away.


def is_answering(cluster: SignedInCluster) -> bool:
    try:
        return bool(cluster.ask("GET", "/v1/nodes"))
    except (OSError, Refused):
        return False


@pytest.mark.faults
def test_an_old_tab_shows_and_receives_what_the_person_may_see_who_signs_in_in_another_tab(
    cluster: SignedInCluster,
) -> None:
    rules = 'namespace "other" { policy = "read" }'
    cluster.ask("PUT", "/v1/acl/policy/other", {"Name": "other", "Rules": rules})
    cluster.ask("PUT", "/v1/namespace/other", {"Name": "other"})
    token = cluster.ask("PUT", "/v1/acl/token", {"Type": "client", "Policies": ["other"]})["SecretID"]
    with cluster.signed_in_tabs() as tabs:
        old, new = tabs.open("/ui/jobs"), tabs.open("/ui/sign-in")
        expect(old.get_by_role("link", name="shop")).to_be_visible()
        old.locator("#live-state[data-connected=yes]").wait_for(state="attached")

        cluster.sign_in(new, token)
        expect(new).to_have_url(re.compile("/ui$"))
        cluster.register("hidden")
        old.bring_to_front()
        expect(old.get_by_role("link", name="shop")).to_have_count(0)
        cluster.register("seen", namespace="other")

        expect(old.get_by_role("link", name="seen")).to_be_visible()
        expect(old.get_by_role("link", name="hidden")).to_have_count(0)


def test_keys_open_pages_go_through_rows_and_are_listed(tabs: Tabs) -> None:
    page = tabs.open("/ui")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/ui/jobs")
    page.keyboard.press("j")
    expect(page.locator("[data-row] th a").first).to_be_focused()

    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("g n")


def test_a_dangerous_form_asks_first(cluster: SignedInCluster, tabs: Tabs) -> None:
    cluster.register("kept")
    page = tabs.open("/ui/jobs/kept")
    questions: list[str] = []

    def refuse(dialog: Any) -> None:
        questions.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    page.get_by_role("button", name="Stop").click()

    assert questions == ["Stop kept? Its tasks end."]
    assert cluster.ask("GET", "/v1/job/kept")["Stop"] is False


def test_ctrl_k_goes_to_the_search_and_an_exact_name_opens_its_page(cluster: SignedInCluster, tabs: Tabs) -> None:
    page = tabs.open("/ui")
    page.keyboard.press("Control+k")
    page.keyboard.type("shop")
    page.keyboard.press("Enter")

    expect(page).to_have_url(f"{cluster.address}/ui/jobs/shop")


def test_a_mistake_leads_to_its_line_and_a_correct_file_runs(tabs: Tabs) -> None:
    source = 'job "pasted" {\n  group "g" {\n    task "t" {\n      drivr = "mock"\n    }\n  }\n}\n'
    page = tabs.open("/ui/run")
    page.get_by_label("Job file").fill(source)
    page.get_by_role("button", name="Check and plan").click()
    page.get_by_role("link", name="Line 4").click()
    begin, end = page.evaluate("[jobFile.selectionStart, jobFile.selectionEnd]")
    assert source[begin:end] == 'drivr = "mock"'

    page.get_by_label("Job file").fill(source.replace("drivr", "driver"))
    page.get_by_role("button", name="Check and plan").click()
    page.get_by_role("button", name="Submit pasted").click()
    expect(page.get_by_role("status")).to_have_text("Submitted pasted.")


def test_the_nodes_search_the_logs_of_a_job(tabs: Tabs) -> None:
    page = tabs.open("/ui/jobs/talk/logs")
    expect(page.locator("#log .line").filter(has_text="early 300")).to_have_count(1)
    page.goto("/ui/jobs/talk/logs?q=EARLY+30")
    expect(page.get_by_role("main")).to_contain_text("2 lines contain the text")


def test_a_followed_log_counts_new_lines_while_a_person_reads_earlier_ones(tabs: Tabs) -> None:
    page = tabs.open("/ui/jobs/talk/logs")
    lines, end = page.locator("#log .line"), page.get_by_role("button", name="to the end")
    expect(lines.filter(has_text="early 300")).to_have_count(1)
    page.evaluate("logBox.scrollTop = 0")

    expect(end).to_have_text(re.compile(r"\d+ new, to the end"))
    end.click()
    expect(end).to_have_text("To the end")
    expect(lines.last).to_be_in_viewport()


RECORD_STATES = """() => {
  const place = document.getElementById("live-state");
  globalThis.shownStates = [];
  new MutationObserver(() => globalThis.shownStates.push(place.textContent)).observe(place, { childList: true, subtree: true });
}"""


def test_an_expired_session_is_shown_and_signing_in_leads_back(cluster: SignedInCluster, tabs: Tabs) -> None:
    page = tabs.open("/ui/jobs?rows=50")
    page.locator("#live-state[data-connected=yes]").wait_for(state="attached")
    page.evaluate(RECORD_STATES)
    for session in cluster.ask("GET", "/v1/acl/sessions"):
        cluster.ask("DELETE", f"/v1/acl/session/{session['ID']}")

    cluster.register("unseen")
    expect(page.locator("#live-state")).to_contain_text("You are signed out")
    assert [text for text in page.evaluate("shownStates") if "connection" in text] == []
    page.get_by_role("link", name="Sign in again").click()
    cluster.sign_in(page)

    expect(page).to_have_url(f"{cluster.address}/ui/jobs?rows=50")


FOLLOW_CHANGES = """() => new Promise((done) => {
  const script = document.createElement("script");
  script.src = document.body.dataset.worker;
  script.onload = () => { const stream = wharfStream((message) => { stream.close(); done(describeState(message)); }); };
  document.head.append(script);
})"""
"""Opens the stream of changes without the worker of all tabs, and returns what the page says about it."""


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, "Your requests are limited now"),
        (403, "you are signed out, or your token may not see them"),
        (503, "The connection to the server is lost"),
    ],
)
def test_a_page_says_why_the_server_refuses_to_send_changes(tabs: Tabs, status: int, text: str) -> None:
    page = tabs.open("/ui/jobs")
    page.route("**/ui/changes", lambda route: route.fulfill(status=status, body="refused"))

    shown = page.evaluate(FOLLOW_CHANGES)

    page.unroute("**/ui/changes")
    tabs.forgive("Failed to load resource")
    assert text in shown


def test_ages_move_while_a_page_is_open(tabs: Tabs) -> None:
    page = tabs.open("/ui/jobs")
    age = page.locator("time[data-age]").first
    shown = age.inner_text()

    expect(age).not_to_have_text(shown, timeout=10_000)
