"""Periodic jobs as they run in a cluster, in virtual time (scheduling.md 8.1)."""

import itertools
from typing import Any

from tests.builders import a_batch_job, a_group, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import CHILDREN_OF_JOB, JOB_SUMMARIES, JOBS
from wharf.contract.model.jobs.job import Job, JobStatus, Periodic

SECOND_NS = 1_000_000_000


def every(spec: str, *, runs_s: int = 1, **fields: Any) -> Job:
    group = a_group("work", a_task(driver="mock", config={"run_for": f"{runs_s}s"}))
    return a_batch_job("nightly", group, periodic=Periodic(specs=(spec,), **fields))


def launched_s(server: OneServer) -> list[int]:
    children = server.replica.list_by_index(CHILDREN_OF_JOB, "default", "nightly")
    return sorted(int(child.id.rpartition("-")[2]) for child in children)


def gaps(server: OneServer) -> set[int]:
    launched = launched_s(server)
    return {after - before for before, after in itertools.pairwise(launched)}


@in_virtual_time
async def test_launches_come_at_the_seconds_of_the_table_and_overlap_is_prohibited() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(every("*/10 * * * * * *", runs_s=12, prohibit_overlap=True))
        await pass_time(100)

        assert gaps(server) == {20}
        assert {second % 10 for second in launched_s(server)} == {0}


@in_virtual_time
async def test_the_parent_runs_until_it_is_stopped_and_counts_its_children() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(every("*/10 * * * * * *"))
        await until(lambda: len(launched_s(server)) == 3, what="three launches", within_s=60)
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
async def test_a_job_that_is_stopped_is_launched_no_more() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(every("*/10 * * * * * *"))
        await until(lambda: launched_s(server), what="a launch", within_s=60)

        await server.client.jobs.deregister("nightly")
        before = launched_s(server)
        await pass_time(60)

        assert launched_s(server) == before


@in_virtual_time
async def test_every_launch_is_made_once_whoever_leads() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await first.client.jobs.register(every("*/5 * * * * * *"))
        await until(lambda: len(launched_s(first)) == 2, what="two launches", within_s=60)
        await pass_time(4.9)

        second = await cluster.a_server("m2")
        await pass_time(31)

        assert gaps(second) == {5}


@in_virtual_time
async def test_a_launch_of_a_parent_that_is_purged_meanwhile_is_none() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(every("*/10 * * * * * *"))

        await commit(server, JOBS.build_delete("default", "nightly"))
        await pass_time(30)

        assert launched_s(server) == []
