"""Explanations of jobs, evaluations and allocations (`GET /v1/job/<id>/explain` and others)."""

from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task, some_resources
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit, get, put, read
from tests.kit.state import an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.operations.explanations.jobs import list_unexplained_jobs
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX

EVALUATION = "8a6f0c44-0000-0000-0000-000000000021"
ALLOCATION = "8a6f0c44-0000-0000-0000-000000000022"


def a_job_with_memory(memory_mb: int, job_id: str = "shop", count: int = 1) -> Job:
    return a_job(
        job_id, a_group("web", a_task(driver="mock", resources=some_resources(memory_mb=memory_mb)), count=count)
    )


def statuses(server: OneServer) -> dict[str, str]:
    return {job.id: job.status.value for job in server.replica.iter_all(JOBS)}


@in_virtual_time
async def test_an_explanation_names_the_smallest_change_with_which_a_blocked_job_is_placed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3, memory_mb=3_500)
        await server.client.jobs.register(a_job_with_memory(4_096))
        await pass_time(1)

        result = read(await get(server, "/v1/job/shop/explain"))

        assert (result["Status"], result["Waits"][0]["WaitsFor"]) == ("running", "room")
        assert result["Groups"][0]["SmallestChange"] == (
            "lower MemoryMB of web/server from 4096 to 3500, or add a node with at least 4096 MB of memory"
        )
        await server.client.jobs.register(a_job_with_memory(3_500))
        await until(lambda: statuses(server)["shop"] == "running", what="the job runs")
        await pass_time(15)
        assert read(await get(server, "/v1/job/shop/explain"))["Text"] == "shop runs as requested: 1 allocation"


@in_virtual_time
async def test_an_explanation_is_a_blocking_query() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job_with_memory(100))
        await pass_time(1)
        first = await get(server, "/v1/job/shop/explain")
        index = first.headers["x-cluster-index"]

        cluster.start(cluster.a_fake_node(server).wait_ready(), name="a node comes")
        second = read(await get(server, "/v1/job/shop/explain", f"index={index}&wait=30s"))

        assert second != read(first)


@in_virtual_time
async def test_an_unknown_job_has_no_explanation() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await get(server, "/v1/job/shop/explain")).status == 404


@in_virtual_time
async def test_every_pending_or_incomplete_job_has_an_explanation() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        nodes = await cluster.ready_nodes(server, 3, memory_mb=1_000)
        fails = a_group("work", a_task(driver="mock", config={"run_for": "2s", "exit_code": 1}))
        for job in (
            a_job_with_memory(100, "fits", 3),
            a_job_with_memory(900, "partly", 9),
            a_job_with_memory(9_000, "huge"),
            a_batch_job("fails", fails),
            a_batch_job("works", a_group("work", a_task(driver="mock"), count=3)),
            a_system_job("agent", a_group("agent", a_task(driver="mock"))),
            a_job("nowhere", a_group("web", a_task(driver="no-such-driver"))),
        ):
            await server.client.jobs.register(job)

        for _ in range(30):
            await pass_time(1)
            assert list_unexplained_jobs(server.replica) == []
        await put(server, f"/v1/node/{nodes[0].id}/drain", {"DrainSpec": {"Deadline": 10_000_000_000}})
        await nodes[1].die()
        for _ in range(60):
            await pass_time(5)
            assert list_unexplained_jobs(server.replica) == []


@in_virtual_time
async def test_evaluations_and_allocations_are_explained_by_id() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1, memory_mb=1_000)
        await server.client.jobs.register(a_job_with_memory(700, count=2))
        await until(lambda: statuses(server)["shop"] == "running", what="the job runs")
        await pass_time(15)
        blocked = next(each for each in server.replica.iter_all(EVALUATIONS) if each.status is EvaluationStatus.BLOCKED)
        placed = next(iter(server.replica.iter_all(ALLOCATIONS)))

        of_evaluation = read(await get(server, f"/v1/evaluation/{blocked.id}/explain"))
        of_allocation = read(await get(server, f"/v1/allocation/{placed.id}/explain"))

        assert ("room", "shop") == (of_evaluation["Waits"][0]["WaitsFor"], of_evaluation["Job"]["JobID"])
        assert of_allocation["Text"].startswith("shop.web[0] runs on ")
        assert 404 == (await get(server, f"/v1/evaluation/{placed.id}/explain")).status
        assert 404 == (await get(server, f"/v1/allocation/{blocked.id}/explain")).status
        assert 400 == (await get(server, "/v1/evaluation/abc/explain")).status


@in_virtual_time
async def test_an_explanation_needs_the_right_to_read_jobs_of_the_namespace() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)
        job = a_job("shop", create_index=WRITE_INDEX)
        evaluation, allocation = an_evaluation(job, EVALUATION), an_allocation(job, ALLOCATION)
        await commit(server, JOBS.build_put(job), EVALUATIONS.build_put(evaluation), ALLOCATIONS.build_put(allocation))
        other_reply = await a_token(server, 'namespace "other" { policy = "read" }')
        local = await a_token(server, 'namespace "default" { policy = "read" }')

        for path in (f"/v1/evaluation/{EVALUATION}/explain", f"/v1/allocation/{ALLOCATION}/explain"):
            assert 403 == (await get(server, path, headers=other_reply)).status
            assert 200 == (await get(server, path, headers=local)).status
