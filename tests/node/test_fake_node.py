"""The fake node: it follows the script of the job, and its state stays consistent when servers fail and recover."""

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, ANode, OneServer
from tests.kit.settings import USUAL_HEARTBEATS
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.api.handlers.nodes.assignments import watch_assignments
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, JOB_SUMMARIES, JOBS, NODES
from wharf.contract.client import ClientReply, ClientRequest, Unreachable
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.failure_reasons import describe_task_failure
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.nodes.node import NodeStatus
from wharf.node.agent.servers.session import WHOLE_LIST_INTERVAL_S

QUICK = replace(USUAL_HEARTBEATS, min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=40.0)


def with_script(job: Job, count: int = 1, **config: Any) -> Job:
    resources = some_resources(cpu=10, memory_mb=10)
    task = a_task("server", driver="mock", config=config, resources=resources)
    return replace(job, task_groups=(a_group("web", task, count=count),))


def allocations(server: OneServer) -> list[Allocation]:
    return list(server.replica.iter_all(ALLOCATIONS))


def statuses(server: OneServer) -> list[str]:
    return [allocation.client_status for allocation in allocations(server)]


async def measure_run_s(server: OneServer, status: str) -> float:
    """Wait until an allocation has this status, and return for how many seconds it ran."""
    await until(lambda: "running" in statuses(server), what="the allocation runs")
    began_s = now_s()
    await until(lambda: status in statuses(server), what=f"it is {status}")
    return now_s() - began_s


@in_virtual_time
async def test_a_service_keeps_running_and_a_batch_job_ends_after_a_second() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(with_script(a_batch_job("batch")))

        assert 0.9 < await measure_run_s(server, "complete") < 1.2

        await server.client.jobs.register(with_script(a_job("service")))
        await pass_time(100.0)
        assert statuses(server) == ["complete", "running"]


@in_virtual_time
async def test_an_allocation_runs_for_the_duration_in_its_script() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(with_script(a_batch_job("shop"), run_for="7s"))

        assert 6.9 < await measure_run_s(server, "complete") < 7.2


@in_virtual_time
async def test_a_duration_can_be_given_in_nanoseconds() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(with_script(a_batch_job("shop"), run_for=3_000_000_000))

        assert 2.9 < await measure_run_s(server, "complete") < 3.2


@in_virtual_time
async def test_an_exit_code_makes_the_allocation_fail() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(with_script(a_batch_job("shop"), run_for="2s", exit_code=3))

        await measure_run_s(server, "failed")
        failed = next(a for a in allocations(server) if a.client_status == "failed")
        assert failed.task_states is not None
        assert {name: state.failed for name, state in failed.task_states.items()} == {"server": True}
        assert describe_task_failure(failed.task_states) == "server: Exit Code: 3"


@in_virtual_time
async def test_a_start_error_makes_the_allocation_fail_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)

        await server.client.jobs.register(with_script(a_batch_job("shop"), start_error="no such image"))

        await until(lambda: "failed" in statuses(server), what="the allocation has failed")
        await pass_time(60.0)
        assert set(statuses(server)) == {"failed"}
        assert {describe_task_failure(a.task_states) for a in allocations(server)} == {"server: no such image"}
        assert len(allocations(server)) < 10


@in_virtual_time
async def test_a_script_makes_the_node_silent_and_it_returns_with_its_allocations() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(server, 1)
        job = with_script(a_job("shop"), go_silent="60s", go_silent_after="3s")
        (group,) = job.task_groups or ()
        policy = DisconnectPolicy(lost_after=600 * 1_000_000_000, replace=False)
        await server.client.jobs.register(replace(job, task_groups=(replace(group, disconnect=policy),)))
        await until(lambda: statuses(server) == ["running"], what="the allocation runs")
        began_s = now_s()

        await node.wait_for_status("disconnected")
        assert statuses(server) == ["unknown"]
        await node.wait_ready()

        assert 62.0 < now_s() - began_s < 90.0
        await until(lambda: statuses(server) == ["running"], what="the allocation is reported as running")


@in_virtual_time
async def test_a_stopped_allocation_is_complete() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(with_script(a_job("shop"), count=2))
        await until(lambda: statuses(server) == ["running"] * 2, what="two allocations run")

        await server.client.jobs.deregister("shop")

        await until(lambda: statuses(server) == ["complete"] * 2, what="two have ended")


