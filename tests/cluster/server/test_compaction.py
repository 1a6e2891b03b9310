"""Log compaction by the leader; followers that were disconnected for a short time need not reload."""

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.engines.port import FollowerBehind
from wharf.cluster.server.log.compaction import LogCompactor
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace


async def store_namespace(server: OneServer, text: str, description: str = "") -> int:
    write = Write(
        "named",
        Cause(CauseKind.REQUEST, "test"),
        [NAMESPACES.build_put(Namespace(name=text, description=description, create_index=WRITE_INDEX))],
    )
    outcome = await server.server.writer.commit(write)
    index: int = outcome.index  # type: ignore[union-attr]  # without conditions there is no conflict
    await server.server.follower.wait_until_applied(index)
    return index


def start_compacting(cluster: ACluster, server: OneServer, **limits: int) -> None:
    compactor = LogCompactor(server.world, server.engine, server.server.follower, server.brain, **limits)
    cluster.start(compactor.run(), name=f"{server.name} compacts")


@in_virtual_time
async def test_the_leader_compacts_batches_older_than_ten_minutes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        old = await store_namespace(server, "old")
        start_compacting(cluster, server)
        await pass_time(120)
        young = await store_namespace(server, "young")

        await pass_time(601)

        with pytest.raises(FollowerBehind):
            await anext(aiter(server.engine.follow(old - 2)))
        batch = await anext(aiter(server.engine.follow(young - 1)))
        assert batch.index == young


@in_virtual_time
async def test_a_server_that_does_not_lead_compacts_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", leads=False)
        first = await store_namespace(server, "first")
        start_compacting(cluster, server)

        await pass_time(1_200)

        batch = await anext(aiter(server.engine.follow(first - 1)))
        assert batch.index == first


@in_virtual_time
async def test_the_leader_compacts_the_oldest_batches_within_seconds_if_the_log_is_too_large() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        start_compacting(cluster, server, max_bytes=3_000_000)
        await pass_time(10)
        large = [await store_namespace(server, f"n{number}", "x" * 1_100_000) for number in range(6)]

        await pass_time(10)

        with pytest.raises(FollowerBehind):
            await anext(aiter(server.engine.follow(large[1] - 1)))
        batch = await anext(aiter(server.engine.follow(large[-1] - 1)))
        assert batch.index == large[-1]


@in_virtual_time
async def test_a_follower_that_missed_compacted_batches_loads_the_state() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        start_compacting(cluster, server, max_bytes=3_000_000)
        for number in range(6):
            await store_namespace(server, f"n{number}", "x" * 1_100_000)
        await pass_time(70)

        late = await cluster.a_server("m2", leads=False)

        assert late.replica.get(NAMESPACES, "n0") is not None
