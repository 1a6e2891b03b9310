"""Pre-planning: planning during a commit, and planning again if that commit fails."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation, Fault, LoseReplyFault, RefuseFault
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, EVALUATIONS, NODES
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION as CONFIGURATION
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity

JOBS = 6
COUNT = 3
SLOW = DelayFault(request_s=0.05, reply_s=0.05)


def make_shop_job(name: str) -> Job:
    task = a_task(driver="mock", config={"run_for": "1h"}, resources=some_resources(cpu=100, memory_mb=10))
    return a_batch_job(name, a_group("web", task, count=COUNT))


async def add_jobs(server: OneServer) -> None:
    """Register all jobs while the scheduler is paused, so that a next evaluation always exists."""
    await set_paused(server, is_paused=True)
    for number in range(JOBS):
        await server.client.jobs.register(make_shop_job(f"job-{number}"))
    await set_paused(server, is_paused=False)


async def set_paused(server: OneServer, *, is_paused: bool) -> None:
    current = server.replica.get(CONFIGURATION)
    assert isinstance(current, SchedulerConfiguration)
    changed = replace(current, pause_eval_broker=is_paused)
    write = Write("test", Cause(CauseKind.OPERATOR, "test"), [CONFIGURATION.build_put(changed)])
    await server.server.writer.commit(write)


def list_allocation_names(server: OneServer, number: int) -> list[str]:
    allocations: list[Allocation] = server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", f"job-{number}")
    return sorted(each.name for each in allocations if not each.is_terminal)


def list_desired_names(number: int) -> list[str]:
    return [f"job-{number}.web[{index}]" for index in range(COUNT)]


def count_placed(server: OneServer) -> int:
    return sum(not each.is_terminal for each in server.replica.iter_all(ALLOCATIONS))


def is_settled(server: OneServer) -> bool:
    return not any(each.status is EvaluationStatus.PENDING for each in server.replica.iter_all(EVALUATIONS))


def assert_nothing_over_committed(server: OneServer) -> None:
    for node in server.replica.iter_all(NODES):
        occupying = [each for each in server.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if each.is_occupying]
        assert Usage.sum_usages(map(get_allocation_usage, occupying)).fits_in(get_node_capacity(node)), (
            f"{node.name} is over-committed"
        )


async def start_server(cluster: ACluster, *, capacity: int) -> OneServer:
    server = await cluster.a_server()
    await server.brain.node_monitor.register_node(a_node(cpu=100 * capacity))
    await server.brain.node_monitor.record_reports("node-1", [], is_complete=True)
    return server


def fail_every_nth_commit(nth: int, fault: Fault) -> Callable[[EngineOperation], Fault | None]:
    """Delay each commit, and inject the fault into every nth one."""
    commits = 0

    def decide(requested: EngineOperation) -> Fault | None:
        nonlocal commits
        if requested is not EngineOperation.COMMIT:
            return None
        commits += 1
        return fault if commits % nth == 0 else SLOW

    return decide


@in_virtual_time
async def test_jobs_planned_during_a_commit_are_all_placed_once() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=JOBS * COUNT)
        server.faults.choose_fault = fail_every_nth_commit(1_000, SLOW)

        await add_jobs(server)
        await until(lambda: count_placed(server) == JOBS * COUNT, what="all allocations are placed")

        assert [list_desired_names(number) for number in range(JOBS)] == [
            list_allocation_names(server, number) for number in range(JOBS)
        ]
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_a_plan_in_flight_takes_capacity_from_the_next_plan() -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=10)
        server.faults.choose_fault = fail_every_nth_commit(1_000, SLOW)

        await add_jobs(server)
        await until(lambda: is_settled(server), what="all evaluations were processed")

        assert count_placed(server) == 10
        assert_nothing_over_committed(server)


@pytest.mark.parametrize("fault", [RefuseFault("full"), LoseReplyFault()], ids=["refused", "reply lost"])
@in_virtual_time
async def test_a_plan_based_on_a_failed_plan_is_planned_again(fault: Fault) -> None:
    async with ACluster() as cluster:
        server = await start_server(cluster, capacity=JOBS * COUNT)

        await add_jobs(server)
        server.faults.choose_fault = fail_every_nth_commit(3, fault)
        await until(lambda: count_placed(server) == JOBS * COUNT, what="all allocations are placed", within_s=120.0)

        assert [list_desired_names(number) for number in range(JOBS)] == [
            list_allocation_names(server, number) for number in range(JOBS)
        ]
        assert_nothing_over_committed(server)
