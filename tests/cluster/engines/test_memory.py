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


class Stage:
    """A log, an engine whose faults the test decides, and an engine without faults."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.world = SimulatedWorld(7, loop.time)
        self.log = MemoryLog(self.world)
        self.faults = FaultInjector()
        self.engine = MemoryEngine(self.world, self.log, faults=self.faults, timeout_s=TIMEOUT_S)
        self.calm = MemoryEngine(self.world, self.log)

    def strike(self, operation: EngineOperation, *faults: Fault) -> None:
        """These faults, one after another, strike this operation; then none."""
        waiting = list(faults)
        self.faults.choose_fault = lambda struck: waiting.pop(0) if struck is operation and waiting else None


def play(scenario: Callable[[Stage], Awaitable[None]], *, seed: int = 1) -> str:
    """Run a scenario in virtual time and return the fingerprint of the run."""
    loop = SimulatedLoop(seed)

    async def run_scenario() -> None:
        stage = Stage(loop)
        await stage.engine.open()
        await stage.calm.open()
        await scenario(stage)
        await stage.engine.close()
        await stage.calm.close()

    try:
        loop.run_until_complete(run_scenario())
        return loop.fingerprint
    finally:
        loop.close()


def test_a_lost_reply_is_unknown_and_the_write_happened() -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.COMMIT, LoseReplyFault())
        write = a_write(put("a"))

        assert isinstance(await stage.engine.commit(write), WriteOutcomeUnknown)
        assert stage.loop.time() == TIMEOUT_S
        assert await stage.engine.find_write(write.id, since=0) == 1
        assert stage.faults.counts == {"lose-reply": 1}

    play(scenario)


def test_a_lost_request_is_unknown_and_the_write_never_happened() -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.COMMIT, LoseRequestFault())
        write = a_write(put("a"))

        assert isinstance(await stage.engine.commit(write), WriteOutcomeUnknown)
        assert await stage.engine.find_write(write.id, since=0) is None
        assert await records(stage.calm) == {}
        assert stage.faults.counts == {"lose-request": 1}

    play(scenario)


def test_a_refused_write_changes_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.COMMIT, RefuseFault("no room"))

        assert await stage.engine.commit(a_write(put("a"))) == WriteRejected("no room")
        assert await records(stage.calm) == {}

    play(scenario)


def test_a_full_log_refuses_writes_and_serves_reads() -> None:
    async def scenario(stage: Stage) -> None:
        await commit(stage.engine, put("a"))
        stage.log.full_reason = "the quota is used up"

        assert await stage.engine.commit(a_write(put("b"))) == WriteRejected("the quota is used up")
        assert await records(stage.engine) == {("jobs", "a"): b"data"}
        assert not (await stage.engine.read_health()).writable

    play(scenario)


def test_a_slow_request_is_decided_when_it_arrives() -> None:
    async def scenario(stage: Stage) -> None:
        index = await commit(stage.calm, put("a"))
        stage.strike(EngineOperation.COMMIT, DelayFault(request_s=3.0, reply_s=4.0))
        slow = asyncio.ensure_future(stage.engine.commit(a_write(put("a"), conditions=[unchanged("a", index)])))
        await asyncio.sleep(1.0)
        await commit(stage.calm, put("a", b"quicker"))

        assert not isinstance(await slow, Committed)
        assert stage.loop.time() == 7.0
        assert await records(stage.calm) == {("jobs", "a"): b"quicker"}

    play(scenario)


def test_a_delayed_feed_arrives_complete() -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.FEED, DelayFault(request_s=5.0))
        indexes = [await commit(stage.calm, put(f"k{number}")) for number in range(3)]
        batches = await follow_to(stage.engine, after=0, index=indexes[-1])

        assert indexes == [batch.index for batch in batches]
        assert stage.loop.time() == 5.0

    play(scenario)


def test_a_cut_connection_is_unavailable_and_the_last_contact_stays() -> None:
    async def scenario(stage: Stage) -> None:
        index = await commit(stage.engine, put("a"))
        feed = stage.engine.follow(index)
        stage.faults.disconnect()
        contact_s = stage.engine.get_last_contact_s()
        await asyncio.sleep(10.0)

        for call in (stage.engine.barrier, stage.engine.read_health, lambda: load(stage.engine)):
            with pytest.raises(LogUnavailable):
                await call()
        with pytest.raises(LogUnavailable):
            await stage.engine.commit(a_write(put("b")))
        with pytest.raises(LogUnavailable):
            await anext(feed)
        assert stage.engine.get_last_contact_s() == contact_s
        stage.faults.reconnect()
        assert await stage.engine.barrier() == index
        assert stage.engine.get_last_contact_s() == stage.loop.time()

    play(scenario)


def test_a_connection_cut_during_a_write_leaves_its_outcome_unknown() -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.COMMIT, DelayFault(request_s=1.0), DelayFault(reply_s=1.0))
        lost_write, answered_write = a_write(put("lost")), a_write(put("answered"))
        for write in (lost_write, answered_write):
            waiting = asyncio.ensure_future(stage.engine.commit(write))
            await asyncio.sleep(0.5)
            stage.faults.disconnect()
            assert isinstance(await waiting, WriteOutcomeUnknown)
            stage.faults.reconnect()

        assert await stage.engine.find_write(lost_write.id, since=0) is None
        assert await stage.engine.find_write(answered_write.id, since=0) is not None

    play(scenario)


def test_a_temporary_disconnection_ends_by_itself() -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.BARRIER, DisconnectFault(duration_s=30.0))
        with pytest.raises(LogUnavailable):
            await stage.engine.barrier()
        await asyncio.sleep(30.0)

        assert await stage.engine.barrier() == 0

    play(scenario)


@pytest.mark.parametrize(("after", "expected"), [(False, {}), (True, {("jobs", "a"): b"data"})])
def test_a_crash_strikes_before_or_after_the_write(after: bool, expected: dict[tuple[str, str], bytes]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.strike(EngineOperation.COMMIT, CrashFault(is_after_operation=after))
        if after:
            assert isinstance(await stage.engine.commit(a_write(put("a"))), WriteOutcomeUnknown)
        else:
            with pytest.raises(LogUnavailable):
                await stage.engine.commit(a_write(put("a")))

        assert expected == await records(stage.calm)
        with pytest.raises(LogUnavailable):
            await stage.engine.barrier()
        await stage.engine.open()
        assert expected == await records(stage.engine)

    play(scenario)


def test_a_crash_ends_feeds_and_leases_expire() -> None:
    async def scenario(stage: Stage) -> None:
        lease = await stage.engine.grant_lease(9.0)
        index = await commit(stage.engine, put("m", table="members"), lease=lease.id)
        feed = asyncio.ensure_future(anext(stage.engine.follow(index)))
        await asyncio.sleep(100.0)
        stage.engine.crash()

        with pytest.raises(LogUnavailable):
            await feed
        batch = await anext(stage.calm.follow(index))
        assert batch.kind == LEASE_ENDED_KIND
        assert 106.0 <= stage.loop.time() <= 109.0
        assert lease.get_valid_until_s() <= stage.loop.time()

    play(scenario)


def test_a_cancelled_watch_ends_its_feed_and_a_new_one_continues() -> None:
    async def scenario(stage: Stage) -> None:
        indexes = [await commit(stage.calm, put(f"k{number}")) for number in range(3)]
        stage.strike(EngineOperation.FEED, CancelWatchFault())
        with pytest.raises(LogUnavailable):
            await anext(stage.engine.follow(0))

        assert indexes == [batch.index for batch in await follow_to(stage.engine, after=0, index=indexes[-1])]

    play(scenario)


def test_a_follower_before_the_compacted_index_is_behind() -> None:
    async def scenario(stage: Stage) -> None:
        feed = stage.engine.follow(0)
        await commit(stage.calm, put("a"))
        await commit(stage.calm, put("b"))
        stage.strike(EngineOperation.BARRIER, CompactFault())
        await stage.engine.barrier()

        with pytest.raises(FollowerBehind):
            await anext(feed)

    play(scenario)


def test_restoring_an_older_copy_begins_an_epoch_above_every_reported_index() -> None:
    async def scenario(stage: Stage) -> None:
        await commit(stage.engine, put("a", b"old"))
        copy = stage.log.make_copy()
        lost_index = await commit(stage.engine, put("a", b"lost"))
        feed = stage.engine.follow(lost_index)
        stage.log.restore_copy(copy)

        with pytest.raises(FollowerBehind):
            await anext(feed)
        rows, position = await load(stage.engine)
        assert {row_key: data for row_key, (_, data) in rows.items()} == {("jobs", "a"): b"old"}
        assert all(version > lost_index for version, _ in rows.values())
        assert (position.epoch, position.index > lost_index) == (1, True)

    play(scenario)


def test_a_row_keeps_its_index_over_repeated_restores_of_older_copies() -> None:
    async def scenario(stage: Stage) -> None:
        first = await commit(stage.engine, put("a"))
        stage.log.restore_copy(stage.log.make_copy())
        second = await commit(stage.engine, put("b"))
        stage.log.restore_copy(stage.log.make_copy())
        third = await commit(stage.engine, put("c"))

        assert await written(stage.engine) == {("jobs", "a"): first, ("jobs", "b"): second, ("jobs", "c"): third}
        versions, _ = await load(stage.engine)
        assert all(version > second for version, _ in versions.values())

    play(scenario)


def test_leases_of_a_restored_copy_start_again_with_their_whole_ttl() -> None:
    async def scenario(stage: Stage) -> None:
        renewed_lease, ended_lease = await stage.engine.grant_lease(9.0), await stage.calm.grant_lease(9.0)
        await stage.engine.commit(a_write(put("kept", table="members"), lease=renewed_lease.id))
        await stage.calm.commit(a_write(put("gone", table="members"), lease=ended_lease.id))
        copy = stage.log.make_copy()
        stage.calm.crash()
        await asyncio.sleep(60.0)
        assert list(await records(stage.engine)) == [("members", "kept")]

        stage.log.restore_copy(copy)
        assert sorted(await records(stage.engine)) == [("members", "gone"), ("members", "kept")]

        await asyncio.sleep(8.9)
        assert ("members", "gone") in await records(stage.engine)
        await asyncio.sleep(0.2)
        assert list(await records(stage.engine)) == [("members", "kept")]

    play(scenario)


def test_the_same_seed_gives_the_same_run() -> None:
    async def scenario(stage: Stage) -> None:
        random = stage.world.random
        faults: list[Fault] = [
            LoseReplyFault(),
            LoseRequestFault(),
            DelayFault(0.5, 0.5),
            DisconnectFault(1.0),
            RefuseFault(),
        ]
        stage.faults.choose_fault = lambda _: random.choice(faults) if random.random() < 0.3 else None

        async def write(number: int) -> None:
            try:
                await stage.engine.commit(a_write(put(f"k{number % 7}")))
            except LogUnavailable:
                stage.loop.add_to_fingerprint(f"write {number} was not sent")

        await asyncio.gather(*(write(number) for number in range(100)))
        stage.loop.add_to_fingerprint(f"{stage.faults.counts} {stage.log.index}")

    first, second, other_seed = play(scenario, seed=1), play(scenario, seed=1), play(scenario, seed=2)
    assert first == second
    assert first != other_seed
