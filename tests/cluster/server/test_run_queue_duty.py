"""The duty of the leader that begins queued runs: when the run before ends or is deleted, and under a new leader."""

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_parameterized_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.run_queue import begin_next_run
from wharf.cluster.server.duties import run_queue as duty
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.job import JobKey, JobStatus
from wharf.contract.model.jobs.steps import Flow
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import SECOND


async def start_flow(cluster: ACluster, server: OneServer, *, run_for: str = "30s") -> list[str]:
    """Register a flow whose runs wait for each other, and launch two of them. Return their IDs."""
    await cluster.ready_nodes(server, 1)
    group = a_group("build", a_task("main", driver="mock", config={"run_for": run_for}))
    await server.client.jobs.register(a_parameterized_job("report", group, flow=Flow(overlap="queue")))
    return [(await server.client.jobs.dispatch("report")).dispatched_job_id for _ in range(2)]


def read_status(server: OneServer, job_id: str) -> JobStatus | None:
    job = server.replica.get(JOBS, "default", job_id)
    return job.status if job is not None else None


@in_virtual_time
async def test_a_queued_run_begins_when_the_run_before_it_has_ended() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        first, second = await start_flow(cluster, server)
        await pass_time(10)
        assert (read_status(server, first), read_status(server, second)) == (JobStatus.RUNNING, JobStatus.PENDING)

        await until(lambda: read_status(server, second) is JobStatus.RUNNING, what="the second run", within_s=60)

        assert read_status(server, first) is JobStatus.DEAD


@in_virtual_time
async def test_a_queued_run_begins_when_the_run_before_it_is_purged() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        first, second = await start_flow(cluster, server, run_for="24h")
        await pass_time(10)

        await server.client.jobs.deregister(first, purge=True)

        await until(lambda: read_status(server, second) is JobStatus.RUNNING, what="the second run", within_s=60)


@in_virtual_time
async def test_a_new_leader_begins_the_run_whose_turn_it_is() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        first, second = await start_flow(cluster, server)
        await pass_time(10)
        assert read_status(server, second) is JobStatus.PENDING

        other = await cluster.a_server("m2")

        await until(lambda: read_status(other, second) is JobStatus.RUNNING, what="the second run", within_s=120)
        assert read_status(other, first) is JobStatus.DEAD


@in_virtual_time
async def test_the_queue_goes_on_after_a_run_that_ends_in_the_write_that_begins_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        build = a_task("main", driver="mock", config={"run_for": "30s"})
        flow = a_parameterized_job(
            "report", a_group("build", build, condition='meta.go == "yes"'), flow=Flow(overlap="queue")
        )
        assert flow.parameterized_job is not None
        await server.client.jobs.register(
            replace(flow, parameterized_job=replace(flow.parameterized_job, meta_required=("go",)))
        )
        launches = [await server.client.jobs.dispatch("report", meta={"go": go}) for go in ("yes", "no", "yes")]
        last = launches[-1].dispatched_job_id

        await until(lambda: read_status(server, last) is JobStatus.DEAD, what="the last run", within_s=300)


@in_virtual_time
async def test_a_queued_run_begins_after_a_run_from_before_the_flow_had_overlap() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        group = a_group("build", a_task("main", driver="mock", config={"run_for": "30s"}))
        flow = a_parameterized_job("report", group, flow=Flow(final_timeout=10**9))
        await server.client.jobs.register(flow)
        first = (await server.client.jobs.dispatch("report")).dispatched_job_id
        await server.client.jobs.register(replace(flow, flow=Flow(overlap="queue")))
        second = (await server.client.jobs.dispatch("report")).dispatched_job_id
        await pass_time(10)
        assert (read_status(server, first), read_status(server, second)) == (JobStatus.RUNNING, JobStatus.PENDING)

        await until(lambda: read_status(server, second) is JobStatus.RUNNING, what="the second run", within_s=60)

        assert read_status(server, first) is JobStatus.DEAD


def test_a_run_whose_write_was_refused_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    refused_times: list[int] = []

    def refuse_at_first(snapshot: Replica, flow: JobKey, context: DecisionContext) -> Decision[str] | None:
        decision = begin_next_run(snapshot, flow, context)
        if decision is not None and context.now_ns < min(refused_times, default=context.now_ns) + 10 * SECOND:
            refused_times.append(context.now_ns)
            raise Refusal(RefusalCode.TOO_LARGE, "the write is too large")
        return decision

    monkeypatch.setattr(duty, "begin_next_run", refuse_at_first)

    @in_virtual_time
    async def begin_later() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            _, second = await start_flow(cluster, server)

            await until(lambda: bool(refused_times), what="a refusal", within_s=60)
            await until(lambda: read_status(server, second) is JobStatus.RUNNING, what="the second run", within_s=90)

    begin_later()
