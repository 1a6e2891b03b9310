"""A node reports the end of a task only after it is stored, and other changes at once."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest, Unreachable
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
        known_ids = {each.id for each in server.replica.iter_all(ALLOCATIONS)}
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

        reported = {update["ID"] for report in list_new_reports() for update in report["Allocations"]}
        assert reported & known_ids == {long_id}  # Its replacement is reported too.


@in_virtual_time
async def test_a_node_whose_reports_are_older_than_those_of_servers_says_in_words_that_it_registers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="wharf.node")
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        identity = NodeCredentials(world.new_id(), world.new_secret())
        exchange = InMemoryTransport(server.api)
        machine = FakeMachine(name="node-1")
        for _ in range(2):  # As after a restore of the cluster: the node's own numbers are lower than those of servers.
            client = AsyncClient(world, [exchange], retry_policy=NO_RETRIES)
            cluster.start(FakeNode(world, client, machine, identity=identity).run(), name="node-1")
            await pass_time(5.0)
        task = a_task("work", driver="mock", config={"run_for": "1h"}, resources=some_resources(cpu=10, memory_mb=10))
        await server.client.jobs.register(replace(a_batch_job("batch"), task_groups=(a_group("web", task, count=1),)))
        await until(
            lambda: any(b"is outdated" in reply.body for reply in exchange.replies), what="a report is outdated"
        )
        await pass_time(1.0)

        messages = [record.getMessage() for record in caplog.records if "report" in record.getMessage()]
        assert messages == [
            "report refused as outdated, registering again: the cluster was restored, or this node paused node=node-1"
        ]


class HoldingNode(FakeNode):
    """A node whose journal has restored an allocation."""

    def list_held(self) -> list[str]:
        return ["a" * 36]


class RefusingTransport(InMemoryTransport):
    """A transport that fails each request for assignments."""

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.endswith("/desired"):
            self.sent.append((request.method, request.path, request.body))
            raise Unreachable("no reply", is_sent=True)
        return await super().send(request)


@in_virtual_time
async def test_a_node_logs_once_that_servers_do_not_confirm_its_restored_allocations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        world = cluster.world("node-1")
        exchange = RefusingTransport(server.api)
        client = AsyncClient(world, [exchange], retry_policy=NO_RETRIES)
        cluster.start(HoldingNode(world, client, FakeMachine(name="node-1")).run(), name="node-1")

        await until(
            lambda: len([path for _, path, _ in exchange.sent if path.endswith("/desired")]) >= 5,
            what="the node has repeated the request",
        )

        assert caplog.text.count("failed to confirm restored allocations") == 1
