"""Drains in a cluster of real servers and simulated nodes, in virtual time (scheduling.md 9.3)."""

from typing import Any

from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task
from tests.kit.cluster import ACluster, ANode, OneServer
from tests.kit.requests import put
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.group_policies import MigratePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node

SECOND_NS = 1_000_000_000


def make_shop_job(count: int = 3, *, min_healthy_s: int = 2, max_parallel: int = 1) -> Job:
    migrate = MigratePolicy(max_parallel=max_parallel, min_healthy_time=min_healthy_s * SECOND_NS)
    update = UpdatePolicy(min_healthy_time=SECOND_NS, max_parallel=count)
    return a_job("shop", a_group("web", a_task(driver="mock"), count=count, migrate=migrate, update=update))


def make_long_job(name: str = "nightly", seconds: int = 3_600) -> Job:
    return a_batch_job(name, a_group("work", a_task(driver="mock", config={"run_for": f"{seconds}s"})))


def list_live_allocations(server: OneServer, job_id: str = "shop") -> list[Allocation]:
    return [
        each for each in server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id) if not each.is_terminal
    ]


def list_on_node(server: OneServer, node: ANode) -> list[Allocation]:
    return [each for each in server.replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if each.is_occupying]


def is_healthy(each: Allocation) -> bool:
    status = each.deployment_status
    return each.client_status is ClientStatus.RUNNING and status is not None and status.healthy is True


def are_healthy(server: OneServer, count: int, job_id: str = "shop") -> bool:
    return sum(map(is_healthy, list_live_allocations(server, job_id))) == count


def get_node_record(server: OneServer, node: ANode) -> Node:
    found = server.replica.get(NODES, node.id)
    assert found is not None
    return found


def is_drained(server: OneServer, node: ANode) -> bool:
    return get_node_record(server, node).drain_strategy is None


def get_last_event(server: OneServer, node: ANode) -> tuple[str, dict[str, str] | None]:
    event = (get_node_record(server, node).events or ())[-1]
    return event.message, event.details


async def start_drain(server: OneServer, node: ANode, *, deadline_s: int = 0, ignore_system: bool = False) -> None:
    spec: dict[str, Any] = {"Deadline": deadline_s * SECOND_NS, "IgnoreSystemJobs": ignore_system}
    reply = await put(server, f"/v1/node/{node.id}/drain", {"DrainSpec": spec})
    assert reply.status == 200, reply.body


@in_virtual_time
async def test_a_drain_never_has_more_than_max_parallel_unhealthy_allocations_of_a_service() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        [first] = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_shop_job(3))
        await until(lambda: are_healthy(server, 3), what="the job is healthy")
        second = cluster.a_fake_node(server, "node-2")
        await second.wait_ready()
        fewest = 3

        await start_drain(server, first)
        while not is_drained(server, first):
            well = [each for each in list_live_allocations(server) if is_healthy(each) and not each.should_migrate]
            fewest = min(fewest, len(well))
            await pass_time(0.05)

        assert fewest == 2
        assert list_on_node(server, first) == []
        assert len(list_on_node(server, second)) == 3
        assert get_last_event(server, first) == ("Node drain complete", None)


@in_virtual_time
async def test_batch_and_system_allocations_stop_at_the_drain_deadline() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        first, _second = await cluster.ready_nodes(server, 2)
        await server.client.jobs.register(a_system_job("agent", a_group("agent", a_task(driver="mock"))))
        await until(lambda: len(list_live_allocations(server, "agent")) == 2, what="the agents run")
        await server.client.jobs.register(make_long_job())
        work = (await until(lambda: list_live_allocations(server, "nightly"), what="the jobs are placed"))[0]
        where = first if work.node_id == first.id else _second
        began_s = now_s()

        await start_drain(server, where, deadline_s=25)
        await pass_time(24)
        assert len(list_on_node(server, where)) == 2
        await until(lambda: is_drained(server, where), what="the drain is complete")

        assert round(now_s() - began_s) == 25
        assert get_last_event(server, where) == ("Node drain complete", {"deadline_reached": "true"})
        await until(lambda: list_on_node(server, where) == [], what="everything on the node has ended")
        await pass_time(5)
        job = server.replica.get(JOBS, "default", "nightly")
        assert job is not None
        assert job.status == "dead"
        assert list_live_allocations(server, "nightly") == []


@in_virtual_time
async def test_a_forced_drain_completes_within_two_seconds() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        [first] = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_shop_job(3))
        await server.client.jobs.register(make_long_job())
        await until(lambda: are_healthy(server, 3) and list_live_allocations(server, "nightly"), what="all jobs run")
        began_s = now_s()

        await start_drain(server, first, deadline_s=-1)
        await until(lambda: is_drained(server, first) and not list_on_node(server, first), what="the node is empty")

        assert now_s() - began_s < 2


@in_virtual_time
async def test_a_drain_with_nothing_to_move_completes_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        [first] = await cluster.ready_nodes(server, 1)

        await start_drain(server, first, deadline_s=3_600)

        await until(lambda: is_drained(server, first), what="the drain is complete", within_s=2)


@in_virtual_time
async def test_the_drain_of_an_empty_node_completes_at_once_during_another_pass() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        nodes = await cluster.ready_nodes(server, 2)
        await server.client.jobs.register(make_shop_job(1))
        await until(lambda: are_healthy(server, 1), what="the job is healthy")
        full, empty = sorted(nodes, key=lambda node: not list_on_node(server, node))

        await start_drain(server, full)
        async with server.brain.term.write_lock:  # The pass over the first drain waits for the second one.
            second_drain = cluster.start(start_drain(server, empty), name="the second drain")
            await pass_time(1)
        await second_drain

        await until(lambda: is_drained(server, empty), what="the second drain is complete", within_s=10)


@in_virtual_time
async def test_a_drain_that_ignores_system_jobs_leaves_them() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        [first] = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_system_job("agent", a_group("agent", a_task(driver="mock"))))
        await until(lambda: len(list_live_allocations(server, "agent")) == 1, what="the agent runs")

        await start_drain(server, first, ignore_system=True)
        await until(lambda: is_drained(server, first), what="the drain is complete")
        await pass_time(5)

        assert [each.client_status for each in list_live_allocations(server, "agent")] == [ClientStatus.RUNNING]


@in_virtual_time
async def test_a_new_leader_continues_a_drain() -> None:
    async with ACluster() as cluster:
        first_server = await cluster.a_server("m1")
        [first] = await cluster.ready_nodes(first_server, 1)
        await first_server.client.jobs.register(make_shop_job(4, min_healthy_s=5))
        await until(lambda: are_healthy(first_server, 4), what="the job is healthy")
        await cluster.a_fake_node(first_server, "node-2").wait_ready()
        await start_drain(first_server, first)
        await until(lambda: len(list_on_node(first_server, first)) == 3, what="the first has left")

        second_server = await cluster.a_server("m2")

        await until(lambda: is_drained(second_server, first), what="the drain is complete", within_s=120)
        assert list_on_node(second_server, first) == []
