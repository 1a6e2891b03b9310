"""All pages of a small cluster in Chromium: for people who need large text, a narrow window, a keyboard or a screen reader.

Two tabs show the bodies of all pages, one after the other: that takes a tenth of the time of opening each page. Scripts of the pages
do not run there. `make faults` opens each page, in both color schemes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.web.chromium import running_browser, tabs_of
from tests.web.page_server import StoredPages, serving_pages
from tests.web.small_cluster import ALL_NAMES, show_all_pages

pytestmark = pytest.mark.needs_program("chromium")
FOLDER = Path(__file__).parent
NARROW = {"width": 320, "height": 640}
PHONE = {"width": 360, "height": 800}
WIDE = {"width": 1_280, "height": 800}
WALKED_PAGES = ("job-in-rollout", "actions", "run", "node-draining", "fleet", "quota")
"""Pages through which the Tab key leads: each kind of control is on one of them."""
VARIANTS = ("actions-", "empty-", "jobs-", "logs-", "search-", "sign-in-", "fleet-", "node-dr")
"""The beginnings of the names of pages that resemble others. Only `make faults` makes the slow checks there."""
LISTS_OF_JOBS = ("overview", "jobs")
SLOW_CHECKS = ("axe", "focus")
Findings = Mapping[str, Mapping[str, list[str]]]
"""What was found, by the check and the name of the page. Pages without a fault are left out."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    show_all_pages()  # They need the event loop, which the browser uses from its start on.
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[StoredPages]:
    with serving_pages({f"/pages/{name}": page.text for name, page in show_all_pages().items()}) as server:
        yield server


@contextmanager
def an_open_tab(browser: Browser, server: StoredPages, **options: Any) -> Iterator[Page]:
    """Yield a tab with axe and the functions of `inspection.js`."""
    with tabs_of(browser, server.address, **options) as tabs:
        tabs.add_script(FOLDER / "inspection.js")
        tabs.add_script(FOLDER / "vendor/axe.min.js")
        yield tabs.open("/pages/overview")


def inspect(page: Page, checks: Mapping[str, str], rest: int) -> Findings:
    """Show each page, and return what the expressions find. Axe reads those whose place has this rest of the division by 2."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in checks}
    for place, name in enumerate(ALL_NAMES):
        page.evaluate("html => showPage(html)", show_all_pages()[name].text)
        for check, expression in checks.items():
            if check == "axe" and place % 2 != rest:
                continue
            if check in SLOW_CHECKS and name.startswith(VARIANTS):
                continue
            if faults := page.evaluate(expression):
                found[check][name] = list(faults)
    return found


@pytest.fixture(scope="module")
def light_and_wide(browser: Browser, server: StoredPages) -> Findings:
    with an_open_tab(browser, server, viewport=WIDE, color_scheme="light") as page:
        whole = list(page.evaluate("findAxeViolations()"))
        found = inspect(page, {"axe": "findAxeViolations('#content')", "large": "findOverflowOfLargeText()"}, 0)
        walked = {}
        for name in WALKED_PAGES:
            page.goto(f"/pages/{name}")
            if faults := walk(page):
                walked[name] = faults
    return {**found, "walk": walked, "whole": {"overview": whole} if whole else {}}


@pytest.fixture(scope="module")
def dark_and_narrow(browser: Browser, server: StoredPages) -> Findings:
    with an_open_tab(browser, server, viewport=NARROW, color_scheme="dark") as page:
        checks = {"axe": "findAxeViolations('#content')", "narrow": "findOverflow()", "focus": "findHiddenFocus()"}
        return inspect(page, checks, 1)


def walk(page: Page) -> list[str]:
    """Go through a page with the Tab key, and return the controls that it does not reach, or whose focus is not visible."""
    session: Any = page.context.new_cdp_session(page)
    page.evaluate("recordFocus()")
    tab = {"type": "rawKeyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
    for _ in range(int(page.evaluate("listControls().length")) + 3):  # Boxes that scroll are stops, too.
        session.send("Input.dispatchKeyEvent", tab)
    session.detach()
    unreached, invisible = page.evaluate("[listUnreached(), invisibleFocus]")
    return [*(f"not reached: {each}" for each in unreached), *(f"not visible: {each}" for each in invisible)]


def test_axe_finds_no_fault_in_light_and_dark(light_and_wide: Findings, dark_and_narrow: Findings) -> None:
    assert (light_and_wide["whole"], light_and_wide["axe"], dark_and_narrow["axe"]) == ({}, {}, {})


def test_text_of_twice_the_size_fits(light_and_wide: Findings) -> None:
    assert light_and_wide["large"] == {}


def test_no_page_scrolls_sideways_in_a_window_of_320_pixels(dark_and_narrow: Findings) -> None:
    assert dark_and_narrow["narrow"] == {}


def test_each_control_can_have_the_focus_and_shows_it(dark_and_narrow: Findings) -> None:
    assert dark_and_narrow["focus"] == {}


def test_the_tab_key_leads_through_all_controls(light_and_wide: Findings) -> None:
    assert light_and_wide["walk"] == {}


@pytest.mark.faults
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [NARROW, WIDE], ids=["narrow", "wide"])
def test_no_opened_page_has_a_fault(
    browser: Browser, server: StoredPages, scheme: str, viewport: Mapping[str, int]
) -> None:
    found: dict[str, list[str]] = {}
    with an_open_tab(browser, server, color_scheme=scheme, viewport=viewport) as page:
        for name in ALL_NAMES:
            page.goto(f"/pages/{name}")
            faults = [*page.evaluate("findOverflow()"), *page.evaluate("findAxeViolations()"), *walk(page)]
            faults += page.evaluate("findOverflowOfLargeText()") if viewport == WIDE else []
            if faults:
                found[name] = faults
    assert found == {}


def test_the_counts_of_jobs_are_visible_in_a_window_of_360_pixels(browser: Browser, server: StoredPages) -> None:
    with an_open_tab(browser, server, viewport=PHONE) as page:
        faults = {}
        for name in LISTS_OF_JOBS:
            page.evaluate("html => showPage(html)", show_all_pages()[name].text)
            faults[name] = page.evaluate("listWideTables()")

    assert faults == {name: [] for name in LISTS_OF_JOBS}


def test_a_long_id_in_the_first_sentence_of_a_page_is_wrapped(browser: Browser, server: StoredPages) -> None:
    with an_open_tab(browser, server, viewport=PHONE) as page:
        page.evaluate("html => showPage(html)", show_all_pages()["job-in-rollout"].text)
        page.evaluate("document.querySelector('.lead').textContent = 'D8C1:'.repeat(30)")

        assert page.evaluate("findOverflow()") == []
