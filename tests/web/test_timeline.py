"""The timeline of a job: bars of its allocations in a picture and in a table, in pages."""

import gzip
import re

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.strict_html import find_problems
from tests.web.test_pages import a_cluster_with_work, find_link
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.timelines import JobTimeline, PhaseName, TimelineAllocation, TimelinePhase
from wharf.contract.model.times import SECOND
from wharf.web.app import render_page
from wharf.web.page import Page, Visitor
from wharf.web.views.timeline import TimelineView, build_timeline_view

NOW = 10_000 * SECOND
MAX_ELEMENTS = 3_000
MAX_COMPRESSED_BYTES = 100_000


def a_bar(number: int, *phases: tuple[PhaseName, int], ended: int = 0) -> TimelineAllocation:
    return TimelineAllocation(
        id=f"{number:08}-0000-0000-0000-000000000000",
        name=f"shop.web[{number}]",
        task_group="web",
        job_version=0,
        node_id="n1",
        node_name="node-1",
        client_status=ClientStatus.COMPLETE if ended else ClientStatus.RUNNING,
        desired_status=DesiredStatus.RUN,
        phases=tuple(TimelinePhase(name=name, start=start * SECOND) for name, start in phases),
        ended=ended * SECOND,
    )


def build(*bars: TimelineAllocation, **query: str) -> TimelineView:
    timeline = JobTimeline(allocations=bars, evaluations=(), total=len(bars))
    return build_timeline_view(timeline, "shop", "default", query, NOW)


def test_a_row_says_how_long_each_phase_took() -> None:
    view = build(
        a_bar(1, (PhaseName.WAITING, 9_000), (PhaseName.PLACED, 9_060), (PhaseName.RUNNING, 9_062), ended=9_900)
    )

    assert view.rows[0].durations == "waiting 1m, placed 2.0s, running 13m58s, ended 1m40s ago"


def test_a_window_shows_the_last_part_of_the_time() -> None:
    early, late = a_bar(1, (PhaseName.RUNNING, 1_000), ended=2_000), a_bar(2, (PhaseName.RUNNING, 9_900))

    whole, last = build(early, late), build(early, late, window="10m")

    assert [bars.phase for bars in whole.picture.bars] == ["running", "ended"]  # type: ignore[union-attr]
    assert [bars.path for bars in last.picture.bars] == ["M861 43h139v14h-139z"]  # type: ignore[union-attr]


def test_a_page_of_1000_bars_is_small() -> None:
    phases = [(name, 1_000 + 10 * position) for position, name in enumerate(PhaseName)]
    view = build(*(a_bar(number, *phases, ended=9_000 + number % 7) for number in range(1_000)), rows="1000")

    page = render_page(Page("timeline.html", "t", view), notice="", origin="", visitor=Visitor())

    text = page.decode()
    assert find_problems(text) == []
    assert len(re.findall("<[a-z]", text)) <= MAX_ELEMENTS
    assert len(gzip.compress(page, 5)) <= MAX_COMPRESSED_BYTES
    assert view.hidden_rows == 600


def test_the_page_of_a_job_leads_to_its_timeline() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.get(
                find_link((await browser.get("/ui/jobs/shop")).text, "Timeline: what happened when")
            )

            assert (page.status, "shop.web[1]" in page.text, 'class="phase-running"' in page.text) == (200, True, True)

    look()
