"""A node ignores assignments from before its last full report, and older ones than those that it has begun to apply."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.client import AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode


class LaggingServer(InMemoryTransport):
    """A server that sends the old replies about assignments in `old_replies`, except to reads that require new ones."""

    refuses_assignments = False
    old_replies: dict[str, ClientReply] | None = None

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.endswith("/desired"):
            if self.refuses_assignments:
                raise Unreachable("no server replied", is_sent=False)
            if self.old_replies is not None and (request.method == "POST" or "stale" in dict(request.query)):
                await pass_time(0.1)
                return self.old_replies[request.method]
        return await super().send(request)


class IncompleteServer(InMemoryTransport):
    """A server that lacks one assignment in its first reply, and then lags: it sends `old_list` to reads that permit that.

    So the node applies a part of the new assignments, and then reads from a server that lags.
    """

    old_list: ClientReply | None = None
    has_left_one_out = False

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.endswith("/desired") and self.old_list is not None:
            if request.method == "POST" and not self.has_left_one_out:
                self.has_left_one_out = True
                return await super().send(_keep_ids(request, count=-1))
            if "stale" in dict(request.query) and self.has_left_one_out:
                return self.old_list
        return await super().send(request)


class ForgetfulServer(InMemoryTransport):
    """A server whose first reply lacks all assignments, and which deletes the newest allocation before it."""

    refuses_assignments = True
    has_replied = False

    def __init__(self, server: OneServer) -> None:
        super().__init__(server.api)
        self.server = server

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.endswith("/desired") and self.refuses_assignments:
            raise Unreachable("no server replied", is_sent=False)
        if request.path.endswith("/desired") and request.method == "POST" and not self.has_replied:
            self.has_replied = True
            allocations = self.server.replica.iter_all(ALLOCATIONS)
            newest = max(allocations, key=lambda allocation: allocation.alloc_modify_index)
            await commit(self.server, ALLOCATIONS.build_delete(newest.id))
            return await super().send(_keep_ids(request, count=0))
        return await super().send(request)


def _keep_ids(request: ClientRequest, *, count: int) -> ClientRequest:
    ids = json.loads(request.body)["IDs"]
    return replace(request, body=json.dumps({"IDs": ids[:count]}).encode())


class ObservedNode(FakeNode):
    """A fake node that records which allocations it drops."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.dropped: list[str] = []

    def drop_allocation(self, allocation_id: str) -> None:
        self.dropped.append(allocation_id)
        super().drop_allocation(allocation_id)


class DelayingServer(InMemoryTransport):
    """A server that sends assignments once `may_send` is set, and drops other requests while `is_silent`."""

    is_silent = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.may_send = asyncio.Event()

    async def send(self, request: ClientRequest) -> ClientReply:
        if self.is_silent and not request.path.endswith("/desired"):
            raise Unreachable("no server replied", is_sent=False)
        reply = await super().send(request)
        if request.method == "POST" and request.path.endswith("/desired"):
            await self.may_send.wait()
        return reply


def statuses(server: OneServer) -> list[str]:
    return [allocation.client_status for allocation in server.replica.iter_all(ALLOCATIONS)]


@in_virtual_time
async def test_an_assignment_from_a_lagging_server_is_ignored_after_a_full_report_without_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange, observed = LaggingServer(server.api), InMemoryTransport(server.api)
        node = FakeNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        await until(
            lambda: [node.status for node in server.replica.iter_all(NODES)] == ["ready"], what="the node is ready"
        )
        exchange.refuses_assignments = True
        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_job("shop", a_group("web", task, count=1)))
        await until(lambda: statuses(server) == ["pending"], what="the allocation is placed")
        observer = AsyncClient(world, [observed])
        assigned = (await observer.node_agents.list_assignments(identity.id, identity.secret_id)).value
        await observer.node_agents.fetch_assignments(identity.id, identity.secret_id, list(assigned))
        exchange.is_away = True
        await until(lambda: statuses(server) == ["lost"], what="the allocation is given up")

        exchange.old_replies = dict(zip(("GET", "POST"), observed.replies, strict=True))
        exchange.is_away = exchange.refuses_assignments = False
        await until(lambda: "complete" in statuses(server), what="the node has sent a full report")
        await pass_time(60.0)

        assert [] == [id for id in node.list_allocations() if id in assigned]


