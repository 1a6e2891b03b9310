"""The faults of the memory engine."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulation.loop import SimulatedLoop
from tests.cluster.engines.contract import a_write, commit, follow_to, load, put, records, unchanged, written
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.faults import (
    CancelWatchFault,
    CompactFault,
    CrashFault,
    DelayFault,
    DisconnectFault,
    EngineOperation,
    Fault,
    FaultInjector,
    LoseReplyFault,
    LoseRequestFault,
    RefuseFault,
)
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import (
    LEASE_ENDED_KIND,
    Committed,
    FollowerBehind,
    LogUnavailable,
    WriteOutcomeUnknown,
    WriteRejected,
)
from wharf.world import SimulatedWorld

TIMEOUT_S = 2.0


class FaultSetup:
    """A log, an engine with injected faults, and an engine without faults."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.world = SimulatedWorld(7, loop.time)
        self.log = MemoryLog(self.world)
        self.faults = FaultInjector()
        self.engine = MemoryEngine(self.world, self.log, faults=self.faults, timeout_s=TIMEOUT_S)
        self.healthy_engine = MemoryEngine(self.world, self.log)

    def inject(self, operation: EngineOperation, *faults: Fault) -> None:
        """Inject one of these faults into each of the next calls of this operation."""
        remaining = list(faults)
        self.faults.choose_fault = lambda called: remaining.pop(0) if called is operation and remaining else None


def run_in_virtual_time(scenario: Callable[[FaultSetup], Awaitable[None]], *, seed: int = 1) -> str:
    """Run a scenario in virtual time and return the fingerprint of the run."""
    loop = SimulatedLoop(seed)

    async def run_scenario() -> None:
        setup = FaultSetup(loop)
        await setup.engine.open()
        await setup.healthy_engine.open()
        await scenario(setup)
        await setup.engine.close()
        await setup.healthy_engine.close()

    try:
        loop.run_until_complete(run_scenario())
        return loop.fingerprint
    finally:
        loop.close()


def test_a_lost_reply_is_unknown_and_the_write_happened() -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.COMMIT, LoseReplyFault())
        write = a_write(put("a"))

        assert isinstance(await setup.engine.commit(write), WriteOutcomeUnknown)
        assert setup.loop.time() == TIMEOUT_S
        assert await setup.engine.find_write(write.id, since=0) == 1
        assert setup.faults.counts == {"lose-reply": 1}

    run_in_virtual_time(scenario)


def test_a_lost_request_is_unknown_and_the_write_never_happened() -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.COMMIT, LoseRequestFault())
        write = a_write(put("a"))

        assert isinstance(await setup.engine.commit(write), WriteOutcomeUnknown)
        assert await setup.engine.find_write(write.id, since=0) is None
        assert await records(setup.healthy_engine) == {}
        assert setup.faults.counts == {"lose-request": 1}

    run_in_virtual_time(scenario)


def test_a_refused_write_changes_nothing() -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.COMMIT, RefuseFault("no room"))

        assert await setup.engine.commit(a_write(put("a"))) == WriteRejected("no room")
        assert await records(setup.healthy_engine) == {}

    run_in_virtual_time(scenario)


def test_a_full_log_refuses_writes_and_serves_reads() -> None:
    async def scenario(setup: FaultSetup) -> None:
        await commit(setup.engine, put("a"))
        setup.log.full_reason = "the quota is used up"

        assert await setup.engine.commit(a_write(put("b"))) == WriteRejected("the quota is used up")
        assert await records(setup.engine) == {("jobs", "a"): b"data"}
        assert not (await setup.engine.read_health()).writable

    run_in_virtual_time(scenario)


def test_a_slow_request_is_decided_when_it_arrives() -> None:
    async def scenario(setup: FaultSetup) -> None:
        index = await commit(setup.healthy_engine, put("a"))
        setup.inject(EngineOperation.COMMIT, DelayFault(request_s=3.0, reply_s=4.0))
        slow = asyncio.ensure_future(setup.engine.commit(a_write(put("a"), conditions=[unchanged("a", index)])))
        await asyncio.sleep(1.0)
        await commit(setup.healthy_engine, put("a", b"quicker"))

        assert not isinstance(await slow, Committed)
        assert setup.loop.time() == 7.0
        assert await records(setup.healthy_engine) == {("jobs", "a"): b"quicker"}

    run_in_virtual_time(scenario)