@in_virtual_time
async def test_a_short_outage_of_the_server_has_no_effect() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(with_script(a_job("shop"), count=2))
        await until(lambda: statuses(server) == ["running"] * 2, what="two allocations run")

        node.exchange.is_away = True
        await pass_time(8.0)
        node.exchange.is_away = False
        await pass_time(60.0)

        assert server.replica.get(NODES, node.id).status == "ready"  # type: ignore[union-attr]  # The node exists.
        assert statuses(server) == ["running"] * 2


@in_virtual_time
async def test_a_lost_node_returns_with_a_full_report_and_gets_allocations_again() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(with_script(a_job("shop"), count=2))
        await until(lambda: statuses(server) == ["running"] * 2, what="two allocations run")
        node.exchange.is_away = True
        await node.wait_for_status("down")
        await until(lambda: statuses(server)[:2] == ["lost"] * 2, what="both allocations are lost")

        node.exchange.is_away = False
        await node.wait_ready()

        await until(
            lambda: sorted(statuses(server)) == ["complete"] * 2 + ["running"] * 2, what="two allocations run again"
        )


@in_virtual_time
async def test_a_node_that_returns_before_its_allocations_are_lost_keeps_them() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(with_script(a_job("shop")))
        await until(lambda: statuses(server) == ["running"], what="the allocation runs")
        # The node was marked down, but no evaluation of the job has run yet.
        follower = await cluster.a_server("m2", leads=False)
        stored = follower.replica.get(NODES, node.id)
        assert stored is not None

        initializing = replace(stored, status=NodeStatus.INITIALIZING, last_missed_heartbeat_index=WRITE_INDEX)
        await follower.server.writer.commit(Write("others", Cause(CauseKind.NODE), [NODES.build_put(initializing)]))

        await node.wait_ready()

        assert statuses(server) == ["running"]


@in_virtual_time
async def test_a_node_unknown_to_restored_servers_registers_again_and_gets_allocations() -> None:
    async with ACluster() as cluster:
        old = await cluster.a_server("m1", heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(old, 1)
        await old.client.jobs.register(with_script(a_job("shop"), count=3))
        await until(lambda: statuses(old) == ["running"] * 3, what="three run")
        async with ACluster(seed=8) as restored_cluster:
            new = await restored_cluster.a_server("m9", heartbeats=QUICK)
            assert new.replica.index < old.replica.index

            node.exchange.api = new.api
            await until(lambda: new.replica.get(NODES, node.id) is not None, what="registered", within_s=60.0)
            await new.client.jobs.register(with_script(a_job("other")))
            await until(lambda: statuses(new) == ["running"], what="the allocation runs", within_s=120.0)

            assert list(node.node._allocations) == [allocations(new)[0].id]
            await node.die()


@in_virtual_time
async def test_assignments_of_a_lagging_server_are_ignored() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", heartbeats=QUICK)
        second = await cluster.a_server("m2", leads=False, heartbeats=QUICK)
        (node,) = await cluster.ready_nodes(first, 1)
        second.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=20.0) if operation is EngineOperation.FEED else None
        )
        await first.client.jobs.register(with_script(a_job("shop"), count=2))
        await until(lambda: statuses(first) == ["running"] * 2, what="two allocations run")
        before = dict(node.node._allocations)

        node.exchange.api = second.api
        await pass_time(90.0)

        assert all(node.node._allocations[allocation_id] is allocation for allocation_id, allocation in before.items())
        assert statuses(first) == ["running"] * 2


@in_virtual_time
async def test_a_report_without_a_reply_is_repeated_with_its_id() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        exchange = LossyExchange(node)
        await server.client.jobs.register(with_script(a_job("shop")))

        await until(lambda: statuses(server) == ["running"], what="the allocation runs")
        await pass_time(5.0)

        ids = [report for report in exchange.report_ids if report]
        assert len(ids) == 2
        assert ids[0] == ids[1]


@in_virtual_time
async def test_reports_of_a_node_do_not_wake_its_own_wait_for_assignments() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        woken_at: list[int] = []

        def wake() -> None:
            woken_at.append(server.replica.index)
            asyncio.get_running_loop().call_soon(subscription.rearm)

        subscription = server.replica.watches.subscribe([watch_assignments(node.id)], wake)
        await server.client.jobs.register(with_script(a_batch_job("shop"), run_for="5s"))
        await until(lambda: statuses(server) == ["complete"], what="the allocation has ended")
        subscription.close()

        (allocation,) = allocations(server)
        assert woken_at == [allocation.alloc_modify_index]
        assert allocation.modify_index > allocation.alloc_modify_index


