"""The whole fleet in few bytes: letters of nodes and allocations."""

from typing import Any

from tests.builders import a_job
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import store
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedTaskResources,
)

HALF = AllocatedResources(
    tasks={"t": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=500), memory=AllocatedMemory(memory_mb=250))}
)
RULES = 'node { policy = "read" } namespace "default" { policy = "read" }'


async def a_fleet(cluster: ACluster) -> tuple[Any, ApiClient]:
    """Return a server with three nodes, of which the second has allocations in several states and namespaces."""
    server = await cluster.a_server()
    nodes = [a_node("n3"), a_node("n1"), a_node("n2", status="ready", scheduling_eligibility="ineligible")]
    allocations = [
        an_allocation(a_job(), "a1", node_id="n2", client_status=ClientStatus.RUNNING, allocated_resources=HALF),
        an_allocation(a_job(), "a2", node_id="n2", client_status=ClientStatus.RUNNING),
        an_allocation(a_job("b"), "a3", node_id="n2", client_status=ClientStatus.PENDING),
        an_allocation(
            a_job("c", namespace="shop"), "a4", node_id="n2", desired_status=DesiredStatus.STOP,
            client_status=ClientStatus.RUNNING,
        ),
        an_allocation(a_job(), "a5", node_id="n2", client_status=ClientStatus.COMPLETE),
        an_allocation(a_job(), "a6", node_id="n2", client_status=ClientStatus.LOST),
    ]  # fmt: skip
    await store(server, *map(NODES.build_put, nodes), *map(ALLOCATIONS.build_put, allocations))
    return server, ApiClient(server)


def list_values(fleet: Any) -> list[tuple[str, str, int]]:
    return [(each["Letter"], each["Text"], each["Count"]) for each in fleet["Values"]]


@in_virtual_time
async def test_a_fleet_has_a_letter_for_each_node_and_each_allocation_that_has_not_ended() -> None:
    async with ACluster() as cluster:
        _, client = await a_fleet(cluster)

        fleet = await client.get("/v1/fleet")

        assert (fleet["Names"], fleet["States"]) == (["n1", "n2", "n3"], "nin")
        assert (fleet["CPU"], fleet["Memory"]) == ([0, 50, 0], [0, 25, 0])
        assert list_values(fleet) == [("a", "running", 2), ("b", "starting", 1), ("c", "stopping", 1)]
        assert fleet["Allocations"] == ",aabc,"


@in_virtual_time
async def test_letters_can_stand_for_jobs_or_namespaces() -> None:
    async with ACluster() as cluster:
        _, client = await a_fleet(cluster)

        by_job, by_namespace = await client.get("/v1/fleet", by="job"), await client.get("/v1/fleet", by="namespace")

        assert list_values(by_job) == [("a", "default / shop", 2), ("b", "default / b", 1), ("c", "shop / c", 1)]
        assert list_values(by_namespace) == [("a", "default", 3), ("b", "shop", 1)]


@in_virtual_time
async def test_more_values_than_letters_share_the_last_letter() -> None:
    async with ACluster() as cluster:
        server, client = await a_fleet(cluster)
        more = [an_allocation(a_job(f"job{n}"), f"b{n}", node_id="n1") for n in range(12)]
        await store(server, *map(ALLOCATIONS.build_put, more))

        fleet = await client.get("/v1/fleet", by="job")

        assert (len(fleet["Values"]), list_values(fleet)[-1]) == (8, ("h", "others", 8))


@in_virtual_time
async def test_a_fleet_leaves_out_allocations_that_the_caller_may_not_read() -> None:
    async with ACluster() as cluster:
        server, _ = await a_fleet(cluster)
        enable_acl(server)
        token = await a_token(server, RULES)

        fleet = await ApiClient(server, token).get("/v1/fleet", by="namespace")

        assert list_values(fleet) == [("a", "default", 3)]


@in_virtual_time
async def test_a_fleet_by_something_else_is_refused() -> None:
    async with ACluster() as cluster:
        _, client = await a_fleet(cluster)

        assert await client.refusal("GET", "/v1/fleet", by="color") == (
            400, 'by is "color"; it must be one of state, job, namespace',
        )  # fmt: skip
