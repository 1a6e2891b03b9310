"""Locks of steps in a cluster, in virtual time: the leader wakes those that wait, and cancels those that are replaced."""

from itertools import pairwise
from typing import Any

from tests.builders import a_batch_job, a_group, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.tables import ALLOCATIONS, JOBS
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.step_states import StepState
from wharf.contract.model.jobs.steps import Lock, LockPolicy


def a_step(*, runs_s: int = 5, **lock: Any) -> TaskGroup:
    task = a_task(driver="mock", config={"run_for": f"{runs_s}s"})
    return a_group("deploy", task, count=1, lock=Lock(key="production", **lock))


def find_job(server: OneServer, job_id: str) -> Job:
    job = server.replica.get(JOBS, "default", job_id)
    assert job is not None
    return job


def read_outcome(server: OneServer, job_id: str) -> str:
    return judge_run(read_snapshot_run(server.replica, find_job(server, job_id)).iter_facts()).outcome


def read_step(server: OneServer, job_id: str) -> StepState:
    return read_snapshot_run(server.replica, find_job(server, job_id)).get_facts()["deploy"].state


async def register(server: OneServer, *job_ids: str, **lock: Any) -> None:
    for job_id in job_ids:
        await server.client.jobs.register(a_batch_job(job_id, a_step(**lock)))
        await pass_time(0.1)


async def wait_for_end(server: OneServer, *job_ids: str) -> None:
    await until(
        lambda: all(find_job(server, each).status is JobStatus.DEAD for each in job_ids),
        what="the end of the runs",
        within_s=300,
    )


def list_intervals(server: OneServer) -> list[tuple[str, int, int]]:
    """Return the jobs in the order in which they ran, with the creation of their allocation and its end."""
    allocations = [each for each in server.replica.iter_all(ALLOCATIONS) if each.lock_key]
    found = []
    for each in allocations:
        (state,) = (each.task_states or {}).values()
        assert state.finished_at is not None
        found.append((each.job_id, each.create_time, round(state.finished_at.timestamp() * 1e9)))
    return sorted(found, key=lambda entry: entry[1])


@in_virtual_time
async def test_runs_take_a_lock_one_after_the_other_in_the_order_of_their_registration() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        jobs = ("d", "b", "a", "c")

        await register(server, *jobs)
        await wait_for_end(server, *jobs)

        intervals = list_intervals(server)
        assert [job for job, _, _ in intervals] == list(jobs)
        assert all(end <= begin for (_, _, end), (_, begin, _) in pairwise(intervals))
        # Nothing waits for a timer: the end of a holder wakes the next one.
        assert all(begin - end < 1_000_000_000 for (_, _, end), (_, begin, _) in pairwise(intervals))


@in_virtual_time
async def test_a_new_leader_gives_the_lock_to_waiting_runs() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await cluster.ready_nodes(first, 1)
        await register(first, "a", "b", "c", runs_s=20)
        await pass_time(5)

        second = await cluster.a_server("m2")
        await wait_for_end(second, "a", "b", "c")

        assert [job for job, _, _ in list_intervals(second)] == ["a", "b", "c"]


@in_virtual_time
async def test_a_newer_run_cancels_the_holder_of_the_lock_and_waiting_runs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await register(server, "a", "b", runs_s=100)
        await pass_time(3)

        await register(server, "c", policy=LockPolicy.REPLACE_RUNNING)
        await wait_for_end(server, "a", "b", "c")

        assert [read_outcome(server, each) for each in ("a", "b", "c")] == ["canceled", "canceled", "succeeded"]
        causes = [read_step(server, each).cause for each in ("a", "b")]
        assert [(each.kind, each.step) for each in causes if each is not None] == [("lock", "c"), ("lock", "c")]
