"""The log in memory: conditions, compaction, leases and copies, called without an engine."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulation.loop import SimulatedLoop
from tests.cluster.engines.contract import a_write, drop, index_of, put, unchanged
from wharf.cluster.engines.memory.faults import (
    CompactFault,
    CrashFault,
    DelayFault,
    DisconnectFault,
    EngineOperation,
    Fault,
    FaultInjector,
    LoseReplyFault,
    get_fault_name,
)
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import (
    LEASE_ENDED_KIND,
    Batch,
    FollowerBehind,
    LogPosition,
    StoredRecord,
    WriteConflict,
    WriteRejected,
)
from wharf.contract.model.log import Cause, CauseKind
from wharf.world import SimulatedWorld

Scenario = Callable[[MemoryLog, SimulatedLoop], Awaitable[None]]


def run_scenario(scenario: Scenario) -> None:
    loop = SimulatedLoop(1)
    try:
        loop.run_until_complete(_run(scenario, loop))
    finally:
        loop.close()


async def _run(scenario: Scenario, loop: SimulatedLoop) -> None:
    await scenario(MemoryLog(SimulatedWorld(1, loop.time)), loop)


def read(log: MemoryLog, index: int) -> Batch | None:
    return log.find_next_batch(index, log.epoch)


def test_every_position_of_the_feed_has_its_next_batch() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        indexes = []
        for number in range(9):
            indexes.append(index_of(log.commit(a_write(put(f"k{number}")))))
            log.advance_index(number)
        assert indexes[:4] == [1, 2, 4, 7]
        newest = log.index

        for after in range(newest + 1):
            batch = read(log, after)
            expected = next((index for index in indexes if index > after), None)
            assert (None if batch is None else batch.index) == expected
        with pytest.raises(FollowerBehind, match=f"is at index {newest} and never reached {newest + 1}"):
            read(log, newest + 1)
        with pytest.raises(FollowerBehind, match="began epoch 0"):
            log.find_next_batch(0, 1)

    run_scenario(scenario)


def test_keys_of_other_programs_do_not_advance_an_empty_log() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        log.advance_index(5)

        assert (log.index, index_of(log.commit(a_write(put("a"))))) == (0, 1)
        log.advance_index()
        assert (log.index, log.last_write_index) == (2, 1)
        assert index_of(log.commit(a_write(put("a")))) == 3

    run_scenario(scenario)


def test_a_compaction_discards_batches_before_an_index_and_never_returns_them() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        writes = [a_write(put("a")) for _ in range(5)]
        for write in writes:
            log.commit(write)
        for before, compacted in ((3, 2), (1, 2), (4, 3), (99, 5)):
            log.compact(before)
            assert log.compacted_index == compacted
            if compacted < 5:
                assert [batch.index for after in range(compacted, 5) if (batch := read(log, after))] == [
                    *range(compacted + 1, 6)
                ]
            with pytest.raises(FollowerBehind, match=f"compacted up to index {compacted}"):
                read(log, compacted - 1)
        assert read(log, 5) is None

    run_scenario(scenario)


@pytest.mark.parametrize(("compact_before", "is_behind"), [(0, {}), (3, {0, 1, 2}), (4, {0, 1, 2, 3})])
def test_a_search_reports_that_older_batches_are_gone(compact_before: int, is_behind: set[int]) -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        writes = [a_write(put("a")) for _ in range(5)]
        for write in writes:
            log.commit(write)
        log.compact(compact_before)

        for since in range(7):
            if since in is_behind:
                with pytest.raises(FollowerBehind, match=f"no longer reaches back to {since}"):
                    log.find_write("never", since)
            else:
                assert log.find_write("never", since) is None
            assert log.find_write(writes[4].id, since) == (5 if since <= 5 else None)

    run_scenario(scenario)


def test_a_conflict_names_the_changed_keys_and_changes_nothing() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        log.commit(a_write(put("a"), put("b")))
        log.commit(a_write(put("b"), drop("c")))
        before = log.list_records()

        outcome = log.commit(
            a_write(put("x"), conditions=[unchanged("a", 1), unchanged("b", 1), unchanged("c", 2), unchanged("d", 0)])
        )

        assert outcome == WriteConflict([("jobs", "b"), ("jobs", "c")])
        assert (log.list_records(), log.index, log.last_write_index) == (before, 2, 2)

    run_scenario(scenario)


def test_a_log_rejects_writes_for_its_limits_its_space_and_ended_leases() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        assert log.commit(a_write(put("a"), lease=1)) == WriteRejected("the lease of this write has ended")
        assert isinstance(log.commit(a_write()), WriteRejected)
        log.full_reason = "full"
        assert log.commit(a_write(put("a"))) == WriteRejected("full")
        assert log.index == 0

    run_scenario(scenario)


def test_the_end_of_a_lease_deletes_the_records_that_still_belong_to_it() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        lease, other = log.grant_lease(9.0), log.grant_lease(9.0)
        log.commit(a_write(put("m", table="members"), put("a"), put("moved"), put("freed"), put("gone"), lease=lease))
        log.commit(a_write(put("moved"), lease=other))
        log.commit(a_write(put("freed"), drop("gone")))

        log.revoke_lease(lease)
        log.revoke_lease(lease)

        batch = read(log, 3)
        assert batch == Batch(4, "", LEASE_ENDED_KIND, Cause(CauseKind.LEASE), (drop("a"), drop("m", table="members")))
        assert sorted(record.key for record in log.list_records()) == ["freed", "moved"]
        assert log.get_position().last_changes == {"jobs": 4, "members": 4}
        log.revoke_lease(other)
        assert [record.key for record in log.list_records()] == ["freed"]

    run_scenario(scenario)


def test_a_lease_without_records_ends_without_a_batch() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        log.commit(a_write(put("a")))
        log.revoke_lease(log.grant_lease(9.0))

        assert log.index == 1

    run_scenario(scenario)


def test_a_lease_expires_exactly_its_time_to_live_after_its_last_renewal() -> None:
    async def scenario(log: MemoryLog, loop: SimulatedLoop) -> None:
        lease = log.grant_lease(9.0)
        log.commit(a_write(put("a"), lease=lease))
        await asyncio.sleep(8.0)
        assert log.renew_lease(lease)
        waiting = asyncio.ensure_future(log.wait_changed())
        await waiting

        assert loop.time() == 17.0
        assert log.list_records() == []
        assert not log.renew_lease(lease)

    run_scenario(scenario)


def test_a_renewal_that_arrives_at_the_end_of_the_lease_is_too_late() -> None:
    async def scenario(log: MemoryLog, loop: SimulatedLoop) -> None:
        renewed: list[bool] = []
        lease_id = 1
        loop.call_later(9.0, lambda: renewed.append(log.renew_lease(lease_id)))  # Before the timer of the lease.
        assert log.grant_lease(9.0) == lease_id
        await asyncio.sleep(10.0)

        assert renewed == [False]

    run_scenario(scenario)


def test_leases_that_expire_together_end_in_the_order_of_their_expiry() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        late, early = log.grant_lease(2.0), log.grant_lease(1.0)
        log.commit(a_write(put("late"), lease=late))
        log.commit(a_write(put("early"), lease=early))
        await asyncio.sleep(3.0)

        batches = [batch for after in (2, 3) if (batch := read(log, after)) is not None]
        assert [list(batch.changes) for batch in batches] == [[drop("early")], [drop("late")]]

    run_scenario(scenario)


def test_an_older_copy_is_restored_above_every_index_with_its_write_indexes() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        log.commit(a_write(put("a"), put("n", table="nodes")))
        log.commit(a_write(put("a")))
        log.advance_index(3)
        copy = log.make_copy()
        log.commit(a_write(put("a"), put("lost")))
        assert log.index == 6

        log.restore_copy(copy)

        assert log.get_position() == LogPosition(12, {"jobs": 9, "nodes": 8}, 1, 7)
        assert [(record.key, record.version, record.write_index) for record in log.list_records()] == [
            ("a", 9, 2),
            ("n", 8, 1),
        ]
        assert (log.last_write_index, log.compacted_index) == (9, 12)
        assert index_of(log.commit(a_write(put("b"), conditions=[unchanged("a", 9)]))) == 13

    run_scenario(scenario)


def test_a_copied_lease_holds_its_records_again() -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        lease = log.grant_lease(5.0)
        log.commit(a_write(put("m", table="members"), put("freed"), lease=lease))
        copy = log.make_copy()
        await asyncio.sleep(60.0)
        assert log.list_records() == []
        log.restore_copy(copy)
        log.commit(a_write(put("freed")))
        assert log.renew_lease(lease)

        await asyncio.sleep(6.0)

        assert [record.key for record in log.list_records()] == ["freed"]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("position", "index", "epoch"), [(LogPosition(9, {"q": 3}, 4), 10, 5), (LogPosition(1, {"q": 1}, 0), 3, 1)]
)
def test_replaced_records_get_an_index_above_every_earlier_one(position: LogPosition, index: int, epoch: int) -> None:
    async def scenario(log: MemoryLog, _loop: SimulatedLoop) -> None:
        lease = log.grant_lease(9.0)
        log.commit(a_write(put("a"), lease=lease))
        log.commit(a_write(put("n", table="nodes")))

        assert log.replace_records([StoredRecord("evaluations", "e", 1, b"x")], position) == index

        tables = ("jobs", "nodes", "q", "evaluations")
        assert log.get_position() == LogPosition(index, dict.fromkeys(tables, index), epoch, index)
        assert [(record.key, record.version) for record in log.list_records()] == [("e", index)]
        assert isinstance(log.commit(a_write(put("a"), lease=lease)), WriteRejected)
        assert read(log, index) is None
        assert log.compute_size_bytes() == 1

    run_scenario(scenario)


def test_every_fault_is_counted_by_its_name() -> None:
    faults: list[Fault] = [LoseReplyFault(), CrashFault(), LoseReplyFault(), DisconnectFault(2.0)]
    remaining = list(faults)
    injector = FaultInjector(lambda operation: remaining.pop(0) if operation is EngineOperation.COMMIT else None)

    drawn = [injector.draw_fault(EngineOperation.COMMIT, now_s=10.0) for _ in faults]

    assert drawn == faults
    assert injector.draw_fault(EngineOperation.FEED, now_s=10.0) is None
    assert injector.counts == {"lose-reply": 2, "crash": 1, "cut": 1}
    assert [get_fault_name(fault) for fault in (CompactFault(), DelayFault())] == ["compact", "delay"]


def test_a_disconnection_lasts_until_its_end_or_the_reconnection() -> None:
    durations = [4.0, 1.0]
    injector = FaultInjector(lambda _operation: DisconnectFault(durations.pop(0)) if durations else None)
    for _ in range(2):  # The shorter one does not end the longer one.
        injector.draw_fault(EngineOperation.BARRIER, now_s=10.0)

    assert [injector.is_disconnected(now_s=now_s) for now_s in (10.0, 13.9, 14.0)] == [True, True, False]
    injector.disconnect()
    injector.disconnect()
    assert injector.is_disconnected(now_s=99.0)
    assert injector.counts == {"cut": 4}
    injector.reconnect()
    assert not injector.is_disconnected(now_s=11.0)