@in_virtual_time
async def test_a_node_receives_its_ended_allocations_only_once_in_a_minute() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        lists = ReceivedAssignments(node)
        await server.client.jobs.register(with_script(a_batch_job("first"), run_for="1s"))
        await until(lambda: statuses(server) == ["complete"], what="the first allocation has ended")
        (ended,) = allocations(server)

        await server.client.jobs.register(with_script(a_batch_job("second"), run_for="1s"))
        await until(lambda: statuses(server) == ["complete"] * 2, what="the second allocation has ended")
        (second,) = (each for each in allocations(server) if each.id != ended.id)
        assert lists.received[-1] == {second.id: second.alloc_modify_index}

        await server.server.writer.commit(
            Write("collected", Cause(CauseKind.TIMER), [ALLOCATIONS.build_delete(ended.id)])
        )
        await pass_time(3 * WHOLE_LIST_INTERVAL_S)

        assert lists.received[-1] == {second.id: second.alloc_modify_index}
        assert list(node.node._allocations) == [second.id]


class ReceivedAssignments:
    """Records the lists of assignments that a node receives."""

    def __init__(self, node: ANode) -> None:
        self.received: list[dict[str, int]] = []
        send_unchanged = node.exchange.send

        async def send(request: ClientRequest) -> ClientReply:
            reply = await send_unchanged(request)
            if request.method == "GET" and request.path.endswith("/desired"):
                self.received.append(json.loads(reply.body))
            return reply

        node.exchange.send = send  # type: ignore[method-assign]


class LossyExchange:
    """Loses the reply to the first report."""

    def __init__(self, node: ANode) -> None:
        self.report_ids: list[str] = []
        send_unchanged = node.exchange.send

        async def send(request: ClientRequest) -> ClientReply:
            reply = await send_unchanged(request)
            if request.path.endswith("/report"):
                self.report_ids.append(json.loads(request.body)["ReportID"])
                if len(self.report_ids) == 1:
                    raise Unreachable("the reply was lost", is_sent=True)
            return reply

        node.exchange.send = send  # type: ignore[method-assign]


@in_virtual_time
async def test_a_canceled_fake_node_leaves_no_timer_running() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(with_script(a_batch_job("shop"), run_for="1h"))
        await until(lambda: statuses(server) == ["running"], what="the allocation runs")

        await node.die()

        assert [allocation.end_timer for allocation in node.node._allocations.values()] == [None]


def count_running(server: OneServer) -> int:
    summary = server.replica.get(JOB_SUMMARIES, "default", "shop")
    return summary.summary["web"].running if summary is not None else 0


@in_virtual_time
async def test_a_fleet_completes_a_large_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 10)

        await server.client.jobs.register(with_script(a_batch_job("shop"), count=300, run_for="5s"))
        await until(lambda: count_running(server) == 300, what="all allocations run")

        def is_dead() -> bool:
            job = server.replica.get(JOBS, "default", "shop")
            return job is not None and job.status == "dead"

        await until(is_dead, what="the job is dead")
        assert statuses(server) == ["complete"] * 300


@in_virtual_time
async def test_an_in_place_update_is_reported_as_healthy_to_its_new_deployment() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        job = with_script(a_job("shop"), count=2)
        quick = UpdatePolicy(min_healthy_time=1_000_000_000)
        first = replace(job, task_groups=(replace(job.groups[0], update=quick),))
        await server.client.jobs.register(first)
        await until(
            lambda: list_deployments(server) == {0: "successful"}, what="the first is rolled out", within_s=60.0
        )

        await server.client.jobs.register(replace(first, task_groups=(replace(first.groups[0], count=3),)))

        rolled_out = {0: "successful", 1: "successful"}
        await until(lambda: list_deployments(server) == rolled_out, what="the second is rolled out", within_s=60.0)


def list_deployments(server: OneServer) -> dict[int, str]:
    return {deployment.job_version: deployment.status.value for deployment in server.replica.iter_all(DEPLOYMENTS)}