@in_virtual_time
async def test_an_assignment_in_flight_during_a_full_report_without_it_is_ignored() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange = DelayingServer(server.api)
        node = FakeNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        await until(
            lambda: [node.status for node in server.replica.iter_all(NODES)] == ["ready"], what="the node is ready"
        )
        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_job("shop", a_group("web", task, count=1)))
        await until(lambda: statuses(server) == ["pending"], what="the allocation is placed")
        (placed,) = server.replica.iter_all(ALLOCATIONS)
        exchange.is_silent = True
        await until(lambda: statuses(server) == ["lost"], what="the allocation is given up")
        exchange.is_silent = False
        await until(lambda: "complete" in statuses(server), what="the node has sent a full report")

        exchange.may_send.set()
        await pass_time(60.0)

        reports = [json.loads(body)["Allocations"] for _, path, body in exchange.sent if path.endswith("/report")]
        statuses_sent = [update["ClientStatus"] for report in reports for update in report if update["ID"] == placed.id]
        assert "running" not in statuses_sent


@in_virtual_time
async def test_an_allocation_is_kept_if_an_older_list_without_it_follows_a_newer_one_that_was_applied_in_part() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange, observed = IncompleteServer(server.api), InMemoryTransport(server.api)
        node = ObservedNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        await until(
            lambda: [each.status for each in server.replica.iter_all(NODES)] == ["ready"], what="the node is ready"
        )
        await pass_time(10.0)
        await AsyncClient(world, [observed]).node_agents.list_assignments(identity.id, identity.secret_id)
        exchange.old_list = observed.replies[0]

        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_job("shop", a_group("web", task, count=2)))
        await until(lambda: statuses(server) == ["running", "running"], what="both allocations run")

        assert exchange.has_left_one_out
        assert [] == node.dropped


@in_virtual_time
async def test_assignments_are_fetched_again_although_the_newest_allocation_of_the_list_was_deleted_meanwhile() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        exchange = ForgetfulServer(server)
        node = FakeNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"))
        cluster.start(node.run(), name="node-1")
        await until(
            lambda: [each.status for each in server.replica.iter_all(NODES)] == ["ready"], what="the node is ready"
        )
        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        for name in ("shop", "newest"):
            await server.client.jobs.register(a_job(name, a_group("web", task, count=1)))
        await until(lambda: statuses(server) == ["pending", "pending"], what="both allocations are placed")

        exchange.refuses_assignments = False

        await until(lambda: exchange.has_replied, what="the first reply", within_s=60)
        await until(lambda: statuses(server) == ["running"], what="the allocation that is left runs", within_s=60)


class NarrowServer(InMemoryTransport):
    """A server whose replies with assignments get lost if they are larger than `MAX_BYTES`."""

    MAX_BYTES = 40_000

    async def send(self, request: ClientRequest) -> ClientReply:
        reply = await super().send(request)
        if request.method == "POST" and request.path.endswith("/desired") and len(reply.body) > self.MAX_BYTES:
            raise Unreachable("the reply is too large", is_sent=True)
        return reply


@in_virtual_time
@pytest.mark.parametrize("job_count", [1, 30])
async def test_large_jobs_reach_a_node_that_can_receive_only_small_replies(job_count: int) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        node = FakeNode(
            world, AsyncClient(world, [NarrowServer(server.api)]), FakeMachine(name="node-1"), identity=identity
        )
        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        for number in range(job_count):
            job = a_job(f"shop{number}", a_group("web", task, count=30 // job_count))
            await server.client.jobs.register(replace(job, meta={"text": "x" * 10_000}))

        cluster.start(node.run(), name="node-1")

        await until(lambda: statuses(server) == ["running"] * 30, what="all allocations run", within_s=300)
