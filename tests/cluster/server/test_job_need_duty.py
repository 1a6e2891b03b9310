"""The leader ends the wait of jobs for other jobs: with real servers in virtual time."""

from tests.builders import a_batch_job, a_group, a_task
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.steps import Need


def a_mock_job(id: str, *needs: Need, exit_code: int = 0, run_for: str = "10s") -> Job:
    task = a_task(driver="mock", config={"run_for": run_for, "exit_code": exit_code})
    return a_batch_job(id, a_group("work", task), depends=needs or None)


@in_virtual_time
async def test_jobs_run_one_after_the_other() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_mock_job("first"))
        await server.client.jobs.register(a_mock_job("second", Need(on="first")))
        await server.client.jobs.register(a_mock_job("third", Need(on="second")))

        await pass_time(5)
        statuses = {job.id: job.status for job in (await server.client.jobs.list()).value}
        assert statuses == {"first": JobStatus.RUNNING, "second": JobStatus.PENDING, "third": JobStatus.PENDING}
        await pass_time(60)

        ends = {}
        for name in ("first", "second", "third"):
            (allocation,) = (await server.client.jobs.allocations(name)).value
            ends[name] = (allocation.create_time, allocation.client_status.value)
        assert list(ends) == sorted(ends, key=lambda name: ends[name][0])
        assert {status for _, status in ends.values()} == {"complete"}


@in_virtual_time
async def test_a_new_leader_ends_the_wait_of_jobs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_mock_job("first"))
        await server.client.jobs.register(a_mock_job("second", Need(on="first", when="any")))
        await pass_time(5)

        other = await cluster.a_server("m2")
        await pass_time(120)

        (allocation,) = (await other.client.jobs.allocations("second")).value
        assert allocation.client_status.value == "complete"
