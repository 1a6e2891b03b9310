"""Lists of nodes in an order that people choose, with what the allocations of each node request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_job
from tests.cluster.api.test_fleet import HALF
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import store
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus


async def some_nodes(cluster: ACluster) -> OneServer:
    """Return a server with five nodes in several states, of which the second and the third have allocations."""
    server = await cluster.a_server()
    nodes = [
        a_node("n1", name="delta", status="ready", node_pool="web"),
        a_node("n2", name="alpha", status="ready", node_pool="gpu"),
        a_node("n3", name="é.x", status="ready", scheduling_eligibility="ineligible", node_pool="web"),
        a_node("n4", name="alpha", status="down", node_pool="gpu"),
        a_node("n5", name="beta", status="ready", drain=True, node_pool="build"),
    ]
    allocations = [
        an_allocation(a_job(), "a1", node_id="n2", client_status=ClientStatus.RUNNING, allocated_resources=HALF),
        an_allocation(a_job(), "a2", node_id="n3", client_status=ClientStatus.RUNNING, allocated_resources=HALF),
        an_allocation(a_job(), "a3", node_id="n3", client_status=ClientStatus.PENDING, allocated_resources=HALF),
        an_allocation(a_job(), "a4", node_id="n1", client_status=ClientStatus.COMPLETE, allocated_resources=HALF),
    ]
    await store(server, *map(NODES.build_put, nodes), *map(ALLOCATIONS.build_put, allocations))
    return server


def list_ids(nodes: Any) -> list[str]:
    return [node["ID"] for node in nodes]


BY_ORDER = {
    "name": ["n2", "n4", "n5", "n1", "n3"],
    "state": ["n4", "n5", "n3", "n2", "n1"],
    "pool": ["n5", "n2", "n4", "n1", "n3"],
    "use": ["n3", "n2", "n4", "n5", "n1"],
}


@pytest.mark.parametrize(("order", "expected"), BY_ORDER.items())
@in_virtual_time
async def test_nodes_are_listed_in_the_order_that_the_request_names(order: str, expected: list[str]) -> None:
    async with ACluster() as cluster:
        client = ApiClient(await some_nodes(cluster))

        assert list_ids(await client.get("/v1/nodes", sort=order)) == expected
        assert list_ids(await client.get("/v1/nodes", sort=order, reverse="true")) == expected[::-1]
        assert list_ids(await client.get("/v1/nodes")) == ["n1", "n2", "n3", "n4", "n5"]


@given(order=st.sampled_from(sorted(BY_ORDER)), per_page=st.integers(1, 6), is_reversed=st.booleans())
def test_the_pages_of_an_order_are_together_the_whole_list(order: str, per_page: int, is_reversed: bool) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            client, token, found = ApiClient(await some_nodes(cluster)), "", list[str]()
            while True:
                query = {"sort": order, "per_page": per_page, "reverse": str(is_reversed).lower(), "next_token": token}
                reply = await client.raw("GET", "/v1/nodes", **query)
                found += list_ids(json.loads(reply.body))
                token = reply.headers.get("x-cluster-nexttoken", "")
                if not token:
                    break

            assert found == (BY_ORDER[order][::-1] if is_reversed else BY_ORDER[order])

    read()


@in_virtual_time
async def test_a_node_is_listed_with_what_its_allocations_request() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await some_nodes(cluster))

        nodes = await client.get("/v1/nodes", use="true")
        without = await client.get("/v1/nodes")

        assert {node["ID"]: (node["RequestedResources"]["CPU"], node["RequestedResources"]["MemoryMB"]) for node in nodes} == {
            "n1": (0, 0), "n2": (500, 250), "n3": (1_000, 500), "n4": (0, 0), "n5": (0, 0),
        }  # fmt: skip
        assert all("RequestedResources" not in node for node in without)


@in_virtual_time
async def test_allocations_that_the_caller_may_not_read_count_as_requested() -> None:
    async with ACluster() as cluster:
        server = await some_nodes(cluster)
        enable_acl(server)
        client = ApiClient(server, await a_token(server, 'node { policy = "read" }'))

        [fullest, *_] = await client.get("/v1/nodes", use="true", sort="use")

        assert (fullest["ID"], fullest["RequestedResources"]["CPU"]) == ("n3", 1_000)


@in_virtual_time
async def test_a_change_of_an_allocation_wakes_a_list_with_use_and_no_other_one() -> None:
    async with ACluster() as cluster:
        server = await some_nodes(cluster)
        client = ApiClient(server)
        index = server.replica.get_last_change(NODES)
        more = an_allocation(a_job(), "a9", node_id="n5", client_status=ClientStatus.RUNNING, allocated_resources=HALF)
        await store(server, ALLOCATIONS.build_put(more))

        with_use = await client.get("/v1/nodes", use="true", index=index, wait="50ms")
        reply = await client.raw("GET", "/v1/nodes", sort="name", index=index, wait="50ms")

        assert {node["ID"]: node["RequestedResources"]["CPU"] for node in with_use}["n5"] == 500
        assert int(reply.headers["x-cluster-index"]) == index


@in_virtual_time
async def test_an_unknown_order_and_a_foreign_token_are_refused() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await some_nodes(cluster))

        assert await client.refusal("GET", "/v1/nodes", sort="color") == (
            400, 'sort is "color"; it must be one of name, state, pool, use, or be left out',
        )  # fmt: skip
        status, text = await client.refusal("GET", "/v1/nodes", sort="name", next_token="n3")
        assert (status, "begin again without it" in text) == (400, True)
