"""The guarantees of `wharf.cluster.engines.port`, tested with every engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster.engines.contract import (
    EngineKind,
    FreshLog,
    RecordKey,
    a_write,
    commit,
    drop,
    follow_to,
    in_order,
    index_of,
    kinds,
    load,
    put,
    records,
    replay,
    unchanged,
    unchanged_prefix,
)
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import (
    FIRST_INDEX,
    LEASE_ENDED_KIND,
    Batch,
    Committed,
    FollowerBehind,
    LogEngine,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteConflict,
    WriteRejected,
)
from wharf.contract.model.log import Cause, CauseKind

EveryKind = pytest.mark.parametrize("kind", kinds())
NeedsManyEngines = pytest.mark.parametrize("kind", kinds(many_engines_only=True))

OpenLog = Callable[[EngineKind], AbstractAsyncContextManager[tuple[FreshLog, LogEngine]]]


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    """A context manager that opens an empty log of a kind, and one engine."""

    @asynccontextmanager
    async def open_log_of_kind(kind: EngineKind) -> AsyncIterator[tuple[FreshLog, LogEngine]]:
        async with kind.fresh(tmp_path) as log:
            yield log, await log.open_engine()

    return open_log_of_kind


# --- committed writes ---


@EveryKind
async def test_an_empty_log_has_no_records_and_index_0(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        rows, position = await load(engine)

        assert (rows, position.index, position.last_changes) == ({}, 0, {})
        assert await engine.barrier() == 0


@EveryKind
async def test_the_first_batch_has_index_1(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        await log.write_elsewhere()

        assert await commit(engine, put("a")) == FIRST_INDEX


@EveryKind
async def test_indexes_grow(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        indexes = []
        for number in range(5):
            indexes.append(await commit(engine, put(f"k{number}")))
            await log.write_elsewhere()

        assert sorted(set(indexes)) == indexes


@EveryKind
async def test_a_committed_record_is_read_with_the_index_of_its_batch_as_version(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        first = await commit(engine, put("a", b"1"), put("b", b"1"))
        second = await commit(engine, put("a", b"2"))

        rows, _ = await load(engine)
        assert {("jobs", "a"): (second, b"2"), ("jobs", "b"): (first, b"1")} == rows


@EveryKind
async def test_committed_records_exist_after_the_log_is_reopened(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        first = await commit(engine, put("a", b"1"), put("b", b"1"))
        second = await commit(engine, drop("a"), put("c", b"2", table="nodes"))

        rows, position = await load(await log.reopen())
        assert {("jobs", "b"): (first, b"1"), ("nodes", "c"): (second, b"2")} == rows
        assert position.index >= second


@EveryKind
async def test_a_deleted_record_is_not_read(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"), put("b"))
        await commit(engine, drop("a"))

        assert await records(engine) == {("jobs", "b"): b"data"}


@EveryKind
async def test_deleting_a_missing_record_is_not_an_error(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"))
        await commit(engine, drop("missing"))

        assert await records(engine) == {("jobs", "a"): b"data"}


@EveryKind
async def test_keys_and_data_may_contain_anything(kind: EngineKind, open_log: OpenLog) -> None:
    unusual_keys = ["", "a/b", "a\0b", "/", "ä ö €\U0001f6a2", "\U0010ffff", "%00", "a" * 500]
    all_bytes = bytes(range(256))
    async with open_log(kind) as (_, engine):
        index = await commit(
            engine, *(put(key, all_bytes) for key in unusual_keys), put("empty", b""), put("a/b", table="nodes")
        )

        expected = {("jobs", key): all_bytes for key in unusual_keys} | {
            ("jobs", "empty"): b"",
            ("nodes", "a/b"): b"data",
        }
        assert expected == await records(engine)
        (batch,) = await follow_to(engine, after=0, index=index)
        assert expected == {(change.table, change.key): change.data for change in batch.changes}


# --- conditions on prefixes ---


@EveryKind
@pytest.mark.parametrize("is_new", [False, True])
async def test_a_prefix_condition_conflicts_with_a_record_that_was_written_later(
    kind: EngineKind, open_log: OpenLog, is_new: bool
) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("web\0a"), put("other"))
        await commit(engine, put("web\0b" if is_new else "web\0a", b"later"))

        outcome = await engine.commit(a_write(drop("other"), conditions=[unchanged_prefix("web\0", index)]))

        assert isinstance(outcome, WriteConflict)
        assert [tuple(key) for key in outcome.keys] == [("jobs", "web\0")]
        assert ("jobs", "other") in await records(engine)


@EveryKind
async def test_a_prefix_condition_ignores_other_prefixes_other_tables_and_deletions(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("web\0a"), put("web\0b"))
        await commit(engine, put("web-2\0a"), put("we"), put("web\0a", table="variables"), drop("web\0b"))

        await commit(engine, put("c"), conditions=[unchanged_prefix("web\0", index)])


@EveryKind
async def test_an_empty_prefix_covers_the_whole_table(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("a"))
        await commit(engine, put("zz\U0010ffff"))

        outcome = await engine.commit(a_write(put("c"), conditions=[unchanged_prefix("", index)]))
        await commit(engine, put("c", table="variables"), conditions=[unchanged_prefix("", 0, table="quotas")])

        assert isinstance(outcome, WriteConflict)


@EveryKind
async def test_of_two_writes_at_once_that_exclude_each_other_one_is_committed(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        for number in range(10):
            parent = f"parent-{number}"
            index = await commit(engine, put(parent, table="namespaces"))
            creation = a_write(put(f"{parent}\0child"), conditions=[unchanged(parent, index, table="namespaces")])
            deletion = a_write(
                drop(parent, table="namespaces"),
                conditions=[
                    unchanged(parent, index, table="namespaces"),
                    unchanged_prefix(f"{parent}\0", index),
                ],
            )
            writes = [creation, deletion] if number % 2 else [deletion, creation]

            outcomes = await asyncio.gather(*(engine.commit(write) for write in writes))

            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Committed", "WriteConflict"]


# --- conditions ---


@EveryKind
async def test_a_write_whose_conditions_hold_is_committed(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("a", b"1"))
        await commit(engine, put("a", b"2"), conditions=[unchanged("a", index), unchanged("new", 0)])

        assert await records(engine) == {("jobs", "a"): b"2"}


@EveryKind
async def test_a_conflict_names_exactly_the_changed_keys_and_changes_nothing(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        first = await commit(engine, put("same"), put("moved"), put("dropped"), put("there"))
        second = await commit(engine, put("moved"), drop("dropped"))
        conditions = [
            unchanged("same", first),
            unchanged("moved", first),
            unchanged("dropped", first),
            unchanged("there", 0),
            unchanged("never", 0),
            unchanged("never was", first),
        ]
        before, position = await load(engine)

        outcome = await engine.commit(a_write(put("same", b"2"), put("x"), conditions=conditions))

        expected = [("jobs", key) for key in ("dropped", "moved", "never was", "there")]
        assert isinstance(outcome, WriteConflict)
        assert expected == sorted(outcome.keys)
        after, position_after = await load(engine)
        assert (before, position.last_changes) == (after, position_after.last_changes)
        assert await engine.barrier() == second


@EveryKind
async def test_conditions_of_the_first_write_are_checked_too(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        outcome = await engine.commit(a_write(put("a"), conditions=[unchanged("a", 7), unchanged("b", 0)]))

        assert isinstance(outcome, WriteConflict)
        assert list(outcome.keys) == [("jobs", "a")]
        assert await records(engine) == {}


@EveryKind
async def test_one_of_many_writes_on_the_same_condition_succeeds(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        engines = [engine, await log.open_engine()] if kind.allows_many_engines else [engine]
        index = await commit(engine, put("a"))
        writes = [a_write(put("a", str(n).encode()), conditions=[unchanged("a", index)]) for n in range(20)]

        outcomes = await asyncio.gather(*(engines[n % len(engines)].commit(write) for n, write in enumerate(writes)))

        winners = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
        losers = [outcome for outcome in outcomes if isinstance(outcome, WriteConflict)]
        assert (len(winners), len(losers)) == (1, 19)
        assert {(("jobs", "a"),)} == {tuple(loser.keys) for loser in losers}


# --- limits ---


@EveryKind
async def test_a_write_as_large_as_the_limits_is_committed_in_one_batch(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("first"))
        limits = engine.limits
        size = limits.bytes // limits.changes
        changes = [put(f"k{n}", bytes(size)) for n in range(limits.changes)]
        conditions = [unchanged(f"k{n}", 0) for n in range(limits.conditions)]

        index = await commit(engine, *changes, conditions=conditions)

        (batch,) = await follow_to(engine, after=FIRST_INDEX, index=index)
        assert in_order(changes) == in_order(batch.changes)


@EveryKind
async def test_the_first_write_may_be_as_large_as_the_limits(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        changes = [put(f"k{n}") for n in range(engine.limits.changes)]
        conditions = [unchanged(f"k{n}", 0) for n in range(engine.limits.conditions)]

        assert await commit(engine, *changes, conditions=conditions) == FIRST_INDEX


@EveryKind
async def test_a_write_beyond_the_limits_is_rejected_and_changes_nothing(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        limits = engine.limits
        index = await commit(engine, put("a"))
        rejections = [
            a_write(),
            a_write(put("a", b"1"), put("a", b"2")),
            a_write(put("a", b"1"), drop("a")),
            a_write(*(put(f"k{n}") for n in range(limits.changes + 1))),
            a_write(put("b"), conditions=[unchanged(f"k{n}", 0) for n in range(limits.conditions + 1)]),
            a_write(put("b", bytes(limits.bytes + 1))),
        ]

        outcomes = [await engine.commit(write) for write in rejections]

        assert [WriteRejected] * len(rejections) == [type(outcome) for outcome in outcomes]
        assert await records(engine) == {("jobs", "a"): b"data"}
        assert await engine.barrier() == index


# --- the feed ---


@EveryKind
async def test_a_follower_of_an_empty_log_gets_the_first_batch(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        feed = engine.follow(0)
        following = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0)
        write = a_write(put("a"), put("b"))
        await engine.commit(write)

        batch = await following
        assert (FIRST_INDEX, write.id, "test", Cause(CauseKind.REQUEST, "r1")) == (
            batch.index,
            batch.id,
            batch.kind,
            batch.cause,
        )
        assert in_order(write.changes) == in_order(batch.changes)


@EveryKind
async def test_a_batch_of_the_feed_contains_deletions_even_of_missing_records(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"), put("b"), put("c", table="nodes"))
        changes = [put("a", b"2"), drop("b"), drop("missing"), drop("c", table="nodes"), put("d", table="nodes")]
        index = await commit(engine, *changes)
        only_missing = await commit(engine, drop("missing"))

        batches = await follow_to(engine, after=FIRST_INDEX, index=only_missing)
        assert [(index, in_order(changes)), (only_missing, [drop("missing")])] == [
            (batch.index, in_order(batch.changes)) for batch in batches
        ]


@EveryKind
async def test_the_feed_returns_every_batch_once_and_in_order_during_concurrent_writes(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        engines = [engine, await log.open_engine(), await log.open_engine()] if kind.allows_many_engines else [engine]
        writes = [a_write(*(put(f"{writer}-{key}") for key in range(writer + 1))) for writer in range(60)]
        follower = asyncio.ensure_future(read_batches(engines[-1], len(writes)))

        async def write_and_write_elsewhere(number: int) -> int:
            index = index_of(await engines[number % len(engines)].commit(writes[number]))
            await log.write_elsewhere()
            return index

        indexes = await asyncio.gather(*(write_and_write_elsewhere(number) for number in range(len(writes))))

        expected = sorted(zip(indexes, [write.id for write in writes], strict=True))
        batches = await follower
        assert expected == [(batch.index, batch.id) for batch in batches]
        assert {write.id: in_order(write.changes) for write in writes} == {
            batch.id: in_order(batch.changes) for batch in batches
        }


async def read_batches(engine: LogEngine, count: int) -> list[Batch]:
    feed = engine.follow(0)
    return [await anext(feed) for _ in range(count)]


@EveryKind
async def test_the_feed_begins_after_the_requested_index(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        indexes = [await commit(engine, put(f"k{number}")) for number in range(6)]

        batches = await follow_to(engine, after=indexes[2], index=indexes[-1])
        assert indexes[3:] == [batch.index for batch in batches]


@EveryKind
async def test_following_after_an_index_that_the_log_never_reached_is_behind(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("a"))

        with pytest.raises(FollowerBehind):
            await anext(engine.follow(index + 1_000))


@EveryKind
async def test_several_followers_receive_the_same_batches(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        followers = [asyncio.ensure_future(read_batches(engine, 10)) for _ in range(3)]
        for number in range(10):
            await commit(engine, put(f"k{number}"))

        first, second, third = await asyncio.gather(*followers)
        assert first == second == third


@EveryKind
async def test_closing_an_engine_ends_its_feeds_with_log_unavailable(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("a"))
        feed = engine.follow(index)
        following = asyncio.ensure_future(anext(feed))
        await engine.barrier()  # Lets the follower begin to wait.
        await engine.close()

        with pytest.raises(LogUnavailable):
            await following


@EveryKind
async def test_a_closed_engine_is_unavailable(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"))
        await engine.close()

        with pytest.raises(LogUnavailable):
            await engine.barrier()
        with pytest.raises(LogUnavailable):
            await engine.commit(a_write(put("b")))
        with pytest.raises(LogUnavailable):
            await anext(engine.follow(0))


# --- load ---


@EveryKind
async def test_a_load_during_writes_and_the_feed_after_it_return_exactly_the_final_state(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        writer = await log.open_engine() if kind.allows_many_engines else engine
        for start in range(0, 500, 50):
            await commit(engine, *(put(f"k{number}", b"0") for number in range(start, start + 50)))
        last = 0

        async def write_batches() -> None:
            nonlocal last
            for number in range(100):
                deleted = number * 7 % 500
                last = await commit(
                    writer, put(f"k{number}", b"1"), drop(f"k{deleted}") if deleted != number else put("x")
                )

        writing = asyncio.ensure_future(write_batches())
        loads = [await load(engine) for _ in range(3)]
        await writing

        final, end = await load(engine)
        for rows, position in loads:
            batches = await follow_to(engine, after=position.index, index=last) if position.index < last else []
            assert final == replay(batches, rows)
        assert end.index >= last


@EveryKind
async def test_the_last_change_of_a_table_is_that_of_its_last_batch_after_drops_and_when_opened_again(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        first = await commit(engine, put("a"), put("n", table="nodes"), put("e", table="evaluations"))
        second = await commit(engine, put("a"), put("b"))
        third = await commit(engine, drop("n", table="nodes"))
        fourth = await commit(engine, drop("b"), put("o", table="nodes"))
        fifth = await commit(engine, drop("o", table="nodes"))

        expected = {"jobs": fourth, "nodes": fifth, "evaluations": first}
        assert first < second < third < fourth < fifth
        _, position = await load(engine)
        assert expected == position.last_changes
        _, position = await load(await log.reopen())
        assert expected == position.last_changes


@EveryKind
async def test_deleting_a_missing_record_is_a_change_of_its_table(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        await commit(engine, put("a"))
        index = await commit(engine, drop("missing"))

        _, position = await load(await log.reopen())
        assert {"jobs": index} == position.last_changes


# --- barrier and find ---


@NeedsManyEngines
async def test_a_barrier_covers_every_earlier_write_of_another_engine(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        other_engine = await log.open_engine()
        for number in range(20):
            index = await commit(engine, put(f"k{number}"))
            assert await other_engine.barrier() >= index


@EveryKind
async def test_concurrent_barriers_each_return_a_correct_index(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):

        async def write_and_pass_barrier(number: int) -> bool:
            index = await commit(engine, put(f"k{number}"))
            return await engine.barrier() >= index

        assert await asyncio.gather(*(write_and_pass_barrier(number) for number in range(50))) == [True] * 50


@EveryKind
async def test_a_committed_write_is_found_by_its_id_and_an_unknown_one_is_not(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        assert await engine.find_write("never", since=0) is None
        writes = [a_write(put(f"k{number}")) for number in range(5)]
        indexes = [index_of(await engine.commit(write)) for write in writes]
        await log.write_elsewhere()

        assert indexes == [await engine.find_write(write.id, since=0) for write in writes]
        assert await engine.find_write("never", since=0) is None
        assert await engine.find_write("never", since=indexes[-1]) is None


@EveryKind
async def test_a_search_looks_back_to_since_and_not_further(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"))
        write = a_write(put("b"))
        index = index_of(await engine.commit(write))
        await commit(engine, put("c"))

        assert await engine.find_write(write.id, since=index) == index
        assert await engine.find_write(write.id, since=index + 1) is None


@EveryKind
async def test_writes_continue_after_a_search(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("a"))
        await engine.find_write("never", since=0)
        await commit(engine, put("a", b"2"), conditions=[unchanged("a", index)])

        assert await records(engine) == {("jobs", "a"): b"2"}


# --- compaction ---


@EveryKind
async def test_after_a_compaction_the_feed_reaches_back_to_the_requested_index(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        indexes = [await commit(engine, put("a", str(number).encode())) for number in range(10)]
        await commit(engine, drop("a"))
        last = await commit(engine, drop("b"))
        await engine.compact(indexes[6])

        batches = await follow_to(engine, after=indexes[6] - 1, index=last)
        assert indexes[6:] == [batch.index for batch in batches][:-2]
        with pytest.raises(FollowerBehind):
            await anext(engine.follow(FIRST_INDEX))


@EveryKind
async def test_a_compaction_does_not_change_the_state(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        await commit(engine, put("a"), put("n", table="nodes"))
        await commit(engine, drop("n", table="nodes"))
        index = await commit(engine, put("b"))
        before = await load(engine)
        await engine.compact(index)

        rows, position = await load(await log.reopen())
        assert (before[0], before[1].last_changes) == (rows, position.last_changes)
        assert (
            await commit(await log.open_engine() if kind.allows_many_engines else await log.reopen(), put("c")) > index
        )


@EveryKind
async def test_a_search_beyond_a_compaction_is_behind(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        first = a_write(put("a"))
        await engine.commit(first)
        last = [await commit(engine, put("a")) for _ in range(5)][-1]
        await engine.compact(last)

        assert await engine.find_write("never", since=last) is None
        with pytest.raises(FollowerBehind):
            await engine.find_write(first.id, since=FIRST_INDEX)


@EveryKind
async def test_compacting_twice_or_backwards_or_nothing_is_no_error(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await engine.compact(1)
        index = await commit(engine, put("a"))
        for before in (0, index, index, 1):
            await engine.compact(before)

        assert await records(engine) == {("jobs", "a"): b"data"}


# --- leases ---


@EveryKind
async def test_revoking_a_lease_deletes_its_records_in_one_batch(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        await commit(engine, put("stays"))
        lease = await engine.grant_lease(30.0)
        await commit(engine, put("m1", table="members"), put("m2", table="members"), lease=lease.id)
        index = await commit(engine, put("leader", table="leader"), lease=lease.id)
        await log.write_elsewhere()
        await lease.revoke()

        batch = await anext(engine.follow(index))
        assert (batch.id, batch.kind, batch.cause.kind) == ("", LEASE_ENDED_KIND, CauseKind.LEASE)
        expected = [drop("leader", table="leader"), drop("m1", table="members"), drop("m2", table="members")]
        assert expected == in_order(batch.changes)
        assert await records(engine) == {("jobs", "stays"): b"data"}


@EveryKind
async def test_a_lease_that_ended_shows_in_last_changes_also_when_opened_again(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        first = await commit(engine, put("stays"))
        lease = await engine.grant_lease(30.0)
        index = await commit(engine, put("m1", table="members"), lease=lease.id)
        await lease.revoke()
        ended = (await anext(engine.follow(index))).index

        expected = {"jobs": first, "members": ended}
        assert expected == (await load(engine))[1].last_changes
        later = await commit(engine, put("stays"))
        await engine.compact(later)
        assert expected | {"jobs": later} == (await load(await log.reopen()))[1].last_changes


@EveryKind
async def test_leases_that_go_on_do_not_hide_the_end_of_others(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        tables = ("allocations", "jobs", "members", "nodes", "sessions")
        leases = [await engine.grant_lease(30.0) for _ in tables]
        for table, lease in zip(tables, leases, strict=True):
            index = await commit(engine, put("r1", table=table), lease=lease.id)
        expected = dict((await load(engine))[1].last_changes)
        feed = engine.follow(index)
        for position in (1, 3):
            await leases[position].revoke()
            expected[tables[position]] = (await anext(feed)).index

        assert expected == (await load(engine))[1].last_changes
        await engine.compact(await commit(engine, put("later", table="later")))
        last_changes = (await load(engine))[1].last_changes
        assert expected == {table: index for table, index in last_changes.items() if table != "later"}


@EveryKind
async def test_a_later_write_detaches_a_record_from_its_lease(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        lease = await engine.grant_lease(30.0)
        other_lease = await engine.grant_lease(30.0)
        await commit(engine, put("kept"), put("moved"), put("dropped"), put("goes"), lease=lease.id)
        await commit(engine, put("kept", b"2"))
        await commit(engine, put("moved", b"2"), lease=other_lease.id)
        await commit(engine, drop("dropped"))
        await lease.revoke()

        assert await records(engine) == {("jobs", "kept"): b"2", ("jobs", "moved"): b"2"}


@EveryKind
async def test_a_write_on_an_ended_lease_is_refused(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"))
        lease = await engine.grant_lease(30.0)
        await lease.revoke()

        assert isinstance(await engine.commit(a_write(put("b"), lease=lease.id)), WriteRejected)
        assert await records(engine) == {("jobs", "a"): b"data"}


@EveryKind
async def test_a_lease_without_records_ends_without_a_batch(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        index = await commit(engine, put("a"))
        lease = await engine.grant_lease(30.0)
        await lease.revoke()
        next_index = await commit(engine, put("b"))

        assert [next_index] == [batch.index for batch in await follow_to(engine, after=index, index=next_index)]


@EveryKind
async def test_a_lease_is_renewed_while_its_engine_is_open_and_returns_until_when_it_is_valid(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        lease = await engine.grant_lease(kind.ttl_s)
        await commit(engine, put("a"), lease=lease.id)
        granted_until_s = lease.get_valid_until_s()
        until_s = granted_until_s + 1.2 * kind.ttl_s
        await wait_on_loop_until(lambda: lease.get_valid_until_s() >= until_s, what="the lease was renewed")

        assert await records(engine) == {("jobs", "a"): b"data"}


@NeedsManyEngines
async def test_a_lease_of_a_closed_engine_expires_after_its_ttl_and_followers_get_the_batch(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        holder = await log.open_engine()
        lease = await holder.grant_lease(kind.ttl_s)
        index = await commit(holder, put("m1", table="members"), lease=lease.id)
        feed = engine.follow(index)
        await holder.close()
        valid_until_s = lease.get_valid_until_s()

        batch = await anext(feed)
        assert (LEASE_ENDED_KIND, [drop("m1", table="members")]) == (batch.kind, list(batch.changes))
        assert await records(engine) == {}
        # Records may disappear only after the lease has expired. A leader's margin relies on this.
        assert (engine.get_last_contact_s() or 0.0) >= valid_until_s


# --- restores ---


async def in_slices(rows: Sequence[StoredRecord], *, slice_rows: int = 7) -> AsyncIterator[Sequence[StoredRecord]]:
    for start in range(0, len(rows), slice_rows):
        yield rows[start : start + slice_rows]


@EveryKind
async def test_a_restore_replaces_everything_and_every_index_after_it_exceeds_every_one_before(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        await commit(engine, put("old"), put("same", b"old"), put("e", table="evaluations"))
        old_index = await commit(engine, drop("e", table="evaluations"))
        _, before = await load(engine)
        rows = [StoredRecord("jobs", f"k{number:03}", number, b"new") for number in range(1, 300)]
        rows += [StoredRecord("jobs", "same", 5, b"new"), StoredRecord("nodes", "n", 400, b"new")]

        index = await engine.restore(in_slices(rows), LogPosition(400, {"jobs": 299, "nodes": 400, "quotas": 17}, 3))

        restored, position = await load(engine)
        assert dict.fromkeys(((row.table, row.key) for row in rows), b"new") == {
            row_key: data for row_key, (_, data) in restored.items()
        }
        assert index > max(old_index, 400)
        assert all(max(before.index, 400) < version <= index for version, _ in restored.values())
        assert {"jobs": index, "nodes": index, "evaluations": index} == {
            table: changed for table, changed in position.last_changes.items() if table != "quotas"
        }
        assert position.index >= index
        assert position.epoch > max(before.epoch, 3)
        assert (restored, position.last_changes, position.epoch) == await reopen_and_load(log)


async def reopen_and_load(log: FreshLog) -> tuple[dict[RecordKey, tuple[int, bytes]], dict[str, int], int]:
    rows, position = await load(await log.reopen())
    return rows, position.last_changes, position.epoch


@EveryKind
async def test_a_restored_log_accepts_writes_on_its_versions_and_feeds_them(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (_, engine):
        old = await commit(engine, put("a"))
        index = await engine.restore(in_slices([StoredRecord("jobs", "a", 1, b"1")]), LogPosition(1, {"jobs": 1}))
        rows, position = await load(engine)
        version, _ = rows["jobs", "a"]

        assert isinstance(await engine.commit(a_write(put("a"), conditions=[unchanged("a", old)])), WriteConflict)
        last = await commit(engine, put("a", b"2"), put("b"), conditions=[unchanged("a", version), unchanged("b", 0)])
        assert last > index
        (batch,) = await follow_to(engine, after=position.index, index=last)
        assert in_order(batch.changes) == [put("a", b"2"), put("b")]


@EveryKind
async def test_a_restore_makes_every_follower_behind(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (log, engine):
        other_engine = await log.open_engine() if kind.allows_many_engines else engine
        index = await commit(engine, put("a"))
        following = asyncio.ensure_future(anext(other_engine.follow(index)))
        await other_engine.barrier()  # Lets the follower begin to wait.
        await engine.restore(in_slices([StoredRecord("jobs", "a", 1, b"1")]), LogPosition(1, {"jobs": 1}))

        with pytest.raises(FollowerBehind):
            await following
        with pytest.raises(FollowerBehind):
            await anext(engine.follow(index))
        with pytest.raises(FollowerBehind):
            await engine.find_write("never", since=index)


@EveryKind
async def test_every_load_of_a_restored_log_returns_the_same_first_index_of_its_epoch(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async with open_log(kind) as (log, engine):
        first_index = await commit(engine, put("a"))
        _, before = await load(engine)
        index = await engine.restore(in_slices([StoredRecord("jobs", "a", 1, b"1")]), LogPosition(1, {"jobs": 1}))
        _, first = await load(engine)
        await commit(engine, put("b"))
        _, later = await load(engine)
        _, reopened = await load(await log.reopen())

        assert before.epoch_since == 0
        assert first_index < first.epoch_since <= index
        assert {first.epoch_since} == {later.epoch_since, reopened.epoch_since}


@EveryKind
async def test_a_restore_ends_all_leases(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        lease = await engine.grant_lease(30.0)
        await commit(engine, put("leader", table="leader"), lease=lease.id)
        await engine.restore(in_slices([StoredRecord("jobs", "a", 1, b"1")]), LogPosition(1, {"jobs": 1}))

        assert isinstance(await engine.commit(a_write(put("leader", table="leader"), lease=lease.id)), WriteRejected)
        assert await records(engine) == {("jobs", "a"): b"1"}


@EveryKind
async def test_an_empty_log_can_be_restored(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        index = await engine.restore(in_slices([StoredRecord("jobs", "a", 40, b"1")]), LogPosition(50, {"jobs": 40}))

        assert index > 50
        assert await records(engine) == {("jobs", "a"): b"1"}
        assert await commit(engine, put("b")) > index


@EveryKind
async def test_a_restore_whose_records_fail_leaves_the_old_state_or_reports_the_interruption(
    kind: EngineKind, open_log: OpenLog
) -> None:
    async def failing() -> AsyncIterator[Sequence[StoredRecord]]:
        yield [StoredRecord("jobs", "a", 1, b"new")]
        raise ValueError("the file is damaged")

    async with open_log(kind) as (_, engine):
        await commit(engine, put("a", b"old"))
        with pytest.raises(ValueError, match="damaged"):
            await engine.restore(failing(), LogPosition(1, {"jobs": 1}))

        try:
            assert await records(engine) == {("jobs", "a"): b"old"}
        except LogUnavailable:
            assert isinstance(await engine.commit(a_write(put("b"))), WriteRejected)
        await engine.restore(in_slices([StoredRecord("jobs", "a", 1, b"new")]), LogPosition(1, {"jobs": 1}))
        assert await records(engine) == {("jobs", "a"): b"new"}


# --- health and contact ---


@EveryKind
async def test_an_open_engine_returns_the_time_of_the_last_contact(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"))
        first_s = engine.get_last_contact_s()
        await engine.barrier()
        second_s = engine.get_last_contact_s()

        assert first_s is not None
        assert second_s is not None
        assert first_s <= second_s


@EveryKind
async def test_an_idle_engine_keeps_contact(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a"))
        first_s = engine.get_last_contact_s() or 0.0

        await wait_on_loop_until(
            lambda: (engine.get_last_contact_s() or 0.0) > first_s + 0.5, what="the engine had contact"
        )


@EveryKind
async def test_a_healthy_log_is_writable_and_reports_its_size(kind: EngineKind, open_log: OpenLog) -> None:
    async with open_log(kind) as (_, engine):
        await commit(engine, put("a", bytes(10_000)))
        health = await engine.read_health()

        assert (health.writable, health.why) == (True, "")
        assert health.size_bytes >= 10_000
