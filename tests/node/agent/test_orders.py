"""Which assignments a node applies: none that is older than its last full report."""

import asyncio
import json
from typing import Any

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemory
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.client import AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.node.agent.servers.session import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode


class Lagging(InMemory):
    """A server whose answers about orders are those of `old` once they are given, unless it is asked for what is surely new."""

    has_no_orders = False
    old: dict[str, ClientReply] | None = None

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.endswith("/desired"):
            if self.has_no_orders:
                raise Unreachable("nobody answers", is_sent=False)
            if self.old is not None and (request.method == "POST" or "stale" in dict(request.query)):
                await pass_time(0.1)
                return self.old[request.method]
        return await super().send(request)


class Holding(InMemory):
    """Orders that are fetched come when `may_come` is set; heartbeats and reports get through unless `is_silent`."""

    is_silent = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.may_come = asyncio.Event()

    async def send(self, request: ClientRequest) -> ClientReply:
        if self.is_silent and not request.path.endswith("/desired"):
            raise Unreachable("nobody answers", is_sent=False)
        reply = await super().send(request)
        if request.method == "POST" and request.path.endswith("/desired"):
            await self.may_come.wait()
        return reply


def statuses(server: OneServer) -> list[str]:
    return [allocation.client_status for allocation in server.replica.iter_all(ALLOCATIONS)]


@in_virtual_time
async def test_an_assignment_from_a_lagging_server_is_ignored_after_a_full_report_without_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange, watching = Lagging(server.api), InMemory(server.api)
        node = FakeNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        await until(
            lambda: [each.status for each in server.replica.iter_all(NODES)] == ["ready"], what="the node is ready"
        )
        exchange.has_no_orders = True
        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_job("shop", a_group("web", task, count=1)))
        await until(lambda: statuses(server) == ["pending"], what="it is placed")
        observer = AsyncClient(world, [watching])
        orders = (await observer.node_agents.list_assignments(identity.id, identity.secret_id)).value
        await observer.node_agents.fetch_assignments(identity.id, identity.secret_id, list(orders))
        exchange.is_away = True
        await until(lambda: statuses(server) == ["lost"], what="it is given up")

        exchange.old = dict(zip(("GET", "POST"), watching.replies, strict=True))
        exchange.is_away = exchange.has_no_orders = False
        await until(lambda: "complete" in statuses(server), what="the node has said what it knows")
        await pass_time(60.0)

        assert [] == [id for id in node.list_allocations() if id in orders]


@in_virtual_time
async def test_an_assignment_in_flight_during_a_full_report_without_it_is_ignored() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange = Holding(server.api)
        node = FakeNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        await until(
            lambda: [each.status for each in server.replica.iter_all(NODES)] == ["ready"], what="the node is ready"
        )
        task = a_task("server", driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(a_job("shop", a_group("web", task, count=1)))
        await until(lambda: statuses(server) == ["pending"], what="it is placed")
        (placed,) = server.replica.iter_all(ALLOCATIONS)
        exchange.is_silent = True
        await until(lambda: statuses(server) == ["lost"], what="it is given up")
        exchange.is_silent = False
        await until(lambda: "complete" in statuses(server), what="the node has said what it knows")

        exchange.may_come.set()
        await pass_time(60.0)

        reports = [json.loads(body)["Allocations"] for _, path, body in exchange.sent if path.endswith("/report")]
        told = [each["ClientStatus"] for report in reports for each in report if each["ID"] == placed.id]
        assert "running" not in told
