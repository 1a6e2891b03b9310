"""Several evaluations whose plans are committed in one write."""

import pytest

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.cluster.server.test_pre_planning import (
    assert_nothing_over_committed,
    is_settled,
    list_allocation_names,
    set_paused,
    start_server,
)
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation, Fault, LoseReplyFault, RefuseFault
from wharf.cluster.engines.port import Batch
from wharf.cluster.server.leader.plan_group import MAX_GROUP_PLANS
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import WRITE_INDEX


class PlanWrites:
    """The numbers of new allocations in the writes of plans, in order."""

    def __init__(self, server: OneServer) -> None:
        self.placed_counts: list[int] = []
        server.server.follower.batch_listeners.append(self._on_batch)

    def _on_batch(self, batch: Batch) -> None:
        if batch.kind == "plan":
            self.placed_counts.append(sum(change.table == ALLOCATIONS.name for change in batch.changes))


def make_job(name: str, *, count: int = 1, priority: int = 50, memory_mb: int = 10) -> Job:
    task = a_task(driver="mock", config={"run_for": "1h"}, resources=some_resources(cpu=100, memory_mb=memory_mb))
    return a_batch_job(name, a_group("web", task, count=count), priority=priority)


async def register_at_once(server: OneServer, *jobs: Job) -> None:
    """Register the jobs while evaluations are paused, so that all of them wait in the queue."""
    await set_paused(server, is_paused=True)
    for job in jobs:
        await server.client.jobs.register(job)
    await set_paused(server, is_paused=False)


def fail_plan_writes(server: OneServer, fault: Fault, *, count: int) -> None:
    """Inject the fault into the next writes of the log."""
    remaining = count

    def decide(requested: EngineOperation) -> Fault | None:
        nonlocal remaining
        if requested is not EngineOperation.COMMIT or not remaining:
            return None
        remaining -= 1
        return fault

    server.faults.choose_fault = decide


def count_evaluations(server: OneServer, status: EvaluationStatus) -> int:
    return sum(each.status is status for each in server.replica.iter_all(EVALUATIONS))


@in_virtual_time
async def test_waiting_evaluations_of_small_jobs_share_one_write() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=10)
        writes = PlanWrites(server)

        await register_at_once(server, *(make_job(f"job-{number}") for number in range(10)))
        await until(lambda: is_settled(server), what="all evaluations were processed")

        assert writes.placed_counts == [10]
        assert [list_allocation_names(server, number) for number in range(10)] == [
            [f"job-{number}.web[0]"] for number in range(10)
        ]


@in_virtual_time
async def test_a_write_contains_a_limited_number_of_plans() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=100)
        writes = PlanWrites(server)

        await register_at_once(server, *(make_job(f"job-{number}") for number in range(MAX_GROUP_PLANS + 3)))
        await until(lambda: is_settled(server), what="all evaluations were processed")

        assert writes.placed_counts == [MAX_GROUP_PLANS, 3]


@in_virtual_time
async def test_plans_in_one_write_do_not_use_the_same_capacity() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=4)

        await register_at_once(server, *(make_job(f"job-{number}") for number in range(6)))
        await until(lambda: is_settled(server), what="all evaluations were processed")

        assert [len(list_allocation_names(server, number)) for number in range(6)] == [1, 1, 1, 1, 0, 0]
        assert count_evaluations(server, EvaluationStatus.BLOCKED) == 2
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_evaluations_in_one_write_are_planned_by_priority() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=2)

        jobs = [make_job(f"job-{number}", priority=50 + number) for number in range(4)]
        await register_at_once(server, *jobs)
        await until(lambda: is_settled(server), what="all evaluations were processed")

        assert [len(list_allocation_names(server, number)) for number in range(4)] == [0, 0, 1, 1]


