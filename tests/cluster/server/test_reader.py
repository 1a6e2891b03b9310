"""Consistent, stale and blocking reads."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from simulation.loop import SimulatedLoop
from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import put
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation, Fault, choose_no_fault, end_feed_and_refuse
from wharf.cluster.server.log.reader import WOKEN_READS_PER_ITERATION, ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import JOBS, LEADER, NAMESPACES
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import Refusal, RefusalCode

CAUSE = Cause(CauseKind.REQUEST, "test")


def delay_feed(server: OneServer, delay_s: float) -> None:
    server.faults.choose_fault = lambda requested: (
        DelayFault(reply_s=delay_s) if requested is EngineOperation.FEED else None
    )


def read_namespace(text: str) -> Any:
    def read(replica: Replica) -> ReadResult:
        found = replica.get(NAMESPACES, text)
        index = found.modify_index if found is not None else replica.get_last_change(NAMESPACES)
        return ReadResult(found, index, [watch.watch_key(NAMESPACES, text)])

    return read


async def store_namespace(server: OneServer, text: str, description: str = "") -> int:
    record = Namespace(name=text, description=description, create_index=WRITE_INDEX)
    outcome = await server.server.writer.commit(Write("named", CAUSE, [NAMESPACES.build_put(record)]))
    return outcome.index  # type: ignore[union-attr]  # without conditions there is no conflict


# -- default and stale


@in_virtual_time
async def test_a_default_read_sees_every_write_that_another_server_acknowledged() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        delay_feed(second, 1.5)

        for number in range(5):
            await first.client.jobs.register(a_job(f"job-{number}"))
            listed = await second.client.jobs.list()
            assert len(listed.value) == number + 1


@in_virtual_time
async def test_a_stale_read_returns_at_once_with_the_local_state() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        delay_feed(second, 1.5)
        await first.client.jobs.register(a_job())
        began_s = now_s()

        listed = await second.client.jobs.list(stale=True)

        assert (listed.value, now_s() - began_s) == ([], 0.0)


@in_virtual_time
async def test_without_a_leader_a_default_read_waits_five_seconds_and_a_stale_one_works() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        began_s = now_s()

        with pytest.raises(Refusal, match="No cluster leader") as caught:
            await server.client.jobs.list()
        waited_s = now_s() - began_s
        stale = await server.client.jobs.list(stale=True)

        assert (caught.value.code, round(waited_s, 1)) == (RefusalCode.NO_LEADER, 5.0)
        assert server.exchange.replies[0].status == 500
        assert (stale.value, stale.is_leader_known) == ([], False)


@in_virtual_time
async def test_a_leader_that_is_elected_meanwhile_lets_the_read_through() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        reading = cluster.start(server.client.jobs.list(), name="reads")
        await pass_time(3.0)

        await server.lead()

        assert (await reading).value == []


@in_virtual_time
async def test_a_leader_that_is_elected_meanwhile_executes_an_operation_that_came_before() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        collecting = cluster.start(put(server, "/v1/system/gc"), name="collects")
        await pass_time(3.0)
        assert not collecting.done()

        await server.lead()

        assert (await collecting).status == 200


@in_virtual_time
async def test_without_a_leader_an_operation_of_the_leader_is_refused_after_five_seconds() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        began_s = now_s()

        reply = await put(server, "/v1/system/gc")

        assert (reply.status, reply.body, round(now_s() - began_s, 1)) == (500, b"No cluster leader", 5.0)


@in_virtual_time
async def test_without_a_leader_a_write_that_needs_none_does_not_wait() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        began_s = now_s()

        await server.client.jobs.register(a_job())

        assert now_s() - began_s < 0.1


@in_virtual_time
async def test_a_read_waits_five_seconds_for_an_unreachable_log() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.disconnect()
        began_s = now_s()

        with pytest.raises(Refusal, match="No cluster leader"):
            await server.client.jobs.list()

        assert round(now_s() - began_s, 1) == 5.0


@in_virtual_time
async def test_a_read_waits_less_for_a_log_that_has_been_unreachable_for_a_while() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.disconnect()
        await pass_time(11.0)
        waits_s = []

        for _ in range(2):
            began_s = now_s()
            with pytest.raises(
                Refusal, match=r"the store has not replied since .*: the log in memory cannot be reached"
            ):
                await server.client.jobs.list()
            waits_s.append(round(now_s() - began_s, 1))
        server.faults.reconnect()

        assert waits_s == [5.0, 1.5]  # The first read finds out the reason.
        assert (await server.client.jobs.list()).value == []


@in_virtual_time
async def test_a_short_log_outage_is_not_reported() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.disconnect()
        reading = cluster.start(server.client.jobs.list(), name="reads")
        await pass_time(2.0)

        server.faults.reconnect()

        assert (await reading).value == []


@in_virtual_time
async def test_a_read_is_answered_within_a_second_after_a_long_log_outage() -> None:
    async with ACluster() as cluster:
        writing = await cluster.a_server("m1")
        reading = await cluster.a_server("m2", leads=False)
        took_s = []
        for number in range(8):
            reading.faults.choose_fault = end_feed_and_refuse
            await store_namespace(writing, f"n{number}")
            await pass_time(30.0 + number)

            reading.faults.choose_fault = choose_no_fault
            began_s = now_s()
            await reading.server.reader.catch_up()
            took_s.append(now_s() - began_s)

        assert max(took_s) < 1.0


@in_virtual_time
async def test_a_stale_reply_has_the_age_of_the_last_contact() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.engine.get_last_contact_s()
        server.faults.disconnect()
        await pass_time(8.0)

        stale = await server.client.jobs.list(stale=True)

        assert stale.last_contact_ms >= 7_500
        assert not stale.is_leader_known


@in_virtual_time
async def test_a_thousand_reads_at_once_pass_at_most_two_barriers() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        barriers = 0

        def count(requested: EngineOperation) -> Fault | None:
            nonlocal barriers
            barriers += requested is EngineOperation.BARRIER
            return DelayFault(reply_s=0.1) if requested is EngineOperation.BARRIER else None

        server.faults.choose_fault = count

        await asyncio.gather(*(server.server.reader.catch_up() for _ in range(1_000)))

        assert 1 <= barriers <= 2


@in_virtual_time
async def test_a_read_does_not_use_a_barrier_that_started_before_it() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda requested: (
            DelayFault(reply_s=1.0) if requested is EngineOperation.BARRIER else None
        )
        early = cluster.start(second.server.reader.catch_up(), name="early")
        await pass_time(0.5)

        await first.client.jobs.register(a_job())
        second.faults.choose_fault = lambda requested: (
            DelayFault(reply_s=0.7) if requested is EngineOperation.FEED else None
        )
        late = await second.client.jobs.list()
        await early

        assert [job.id for job in late.value] == ["shop"]


@in_virtual_time
async def test_a_canceled_read_leaves_no_unhandled_error() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.choose_fault = lambda requested: (
            DelayFault(reply_s=1.0) if requested is EngineOperation.BARRIER else None
        )
        reading = cluster.start(server.server.reader.catch_up(), name="reads")
        await pass_time(0.5)
        server.faults.disconnect()

        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await pass_time(5.0)

        assert reading.cancelled()


# -- blocking


async def read_blocking(server: OneServer, read: Any, index: int, wait_s: float = 60.0) -> ReadResult:
    return await server.server.reader.read_blocking(read, index=index, wait_s=wait_s)


@in_virtual_time
async def test_a_result_above_the_index_is_returned_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        began_s = now_s()

        found = await read_blocking(server, read_namespace("a"), index - 1)

        assert (found.index, now_s()) == (index, began_s)


@in_virtual_time
async def test_at_the_timeout_the_current_result_is_returned() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        began_s = now_s()

        found = await read_blocking(server, read_namespace("a"), index, wait_s=7.0)

        assert (found.index, now_s() - began_s) == (index, 7.0)


@in_virtual_time
async def test_a_reader_is_woken_only_by_changes_of_what_it_reads() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        reads = 0
        inner = read_namespace("a")

        def count_and_read(replica: Replica) -> ReadResult:
            nonlocal reads
            reads += 1
            found: ReadResult = inner(replica)
            return found

        waiting = cluster.start(read_blocking(server, count_and_read, index), name="waits")
        await pass_time(1.0)
        reads_before = reads
        await server.server.follower.wait_until_applied(await store_namespace(server, "b"))
        await pass_time(1.0)
        assert (reads, waiting.done()) == (reads_before, False)

        changed = await store_namespace(server, "a", "told")

        assert (await waiting).index == changed


@in_virtual_time
async def test_a_replica_that_is_behind_never_returns_a_lower_index() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", leads=False)
        second = await cluster.a_server("m2", leads=False)
        delay_feed(second, 3.0)
        index = await store_namespace(first, "a", "one")

        waiting = cluster.start(read_blocking(second, read_namespace("a"), index), name="waits")
        await pass_time(4.0)
        assert not waiting.done()
        newer = await store_namespace(first, "a", "two")

        assert (await waiting).index == newer


async def count_woken_reads(count: int) -> list[int]:
    """Let one write wake blocking queries. Return how many read in each iteration of the loop."""
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        reads, inner = 0, read_namespace("a")

        def count_and_read(replica: Replica) -> ReadResult:
            nonlocal reads
            reads += 1
            found: ReadResult = inner(replica)
            return found

        waiting = [cluster.start(read_blocking(server, count_and_read, index), name="waits") for _ in range(count)]
        await pass_time(1.0)
        writing = cluster.start(store_namespace(server, "a", "told"), name="writes")
        counts: list[int] = []
        while not (writing.done() and all(each.done() for each in waiting)):
            reads_before = reads
            await asyncio.sleep(0)
            counts.append(reads - reads_before)
        assert {(await each).index for each in waiting} == {await writing}
        return counts


def test_of_the_blocking_queries_that_one_write_wakes_only_some_read_in_each_iteration_of_the_loop() -> None:
    loop = SimulatedLoop(1, is_shuffled=False)

    counts: list[int] = loop.run_until_complete(count_woken_reads(500))

    assert (sum(counts), max(counts)) == (500, WOKEN_READS_PER_ITERATION)


@in_virtual_time
async def test_a_replica_that_stays_behind_refuses_the_read() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", leads=False)
        second = await cluster.a_server("m2", leads=False)
        delay_feed(second, 50.0)
        index = await store_namespace(first, "a")

        with pytest.raises(Refusal, match=f"behind requested index {index}") as caught:
            await read_blocking(second, read_namespace("a"), index, wait_s=5.0)

        assert caught.value.code is RefusalCode.UNAVAILABLE


@in_virtual_time
async def test_a_read_of_a_missing_record_waits_until_it_is_created() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("other"))
        await pass_time(1.0)  # The job status is corrected shortly after the registration.
        index = server.replica.get_last_change(JOBS)

        waiting = cluster.start(server.client.jobs.read("shop", index=index, wait_s=60.0), name="waits")
        await pass_time(1.0)
        await server.client.jobs.register(a_job("third"))
        await pass_time(1.0)
        assert (waiting.done(), server.replica.get_last_change(JOBS) > index) == (False, True)
        await server.client.jobs.register(a_job("shop"))

        assert (await waiting).value.id == "shop"


@in_virtual_time
async def test_a_missing_record_is_404_with_an_index_at_the_timeout() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = server.replica.get_last_change(JOBS)

        with pytest.raises(Refusal, match="job not found"):
            await server.client.jobs.read("shop", index=index, wait_s=3.0)

        reply = server.exchange.replies[-1]
        assert (reply.status, int(reply.headers["x-cluster-index"]) >= 1) == (404, True)


@in_virtual_time
async def test_a_change_between_two_queries_is_not_missed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        observed = [await store_namespace(server, "a")]
        await server.server.follower.wait_until_applied(observed[0])
        last = 0

        async def follow() -> None:
            index = observed[0]
            while index < last or not last:
                found = await read_blocking(server, read_namespace("a"), index)
                index = found.index
                observed.append(index)

        following = cluster.start(follow(), name="follows")
        written = [await store_namespace(server, "a", str(number)) for number in range(50)]
        last = written[-1]
        await following

        assert observed == sorted(observed)
        assert observed[-1] == last


@in_virtual_time
async def test_closing_ends_all_waiting_reads_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        waiting = [cluster.start(read_blocking(server, read_namespace("a"), index), name="waits") for _ in range(20)]
        leaderless = cluster.start(server.server.reader.catch_up(), name="leaderless")
        await pass_time(1.0)
        began_s = now_s()

        server.server.reader.close()
        found = await asyncio.gather(*waiting)
        ended = await asyncio.gather(leaderless, return_exceptions=True)

        assert [each.index for each in found] == [index] * 20
        assert isinstance(ended[0], Refusal)
        assert now_s() - began_s <= 0.1
        cluster.expect_failure("leaderless")


@in_virtual_time
async def test_a_canceled_caller_leaves_no_watch_behind() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        index = await store_namespace(server, "a")
        await server.server.follower.wait_until_applied(index)
        to_call: list[Callable[[], None]] = []
        reader = server.server.reader
        waiting = cluster.start(
            reader.read_blocking(read_namespace("a"), index=index, wait_s=60.0, on_wait=to_call.append),
            name="waits",
        )
        await pass_time(1.0)
        assert server.replica.watches.subscription_count == 1

        for hang_up in to_call:
            hang_up()
        await waiting

        assert server.replica.watches.subscription_count == 0


@in_virtual_time
async def test_without_a_leader_record_no_leader_is_known() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        assert server.server.reader.has_leader()

        outcome = await server.server.writer.commit(Write("gone", CAUSE, [LEADER.build_delete()]))
        await server.server.follower.wait_until_applied(outcome.index)  # type: ignore[union-attr]

        assert not server.server.reader.has_leader()
