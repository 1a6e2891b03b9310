"""What a refresh does to an open page in Chromium: it shows what a reload shows, whatever texts the cluster contains, and keeps
what a person has typed and opened."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

from tests.web.chromium import running_browser, tabs_of
from tests.web.page_server import serving_pages
from wharf.contract.model.quotas import Quota, QuotaLimit, QuotaUsage, RegionLimit
from wharf.contract.wire.jobs.states import AllocationCounts
from wharf.web.app import render_page
from wharf.web.log_reader import LinePosition, LogLine, TaskLog
from wharf.web.page import Page as ShownPage
from wharf.web.page import Visitor
from wharf.web.rendering import build_link, list_operations
from wharf.web.views.jobs import JobRow
from wharf.web.views.listing import ListView
from wharf.web.views.logs import LogView, build_blocks
from wharf.web.views.quotas import build_quota_view
from wharf.web.views.states import State, Tone

pytestmark = pytest.mark.needs_program("chromium")
PATH = "/pages/shown"
HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onfocus=alert(1) autofocus x='", "</div></main><h1>x",
    "{{ 7 * 7 }}", "&lt;b&gt;", "javascript:alert(1)", "<!--", "]]>", "\u202egnp", "<style>*{display:none}</style>", "<hx-partial>",
)  # fmt: skip
NAMES = st.sampled_from(HOSTILE).map(lambda text: text.replace(" ", "")) | st.text(
    st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30
)
"""Names of jobs have no spaces and no control characters."""
LINES = (
    st.sampled_from(HOSTILE).map(str.encode)
    | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace").replace(b"\n", b""))
    | st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))
)
SHOW = """async (html) => {
  await show(html);
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("live");
  const forbidden = "script, img, iframe, object, embed, style, link, base, meta, #log .line > *:not(a, span, em)";
  return {
    shown: live.innerHTML,
    expected: fresh.innerHTML,
    names: [...live.querySelectorAll("[data-row] th a")].map((each) => each.textContent),
    lines: live.querySelectorAll("#log .line").length,
    links: live.querySelectorAll("#log .line > a").length,
    forbidden: live.querySelectorAll(forbidden).length,
  };
}"""
"""Shows a page as a refresh does. Returns what is shown, and what a reload would show."""


JOBS = st.lists(
    st.tuples(NAMES, st.integers(0, 3), st.sampled_from(list(Tone))), max_size=6, unique_by=lambda job: job[0]
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with serving_pages({PATH: render_jobs(())}) as server, tabs_of(browser, server.address) as tabs:
        yield tabs.open(PATH)


def render_jobs(jobs: Sequence[tuple[str, int, Tone]]) -> str:
    """Return the list of these jobs."""
    rows = tuple(
        JobRow(
            key=name,
            url=build_link("jobs", name),
            name=name,
            namespace="default",
            type="service",
            state=State(tone, tone),
            counts=AllocationCounts(running, 0, 0, running, complete=0, failed=0, lost=0, unknown=0),
            total=3,
            children="",
            elements="",
            priority=50,
            age=f"{running}s",
            submitted_ns=1,
        )
        for name, running, tone in jobs
    )
    return render(ShownPage("jobs.html", "Jobs", ListView(rows=rows)))


def render(page: ShownPage) -> str:
    """Return a page with all its forms."""
    allowed = frozenset(list_operations(page.template))
    return render_page(page, notice="", origin="", visitor=Visitor(), allowed=allowed).decode()


@given(before=JOBS, after=JOBS)
def test_a_refreshed_page_equals_the_page_loaded_again_with_any_names(
    page: Page, before: list[Any], after: list[Any]
) -> None:
    page.evaluate(SHOW, render_jobs(before))
    found = page.evaluate(SHOW, render_jobs(after))

    assert found["shown"] == found["expected"]
    assert (found["names"], found["forbidden"]) == ([name for name, _, _ in after], 0)


def build_log_page(lines: Sequence[bytes]) -> str:
    source = TaskLog("a" * 36, "t", "stdout", "web[0] t")
    blocks = build_blocks([LogLine(source, LinePosition(0, n), line) for n, line in enumerate(lines)])
    view = LogView(
        path=(), title="x", form_url="/ui/jobs/x/logs", namespace="", query="", stream="", task="", tasks=(),
        has_replaced=False, can_show_replaced=False, blocks=blocks, sources=(), notes=(), search=None, follow_url="", after="",
    )  # fmt: skip
    return render(ShownPage("logs.html", "Logs", view))


@given(lines=st.lists(LINES, min_size=1, max_size=6))
def test_lines_of_a_log_add_no_element(page: Page, lines: list[bytes]) -> None:
    found = page.evaluate(SHOW, build_log_page(lines))

    assert found["shown"] == found["expected"]
    assert (found["lines"], found["links"], found["forbidden"]) == (len(lines), len(lines), 0)


def test_a_refresh_keeps_typed_text_and_what_is_open(browser: Browser) -> None:
    limit = QuotaLimit(region="global", region_limit=RegionLimit(cpu=1_000))
    view = build_quota_view(Quota(name="team", limits=(limit,)), QuotaUsage(name="team"))
    html = render(ShownPage("quota.html", "team", view))
    with serving_pages({PATH: html}) as server, tabs_of(browser, server.address) as tabs:
        page = tabs.open(PATH)
        page.get_by_text("Change the limits").click()
        page.get_by_role("spinbutton", name="CPU (MHz)").fill("2500")
        page.get_by_role("button", name="Store").focus()
        page.evaluate(SHOW, html.replace("<h1>team</h1>", "<h1>crew</h1>"))

        expect(page.get_by_role("heading", level=1)).to_have_text("crew")
        expect(page.get_by_role("spinbutton", name="CPU (MHz)")).to_have_value("2500")
        expect(page.get_by_role("button", name="Store")).to_be_focused()