def test_a_delayed_feed_arrives_complete() -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.FEED, DelayFault(request_s=5.0))
        indexes = [await commit(setup.healthy_engine, put(f"k{number}")) for number in range(3)]
        batches = await follow_to(setup.engine, after=0, index=indexes[-1])

        assert indexes == [batch.index for batch in batches]
        assert setup.loop.time() == 5.0

    run_in_virtual_time(scenario)


def test_a_cut_connection_is_unavailable_and_keeps_its_time_of_last_contact() -> None:
    async def scenario(setup: FaultSetup) -> None:
        index = await commit(setup.engine, put("a"))
        feed = setup.engine.follow(index)
        setup.faults.disconnect()
        contact_s = setup.engine.get_last_contact_s()
        await asyncio.sleep(10.0)

        for call in (setup.engine.barrier, setup.engine.read_health, lambda: load(setup.engine)):
            with pytest.raises(LogUnavailable):
                await call()
        with pytest.raises(LogUnavailable):
            await setup.engine.commit(a_write(put("b")))
        with pytest.raises(LogUnavailable):
            await anext(feed)
        assert setup.engine.get_last_contact_s() == contact_s
        setup.faults.reconnect()
        assert await setup.engine.barrier() == index
        assert setup.engine.get_last_contact_s() == setup.loop.time()

    run_in_virtual_time(scenario)


def test_an_engine_that_cannot_reach_its_log_is_not_opened() -> None:
    async def scenario(setup: FaultSetup) -> None:
        await setup.engine.close()
        for fault, reason in ((RefuseFault("not now"), "not now"), (LoseReplyFault(), "no reply came")):
            setup.inject(EngineOperation.OPEN, fault)
            with pytest.raises(LogUnavailable, match=reason):
                await setup.engine.open()
            with pytest.raises(LogUnavailable, match=reason):
                await setup.engine.barrier()
        await setup.engine.open()
        assert await setup.engine.barrier() == 0

    run_in_virtual_time(scenario)


def test_an_operation_of_an_earlier_session_fails_after_the_engine_is_opened_again() -> None:
    async def scenario(setup: FaultSetup) -> None:
        feed = setup.engine.follow(0)
        setup.inject(EngineOperation.COMMIT, DelayFault(reply_s=5.0))
        slow = asyncio.ensure_future(setup.engine.commit(a_write(put("a"))))
        await asyncio.sleep(1.0)
        await setup.engine.close()
        await setup.engine.open()

        assert isinstance(await slow, WriteOutcomeUnknown)
        with pytest.raises(LogUnavailable, match="the log in memory was opened again"):
            await anext(feed)
        assert await records(setup.engine) == {("jobs", "a"): b"data"}

    run_in_virtual_time(scenario)


def test_a_load_is_the_state_of_one_moment() -> None:
    async def scenario(setup: FaultSetup) -> None:
        engine = MemoryEngine(setup.world, setup.log, slice_rows=2)
        await engine.open()
        for number in range(5):
            await commit(engine, put(f"k{number}"))
        loading = engine.load()
        slices = loading.iter_slices()
        keys = [[row.key for row in await anext(slices)]]
        await commit(engine, put("later"))

        keys += [[row.key for row in rows] async for rows in slices]
        assert keys == [["k0", "k1"], ["k2", "k3"], ["k4"]]
        assert (await loading.get_position()).index == 5
        await engine.close()

    run_in_virtual_time(scenario)


