"""What nodes say late: known from what they said since, whoever leads and whatever log was put back (ADR 64)."""

import pytest

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.refusal import Refusal, RefusalCode

PENDING, RUNNING = ClientStatus.PENDING, ClientStatus.RUNNING


async def with_work(server: OneServer) -> int:
    """One allocation on a node of which the test says all there is to say; the first number of its reports."""
    told, _ = await server.brain.node_monitor.register_node(a_node(reports_from=1))
    await server.brain.node_monitor.record_heartbeat("node-1")
    task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
    await server.client.jobs.register(a_job("shop", a_group("web", task, count=1)))
    await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="it is placed")
    return told.reports_from


async def tell(server: OneServer, number: int, status: ClientStatus, *, is_whole: bool = False) -> None:
    (allocation,) = server.replica.iter_all(ALLOCATIONS)
    told = [AllocationReport(id=allocation.id, client_status=status)]
    await server.brain.node_monitor.record_reports(
        "node-1", told, report_id=f"r{number}", is_complete=is_whole, number=number
    )


async def is_refused(server: OneServer, number: int, status: ClientStatus, *, is_whole: bool = False) -> bool:
    with pytest.raises(Refusal) as refused:
        await tell(server, number, status, is_whole=is_whole)
    return refused.value.code is RefusalCode.INVALID


def statuses(server: OneServer) -> list[str]:
    return [allocation.client_status for allocation in server.replica.iter_all(ALLOCATIONS)]


@in_virtual_time
async def test_a_new_leader_knows_a_late_report_from_what_came_next() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        number = await with_work(first)
        await tell(first, number, RUNNING)
        await tell(first, number + 1, PENDING)  # Its only task waits for a restart.

        await second.lead()

        assert await is_refused(second, number, RUNNING)
        await tell(second, number + 1, PENDING)  # Its answer was lost.
        await tell(second, number + 2, RUNNING)
        assert statuses(second) == ["running"]


@in_virtual_time
async def test_over_a_log_that_was_put_back_a_node_goes_on_and_what_it_said_before_is_old() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        number = await with_work(server)
        copy = cluster.log.make_copy()
        await tell(server, number, RUNNING)
        await tell(server, number + 1, PENDING)

        cluster.log.restore_copy(copy)
        server.election.again()
        await until(lambda: server.replica.epoch == 1, what="the replica has heard of it")
        await until(lambda: server.brain.is_leading, what="it leads again")
        heard, _ = await server.brain.node_monitor.record_heartbeat("node-1")
        await tell(server, heard.reports_from, PENDING, is_whole=True)  # As every node is asked to.

        assert await is_refused(server, number, RUNNING)
        await tell(server, heard.reports_from + 1, RUNNING)
        assert statuses(server) == ["running"]
        anew, _ = await server.brain.node_monitor.register_node(a_node(reports_from=1))
        assert anew.reports_from > heard.reports_from + 1


@in_virtual_time
async def test_over_a_log_that_was_put_back_nothing_that_a_node_said_before_is_taken() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        number = await with_work(server)
        copy = cluster.log.make_copy()
        await tell(server, number, PENDING, is_whole=True)
        await tell(server, number + 1, RUNNING)

        cluster.log.restore_copy(copy)
        server.election.again()
        await until(lambda: server.replica.epoch == 1, what="the replica has heard of it")
        await until(lambda: server.brain.is_leading, what="it leads again")
        assert await is_refused(server, number, PENDING, is_whole=True)
        heard, _ = await server.brain.node_monitor.record_heartbeat("node-1")

        assert heard.must_report
        await tell(server, heard.reports_from, RUNNING, is_whole=True)
        assert statuses(server) == ["running"]
        again, _ = await server.brain.node_monitor.record_heartbeat("node-1")
        assert not again.must_report
