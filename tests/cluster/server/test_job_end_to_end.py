"""A job end to end: registered over HTTP, placed, running on simulated nodes, stopped."""

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, until_read
from wharf.contract.model.jobs.job import GroupSummary


@in_virtual_time
async def test_a_registered_job_runs_on_the_nodes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)

        await server.client.jobs.register(a_job("web", a_group("web", a_task(driver="mock"), count=5)))
        summary = await until_read(
            lambda: server.client.jobs.summary("web"),
            lambda answer: answer.value.summary["web"].running == 5,
            what="five run",
        )
        job = await server.client.jobs.read("web")

        assert summary.value.summary == {"web": GroupSummary(running=5)}
        assert job.value.status == "running"


@in_virtual_time
async def test_a_stopped_job_ends_on_the_nodes_and_is_dead() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("web", a_group("web", a_task(driver="mock"), count=2)))
        await until_read(
            lambda: server.client.jobs.summary("web"),
            lambda a: a.value.summary["web"].running == 2,
            what="two allocations run",
        )

        await server.client.jobs.deregister("web")
        await until_read(
            lambda: server.client.jobs.read("web"), lambda a: a.value.status == "dead", what="the job is dead"
        )
        await until_read(
            lambda: server.client.jobs.allocations("web"),
            lambda a: [(each.desired_status, each.client_status) for each in a.value] == [("stop", "complete")] * 2,
            what="both allocations have ended",
        )
