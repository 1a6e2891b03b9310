"""Calls to a leader that is frozen: they end when another server becomes the leader."""

import asyncio

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.server.node_channels.directory import FIND_NODE, FindNodeReply, FindNodeRequest
from wharf.cluster.server.rpc.handlers.nodes import EVALUATE_NODE, NodeRequest
from wharf.cluster.server.rpc.leader_client import LEADER_CHANGE_GRACE_S, LeaderClient
from wharf.cluster.server.rpc.method import RpcReply, RpcTransport
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode


class FrozenBrain:
    """The transport to a brain that never replies; also the provider of such transports."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def call(self, name: str, body: bytes) -> RpcReply:
        del body
        self.calls.append(name)
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    def transport_to(self, member: Member) -> RpcTransport:
        del member
        return self


async def two_servers(cluster: ACluster) -> tuple[OneServer, LeaderClient, FrozenBrain]:
    """Return the second server, and its client of the leader. The first server leads and its brain is frozen."""
    await cluster.a_server("m1")
    second = await cluster.a_server("m2", leads=False)
    frozen = FrozenBrain()
    return second, LeaderClient(second.replica, "m2", second.rpc_dispatcher, frozen), frozen


@in_virtual_time
async def test_a_repeatable_call_to_a_frozen_leader_is_sent_to_the_new_leader() -> None:
    async with ACluster() as cluster:
        second, client, frozen = await two_servers(cluster)
        call = cluster.start(client.call(FIND_NODE, FindNodeRequest("n1")), name="call")
        await pass_time(5)
        assert frozen.calls == ["where-is-node"]
        assert not call.done()

        await second.lead()
        elected_s = now_s()

        assert await call == FindNodeReply(None)
        assert now_s() - elected_s <= LEADER_CHANGE_GRACE_S + 0.1


@in_virtual_time
async def test_the_outcome_of_a_write_at_a_frozen_leader_is_unknown_once_another_server_leads() -> None:
    async with ACluster() as cluster:
        second, client, frozen = await two_servers(cluster)
        call = cluster.start(client.call(EVALUATE_NODE, NodeRequest("n1")), name="call")
        cluster.expect_failure("call")
        await pass_time(5)

        await second.lead()
        with pytest.raises(Refusal, match="another server became the leader") as caught:
            await call

        assert caught.value.code is RefusalCode.OUTCOME_UNKNOWN
        assert frozen.calls == ["evaluate-node"]


@in_virtual_time
async def test_calls_leave_no_subscriptions_behind() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        client = LeaderClient(first.replica, "m1", first.rpc_dispatcher, None)
        count = first.replica.watches.subscription_count

        await client.call(FIND_NODE, FindNodeRequest("n1"))

        assert first.replica.watches.subscription_count == count
