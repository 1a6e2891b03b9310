"""Requests of many nodes are committed in few writes, each of one kind, and each request has its own result."""

import asyncio
from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_periodic_job, a_system_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, until, until_read
from wharf.cluster.engines.port import Batch, WriteLimits
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.leader.node_write_batcher import NodeWriteKind
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, NODE_POOLS, NODES, STEP_OUTPUTS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.jobs.steps import Outputs
from wharf.contract.model.log import Cause, CauseKind, Condition, Write
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal

NODES_AT_ONCE = 40
MAX_WRITES = 3
"""The first request may be written before the others have arrived, and the last may arrive during the write of those."""
REGISTERED, UPDATED = "node-registered", "node-updated"


def record_batches(server: OneServer) -> list[Batch]:
    """Return a list to which each batch about nodes is added that the server applies from now on."""
    batches: list[Batch] = []

    def record(batch: Batch) -> None:
        if batch.kind in (REGISTERED, UPDATED):
            batches.append(batch)

    server.server.follower.batch_listeners.append(record)
    return batches


def register(server: OneServer, *numbers: int) -> list[Awaitable[tuple[NodeWriteResult, float]]]:
    return [server.brain.node_monitor.register_node(a_node(f"node-{number}")) for number in numbers]


def send_heartbeats(server: OneServer, *numbers: int) -> list[Awaitable[tuple[NodeWriteResult, float]]]:
    return [server.brain.node_monitor.record_heartbeat(f"node-{number}") for number in numbers]


def count_ready(server: OneServer) -> int:
    return sum(node.status is NodeStatus.READY for node in server.replica.iter_all(NODES))


@in_virtual_time
async def test_nodes_that_register_at_the_same_time_are_stored_in_few_writes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        batches = record_batches(server)

        await asyncio.gather(*register(server, *range(NODES_AT_ONCE)))

        assert server.replica.count_records(NODES) == NODES_AT_ONCE
        assert 1 <= len(batches) <= MAX_WRITES


@in_virtual_time
async def test_first_heartbeats_at_the_same_time_make_all_nodes_ready_in_few_writes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await asyncio.gather(*register(server, *range(NODES_AT_ONCE)))
        batches = record_batches(server)

        await asyncio.gather(*send_heartbeats(server, *range(NODES_AT_ONCE)))

        assert count_ready(server) == NODES_AT_ONCE
        assert 1 <= len(batches) <= MAX_WRITES


@in_virtual_time
async def test_registrations_and_heartbeats_that_arrive_together_are_separate_writes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await asyncio.gather(*register(server, 0, 1, 2))
        batches = record_batches(server)

        await asyncio.gather(*register(server, 3, 4), *send_heartbeats(server, 0, 1), *register(server, 5))

        writes = sorted(
            (change.key, batch.kind) for batch in batches for change in batch.changes if change.table == NODES.name
        )
        assert writes == [
            ("node-0", UPDATED), ("node-1", UPDATED),
            ("node-3", REGISTERED), ("node-4", REGISTERED), ("node-5", REGISTERED),
        ]  # fmt: skip


@in_virtual_time
async def test_registrations_that_do_not_fit_in_one_write_fill_the_next_ones() -> None:
    changes_per_node, writes = 2, 4
    limit = 8 + NODES_AT_ONCE // writes * changes_per_node + 1  # The leader reserves 8; one condition is shared.
    async with ACluster(limits=WriteLimits(changes=limit, conditions=limit)) as cluster:
        server = await cluster.a_server()
        batches = record_batches(server)

        await asyncio.gather(*register(server, *range(NODES_AT_ONCE)))

        assert server.replica.count_records(NODES) == NODES_AT_ONCE
        assert writes <= len(batches) < writes + MAX_WRITES


@in_virtual_time
async def test_a_refused_registration_does_not_affect_others_of_its_batch() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await asyncio.gather(*register(server, 0))
        impostor = replace(a_node("node-0"), secret_digest="of another secret")

        results = await asyncio.gather(
            *register(server, 1), server.brain.node_monitor.register_node(impostor), *register(server, 2),
            return_exceptions=True,
        )  # fmt: skip

        assert [type(result) for result in results] == [tuple, Refusal, tuple]
        assert server.replica.count_records(NODES) == 3


@in_virtual_time
async def test_registrations_that_change_nothing_are_answered_without_a_write() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        numbers = range(NODES_AT_ONCE)
        await asyncio.gather(*register(server, *numbers))
        await asyncio.gather(*send_heartbeats(server, *numbers))
        batches = record_batches(server)

        results = await asyncio.gather(*register(server, *numbers))

        assert batches == []
        assert {written.index for written, _ in results} == {server.replica.index}


