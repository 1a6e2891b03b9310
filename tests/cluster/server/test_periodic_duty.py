"""Periodic jobs in a cluster, in virtual time (scheduling.md 8.1)."""

import itertools
from typing import Any

import msgspec
import pytest

from tests.builders import a_batch_job, a_group, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.server.duties import periodic as duty
from wharf.cluster.state.tables import CHILDREN_OF_JOB, JOB_SUMMARIES, JOBS
from wharf.contract.model.jobs.job import Job, JobStatus, Periodic
from wharf.contract.model.jobs.steps import Flow
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

SECOND_NS = 1_000_000_000


def make_periodic_job(spec: str, *, runs_s: int = 1, **fields: Any) -> Job:
    group = a_group("work", a_task(driver="mock", config={"run_for": f"{runs_s}s"}))
    return a_batch_job("nightly", group, periodic=Periodic(specs=(spec,), **fields))


def list_launch_times(server: OneServer) -> list[int]:
    children = server.replica.list_by_index(CHILDREN_OF_JOB, "default", "nightly")
    return sorted(int(child.id.rpartition("-")[2]) for child in children)


def list_gaps(server: OneServer) -> set[int]:
    launched = list_launch_times(server)
    return {after - before for before, after in itertools.pairwise(launched)}


@in_virtual_time
async def test_launches_happen_at_scheduled_seconds_and_do_not_overlap() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(make_periodic_job("*/10 * * * * * *", runs_s=12, prohibit_overlap=True))
        await pass_time(100)

        assert list_gaps(server) == {20}
        assert {second % 10 for second in list_launch_times(server)} == {0}


@in_virtual_time
async def test_the_parent_runs_until_it_is_stopped_and_counts_its_children() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_periodic_job("*/10 * * * * * *"))
        await until(lambda: len(list_launch_times(server)) == 3, what="three launches", within_s=60)
        await pass_time(3)

        parent, summary = (
            server.replica.get(JOBS, "default", "nightly"),
            server.replica.get(JOB_SUMMARIES, "default", "nightly"),
        )

        assert parent is not None
        assert parent.status is JobStatus.RUNNING
        assert summary is not None
        assert summary.children is not None
        assert (summary.children.pending, summary.children.running, summary.children.dead) == (0, 0, 3)


@in_virtual_time
async def test_a_stopped_job_is_not_launched() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(make_periodic_job("*/10 * * * * * *"))
        await until(lambda: list_launch_times(server), what="a launch", within_s=60)

        await server.client.jobs.deregister("nightly")
        before = list_launch_times(server)
        await pass_time(60)

        assert list_launch_times(server) == before


@in_virtual_time
async def test_every_launch_happens_once_across_leaders() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await first.client.jobs.register(make_periodic_job("*/5 * * * * * *"))
        await until(lambda: len(list_launch_times(first)) == 2, what="two launches", within_s=60)
        await pass_time(4.9)

        second = await cluster.a_server("m2")
        await pass_time(31)

        assert list_gaps(second) == {5}


@in_virtual_time
async def test_a_parent_purged_meanwhile_is_not_launched() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(make_periodic_job("*/10 * * * * * *"))

        await commit(server, JOBS.build_delete("default", "nightly"))
        await pass_time(30)

        assert list_launch_times(server) == []


@in_virtual_time
async def test_a_cluster_with_stored_jobs_of_thousands_of_schedules_launches_jobs_and_purges_them() -> None:
    never = tuple(f"{n % 60} {n // 60 % 24} 31,31W 2,4,6,9,11 *" for n in range(4_990))
    periodic = Periodic(specs=(*never, "* * * * * * *"), time_zone="America/New_York", prohibit_overlap=True)
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(
            msgspec.structs.replace(make_periodic_job("0 * * * *"), id="many", name="many")
        )
        stored = server.replica.get(JOBS, "default", "many")
        assert stored is not None
        await commit(server, JOBS.build_put(msgspec.structs.replace(stored, periodic=periodic)))

        await server.client.jobs.register(make_periodic_job("*/10 * * * * * *"))
        await until(lambda: len(list_launch_times(server)) == 3, what="three launches", within_s=60)
        await server.client.jobs.deregister("many", purge=True)

        assert server.replica.get(JOBS, "default", "many") is None


@in_virtual_time
async def test_launches_continue_after_the_clock_jumps_forward_and_back() -> None:
    two_years_s = 2 * 365 * 24 * 3_600
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(make_periodic_job("* * * * *"))
        await until(lambda: len(list_launch_times(server)) == 1, what="a launch", within_s=70)
        cluster.advance_clocks(two_years_s)
        await until(lambda: len(list_launch_times(server)) >= 2, what="a launch in the future", within_s=130)
        cluster.advance_clocks(-two_years_s)
        before = list_launch_times(server)

        await until(lambda: len(list_launch_times(server)) == len(before) + 2, what="two launches", within_s=190)

        now_s = server.world.now_ns() // SECOND_NS
        new = sorted({*list_launch_times(server)} - {*before})
        assert [0 <= now_s - launch_s < 190 and launch_s % 60 == 0 for launch_s in new] == [True, True]


@in_virtual_time
async def test_launches_are_skipped_while_too_many_evaluations_of_the_namespace_wait() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duty, "MAX_QUEUED_EVALUATIONS", 5)
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await cluster.ready_nodes(server, 1)
            await server.client.operator.set_scheduler_configuration(SchedulerConfiguration(pause_eval_broker=True))
            await server.client.jobs.register(make_periodic_job("* * * * * * *"))

            await pass_time(60)
            launched_while_paused = len(list_launch_times(server))
            await server.client.operator.set_scheduler_configuration(SchedulerConfiguration())
            await pass_time(60)

            assert launched_while_paused == 5
            assert len(list_launch_times(server)) > 5 + 30


@pytest.mark.parametrize("setting", ["flow", "periodic"])
def test_a_new_leader_does_not_make_up_for_a_launch_that_was_skipped_because_of_overlap(setting: str) -> None:
    @in_virtual_time
    async def change_leader() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await cluster.ready_nodes(server, 1)
            job = make_periodic_job("*/5 * * * *", runs_s=7 * 60, prohibit_overlap=setting == "periodic")
            flow = Flow(overlap="skip") if setting == "flow" else None
            await server.client.jobs.register(msgspec.structs.replace(job, flow=flow))
            # A run takes 7 minutes, so the launch 5 minutes after the first one is skipped.
            await until(lambda: list_launch_times(server), what="a launch", within_s=600)
            await pass_time(8 * 60)
            before = list_launch_times(server)

            other = await cluster.a_server("m2")
            await pass_time(60)

            assert list_launch_times(other) == before

    change_leader()