def test_a_lease_is_renewed_three_times_in_its_time_to_live_and_more_often_after_a_failure() -> None:
    async def scenario(setup: FaultSetup) -> None:
        renewals: list[float] = []
        failures = [RefuseFault("not now")] * 2

        def note_renewals(operation: EngineOperation) -> Fault | None:
            if operation is not EngineOperation.KEEPALIVE:
                return None
            renewals.append(round(setup.loop.time(), 6))
            return failures.pop() if len(renewals) in (2, 3) else None

        setup.faults.choose_fault = note_renewals
        lease = await setup.engine.grant_lease(30.0)
        assert lease.get_valid_until_s() == 30.0
        await asyncio.sleep(47.0)

        assert renewals == [10.0, 20.0, 23.0, 26.0, 36.0, 46.0]
        assert lease.get_valid_until_s() == 76.0
        setup.log.revoke_lease(lease.id)
        await asyncio.sleep(60.0)
        assert renewals[6:] == [56.0]

    run_in_virtual_time(scenario)


def test_a_revoked_lease_is_not_renewed() -> None:
    async def scenario(setup: FaultSetup) -> None:
        lease, kept = await setup.engine.grant_lease(9.0), await setup.engine.grant_lease(9.0)
        await lease.revoke()

        assert lease.get_valid_until_s() == float("-inf")
        await asyncio.sleep(30.0)
        assert lease.get_valid_until_s() == float("-inf")
        assert kept.get_valid_until_s() > setup.loop.time()

    run_in_virtual_time(scenario)


def test_a_connection_cut_during_a_write_leaves_its_outcome_unknown() -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.COMMIT, DelayFault(request_s=1.0), DelayFault(reply_s=1.0))
        lost_write, answered_write = a_write(put("lost")), a_write(put("answered"))
        for write in (lost_write, answered_write):
            waiting = asyncio.ensure_future(setup.engine.commit(write))
            await asyncio.sleep(0.5)
            setup.faults.disconnect()
            assert isinstance(await waiting, WriteOutcomeUnknown)
            setup.faults.reconnect()

        assert await setup.engine.find_write(lost_write.id, since=0) is None
        assert await setup.engine.find_write(answered_write.id, since=0) is not None

    run_in_virtual_time(scenario)


def test_a_temporary_disconnection_ends_by_itself() -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.BARRIER, DisconnectFault(duration_s=30.0))
        with pytest.raises(LogUnavailable):
            await setup.engine.barrier()
        await asyncio.sleep(30.0)

        assert await setup.engine.barrier() == 0

    run_in_virtual_time(scenario)


@pytest.mark.parametrize(("after", "expected"), [(False, {}), (True, {("jobs", "a"): b"data"})])
def test_a_crash_happens_before_or_after_the_write(after: bool, expected: dict[tuple[str, str], bytes]) -> None:
    async def scenario(setup: FaultSetup) -> None:
        setup.inject(EngineOperation.COMMIT, CrashFault(is_after_operation=after))
        if after:
            assert isinstance(await setup.engine.commit(a_write(put("a"))), WriteOutcomeUnknown)
        else:
            with pytest.raises(LogUnavailable):
                await setup.engine.commit(a_write(put("a")))

        assert expected == await records(setup.healthy_engine)
        with pytest.raises(LogUnavailable):
            await setup.engine.barrier()
        await setup.engine.open()
        assert expected == await records(setup.engine)

    run_in_virtual_time(scenario)


def test_a_crash_ends_feeds_and_leases_expire() -> None:
    async def scenario(setup: FaultSetup) -> None:
        lease = await setup.engine.grant_lease(9.0)
        index = await commit(setup.engine, put("m", table="members"), lease=lease.id)
        feed = asyncio.ensure_future(anext(setup.engine.follow(index)))
        await asyncio.sleep(100.0)
        setup.engine.crash()

        with pytest.raises(LogUnavailable):
            await feed
        batch = await anext(setup.healthy_engine.follow(index))
        assert batch.kind == LEASE_ENDED_KIND
        assert 106.0 <= setup.loop.time() <= 109.0
        assert lease.get_valid_until_s() <= setup.loop.time()

    run_in_virtual_time(scenario)


def test_a_cancelled_watch_ends_its_feed_and_a_new_one_continues() -> None:
    async def scenario(setup: FaultSetup) -> None:
        indexes = [await commit(setup.healthy_engine, put(f"k{number}")) for number in range(3)]
        setup.inject(EngineOperation.FEED, CancelWatchFault())
        with pytest.raises(LogUnavailable):
            await anext(setup.engine.follow(0))

        assert indexes == [batch.index for batch in await follow_to(setup.engine, after=0, index=indexes[-1])]

    run_in_virtual_time(scenario)