@in_virtual_time
async def test_a_node_that_registers_and_sends_a_heartbeat_at_once_is_ready() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        await asyncio.gather(*register(server, 0, 1), *register(server, 0, 1))
        await asyncio.gather(*send_heartbeats(server, 0, 1), *register(server, 0, 1))

        assert count_ready(server) == 2


@in_virtual_time
async def test_a_system_job_runs_on_every_node_of_a_fleet_that_becomes_ready_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_system_job("shop", a_group("web", task)))

        await asyncio.gather(*register(server, *range(NODES_AT_ONCE)))
        await asyncio.gather(*send_heartbeats(server, *range(NODES_AT_ONCE)))

        await until(lambda: server.replica.count_records(ALLOCATIONS) == NODES_AT_ONCE, what="all are placed")


@in_virtual_time
async def test_requests_that_were_decided_on_different_states_are_not_committed_together() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await asyncio.gather(*register(server, 0, 1))
        outdated = Condition(NODE_POOLS.name, "default", 0)
        current = server.replica.build_key_condition(NODE_POOLS, "default")

        def rename(node_id: str, condition: Condition) -> Awaitable[NodeWriteResult | None]:
            """Write the node, on condition that the pool has not changed."""

            def decide(snapshot: Replica, _context: DecisionContext) -> Decision[NodeWriteResult]:
                stored = snapshot.get(NODES, node_id)
                assert stored is not None
                renamed = replace(stored, name="renamed")
                write = Write(UPDATED, Cause(CauseKind.NODE, node_id), [NODES.build_put(renamed)], [condition])
                return Decision(write, NodeWriteResult)

            return server.brain.node_monitor.write_batcher.add(NodeWriteKind.STATUS, node_id, decide)

        await asyncio.gather(rename("node-0", outdated), rename("node-1", current))

        assert [node.id for node in server.replica.iter_all(NODES) if node.name == "renamed"] in ([], ["node-1"])


@in_virtual_time
async def test_outputs_of_many_steps_that_end_together_are_stored_in_writes_that_etcd_accepts() -> None:
    steps, text = 24, "x" * 60_000
    async with ACluster(limits=WriteLimits(changes=112, conditions=127, bytes=1_500_000)) as cluster:
        server = await cluster.a_server()
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        groups = [a_group(f"s{number}", task, outputs=Outputs(text=("v",))) for number in range(steps)]
        await server.client.jobs.register(a_batch_job("run", *groups))
        await asyncio.gather(*register(server, 0, 1))
        await asyncio.gather(*send_heartbeats(server, 0, 1))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == steps, what="all are placed")
        reports: dict[str, list[AllocationReport]] = {"node-0": [], "node-1": []}
        for allocation in server.replica.iter_all(ALLOCATIONS):
            reports[allocation.node_id].append(
                AllocationReport(
                    id=allocation.id, client_status=ClientStatus.COMPLETE, outputs=ReportedOutputs(texts={"v": text})
                )
            )

        await asyncio.gather(
            *(server.brain.node_monitor.record_reports(node_id, each) for node_id, each in reports.items())
        )

        stored = [record.elements[0].texts for record in server.replica.iter_all(STEP_OUTPUTS)]
        assert stored == [{"v": text}] * steps
        assert all(not each.output_texts for each in server.replica.iter_all(ALLOCATIONS))


@in_virtual_time
async def test_a_server_that_does_not_lead_refuses_registrations() -> None:
    async with ACluster() as cluster:
        await cluster.a_server("m1")
        follower = await cluster.a_server("m2", leads=False)

        with pytest.raises(Refusal):
            await asyncio.gather(*register(follower, 0))


@in_virtual_time
async def test_the_state_of_jobs_is_not_computed_again_after_reports_about_their_allocations() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        unsettled: dict[str, list[int]] = {}

        def record(batch: Batch) -> None:
            unsettled.setdefault(batch.kind, []).append(server.brain.collect_metrics().unsettled_jobs)

        server.server.follower.batch_listeners.append(record)
        task = a_task(driver="mock", config={"run_for": "1s"}, resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_periodic_job("nightly"))
        await server.client.jobs.register(a_batch_job("shop", a_group("web", task)))
        job = await until_read(
            lambda: server.client.jobs.read("shop"), lambda reply: reply.value.status == "dead", what="the job is dead"
        )

        assert job.value.status == "dead"
        # The registration of a periodic job leaves its status to the leader.
        assert (unsettled["job-registered"], set(unsettled["node-reported"])) == ([1, 0], {0})
