"""What is planned while the plan before it is on its way: it counts on that, and is planned anew where that fails."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation, Fault, LoseReplyFault, RefuseFault
from wharf.cluster.scheduling.resources.usage import Usage, get_allocation_usage, get_node_capacity
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, EVALUATIONS, NODES
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION as CONFIGURATION
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

JOBS = 6
COUNT = 3
SLOW = DelayFault(request_s=0.05, reply_s=0.05)


def a_shop(name: str) -> Job:
    task = a_task(driver="mock", config={"run_for": "1h"}, resources=some_resources(cpu=100, memory_mb=10))
    return a_batch_job(name, a_group("web", task, count=COUNT))


async def with_jobs(server: OneServer) -> None:
    """All of them wait for the scheduler when it begins, so that there is always one that is next."""
    await pause(server, is_paused=True)
    for number in range(JOBS):
        await server.client.jobs.register(a_shop(f"job-{number}"))
    await pause(server, is_paused=False)


async def pause(server: OneServer, *, is_paused: bool) -> None:
    stands = server.replica.get(CONFIGURATION)
    assert isinstance(stands, SchedulerConfiguration)
    wanted = replace(stands, pause_eval_broker=is_paused)
    write = Write("test", Cause(CauseKind.OPERATOR, "test"), [CONFIGURATION.build_put(wanted)])
    await server.server.writer.commit(write)


def names(server: OneServer, number: int) -> list[str]:
    placed: list[Allocation] = server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", f"job-{number}")
    return sorted(each.name for each in placed if not each.is_terminal)


def wanted(number: int) -> list[str]:
    return [f"job-{number}.web[{index}]" for index in range(COUNT)]


def placed(server: OneServer) -> int:
    return sum(not each.is_terminal for each in server.replica.iter_all(ALLOCATIONS))


def is_settled(server: OneServer) -> bool:
    return not any(each.status is EvaluationStatus.PENDING for each in server.replica.iter_all(EVALUATIONS))


def assert_nothing_over_committed(server: OneServer) -> None:
    for node in server.replica.iter_all(NODES):
        here = [each for each in server.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if each.is_occupying]
        assert Usage.sum_usages(map(get_allocation_usage, here)).fits_in(get_node_capacity(node)), (
            f"{node.name} is over-committed"
        )


async def a_server_with_room(cluster: ACluster, *, room_for: int) -> OneServer:
    server = await cluster.a_server()
    await server.brain.node_monitor.register_node(a_node(cpu=100 * room_for))
    await server.brain.node_monitor.record_reports("node-1", [], is_complete=True)
    return server


def every(turn: int, fault: Fault) -> Callable[[EngineOperation], Fault | None]:
    """Commits are slow, and every so many meet the fault."""
    commits = 0

    def decide(asked: EngineOperation) -> Fault | None:
        nonlocal commits
        if asked is not EngineOperation.COMMIT:
            return None
        commits += 1
        return fault if commits % turn == 0 else SLOW

    return decide


@in_virtual_time
async def test_jobs_that_are_planned_while_others_are_on_their_way_all_find_their_places_once() -> None:
    async with ACluster() as cluster:
        server = await a_server_with_room(cluster, room_for=JOBS * COUNT)
        server.faults.choose_fault = every(1_000, SLOW)

        await with_jobs(server)
        await until(lambda: placed(server) == JOBS * COUNT, what="all are placed")

        assert [wanted(number) for number in range(JOBS)] == [names(server, number) for number in range(JOBS)]
        assert_nothing_over_committed(server)


@in_virtual_time
async def test_what_is_on_its_way_takes_room_from_what_is_planned_next() -> None:
    async with ACluster() as cluster:
        server = await a_server_with_room(cluster, room_for=10)
        server.faults.choose_fault = every(1_000, SLOW)

        await with_jobs(server)
        await until(lambda: is_settled(server), what="all have been tried")

        assert placed(server) == 10
        assert_nothing_over_committed(server)


@pytest.mark.parametrize("fault", [RefuseFault("full"), LoseReplyFault()], ids=["refused", "reply lost"])
@in_virtual_time
async def test_where_a_plan_fails_what_was_planned_on_it_is_planned_anew(fault: Fault) -> None:
    async with ACluster() as cluster:
        server = await a_server_with_room(cluster, room_for=JOBS * COUNT)

        await with_jobs(server)
        server.faults.choose_fault = every(3, fault)
        await until(lambda: placed(server) == JOBS * COUNT, what="all are placed", within_s=120.0)

        assert [wanted(number) for number in range(JOBS)] == [names(server, number) for number in range(JOBS)]
        assert_nothing_over_committed(server)
