"""Quotas in a cluster: what finds no room in one waits, and goes on when there is some. In virtual time."""

import pytest

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import get, put, read
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.operations.explanations.jobs import list_unexplained_jobs
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB
from wharf.contract.model.jobs.job import Job


def a_shop(count: int = 3, name: str = "shop", memory_mb: int = 100) -> Job:
    resources = some_resources(cpu=10, memory_mb=memory_mb)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=count))


def live(server: OneServer, job_id: str = "shop") -> int:
    return sum(not each.is_terminal for each in server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id))


async def bound(server: OneServer, **limits: int) -> None:
    quota = {"Name": "tight", "Limits": [{"Region": "global", "RegionLimit": limits}]}
    assert (await put(server, "/v1/quota", quota)).status == 200
    assert (await put(server, "/v1/namespace/default", {"Name": "default", "Quota": "tight"})).status == 200


async def with_quota(cluster: ACluster, **limits: int) -> OneServer:
    server = await cluster.a_server()
    await cluster.ready_nodes(server, 2)
    await bound(server, **limits)
    return server


@in_virtual_time
async def test_no_more_runs_than_the_quota_allows_and_the_rest_is_explained() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster, MemoryMB=250)
        await server.client.jobs.register(a_shop())
        await pass_time(20)

        told = read(await get(server, "/v1/job/shop/explain"))

        assert live(server) == 2
        assert told["Text"] == (
            'shop waits for capacity in the quota "tight": web: memory exhausted (300 needed > 250 limit)'
        )
        assert list_unexplained_jobs(server.replica) == []


@pytest.mark.parametrize("limits", [{"MemoryMB": 350}, {"MemoryMB": 0}])
@in_virtual_time
async def test_what_waits_goes_on_when_the_quota_grows(limits: dict[str, int]) -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster, MemoryMB=250)
        await server.client.jobs.register(a_shop())
        await pass_time(5)

        await bound(server, **limits)

        await until(lambda: live(server) == 3, what="all of it is placed", within_s=5)


@in_virtual_time
async def test_what_waits_goes_on_when_other_work_of_the_quota_ends() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster, Count=3)
        group = a_group("work", a_task(driver="mock", config={"run_for": "30s"}))
        await server.client.jobs.register(a_batch_job("nightly", group))
        await until(lambda: live(server, "nightly") == 1, what="the work runs")
        await server.client.jobs.register(a_shop())
        await pass_time(20)
        assert live(server) == 2

        await until(lambda: live(server) == 3, what="all of it is placed", within_s=15)


@in_virtual_time
async def test_what_waits_goes_on_when_the_namespace_is_freed_of_its_quota() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster, Count=1)
        await server.client.jobs.register(a_shop())
        await pass_time(5)

        await put(server, "/v1/namespace/default", {"Name": "default", "Quota": ""})

        await until(lambda: live(server) == 3, what="all of it is placed", within_s=5)


@in_virtual_time
async def test_many_jobs_never_use_more_than_the_quota_together() -> None:
    async with ACluster() as cluster:
        server = await with_quota(cluster, Count=7)
        for number in range(5):
            await server.client.jobs.register(a_shop(3, f"shop-{number}"))
        for _ in range(20):
            await pass_time(0.5)
            assert sum(live(server, f"shop-{number}") for number in range(5)) <= 7

        assert sum(live(server, f"shop-{number}") for number in range(5)) == 7
