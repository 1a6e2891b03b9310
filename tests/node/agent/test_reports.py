"""A node reports the end of a task only after it is stored, and other changes at once."""

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientRequest
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode


class SlowDiskNode(FakeNode):
    """A node whose disk has stored everything once `is_stored` is set."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_stored = asyncio.Event()

    async def wait_until_stored(self) -> None:
        await self.is_stored.wait()


def statuses(server: OneServer) -> list[str]:
    return [allocation.client_status for allocation in server.replica.iter_all(ALLOCATIONS)]


@in_virtual_time
async def test_an_end_is_reported_once_it_is_stored_and_any_other_change_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        client = AsyncClient(world, [InMemoryTransport(server.api)])
        node = SlowDiskNode(world, client, FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        task = a_task("work", driver="mock", config={"run_for": "1s"}, resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(replace(a_batch_job("batch"), task_groups=(a_group("web", task, count=1),)))
        await until(lambda: statuses(server) == ["running"], what="the allocation runs")

        await pass_time(20.0)
        assert statuses(server) == ["running"]

        node.is_stored.set()
        await until(lambda: statuses(server) == ["complete"], what="the end of the allocation is reported")


@in_virtual_time
async def test_reports_of_an_agent_without_journal_are_accepted_and_late_ones_of_its_predecessor_are_not() -> None:
    async with ACluster() as cluster:
        await cluster.a_server("m1")
        server = await cluster.a_server("m2", leads=False)
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange = InMemoryTransport(server.api)
        machine = FakeMachine(name="node-1")

        def create_node() -> FakeNode:
            return FakeNode(world, AsyncClient(world, [exchange], retry_policy=NO_RETRIES), machine, identity=identity)

        def list_reports() -> list[tuple[str, bytes]]:
            return [(path, body) for _, path, body in exchange.sent if path.endswith("/report")]

        first_agent = cluster.start(create_node().run(), name="node-1")
        task = a_task("work", driver="mock", config={"run_for": "1h"}, resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(replace(a_batch_job("batch"), task_groups=(a_group("web", task, count=1),)))
        await until(lambda: statuses(server) == ["running"], what="the allocation runs")
        path, body = list_reports()[0]
        first_agent.cancel()

        cluster.start(create_node().run(), name="node-1 again")
        await until(lambda: len(list_reports()) == 2, what="the second agent reports its allocations")
        await server.lead()  # The old leader remembers earlier reports; a new one does not.
        secret = {"x-cluster-node-secret": identity.secret_id}
        late = await exchange.send(ClientRequest("PUT", path, headers=secret, body=body))

        old_number, new_number = (json.loads(body)["Number"] for _, body in list_reports()[:2])
        assert 0 < old_number < new_number
        assert (late.status, b"is outdated" in late.body) == (400, True)
        assert [new_number] == [allocation.report_number for allocation in server.replica.iter_all(ALLOCATIONS)]


@in_virtual_time
async def test_a_node_that_was_away_reports_only_what_servers_do_not_know() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        exchange = InMemoryTransport(server.api)
        identity = NodeCredentials(world.new_id(), world.new_secret())
        node = FakeNode(world, AsyncClient(world, [exchange]), FakeMachine(name="node-1"), identity=identity)
        cluster.start(node.run(), name="node-1")
        small = some_resources(cpu=10, memory_mb=10)
        for name, count, run_for in (("short", 40, "1s"), ("long", 1, "100h")):
            task = a_task("work", driver="mock", config={"run_for": run_for}, resources=small)
            await server.client.jobs.register(
                replace(a_batch_job(name), task_groups=(a_group("web", task, count=count),))
            )
        await until(lambda: sorted(set(statuses(server))) == ["complete", "running"], what="short tasks have ended")
        (long_id,) = [each.id for each in server.replica.iter_all(ALLOCATIONS) if each.client_status == "running"]
        await pass_time(5.0)
        exchange.is_away = True
        await until(lambda: "lost" in statuses(server), what="the node is down", within_s=120.0)
        first_new = len(exchange.sent)
        exchange.is_away = False

        def list_new_reports() -> list[dict[str, Any]]:
            return [json.loads(body) for _, path, body in exchange.sent[first_new:] if path.endswith("/report")]

        await until(
            lambda: any(report["IsWhole"] for report in list_new_reports()) and "lost" not in statuses(server),
            what="the node has reported",
            within_s=60.0,
        )

        assert {long_id} == {update["ID"] for report in list_new_reports() for update in report["Allocations"]}
