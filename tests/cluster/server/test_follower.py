"""The follower keeps the replica up to date across connection failures."""

import asyncio
import itertools
import logging
from collections.abc import Iterator

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.engines.memory.faults import CancelWatchFault, EngineOperation, Fault, end_feed_and_refuse
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT, NAMESPACES
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import Refusal, RefusalCode

CAUSE = Cause(CauseKind.REQUEST, "test")


async def store_namespace(server: OneServer, text: str) -> int:
    write = Write("named", CAUSE, [NAMESPACES.build_put(Namespace(name=text, create_index=WRITE_INDEX))])
    outcome = await server.server.writer.commit(write)
    return outcome.index  # type: ignore[union-attr]  # without conditions there is no conflict


@in_virtual_time
async def test_a_canceled_log_feed_is_resumed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        faults = iter([CancelWatchFault(), CancelWatchFault()])

        def decide(requested: EngineOperation) -> Fault | None:
            return next(faults, None) if requested is EngineOperation.FEED else None

        server.faults.choose_fault = decide

        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)

        assert server.replica.get(NAMESPACES, "a") is not None


@in_virtual_time
async def test_a_replica_behind_the_compacted_log_reloads_and_wakes_waiters() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", leads=False)
        late_member = await cluster.a_server("m2", leads=False)
        woken = asyncio.Event()
        subscription = late_member.replica.watches.subscribe([watch.watch_key(NAMESPACES, "a")], woken.set)
        late_member.faults.disconnect()
        await pass_time(0.2)

        index = await store_namespace(server, "a")
        cluster.log.compact(index + 1)
        late_member.faults.reconnect()
        await late_member.server.follower.wait_until_applied(index)
        await woken.wait()

        assert late_member.replica.get(NAMESPACES, "a") is not None
        subscription.close()


@in_virtual_time
async def test_what_depends_on_a_loaded_state_is_prepared_before_the_replica_has_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", leads=False)
        late_member = await cluster.a_server("m2", leads=False)
        follower, replica = late_member.server.follower, late_member.replica
        names: list[tuple[str, bool, bool]] = []

        def prepare(loaded: Replica) -> Iterator[None]:
            for step in ("first step", "second step"):
                names.append((step, has_name(loaded), has_name(replica)))
                yield

        follower.load_preparers.append(prepare)
        follower.load_listeners.append(lambda: names.append(("loaded", True, has_name(replica))))
        late_member.faults.disconnect()
        await pass_time(0.2)
        index = await store_namespace(server, "a")
        cluster.log.compact(index + 1)
        late_member.faults.reconnect()
        await follower.wait_until_applied(index)

        assert names == [("first step", True, False), ("second step", True, False), ("loaded", True, True)]


def has_name(replica: Replica) -> bool:
    return replica.get(NAMESPACES, "a") is not None


@in_virtual_time
async def test_a_broken_log_connection_is_retried_less_and_less_often() -> None:
    async with ACluster() as cluster:
        writing = await cluster.a_server("m1", leads=False)
        server = await cluster.a_server("m2", leads=False)
        tries: list[float] = []

        def refuse(requested: EngineOperation) -> Fault:
            if requested is EngineOperation.BARRIER:
                tries.append(now_s())
            return end_feed_and_refuse(requested)

        server.faults.choose_fault = refuse
        await store_namespace(writing, "a")
        await pass_time(20.0)

        pauses_s = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert pauses_s[0] < 0.1
        assert 0.25 <= max(pauses_s) < 0.6
        assert len(tries) < 80


@in_virtual_time
async def test_an_unreachable_log_and_its_return_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        caplog.set_level(logging.INFO, "wharf.cluster.server.log.follower")

        for _ in range(2):
            server.faults.disconnect()
            cluster.log.wake_waiters()
            await pass_time(20.0)
            server.faults.reconnect()
            await pass_time(5.0)

        records = [record for record in caplog.records if record.name == "wharf.cluster.server.log.follower"]
        result = [record.getMessage().partition(" reason=")[0] for record in records]
        assert result == ["log unavailable, will retry", "log is available again"] * 2


@in_virtual_time
async def test_a_waiter_for_an_index_fails_when_the_replica_cannot_continue() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        waiting = cluster.world("m").start_task(server.server.follower.wait_until_applied(1_000), name="waits")
        newer = RecordFormat(version=NEWEST_FORMAT + 1, create_index=WRITE_INDEX)

        await server.server.writer.commit(Write("raised", CAUSE, [CLUSTER_FORMAT.build_put(newer)]))
        with pytest.raises(Refusal, match="can no longer follow the log") as caught:
            await waiting
        with pytest.raises(Refusal):
            await server.server.follower.wait_until_applied(2_000)

        assert caught.value.code is RefusalCode.UNAVAILABLE
        cluster.expect_failure("m1 follows")


@in_virtual_time
async def test_a_canceled_waiter_for_an_index_leaves_nothing_behind() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        for number in range(10):
            waiting = cluster.world("m").start_task(
                server.server.follower.wait_until_applied(1_000 + number), name="waits"
            )
            await pass_time(0)
            await pass_time(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

        assert server.server.follower.waiter_count == 0


@in_virtual_time
async def test_a_write_is_found_by_its_id_for_a_while() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        batch = cluster.log.find_next_batch(index - 1, cluster.log.epoch)
        assert batch is not None

        assert server.server.follower.find_write_index(batch.id) == index
        assert server.server.follower.find_write_index("nobody's") is None


@in_virtual_time
async def test_a_cluster_is_bootstrapped_once() -> None:
    async with ACluster() as cluster:
        servers = [OneServer(cluster, f"m{number}") for number in range(3)]
        for member in servers:
            cluster.servers[member.name] = member
            await member.follow()

        await asyncio.gather(*(member.server.bootstrap_cluster() for member in servers))

        formats = [member.replica.get(CLUSTER_FORMAT) for member in servers]
        assert [f is not None and f.create_index for f in formats] == [1, 1, 1]


@in_virtual_time
async def test_a_log_with_member_records_only_is_bootstrapped() -> None:
    async with ACluster() as cluster:
        member = cluster.servers["m1"] = OneServer(cluster, "m1")
        await member.follow()
        await store_namespace(member, "early")

        await member.server.bootstrap_cluster()

        await until(lambda: member.replica.get(CLUSTER_FORMAT) is not None, what="the cluster is bootstrapped")
