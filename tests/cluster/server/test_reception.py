"""A leader whose api processes are dead or stalled marks no node down for the silence, and lets another server lead."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport, build_scope
from tests.kit.requests import commit
from tests.kit.settings import USUAL_HEARTBEATS
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.server.duties.isolation import MAX_ISOLATION_S, MAX_PEER_ISOLATION_S
from wharf.cluster.server.rpc.handlers.nodes import RECORD_HEARTBEAT, RECORD_HEARTBEATS, HeartbeatRequest
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.method import RpcReply
from wharf.cluster.server.rpc.pulse import PulseSender
from wharf.cluster.state.tables import MEMBERS, NODES
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.model.secrets import hash_secret
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode

HEARTBEATS: Final = replace(USUAL_HEARTBEATS, min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=120.0)
MAX_DEADLINE_S: Final = 2 * 10.0 + 5.0
"""The longest time from a heartbeat to its deadline."""


def make_sender(server: OneServer, name: str, probe: Callable[[], Awaitable[None]]) -> PulseSender:
    return PulseSender(
        server.world,
        name,
        member_id=server.name,
        own_brain=server.rpc_dispatcher,
        leader=server.server.leader,
        heartbeats=server.server.heartbeats,
        probe=probe,
    )


class ApiProcess:
    """Sends pulses like an api process, until it is killed. It is `lag_s` behind with everything that arrives."""

    def __init__(self, cluster: ACluster, server: OneServer, name: str = "api", *, lag_s: float = 0.0) -> None:
        self.lag_s = lag_s
        sender = make_sender(server, name, self._wait_for_lag)
        self._task: asyncio.Task[Any] = cluster.start(sender.run(), name=name)

    async def _wait_for_lag(self) -> None:
        await pass_time(self.lag_s)

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def register(server: OneServer) -> None:
    """Register a node and send its only heartbeat."""
    await server.brain.node_monitor.register_node(a_node())
    await send_heartbeat(server)


async def send_heartbeat(server: OneServer) -> None:
    await server.server.leader.call(RECORD_HEARTBEAT, HeartbeatRequest("node-1"))


def get_status(server: OneServer) -> str:
    node = server.replica.get(NODES, "node-1")
    assert node is not None
    return node.status


@in_virtual_time
async def test_a_silent_node_is_down_while_the_api_process_receives_heartbeats() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        ApiProcess(cluster, server)
        await register(server)

        await pass_time(MAX_DEADLINE_S + 2.0)

        assert get_status(server) == "down"


@in_virtual_time
async def test_no_node_is_down_while_the_api_process_is_dead() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        api = ApiProcess(cluster, server)
        await register(server)
        await pass_time(5.0)

        await api.kill()
        await pass_time(100.0)
        is_down_in_outage = get_status(server) == "down"
        ApiProcess(cluster, server)
        await pass_time(1.0)
        await send_heartbeat(server)
        await pass_time(10.0)

        assert (is_down_in_outage, get_status(server)) == (False, "ready")


@in_virtual_time
async def test_no_node_is_down_while_an_api_process_is_dead_that_died_right_after_its_start() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        await make_sender(server, "api", partial(pass_time, 0.0)).announce()
        await register(server)

        await pass_time(100.0)

        assert get_status(server) == "ready"


@in_virtual_time
async def test_no_node_is_down_while_one_of_two_api_processes_is_dead() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        ApiProcess(cluster, server, "api-1")
        second = ApiProcess(cluster, server, "api-2")
        await pass_time(2.0)
        await register(server)

        await second.kill()
        await pass_time(100.0)

        assert get_status(server) == "ready"


@in_virtual_time
async def test_a_node_that_stays_silent_after_an_outage_is_down_after_its_remaining_time() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        api = ApiProcess(cluster, server)
        await register(server)
        await api.kill()
        await pass_time(60.0)

        ApiProcess(cluster, server)
        await pass_time(15.0 + MAX_DEADLINE_S + 2.0)  # The recovery after an outage takes 15 s.

        assert get_status(server) == "down"


@in_virtual_time
async def test_a_node_is_down_at_last_if_no_api_process_returns() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        api = ApiProcess(cluster, server)
        await register(server)

        await api.kill()
        await pass_time(HEARTBEATS.failover_ttl_s + MAX_DEADLINE_S + 5.0)

        assert get_status(server) == "down"


@in_virtual_time
async def test_a_leader_that_no_call_can_reach_gives_its_leadership_to_another_server() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", heartbeats=HEARTBEATS)
        member = Member(id="m2", address="m2:4646", create_index=WRITE_INDEX)
        await first.server.writer.commit(Write("joined", Cause(CauseKind.LEASE), [MEMBERS.build_put(member)]))
        api = ApiProcess(cluster, first)
        await pass_time(5.0)

        await api.kill()
        await pass_time(MAX_ISOLATION_S - 2.0)
        is_leading_before = first.brain.is_leading
        await pass_time(4.0)

        assert (is_leading_before, first.brain.is_leading) == (True, False)
        assert first.election.term is not None
        assert first.election.term.successor == "m2"


@in_virtual_time
async def test_the_only_server_leads_on_while_no_call_can_reach_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        api = ApiProcess(cluster, server)
        await pass_time(5.0)

        await api.kill()
        await pass_time(60.0)

        assert server.brain.is_leading


@in_virtual_time
async def test_a_leader_that_no_other_server_reaches_gives_its_leadership_to_one_that_is_still_a_member() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", heartbeats=HEARTBEATS)
        second = await cluster.a_server("m2", leads=False)
        member = Member(id="m2", address="m2:4646", create_index=WRITE_INDEX)
        await first.server.writer.commit(Write("joined", Cause(CauseKind.LEASE), [MEMBERS.build_put(member)]))
        ApiProcess(cluster, first)
        peer = ApiProcess(cluster, second)
        await pass_time(5.0)

        await peer.kill()
        await pass_time(MAX_PEER_ISOLATION_S - 2.0)
        is_leading_before = first.brain.is_leading
        await pass_time(4.0)

        assert (is_leading_before, first.brain.is_leading) == (True, False)
        assert first.election.term is not None
        assert first.election.term.successor == "m2"


@in_virtual_time
async def test_a_leader_leads_on_while_another_server_reaches_it_or_was_never_heard() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", heartbeats=HEARTBEATS)
        second = await cluster.a_server("m2", leads=False)
        for member_id in ("m2", "m3"):
            member = Member(id=member_id, address=f"{member_id}:4646", create_index=WRITE_INDEX)
            await first.server.writer.commit(Write("joined", Cause(CauseKind.LEASE), [MEMBERS.build_put(member)]))
        ApiProcess(cluster, first)
        peer = ApiProcess(cluster, second)
        await pass_time(60.0)
        await peer.kill()
        await pass_time(60.0)  # The server m3, which has an older version, never sends pulses.

        assert first.brain.is_leading


class LateTransport(InMemoryTransport):
    """A transport to an api process that handles each request `lag_s` after it arrived, even if its caller has gone."""

    def __init__(self, cluster: ACluster, server: OneServer) -> None:
        super().__init__(server.api)
        self._cluster = cluster
        self.lag_s = 0.0

    async def send(self, request: ClientRequest) -> ClientReply:
        unlimited = msgspec.structs.replace(request, timeout_s=1_000.0)
        handling = self._cluster.start(self._handle(unlimited), name="late request")
        try:
            async with asyncio.timeout(request.timeout_s):
                return await asyncio.shield(handling)
        except TimeoutError as error:
            raise Unreachable("no reply in time", is_sent=True) from error

    async def _handle(self, request: ClientRequest) -> ClientReply:
        await pass_time(self.lag_s)
        return await super().send(request)


@pytest.mark.parametrize("lag_s", [2.5, 6.0, 9.0, 25.0])
def test_a_server_that_handles_everything_late_loses_no_node(lag_s: float) -> None:
    @in_virtual_time
    async def stay_ready() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(heartbeats=HEARTBEATS)
            world = cluster.world("nodes")
            for number in range(5):
                transport = LateTransport(cluster, server)
                client = AsyncClient(world, [transport], retry_policy=NO_RETRIES)
                identity = NodeCredentials(world.new_id(), world.new_secret())
                node = FakeNode(world, client, FakeMachine(name=f"node-{number}"), identity=identity)
                cluster.start(node.run(), name=f"node {number}")
                await until(node.is_registered.is_set, what="the node is registered")
                transport.lag_s = lag_s
            ApiProcess(cluster, server, lag_s=lag_s)

            await pass_time(15 * 60.0)  # Three times as long as pauses last.

            nodes = list(server.replica.iter_all(NODES))
            assert [node.status for node in nodes] == ["ready"] * 5
            assert {node.last_missed_heartbeat_index for node in nodes} == {0}

    stay_ready()


@in_virtual_time
async def test_a_dead_node_is_down_at_last_although_the_server_handles_everything_late() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        ApiProcess(cluster, server, lag_s=9.0)
        await register(server)

        await pass_time(HEARTBEATS.failover_ttl_s + MAX_DEADLINE_S + 30.0)

        assert get_status(server) == "down"


@in_virtual_time
async def test_heartbeats_that_arrive_during_a_call_share_the_next_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        nodes = [a_node(f"node-{number}") for number in range(20)]
        for node in nodes:
            await server.brain.node_monitor.register_node(node)
            await server.server.leader.call(RECORD_HEARTBEAT, HeartbeatRequest(node.id))
        transport = CountingTransport(server)
        server.server.leader = LeaderClient(server.replica, server.name, transport, cluster)

        leases = await asyncio.gather(*(server.server.heartbeats.record(node.id) for node in nodes))

        assert 1 <= len(transport.calls) <= 2
        assert set(transport.calls) == {RECORD_HEARTBEATS.name}
        assert all(lease.ttl_s >= HEARTBEATS.min_ttl_s for lease in leases)


class CountingTransport:
    """Records which methods of the brain are called. Each call takes a while."""

    def __init__(self, server: OneServer) -> None:
        self._server = server
        self.calls: list[str] = []

    async def call(self, name: str, body: bytes) -> RpcReply:
        self.calls.append(name)
        await pass_time(0.1)
        return await self._server.rpc_dispatcher.call(name, body)


@in_virtual_time
async def test_a_heartbeat_to_a_leader_of_an_older_version_is_sent_alone() -> None:
    class OldTransport(CountingTransport):
        async def call(self, name: str, body: bytes) -> RpcReply:
            if name == RECORD_HEARTBEATS.name:
                return RpcReply(code=RefusalCode.INVALID, text="unknown RPC method")
            return await super().call(name, body)

    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        await register(server)
        server.server.leader = LeaderClient(server.replica, server.name, OldTransport(server), cluster)

        lease = await server.server.heartbeats.record("node-1")

        assert lease.ttl_s >= HEARTBEATS.min_ttl_s


@in_virtual_time
async def test_a_heartbeat_whose_caller_has_gone_counts() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=HEARTBEATS)
        secret = "the secret of the node"
        await server.brain.node_monitor.register_node(a_node(secret_digest=hash_secret(secret)))
        headers = {"content-length": "0", "x-cluster-node-secret": secret}
        scope = build_scope("PUT", "/v1/node/node-1/heartbeat", query="", headers=headers)

        async def receive() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:
            return

        await server.api(scope, receive, send)

        assert get_status(server) == "ready"


@in_virtual_time
async def test_an_outage_of_another_server_is_logged_with_the_name_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", heartbeats=HEARTBEATS)
        member = Member(id="member-2", name="server-two", address="m2:4646")
        await commit(server, MEMBERS.build_put(replace(member, create_index=WRITE_INDEX)))
        ApiProcess(cluster, server)
        server.brain.node_monitor.record_pulse("api-1", member_id=member.id)

        await pass_time(10.0)

        messages = [each.getMessage() for each in caplog.records if "cannot be received" in each.getMessage()]
        assert [message.partition("processes=")[2] for message in messages] == ["api-1 of server-two"]
