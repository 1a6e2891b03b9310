"""Since when a node has had no contact with servers: groups with `stop_on_client_after` depend on it."""

from msgspec.structs import replace

from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.settings import USUAL_HEARTBEATS
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.node.agent.servers.contact import MIN_UNANSWERED_S, UNANSWERED_PART, ServerContact
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode

MIN_TTL_S = 100.0
LONG_TTLS = replace(USUAL_HEARTBEATS, max_per_second=1 / MIN_TTL_S)
"""One node gets the TTL of a large fleet."""


class HeartbeatLosingTransport(InMemoryTransport):
    """A transport that loses the next `lost_count` heartbeats, and answers all other requests."""

    lost_count = 0

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.endswith("/heartbeat") and self.lost_count:
            self.lost_count -= 1
            raise Unreachable("the heartbeat is lost", is_sent=True)
        return await super().send(request)


class ContactRecordingNode(FakeNode):
    """A node that records losses of contact."""

    def __init__(self, cluster: ACluster, server: OneServer) -> None:
        self.transport = HeartbeatLosingTransport(server.api)
        world = cluster.world("node-1")
        client = AsyncClient(world, [self.transport], retry_policy=NO_RETRIES)
        super().__init__(world, client, FakeMachine(name="node-1"), identity=NodeCredentials("id-1", "secret"))
        self.contact_s = 0.0
        self.losses: list[tuple[float, float]] = []
        """For each heartbeat that failed: when it failed, and since when contact counted as lost then."""
        cluster.start(self.run(), name="node-1")

    def on_server_contact(self) -> None:
        self.contact_s = now_s()

    def on_server_silence(self, since_s: float) -> None:
        self.losses.append((now_s(), since_s))


async def start_node_with_long_ttl(cluster: ACluster) -> ContactRecordingNode:
    server = await cluster.a_server(heartbeats=LONG_TTLS)
    node = ContactRecordingNode(cluster, server)
    await pass_time(60.0)  # The first TTLs of a new cluster are shorter.
    return node


@in_virtual_time
async def test_one_lost_heartbeat_of_a_node_with_a_long_ttl_is_repeated_at_once_and_no_loss_before_it_counts() -> None:
    async with ACluster() as cluster:
        node = await start_node_with_long_ttl(cluster)

        node.transport.lost_count = 1
        await until(lambda: bool(node.losses), what="the heartbeat fails", within_s=3 * MIN_TTL_S)
        await pass_time(1.0)

        failed_s, since_s = node.losses[0]
        assert failed_s - since_s < 1.0
        assert failed_s < node.contact_s <= failed_s + 0.6


@in_virtual_time
async def test_contact_counts_as_lost_since_the_first_request_that_failed() -> None:
    async with ACluster() as cluster:
        node = await start_node_with_long_ttl(cluster)
        node.transport.is_away = True
        lost_s = now_s()

        await until(lambda: bool(node.losses), what="the heartbeat fails", within_s=3 * MIN_TTL_S)

        failed_s, since_s = node.losses[0]
        assert lost_s <= since_s <= lost_s + 65.0  # A request for assignments waits for up to 60 s.
        assert since_s < failed_s


@in_virtual_time
async def test_other_replies_do_not_delay_the_loss_of_contact_beyond_what_servers_grant() -> None:
    async with ACluster() as cluster:
        contact = ServerContact(cluster.world("node-1"))
        sent_s = now_s()
        contact.on_heartbeat_acknowledged(sent_s, MIN_TTL_S)

        await pass_time(3 * MIN_TTL_S)
        contact.on_reply()
        contact.on_failure()

        assert contact.get_lost_since_s() == sent_s + MIN_TTL_S + max(MIN_UNANSWERED_S, MIN_TTL_S * UNANSWERED_PART)
        assert MIN_TTL_S * UNANSWERED_PART < LONG_TTLS.compute_grace_s(MIN_TTL_S)
