"""Runs in a cluster, in virtual time: steps begin one after the other, and timers survive a change of leaders."""

from typing import Any

from tests.builders import a_batch_job, a_group, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import SETTINGS
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.operations.jobs.runs import RunCancellation, cancel_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.steps import Flow, Gate, Need
from wharf.contract.model.times import SECOND


def a_step(name: str, *needs: Need, runs_s: int = 1, **fields: Any) -> TaskGroup:
    task = a_task(driver="mock", config={"run_for": f"{runs_s}s"})
    return a_group(name, task, count=1, depends=needs or None, **fields)


def a_run(*steps: TaskGroup, **fields: Any) -> Job:
    return a_batch_job("shop", *steps, **fields)


def find_job(server: OneServer) -> Job:
    job = server.replica.get(JOBS, "default", "shop")
    assert job is not None
    return job


def read_phases(server: OneServer) -> dict[str, str]:
    facts = read_snapshot_run(server.replica, find_job(server)).get_facts()
    return {name: each.state.phase.value for name, each in facts.items()}


def read_outcome(server: OneServer) -> str:
    summary = server.replica.get(JOB_SUMMARIES, "default", "shop")
    assert summary is not None
    return summary.outcome


async def wait_for_end(server: OneServer) -> None:
    await until(lambda: find_job(server).status is JobStatus.DEAD, what="the end of the run", within_s=120)


@in_virtual_time
async def test_the_steps_of_a_run_begin_one_after_the_other() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(a_run(a_step("build"), a_step("test", Need(on="build"))))
        await wait_for_end(server)

        steps = read_snapshot_run(server.replica, find_job(server)).get_facts()
        assert read_outcome(server) == "succeeded"
        assert 0 < steps["build"].state.began_at < steps["build"].state.ended_at <= steps["test"].state.began_at


@in_virtual_time
async def test_a_gate_expires_under_the_next_leader() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await first.client.jobs.register(a_run(a_step("ship", gate=Gate(timeout=60 * SECOND))))
        await pass_time(30)
        assert read_phases(first) == {"ship": "gated"}

        second = await cluster.a_server("m2")
        await pass_time(29)
        assert read_phases(second) == {"ship": "gated"}
        await wait_for_end(second)

        assert read_phases(second) == {"ship": "failed"}
        assert read_outcome(second) == "failed"


@in_virtual_time
async def test_a_run_is_canceled_at_its_deadline_and_its_final_steps_have_limited_time() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        flow = Flow(deadline=20 * SECOND, final_timeout=30 * SECOND)

        await server.client.jobs.register(
            a_run(a_step("build", runs_s=1_000), a_step("tidy", final=True, runs_s=1_000), flow=flow)
        )
        await until(lambda: read_phases(server)["tidy"] == "ready", what="the final step", within_s=60)
        assert read_phases(server)["build"] == "canceled"
        await wait_for_end(server)

        assert read_phases(server) == {"build": "canceled", "tidy": "canceled"}
        assert read_outcome(server) == "canceled"


@in_virtual_time
async def test_a_run_that_a_user_cancels_stops_its_tasks_and_then_runs_its_final_steps() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_run(a_step("build", runs_s=1_000), a_step("tidy", final=True)))
        await pass_time(5)

        await server.server.writer.execute(
            lambda snapshot, context: cancel_run(
                snapshot, RunCancellation(namespace="default", job_id="shop", actor="ada"), context, SETTINGS
            )
        )
        await wait_for_end(server)

        assert read_phases(server) == {"build": "canceled", "tidy": "ready"}
        assert read_outcome(server) == "canceled"
