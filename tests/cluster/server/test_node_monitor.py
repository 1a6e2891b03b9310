"""Late reports of nodes are recognized across leader changes and restores (ADR 64)."""

import asyncio

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


async def start_allocation(server: OneServer) -> int:
    """Start one allocation on a node for which the test sends reports; return the first report number."""
    result, _ = await server.brain.node_monitor.register_node(a_node(reports_from=1))
    await server.brain.node_monitor.record_heartbeat("node-1")
    task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
    await server.client.jobs.register(a_job("shop", a_group("web", task, count=1)))
    await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
    return result.reports_from


async def send_report(server: OneServer, number: int, status: ClientStatus, *, is_whole: bool = False) -> None:
    (allocation,) = server.replica.iter_all(ALLOCATIONS)
    result = [AllocationReport(id=allocation.id, client_status=status)]
    await server.brain.node_monitor.record_reports(
        "node-1", result, report_id=f"r{number}", is_complete=is_whole, number=number
    )


async def is_refused(server: OneServer, number: int, status: ClientStatus, *, is_whole: bool = False) -> bool:
    with pytest.raises(Refusal) as caught:
        await send_report(server, number, status, is_whole=is_whole)
    return caught.value.code is RefusalCode.INVALID


def list_client_statuses(server: OneServer) -> list[str]:
    return [allocation.client_status for allocation in server.replica.iter_all(ALLOCATIONS)]


@in_virtual_time
async def test_a_new_leader_recognizes_a_late_report() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        number = await start_allocation(first)
        await send_report(first, number, RUNNING)
        await send_report(first, number + 1, PENDING)  # Its only task waits for a restart.

        await second.lead()

        assert await is_refused(second, number, RUNNING)
        await send_report(second, number + 1, PENDING)  # Its reply was lost.
        await send_report(second, number + 2, RUNNING)
        assert list_client_statuses(second) == ["running"]


@in_virtual_time
async def test_after_a_restore_a_node_continues_and_its_earlier_reports_are_outdated() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        number = await start_allocation(server)
        copy = cluster.log.make_copy()
        await send_report(server, number, RUNNING)
        await send_report(server, number + 1, PENDING)

        cluster.log.restore_copy(copy)
        server.election.allow_campaign()
        await until(lambda: server.replica.epoch == 1, what="the replica has the new epoch")
        await until(lambda: server.brain.is_leading, what="the server leads again")
        received, _ = await server.brain.node_monitor.record_heartbeat("node-1")
        await send_report(server, received.reports_from, PENDING, is_whole=True)  # As every node must after a restore.

        assert await is_refused(server, number, RUNNING)
        await send_report(server, received.reports_from + 1, RUNNING)
        assert list_client_statuses(server) == ["running"]
        new_tracker, _ = await server.brain.node_monitor.register_node(a_node(reports_from=1))
        assert new_tracker.reports_from > received.reports_from + 1


@in_virtual_time
async def test_after_a_restore_no_earlier_report_is_applied() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        number = await start_allocation(server)
        copy = cluster.log.make_copy()
        await send_report(server, number, PENDING, is_whole=True)
        await send_report(server, number + 1, RUNNING)

        cluster.log.restore_copy(copy)
        server.election.allow_campaign()
        await until(lambda: server.replica.epoch == 1, what="the replica has the new epoch")
        await until(lambda: server.brain.is_leading, what="the server leads again")
        assert await is_refused(server, number, PENDING, is_whole=True)
        received, _ = await server.brain.node_monitor.record_heartbeat("node-1")

        assert received.must_report
        await send_report(server, received.reports_from, RUNNING, is_whole=True)
        assert list_client_statuses(server) == ["running"]
        repeated, _ = await server.brain.node_monitor.record_heartbeat("node-1")
        assert not repeated.must_report


@in_virtual_time
async def test_a_report_that_waits_while_the_log_is_restored_is_outdated() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        number = await start_allocation(server)
        copy = cluster.log.make_copy()

        async with server.brain.term.write_lock:  # Another write is in progress.
            waiting = asyncio.create_task(is_refused(server, number, ClientStatus.COMPLETE))
            await asyncio.sleep(0)
            cluster.log.restore_copy(copy)
            server.election.allow_campaign()
            await until(lambda: server.replica.epoch == 1, what="the replica has the new epoch")
            await until(lambda: server.brain.is_leading, what="the server leads again")

        assert await waiting
        assert list_client_statuses(server) == ["pending"]
