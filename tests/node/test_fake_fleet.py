"""The fake nodes of one process: how many start at once, and how they return after an outage."""

import logging
from collections import Counter

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.state.tables import NODES
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest
from wharf.contract.model.nodes.node import NodeStatus
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_fleet import MAX_CONCURRENT_REQUESTS, MAX_START_S, MAX_STARTING_NODES, NODES_PER_CLIENT, FakeFleet
from wharf.node.fake_node import FakeMachine

REQUEST_S = 0.5


class SlowExchange(InMemoryTransport):
    """A transport whose requests take `REQUEST_S`. Records when each began, and how many were open at the same time."""

    def __init__(self, server: OneServer, open_requests: Counter[str]) -> None:
        super().__init__(server.api)
        self._open = open_requests
        self.began_s: list[float] = []

    async def send(self, request: ClientRequest) -> ClientReply:
        is_blocking = any(name == "index" for name, _ in request.query)
        kind = "blocking" if is_blocking else "registration" if request.path.endswith("/register") else "other"
        self.began_s.append(now_s())
        self._open[kind] += 1
        self._open[f"most {kind}"] = max(self._open[f"most {kind}"], self._open[kind])
        try:
            if not is_blocking:
                await pass_time(REQUEST_S)
            return await super().send(request)
        finally:
            self._open[kind] -= 1


class AFleet:
    """A fleet of fake nodes, and what it sent."""

    def __init__(self, cluster: ACluster, server: OneServer, count: int) -> None:
        self._server = server
        self._world = world = cluster.world("fleet")
        self.exchanges: list[SlowExchange] = []
        self.open_requests: Counter[str] = Counter()
        members = [
            (FakeMachine(name=f"node-{number}"), NodeCredentials(world.new_id(), world.new_secret()))
            for number in range(count)
        ]
        self.fleet = FakeFleet(world, self._create_client, members)
        cluster.start(self.fleet.run(), name="fleet")

    def _create_client(self) -> AsyncClient:
        self.exchanges.append(SlowExchange(self._server, self.open_requests))
        return AsyncClient(self._world, [self.exchanges[-1]], retry_policy=NO_RETRIES)

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