@in_virtual_time
async def test_a_job_with_many_allocations_is_committed_alone() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=10)
        await server.brain.node_monitor.register_node(a_node("node-2", cpu=100_000, memory_mb=100_000))
        await server.brain.node_monitor.record_reports("node-2", [], is_complete=True)
        writes = PlanWrites(server)

        await register_at_once(server, make_job("job-0"), make_job("job-1", count=300), make_job("job-2"))
        await until(lambda: is_settled(server), what="all evaluations were processed")

        assert writes.placed_counts == [1, 300, 1]


@pytest.mark.parametrize("fault", [RefuseFault("full"), LoseReplyFault()], ids=["refused", "reply lost"])
@in_virtual_time
async def test_evaluations_whose_shared_write_fails_are_processed_again(fault: Fault) -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=8)

        await register_at_once(server, *(make_job(f"job-{number}") for number in range(8)))
        fail_plan_writes(server, fault, count=3)
        await until(lambda: is_settled(server), what="all evaluations were processed", within_s=120.0)

        assert [list_allocation_names(server, number) for number in range(8)] == [
            [f"job-{number}.web[0]"] for number in range(8)
        ]
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_a_job_that_changes_during_a_shared_write_is_evaluated_in_its_new_version() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=20)
        server.faults.choose_fault = lambda requested: (
            DelayFault(request_s=0.5) if requested is EngineOperation.COMMIT else None
        )

        await register_at_once(server, *(make_job(f"job-{number}") for number in range(4)))
        await server.client.jobs.register(make_job("job-2", memory_mb=20))
        await until(lambda: is_settled(server), what="all evaluations were processed", within_s=120.0)

        live: list[Allocation] = [each for each in server.replica.iter_all(ALLOCATIONS) if not each.is_terminal]
        assert sorted(each.job_id for each in live) == ["job-0", "job-1", "job-2", "job-3"]
        assert next(each for each in live if each.job_id == "job-2").job_version == 1
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_a_change_by_another_process_during_the_commit_of_a_plan_reaches_the_status_of_its_job() -> None:
    async with ACluster() as cluster:
        leader = await cluster.a_server("m1")
        other = await cluster.a_server("m2", leads=False)
        kinds: list[str] = []
        leader.server.follower.batch_listeners.append(lambda batch: kinds.append(batch.kind))
        commits: list[EngineOperation] = []

        def delay_first_commit(requested: EngineOperation) -> Fault | None:
            if requested is not EngineOperation.COMMIT:
                return None
            commits.append(requested)
            return DelayFault(request_s=1) if len(commits) == 1 else None

        leader.faults.choose_fault = delay_first_commit
        await other.client.jobs.register(make_job("shop"))  # No node can run it.
        job = other.replica.get(JOBS, "default", "shop")
        assert job is not None
        running = Allocation(
            id="a1",
            namespace="default",
            job_id="shop",
            job_create_index=job.create_index,
            task_group="web",
            name="shop.web[0]",
            desired_status=DesiredStatus.RUN,
            client_status=ClientStatus.RUNNING,
            create_index=WRITE_INDEX,
        )

        await until(lambda: commits, what="the plan is being committed")
        await commit(other, ALLOCATIONS.build_put(running))
        await until(lambda: "plan" in kinds, what="the plan is committed")
        await until(lambda: "jobs-settled" in kinds, what="the status of the job is computed")

        assert kinds[:4] == ["job-registered", "test", "plan", "jobs-settled"]
        stored = leader.replica.get(JOBS, "default", "shop")
        assert stored is not None
        assert stored.status is JobStatus.RUNNING


@in_virtual_time
async def test_after_a_plan_the_status_of_its_jobs_needs_no_other_write() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=2)
        kinds: list[str] = []
        server.server.follower.batch_listeners.append(lambda batch: kinds.append(batch.kind))

        await server.client.jobs.register(make_job("job-0"))
        await until(lambda: "plan" in kinds, what="the plan is committed")
        await server.client.jobs.register(make_job("job-1"))
        await until(lambda: kinds.count("plan") == 2, what="the second plan is committed")

        assert kinds == ["job-registered", "plan", "job-registered", "plan"]
        assert [job.status for job in server.replica.iter_all(JOBS)] == [JobStatus.RUNNING] * 2
