"""The fake nodes of one process: how many start at once, and how they return after an outage."""

import asyncio
import itertools
import logging
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.requests import commit
from tests.kit.settings import USUAL_HEARTBEATS
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.state.tables import ALLOCATIONS, CLUSTER_FORMAT, NODES
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest, Unreachable
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.log import Batch
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import SECOND
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_fleet import MAX_CONCURRENT_REQUESTS, MAX_START_S, MAX_STARTING_NODES, NODES_PER_CLIENT, FakeFleet
from wharf.node.fake_node import FakeMachine

REQUEST_S = 0.5


class SlowExchange(InMemoryTransport):
    """A transport whose requests take `REQUEST_S`. Records when each began, and how many were open at the same time."""

    def __init__(self, server: OneServer, open_requests: Counter[str]) -> None:
        super().__init__(server.api)
        self._open = open_requests
        self.request_s = REQUEST_S
        self.began_s: list[float] = []
        self.heartbeat_times_s: list[float] = []
        self.poll_times_s: list[float] = []
        self.sent_heartbeats = 0
        self._failing = asyncio.Event()

    def fail_waiting_polls(self) -> None:
        """End all blocking queries that wait now, as if their connections were cut."""
        self._failing.set()
        self._failing = asyncio.Event()

    async def _send_poll(self, request: ClientRequest) -> ClientReply:
        self.poll_times_s.append(now_s())
        failing = asyncio.ensure_future(self._failing.wait())
        sending = asyncio.ensure_future(super().send(request))
        try:
            await asyncio.wait([failing, sending], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise Unreachable("the connection was cut", is_sent=True)
            return await sending
        finally:
            failing.cancel()
            sending.cancel()
            await asyncio.gather(failing, sending, return_exceptions=True)

    async def send(self, request: ClientRequest) -> ClientReply:
        is_blocking = any(name == "index" for name, _ in request.query)
        kind = "blocking" if is_blocking else "registration" if request.path.endswith("/register") else "other"
        self.began_s.append(now_s())
        if request.path.endswith("/heartbeat"):
            self.sent_heartbeats += 1
            self.heartbeat_times_s.append(now_s())
        self._open[kind] += 1
        self._open[f"most {kind}"] = max(self._open[f"most {kind}"], self._open[kind])
        try:
            if is_blocking:
                return await self._send_poll(request)
            await pass_time(self.request_s)
            return await super().send(request)
        finally:
            self._open[kind] -= 1


class AFleet:
    """A fleet of fake nodes, and what it sent."""

    def __init__(self, cluster: ACluster, server: OneServer, count: int) -> None:
        self._server = server
        self._world = world = cluster.world("fleet")
        self.exchanges: list[SlowExchange] = []
        self.clients: list[AsyncClient] = []
        self.open_requests: Counter[str] = Counter()
        members = [
            (FakeMachine(name=f"node-{number}"), NodeCredentials(world.new_id(), world.new_secret()))
            for number in range(count)
        ]
        self.fleet = FakeFleet(world, self._create_client, members)
        cluster.start(self.fleet.run(), name="fleet")

    def _create_client(self) -> AsyncClient:
        self.exchanges.append(SlowExchange(self._server, self.open_requests))
        self.clients.append(AsyncClient(self._world, [self.exchanges[-1]], retry_policy=NO_RETRIES))
        return self.clients[-1]

    @property
    def ready_count(self) -> int:
        return sum(node.status is NodeStatus.READY for node in self._server.replica.iter_all(NODES))


@in_virtual_time
async def test_a_fleet_starts_a_few_nodes_at_a_time_until_all_are_ready() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        fleet = AFleet(cluster, server, 200)
        await until(lambda: fleet.ready_count == 200, what="all are ready", within_s=60.0)

        assert fleet.open_requests["most registration"] == MAX_STARTING_NODES


@in_virtual_time
async def test_fake_nodes_share_connections_in_small_groups() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        fleet = AFleet(cluster, server, 2 * NODES_PER_CLIENT + 1)
        await pass_time(10.0)

        assert len(fleet.exchanges) == 3
        assert all(exchange.sent for exchange in fleet.exchanges)


@in_virtual_time
async def test_nodes_that_cannot_register_do_not_keep_others_from_starting() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        fleet = AFleet(cluster, server, 2 * MAX_STARTING_NODES)
        fleet.exchanges[0].is_away = True  # The first group of nodes reaches no server.

        waiting = 2 * MAX_STARTING_NODES - NODES_PER_CLIENT
        await until(lambda: fleet.ready_count == waiting, what="the others are ready", within_s=3 * MAX_START_S)

        fleet.exchanges[0].is_away = False
        await until(lambda: fleet.ready_count == 2 * MAX_STARTING_NODES, what="all are ready", within_s=30.0)


@in_virtual_time
async def test_after_an_outage_the_fleet_returns_spread_over_time_and_sends_few_requests_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        fleet = AFleet(cluster, server, 150)
        await until(lambda: fleet.ready_count == 150, what="all are ready", within_s=60.0)
        for exchange in fleet.exchanges:
            exchange.is_away = True
            exchange.began_s.clear()
        await pass_time(8.0)

        for exchange in fleet.exchanges:
            exchange.is_away = False
        await pass_time(60.0)

        attempts = [at_s for exchange in fleet.exchanges for at_s in exchange.began_s]
        per_half_second = Counter(int(at_s / REQUEST_S) for at_s in attempts)
        assert max(per_half_second.values()) <= 2 * MAX_CONCURRENT_REQUESTS
        assert fleet.open_requests["most other"] <= MAX_CONCURRENT_REQUESTS
        assert fleet.ready_count == 150


@in_virtual_time
async def test_nodes_without_a_server_try_less_often_the_longer_it_is_away() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        fleet = AFleet(cluster, server, 1)
        (exchange,) = fleet.exchanges
        exchange.is_away = True

        await pass_time(120.0)

        pauses_s = [after - before for before, after in zip(exchange.began_s, exchange.began_s[1:], strict=False)]
        assert pauses_s[0] <= 0.5 + REQUEST_S
        assert min(pauses_s[6:]) >= 5.0
        assert max(pauses_s) <= 10.0 + REQUEST_S
        assert len(set(pauses_s)) == len(pauses_s)


def test_one_outage_is_logged_once_for_each_node(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def lose_the_server() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            fleet = AFleet(cluster, server, 1)
            await until(lambda: fleet.ready_count == 1, what="it is ready")
            fleet.exchanges[0].is_away = True
            await pass_time(60.0)

    with caplog.at_level(logging.WARNING):
        lose_the_server()

    failures = [record for record in caplog.records if record.msg.startswith("heartbeat failed")]
    assert len(failures) == 1


@pytest.mark.parametrize(("heartbeats_per_s", "min_spread_s", "max_spread_s"), [(100.0, 0.0, 2.5), (0.1, 8.0, 31.0)])
def test_nodes_of_a_large_fleet_request_assignments_again_over_a_longer_time(
    heartbeats_per_s: float, min_spread_s: float, max_spread_s: float
) -> None:
    """A low rate of heartbeats gives a few nodes the TTL of a large fleet."""
    spreads_s: list[float] = []

    @in_virtual_time
    async def cut_connections() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(heartbeats=replace(USUAL_HEARTBEATS, max_per_second=heartbeats_per_s))
            fleet = AFleet(cluster, server, 40)
            await until(lambda: fleet.ready_count == 40, what="all are ready", within_s=60.0)
            await pass_time(5.0)
            for exchange in fleet.exchanges:
                exchange.fail_waiting_polls()
            cut_s = now_s()
            await pass_time(max_spread_s + REQUEST_S)
            polls_s = [at_s - cut_s for exchange in fleet.exchanges for at_s in exchange.poll_times_s if at_s > cut_s]
            assert len(polls_s) >= 40
            spreads_s.append(sorted(polls_s)[39])

    cut_connections()

    assert min_spread_s <= spreads_s[0] <= max_spread_s


@in_virtual_time
async def test_cut_connections_and_a_new_leader_change_no_node_and_no_allocation() -> None:
    """The short version of `tests/faults/test_storms.py`."""
    async with ACluster() as cluster:
        first, second = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
        fleet = AFleet(cluster, first, 60)
        await until(lambda: fleet.ready_count == 60, what="all are ready", within_s=60.0)
        task = a_task(driver="mock", resources=some_resources(cpu=100, memory_mb=100))
        await first.client.jobs.register(a_job("shop", a_group("web", task, count=240)))
        await until(lambda: count_running(first) == 240, what="all allocations run", within_s=60.0)
        before = {each.id: each.node_id for each in first.replica.iter_all(ALLOCATIONS)}

        for exchange in fleet.exchanges:
            exchange.fail_waiting_polls()
        await second.lead()
        await pass_time(400.0)  # Longer than a new leader waits for the first heartbeat of a node.

        assert {each.id: each.node_id for each in first.replica.iter_all(ALLOCATIONS)} == before
        assert count_running(first) == 240
        assert {node.status for node in first.replica.iter_all(NODES)} == {NodeStatus.READY}
        assert {node.last_missed_heartbeat_index for node in first.replica.iter_all(NODES)} == {0}


FLEET = 30
"""The number of nodes in tests with the long TTLs of a large fleet. A low maximum rate of heartbeats causes such TTLs."""


def make_settings_of_fleet(size: int, *, failover_ttl_s: float = 300.0) -> HeartbeatSettings:
    """Return the settings that give `FLEET` nodes the TTLs of `size` nodes with the default settings."""
    default = replace(USUAL_HEARTBEATS, failover_ttl_s=failover_ttl_s)
    return msgspec.structs.replace(default, max_per_second=FLEET * default.max_per_second / size)


async def start_fleet_with_long_ttls(cluster: ACluster, server: OneServer, size: int) -> None:
    """Start `FLEET` nodes and wait until each has the TTL of a fleet of `size`."""
    fleet = AFleet(cluster, server, FLEET)
    await until(lambda: fleet.ready_count == FLEET, what="all are ready", within_s=60.0)
    await pass_time(3 * size / 50.0)


async def assert_no_heartbeat_is_missed(server: OneServer, size: int) -> None:
    """Wait longer than the longest TTL and grace of a fleet of `size`. No node may be down meanwhile."""
    down: set[str] = set()

    def record_down_nodes(_batch: Batch, _changes: object) -> None:
        down.update(node.id for node in server.replica.iter_all(NODES) if node.status is NodeStatus.DOWN)

    server.server.follower.change_listeners.append(record_down_nodes)
    await pass_time(4 * size / 50.0)
    assert down == set()


def get_longest_ttl_s(server: OneServer) -> float:
    """Return the longest TTL that the cluster has stored."""
    stored = server.replica.get(CLUSTER_FORMAT)
    assert stored is not None
    return stored.longest_heartbeat_ttl / SECOND


@pytest.mark.parametrize("size", [750, 5_000, 10_000, 15_000])
def test_a_new_leader_of_a_large_fleet_waits_for_the_heartbeat_of_every_node(size: int) -> None:
    @in_virtual_time
    async def change_the_leader() -> None:
        async with ACluster() as cluster:
            settings = make_settings_of_fleet(size, failover_ttl_s=30.0 if size == 750 else 300.0)
            first = await cluster.a_server("m1", heartbeats=settings)
            second = await cluster.a_server("m2", leads=False, heartbeats=settings)
            await start_fleet_with_long_ttls(cluster, first, size)

            await second.lead()

            await assert_no_heartbeat_is_missed(second, size)

    change_the_leader()


@in_virtual_time
async def test_a_new_leader_with_a_higher_rate_of_heartbeats_waits_for_the_ttls_of_the_former_one() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", heartbeats=make_settings_of_fleet(10_000))
        second = await cluster.a_server("m2", leads=False, heartbeats=USUAL_HEARTBEATS)
        await start_fleet_with_long_ttls(cluster, first, 10_000)

        await second.lead()

        await assert_no_heartbeat_is_missed(second, 10_000)


@in_virtual_time
async def test_a_new_leader_waits_for_the_ttls_of_nodes_that_were_deleted_since() -> None:
    async with ACluster() as cluster:
        settings = make_settings_of_fleet(10_000)
        first = await cluster.a_server("m1", heartbeats=settings)
        second = await cluster.a_server("m2", leads=False, heartbeats=settings)
        await start_fleet_with_long_ttls(cluster, first, 10_000)
        nodes = list(first.replica.iter_all(NODES))

        for node in nodes[FLEET // 2 :]:
            first.brain.node_monitor.remove(node.id)
            await commit(first, NODES.build_delete(node.id))
        await second.lead()

        await assert_no_heartbeat_is_missed(second, 10_000)


@in_virtual_time
async def test_after_a_restore_every_server_waits_for_the_ttls_of_the_fleet_before_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=make_settings_of_fleet(10_000))
        copy_of_empty = cluster.log.make_copy()
        await start_fleet_with_long_ttls(cluster, server, 10_000)
        assert get_longest_ttl_s(server) >= 400.0

        cluster.log.restore_copy(copy_of_empty)
        server.election.allow_campaign()
        await until(lambda: server.replica.epoch == 1, what="the replica has the new epoch")
        await until(lambda: server.brain.is_leading, what="the server leads again")
        await pass_time(5.0)

        assert get_longest_ttl_s(server) >= 400.0


@in_virtual_time
async def test_a_longest_ttl_that_a_smaller_fleet_no_longer_needs_is_lowered_later() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", heartbeats=make_settings_of_fleet(10_000))
        second = await cluster.a_server("m2", leads=False, heartbeats=USUAL_HEARTBEATS)
        await start_fleet_with_long_ttls(cluster, first, 10_000)

        await second.lead()
        await pass_time(400.0)
        ttl_while_needed_s = get_longest_ttl_s(second)
        await pass_time(400.0)

        assert ttl_while_needed_s >= 400.0
        assert get_longest_ttl_s(second) == 0.0


@in_virtual_time
async def test_a_node_counts_its_ttl_from_the_time_at_which_it_sent_the_heartbeat() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=replace(USUAL_HEARTBEATS, min_ttl_s=10.0))
        fleet = AFleet(cluster, server, 1)
        await until(lambda: fleet.ready_count == 1, what="it is ready")
        fleet.exchanges[0].request_s = 8.0  # Each reply takes this long.

        await pass_time(600.0)

        times_s = fleet.exchanges[0].heartbeat_times_s[2:]
        pauses_s = [after - before for before, after in itertools.pairwise(times_s)]
        assert max(pauses_s) <= 20.0  # The longest TTL.
        assert min(pauses_s) >= 8.0


@pytest.mark.parametrize(("heartbeats_per_s", "part_s", "spread_s"), [(100.0, 2.5, 1.0), (0.01, 5.0, 10.0)])
def test_a_node_of_a_large_fleet_waits_longer_for_a_slow_server_and_before_it_opens_its_channel_again(
    heartbeats_per_s: float, part_s: float, spread_s: float
) -> None:
    @in_virtual_time
    async def start() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(heartbeats=replace(USUAL_HEARTBEATS, max_per_second=heartbeats_per_s))
            fleet = AFleet(cluster, server, 1)
            await until(lambda: fleet.ready_count == 1, what="it is ready", within_s=60.0)
            await pass_time(1.0)

            servers = fleet.clients[0].servers
            assert part_s <= servers.max_part_s <= 2 * part_s
            assert spread_s <= servers.return_spread_s <= 2 * spread_s

    start()


def count_running(server: OneServer) -> int:
    return sum(each.client_status is ClientStatus.RUNNING for each in server.replica.iter_all(ALLOCATIONS))


@pytest.mark.parametrize(
    ("heartbeats_per_s", "longest_ttl_s", "least", "most"), [(100.0, 20.0, 20, 60), (0.01, 1_000.0, 2, 9)]
)
def test_nodes_with_long_ttls_repeat_failed_heartbeats_less_often(
    heartbeats_per_s: float, longest_ttl_s: float, least: int, most: int
) -> None:
    counts: list[float] = []

    @in_virtual_time
    async def lose_the_server() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(heartbeats=replace(USUAL_HEARTBEATS, max_per_second=heartbeats_per_s))
            fleet = AFleet(cluster, server, 5)
            await until(lambda: fleet.ready_count == 5, what="all are ready", within_s=60.0)
            await pass_time(longest_ttl_s)  # Now every node has a TTL for the whole fleet.
            for exchange in fleet.exchanges:
                exchange.is_away = True
            await pass_time(1.1 * longest_ttl_s)  # By now, the heartbeat of each node has failed.
            for exchange in fleet.exchanges:
                exchange.sent_heartbeats = 0
            await pass_time(100.0)
            counts.append(sum(exchange.sent_heartbeats for exchange in fleet.exchanges) / 5)

    lose_the_server()

    assert least <= counts[0] <= most