def test_a_follower_before_the_compacted_index_is_behind() -> None:
    async def scenario(setup: FaultSetup) -> None:
        feed = setup.engine.follow(0)
        await commit(setup.healthy_engine, put("a"))
        await commit(setup.healthy_engine, put("b"))
        setup.inject(EngineOperation.BARRIER, CompactFault())
        await setup.engine.barrier()

        with pytest.raises(FollowerBehind):
            await anext(feed)

    run_in_virtual_time(scenario)


def test_restoring_an_older_copy_begins_an_epoch_above_every_reported_index() -> None:
    async def scenario(setup: FaultSetup) -> None:
        await commit(setup.engine, put("a", b"old"))
        copy = setup.log.make_copy()
        lost_index = await commit(setup.engine, put("a", b"lost"))
        feed = setup.engine.follow(lost_index)
        setup.log.restore_copy(copy)

        with pytest.raises(FollowerBehind):
            await anext(feed)
        rows, position = await load(setup.engine)
        assert {row_key: data for row_key, (_, data) in rows.items()} == {("jobs", "a"): b"old"}
        assert all(version > lost_index for version, _ in rows.values())
        assert (position.epoch, position.index > lost_index) == (1, True)

    run_in_virtual_time(scenario)


def test_a_row_keeps_its_index_over_repeated_restores_of_older_copies() -> None:
    async def scenario(setup: FaultSetup) -> None:
        first = await commit(setup.engine, put("a"))
        setup.log.restore_copy(setup.log.make_copy())
        second = await commit(setup.engine, put("b"))
        setup.log.restore_copy(setup.log.make_copy())
        third = await commit(setup.engine, put("c"))

        assert await written(setup.engine) == {("jobs", "a"): first, ("jobs", "b"): second, ("jobs", "c"): third}
        versions, _ = await load(setup.engine)
        assert all(version > second for version, _ in versions.values())

    run_in_virtual_time(scenario)


def test_leases_of_a_restored_copy_start_again_with_their_whole_ttl() -> None:
    async def scenario(setup: FaultSetup) -> None:
        renewed_lease, ended_lease = await setup.engine.grant_lease(9.0), await setup.healthy_engine.grant_lease(9.0)
        await setup.engine.commit(a_write(put("kept", table="members"), lease=renewed_lease.id))
        await setup.healthy_engine.commit(a_write(put("gone", table="members"), lease=ended_lease.id))
        copy = setup.log.make_copy()
        setup.healthy_engine.crash()
        await asyncio.sleep(60.0)
        assert list(await records(setup.engine)) == [("members", "kept")]

        setup.log.restore_copy(copy)
        assert sorted(await records(setup.engine)) == [("members", "gone"), ("members", "kept")]

        await asyncio.sleep(8.9)
        assert ("members", "gone") in await records(setup.engine)
        await asyncio.sleep(0.2)
        assert list(await records(setup.engine)) == [("members", "kept")]

    run_in_virtual_time(scenario)


def test_the_same_seed_gives_the_same_run() -> None:
    async def scenario(setup: FaultSetup) -> None:
        random = setup.world.random
        faults: list[Fault] = [
            LoseReplyFault(),
            LoseRequestFault(),
            DelayFault(0.5, 0.5),
            DisconnectFault(1.0),
            RefuseFault(),
        ]
        setup.faults.choose_fault = lambda _: random.choice(faults) if random.random() < 0.3 else None

        async def write(number: int) -> None:
            try:
                await setup.engine.commit(a_write(put(f"k{number % 7}")))
            except LogUnavailable:
                setup.loop.add_to_fingerprint(f"write {number} was not sent")

        await asyncio.gather(*(write(number) for number in range(100)))
        setup.loop.add_to_fingerprint(f"{setup.faults.counts} {setup.log.index}")

    first, second, other_seed = (
        run_in_virtual_time(scenario, seed=1),
        run_in_virtual_time(scenario, seed=1),
        run_in_virtual_time(scenario, seed=2),
    )
    assert first == second
    assert first != other_seed
