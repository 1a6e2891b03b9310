"""The list of nodes: its orders, its pages, and how full each node is."""

import re

from tests.builders import a_job
from tests.cluster.api.test_fleet import HALF
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import store
from tests.web.browsing import ShownPage, a_browser
from tests.web.test_pages import find_link
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus


async def store_nodes(server: OneServer, count: int) -> None:
    """Store nodes whose names are in the opposite order of their IDs."""
    nodes = [a_node(f"{number:08x}-0000-0000-0000-000000000000", name=f"m{999 - number}") for number in range(count)]
    await store(server, *map(NODES.build_put, nodes))


def list_node_names(page: ShownPage) -> list[str]:
    return re.findall(r'<tr id="node-.*?<th scope="row"><a [^>]*>([^<]*)</a>', page.text, re.DOTALL)


@in_virtual_time
async def test_nodes_are_listed_by_name_and_pages_lead_forward_and_back() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await store_nodes(server, 120)
        browser = a_browser(server)

        first = await browser.get("/ui/nodes?rows=50")
        second_url = find_link(first.text, "Next")
        third = await browser.get(find_link((await browser.get(second_url)).text, "Next"))
        back = await browser.get(find_link(third.text, "Previous"))

        assert list_node_names(first)[:2] == ["m880", "m881"]
        assert list_node_names(third)[-1] == "m999"
        assert back.get_header("location") == second_url


@in_virtual_time
async def test_a_list_that_the_api_cannot_read_backwards_has_no_link_to_the_previous_page() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        for number in range(60):
            await server.client.variables.put(f"app/{number:03}", {"a": "b"})
        browser = a_browser(server)

        second = await browser.get(find_link((await browser.get("/ui/variables?rows=50")).text, "Next"))

        assert "app/059" in second.text
        assert find_link(second.text, "First") == "/ui/variables?rows=50"
        assert ">Previous</a>" not in second.text


@in_virtual_time
async def test_the_fullest_node_comes_first_and_shows_how_much_is_requested_of_what() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await store_nodes(server, 3)
        full = f"{1:08x}-0000-0000-0000-000000000000"
        running = an_allocation(
            a_job(), "a1", node_id=full, client_status=ClientStatus.RUNNING, allocated_resources=HALF
        )
        await store(server, ALLOCATIONS.build_put(running))

        page = await a_browser(server).get("/ui/nodes?sort=use")

        assert list_node_names(page) == ["m998", "m997", "m999"]
        assert "500 of 1\u202f000" in page.text
        assert 'value="50" aria-label="CPU requested on m998"' in page.text
        assert 'data-topics="Node Allocation" data-pause="10"' in page.text
