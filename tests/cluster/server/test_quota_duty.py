"""Quotas in a cluster: allocations beyond a quota wait until it has capacity. In virtual time."""

import pytest

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import get, put, read
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.operations.explanations.jobs import list_unexplained_jobs
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB
from wharf.contract.model.jobs.job import Job


def make_shop_job(count: int = 3, name: str = "shop", memory_mb: int = 100) -> Job:
    resources = some_resources(cpu=10, memory_mb=memory_mb)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=count))


def count_live(server: OneServer, job_id: str = "shop") -> int:
    return sum(not each.is_terminal for each in server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id))


async def set_quota(server: OneServer, **limits: int) -> None:
    quota = {"Name": "tight", "Limits": [{"Region": "global", "RegionLimit": limits}]}
    assert (await put(server, "/v1/quota", quota)).status == 200
    assert (await put(server, "/v1/namespace/default", {"Name": "default", "Quota": "tight"})).status == 200


async def start_server_with_quota(cluster: ACluster, **limits: int) -> OneServer:
    server = await cluster.a_server()
    await cluster.ready_nodes(server, 2)
    await set_quota(server, **limits)
    return server


@in_virtual_time
async def test_a_quota_limits_running_allocations_and_the_others_are_explained() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_quota(cluster, MemoryMB=250)
        await server.client.jobs.register(make_shop_job())
        await pass_time(20)

        result = read(await get(server, "/v1/job/shop/explain"))

        assert count_live(server) == 2
        assert result["Text"] == (
            'shop waits for capacity in the quota "tight": web: memory exhausted (300 needed > 250 limit)'
        )
        assert list_unexplained_jobs(server.replica) == []


@pytest.mark.parametrize("limits", [{"MemoryMB": 350}, {"MemoryMB": 0}])
@in_virtual_time
async def test_blocked_allocations_are_placed_when_the_quota_grows(limits: dict[str, int]) -> None:
    async with ACluster() as cluster:
        server = await start_server_with_quota(cluster, MemoryMB=250)
        await server.client.jobs.register(make_shop_job())
        await pass_time(5)

        await set_quota(server, **limits)

        await until(lambda: count_live(server) == 3, what="all allocations are placed", within_s=5)


@in_virtual_time
async def test_blocked_allocations_are_placed_when_others_of_the_quota_end() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_quota(cluster, Count=3)
        group = a_group("work", a_task(driver="mock", config={"run_for": "30s"}))
        await server.client.jobs.register(a_batch_job("nightly", group))
        await until(lambda: count_live(server, "nightly") == 1, what="the jobs run")
        await server.client.jobs.register(make_shop_job())
        await pass_time(20)
        assert count_live(server) == 2

        await until(lambda: count_live(server) == 3, what="all allocations are placed", within_s=15)


@in_virtual_time
async def test_blocked_allocations_are_placed_when_the_quota_is_removed_from_the_namespace() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_quota(cluster, Count=1)
        await server.client.jobs.register(make_shop_job())
        await pass_time(5)

        await put(server, "/v1/namespace/default", {"Name": "default", "Quota": ""})

        await until(lambda: count_live(server) == 3, what="all allocations are placed", within_s=5)


@in_virtual_time
async def test_many_jobs_together_never_exceed_the_quota() -> None:
    async with ACluster() as cluster:
        server = await start_server_with_quota(cluster, Count=7)
        for number in range(5):
            await server.client.jobs.register(make_shop_job(3, f"shop-{number}"))
        for _ in range(20):
            await pass_time(0.5)
            assert sum(count_live(server, f"shop-{number}") for number in range(5)) <= 7

        assert sum(count_live(server, f"shop-{number}") for number in range(5)) == 7
