"""How full one node is, and the newest allocations on it."""

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.cluster.api.test_fleet import HALF, RULES
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import a_namespace, store
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.resources import AllocatedDevice, AllocatedResources, AllocatedTaskResources

DEVICES = AllocatedResources(
    tasks={
        "t": AllocatedTaskResources(
            devices=(AllocatedDevice(vendor="acme", type="gpu", name="a1", device_ids=("0", "1")),)
        )
    }
)


async def a_busy_node(cluster: ACluster) -> OneServer:
    """Return a server with a node on which allocations of two namespaces run and some have ended."""
    server = await cluster.a_server()
    await a_namespace(server, "shop")
    await store(server, NODES.build_put(a_node("n1")))
    allocations = (
        an_allocation(a_job(), "a1", client_status=ClientStatus.COMPLETE, allocated_resources=HALF),
        an_allocation(a_job(), "a2", client_status=ClientStatus.RUNNING, allocated_resources=HALF),
        an_allocation(a_job("c", namespace="shop"), "a3", client_status=ClientStatus.RUNNING, allocated_resources=HALF),
        an_allocation(a_job(), "a4", client_status=ClientStatus.FAILED, allocated_resources=HALF),
        an_allocation(a_job(), "a5", client_status=ClientStatus.PENDING, allocated_resources=DEVICES),
    )
    for allocation in allocations:
        await store(server, ALLOCATIONS.build_put(replace(allocation, node_id="n1")))
    return server


@in_virtual_time
async def test_the_amounts_are_those_of_allocations_that_use_the_node() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await a_busy_node(cluster))

        use = await client.get("/v1/node/n1/use")

        assert (use["CPU"], use["MemoryMB"], use["AllocationCount"]) == (1_000, 500, 5)
        assert use["Devices"] == [{"Vendor": "acme", "Type": "gpu", "Name": "a1", "InUse": 2}]


@pytest.mark.parametrize(
    ("limit", "shown"), [(1, ["a5"]), (4, ["a5", "a3", "a2", "a4"]), (5, ["a5", "a3", "a2", "a4", "a1"])]
)
@in_virtual_time
async def test_allocations_that_use_the_node_come_first_and_newer_ones_before_older_ones(
    limit: int, shown: list[str]
) -> None:
    async with ACluster() as cluster:
        client = ApiClient(await a_busy_node(cluster))

        use = await client.get("/v1/node/n1/use", limit=limit)

        assert [each["ID"] for each in use["Allocations"]] == shown


@in_virtual_time
async def test_allocations_that_the_caller_may_not_read_count_but_are_not_named() -> None:
    async with ACluster() as cluster:
        server = await a_busy_node(cluster)
        enable_acl(server)
        client = ApiClient(server, await a_token(server, RULES))

        use = await client.get("/v1/node/n1/use")

        assert (use["CPU"], use["AllocationCount"]) == (1_000, 4)
        assert {each["Namespace"] for each in use["Allocations"]} == {"default"}


@in_virtual_time
async def test_a_limit_out_of_range_and_an_unknown_node_are_refused() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await a_busy_node(cluster))

        refusals = [
            await client.refusal("GET", f"/v1/node/{node}/use", limit=limit)
            for node, limit in (("n1", 0), ("n1", 1_001), ("n2", 5))
        ]

        assert [status for status, _ in refusals] == [400, 400, 404]
