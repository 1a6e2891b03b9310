"""A leader whose api processes are dead or stalled marks no node down for the silence, and lets another server lead."""

import asyncio
from typing import Any, Final

from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.server.duties.isolation import MAX_ISOLATION_S
from wharf.cluster.server.rpc.handlers.nodes import RECORD_HEARTBEAT, HeartbeatRequest
from wharf.cluster.server.rpc.pulse import send_pulses
from wharf.cluster.state.tables import MEMBERS, NODES
from wharf.contract.model.cluster import Member
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write

HEARTBEATS: Final = HeartbeatSettings(min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=120.0)
MAX_DEADLINE_S: Final = 2 * 10.0 + 5.0
"""The longest time from a heartbeat to its deadline."""


class ApiProcess:
    """Sends pulses to the brain like an api process, until it is killed."""

    def __init__(self, cluster: ACluster, server: OneServer, name: str = "api") -> None:
        self._task: asyncio.Task[Any] = cluster.start(send_pulses(name, server.rpc_dispatcher), name=name)

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
