"""Without a leader, a server refuses heartbeats cheaply, and accepts them soon after a leader is elected."""

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.method import RpcReply
from wharf.contract.client import ClientRequest


class CountingTransport:
    """Carries RPC calls to the brain of a server, and counts the heartbeats among them."""

    def __init__(self, server: OneServer) -> None:
        self._server = server
        self.heartbeats = 0

    async def call(self, name: str, body: bytes) -> RpcReply:
        self.heartbeats += name in ("heartbeat", "heartbeats")
        return await self._server.rpc_dispatcher.call(name, body)


@in_virtual_time
async def test_heartbeats_without_a_leader_are_refused_with_one_call_in_a_second() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        calls = CountingTransport(server)
        server.server.leader = LeaderClient(server.replica, "m1", calls, cluster)
        heartbeat = ClientRequest(
            "PUT", f"/v1/node/{node.id}/heartbeat", headers={"x-cluster-node-secret": node.secret_id}
        )
        assert server.election.term is not None
        server.election.term.lose()
        await until(lambda: not server.brain.is_leading, what="the server does not lead")
        calls.heartbeats = 0

        replies = [await server.exchange.send(heartbeat) for _ in range(50)]

        assert {reply.status for reply in replies} == {500}
        assert calls.heartbeats == 1

        server.election.allow_campaign()
        await until(lambda: server.brain.is_leading, what="the server leads again")
        await pass_time(1.0)
        assert (await server.exchange.send(heartbeat)).status == 200
