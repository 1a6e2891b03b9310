"""What a leader does after the log refused one of its writes: it waits, or makes a smaller one."""

import pytest

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.engines.memory.faults import EngineOperation, Fault, RefuseFault
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.server.leader.loop import RETRY_DELAY_S
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job

LARGE_GROUPS = 40
"""The explanations of so many groups without a node take about 8 kB."""
SMALL_JOBS = 20


def make_waiting_job(id: str, group_count: int = 1) -> Job:
    task = a_task(driver="mock", resources=some_resources(cpu=1, memory_mb=10))
    return a_job(id, *(a_group(f"web-{number}", task) for number in range(group_count)))


def list_blocked_jobs(server: OneServer) -> list[str]:
    return [each.job_id for each in server.replica.iter_all(EVALUATIONS) if each.status is EvaluationStatus.BLOCKED]


def list_jobs_with_allocations(server: OneServer) -> set[str]:
    return {each.job_id for each in server.replica.iter_all(ALLOCATIONS)}


def refuse_writes(requested: EngineOperation) -> Fault | None:
    return RefuseFault("full") if requested is EngineOperation.COMMIT else None


async def register_waiting_jobs(server: OneServer, *jobs: Job) -> None:
    """Register jobs while there is no node, and wait until all are blocked."""
    for job in jobs:
        await server.client.jobs.register(job)
    await until(lambda: len(list_blocked_jobs(server)) == len(jobs), what="all jobs wait")


@in_virtual_time
async def test_a_leader_pauses_after_each_write_that_the_log_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register_waiting_jobs(server, a_job("shop", datacenters=("none",)))
        [node] = await cluster.ready_nodes(server, 1)
        await node.die()
        cluster.advance_clocks(3_600)  # The job has waited so long that the check for a reservation is overdue.
        server.faults.choose_fault = refuse_writes
        await pass_time(60)

    refused = [record for record in caplog.records if record.message.startswith("leader write failed")]
    assert 20 <= len(refused) <= 60 / RETRY_DELAY_S


@in_virtual_time
async def test_blocked_evaluations_that_do_not_fit_in_one_write_are_retried_in_several() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        jobs = [make_waiting_job(f"large-{number}", LARGE_GROUPS) for number in range(6)]
        await register_waiting_jobs(server, *jobs)
        server.server.engine.limits = WriteLimits(bytes=45_000)

        await cluster.ready_nodes(server, 1)

        await until(lambda: len(list_jobs_with_allocations(server)) == len(jobs), what="all jobs are placed")


@pytest.mark.parametrize("max_bytes", [9_000, 5_000])
@in_virtual_time
async def test_an_evaluation_that_is_too_large_for_a_write_does_not_stop_the_others(max_bytes: int) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        small_jobs = [make_waiting_job(f"small-{number}") for number in range(SMALL_JOBS)]
        await register_waiting_jobs(server, make_waiting_job("large", LARGE_GROUPS), *small_jobs)
        server.server.engine.limits = WriteLimits(bytes=max_bytes)

        await cluster.ready_nodes(server, 1)

        await until(
            lambda: {job.id for job in small_jobs} <= list_jobs_with_allocations(server),
            what="all small jobs are placed",
        )
