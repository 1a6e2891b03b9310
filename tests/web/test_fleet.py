"""The page of the fleet: what its colors mean, and its size."""

import gzip
import random

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.web.test_pages import a_cluster_with_work
from wharf.contract.wire.nodes.fleet import LETTERS, FleetPicture, FleetValue
from wharf.web.app import render_page
from wharf.web.page import Page, Visitor
from wharf.web.views.fleet import build_fleet_view, link_to_node_name

MAX_COMPRESSED_BYTES = 40_000


def a_large_fleet() -> FleetPicture:
    """Return a fleet of 5,000 nodes with 100,000 allocations in states as they are usual."""
    chance = random.Random(1)
    nodes = range(5_000)
    return FleetPicture(
        names=tuple(f"node-{n:05}" for n in nodes),
        states="".join("r" if chance.random() < 0.97 else "i" for _ in nodes),
        cpu=tuple(chance.randrange(30, 100) for _ in nodes),
        memory=tuple(chance.randrange(30, 100) for _ in nodes),
        allocations=",".join("".join(sorted(chance.choices("abc", (95, 4, 1), k=20))) for _ in nodes),
        values=tuple(FleetValue(letter=letter, text=letter, count=1) for letter in LETTERS),
    )


def test_the_page_of_5000_nodes_with_100000_allocations_is_small() -> None:
    view = build_fleet_view(a_large_fleet(), "state")

    page = render_page(Page("fleet.html", "Fleet", view), notice="", origin="", visitor=Visitor())

    assert view.allocations == 100_000
    assert len(gzip.compress(page, 5)) <= MAX_COMPRESSED_BYTES


def test_by_use_each_node_has_the_color_of_its_fuller_resource() -> None:
    fleet = FleetPicture(names=("n1", "n2"), states="rr", cpu=(10, 100), memory=(45, 3), allocations="aa,", values=())

    view = build_fleet_view(fleet, "use")

    assert (view.cells, view.counted) == ("c,e", "Nodes")
    assert [(row.name, row.allocations, row.cpu) for row in view.fullest] == [("n2", 0, 100), ("n1", 2, 10)]


def test_the_name_of_a_node_is_quoted_for_its_address() -> None:
    assert link_to_node_name('a"b\\') == "/ui/nodes/a%22b%5C"


def test_the_page_shows_states_and_the_fullest_nodes() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_cluster_with_work(cluster)

            page = await browser.get("/ui/fleet")
            by_other = await browser.get("/ui/fleet?by=color")

            assert (page.status, "3 nodes: 3 ready. 2 allocations." in page.text) == (200, True)
            assert (by_other.status, 'data-by="state"' in by_other.text) == (200, True)

    look()
