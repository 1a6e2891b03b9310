"""Scheduling of the SQLite engine: groups of writes, jobs between them, the feed, and what happens after an error."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.cluster.engines.contract import a_write, put
from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.port import (
    Committed,
    EncodedWrite,
    FollowerBehind,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
)
from wharf.cluster.engines.sqlite.async_store import (
    MAX_FEED_BATCHES,
    MAX_GROUP_CHANGES,
    MAX_GROUP_WRITES,
    MAX_INLINE_CHANGES,
    MAX_PENDING_BYTES,
    MAX_RECENT_BATCHES,
    AsyncSqliteStore,
)
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES
from wharf.cluster.engines.sqlite.restore import SqliteRestore
from wharf.cluster.engines.sqlite.store import SqliteStore


class ManualExecutor(Executor):
    """An executor that runs its work when the test calls `run_submitted`."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.has_work = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted.append((future, partial(fn, *args, **kwargs)))
        self.has_work.set()
        return future

    def run_submitted(self) -> None:
        self.has_work.clear()
        for future, work in self.submitted:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        self.submitted.clear()

    async def run_next(self) -> None:
        """Wait for the next piece of work and run it."""
        async with asyncio.timeout(30):
            await self.has_work.wait()
        self.run_submitted()


@asynccontextmanager
async def open_store(
    folder: Path, *, writer: Executor | None = None, large_only: bool = False, **options: Any
) -> AsyncIterator[AsyncSqliteStore]:
    async_store = AsyncSqliteStore(
        SqliteStore(folder / "log", clock=lambda: 0.0, **options),
        encode=lambda batch: batch.id.encode(),
        writer=writer,
        is_writer_for_large_only=large_only,
    )
    opening = asyncio.ensure_future(async_store.open())
    while isinstance(writer, ManualExecutor) and not opening.done():
        await asyncio.sleep(0)
        writer.run_submitted()
    await opening
    try:
        yield async_store
    finally:
        closing = asyncio.ensure_future(async_store.close())
        while isinstance(writer, ManualExecutor) and not closing.done():
            await asyncio.sleep(0)
            writer.run_submitted()
        await closing


async def commit(store: AsyncSqliteStore, *writes: EncodedWrite) -> list[WriteOutcome]:
    """Submit writes together and return their outcomes."""
    outcomes: list[WriteOutcome] = []
    for write in writes:
        store.submit_write(write, outcomes.append)
    await store.run_on_store(lambda: None)
    return outcomes


async def test_a_barrier_does_not_wait_for_a_large_group_of_writes(tmp_path: Path) -> None:
    thread = ManualExecutor()
    async with open_store(tmp_path, writer=thread, large_only=True) as async_store:
        outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        async_store.submit_write(
            a_write(*(put(f"k{number}") for number in range(MAX_INLINE_CHANGES + 1))), outcome.set_result
        )
        async with asyncio.timeout(30):
            await thread.has_work.wait()
        meanwhile = async_store.barrier()
        thread.run_submitted()

        assert (meanwhile, await outcome) == (0, Committed(1))
        after = async_store.barrier()
        assert (after if isinstance(after, int) else await after) == 1


async def test_a_group_up_to_the_inline_limit_runs_on_the_event_loop(tmp_path: Path) -> None:
    thread, outcomes = ManualExecutor(), list[WriteOutcome]()
    async with open_store(tmp_path, writer=thread, large_only=True) as async_store:
        async_store.submit_write(a_write(*(put(f"k{number}") for number in range(MAX_INLINE_CHANGES))), outcomes.append)
        barrier = async_store.barrier()
        assert not isinstance(barrier, int), "a write is in flight, so the barrier must wait"

        assert (await barrier, outcomes, thread.submitted) == (1, [Committed(1)], [])


async def test_a_barrier_of_an_idle_store_needs_no_waiting(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        await commit(async_store, a_write(put("a")), a_write(put("b")))
        for _ in range(3):
            await asyncio.sleep(0)

        assert async_store.barrier() == 2


# --- groups ---


async def count_outcomes_by_group(
    folder: Path, writes: Sequence[EncodedWrite | None]
) -> tuple[list[int], AsyncSqliteStore]:
    """Submit writes together, and a job for each None. Return how many outcomes exist after each piece of work."""
    thread, outcomes, counts = ManualExecutor(), list[WriteOutcome](), list[int]()
    async with open_store(folder, writer=thread) as async_store:
        jobs = []
        for write in writes:
            if write is None:
                jobs.append(async_store.run_on_store(lambda: None))
            else:
                async_store.submit_write(write, outcomes.append)
        while len(outcomes) < sum(write is not None for write in writes):
            await thread.run_next()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            counts.append(len(outcomes))
        return counts, async_store


async def test_a_group_has_at_most_a_number_of_writes(tmp_path: Path) -> None:
    writes = [a_write() for _ in range(2 * MAX_GROUP_WRITES + 1)]

    counts, _ = await count_outcomes_by_group(tmp_path, writes)

    assert counts == [MAX_GROUP_WRITES, 2 * MAX_GROUP_WRITES, 2 * MAX_GROUP_WRITES + 1]


async def test_a_group_takes_no_further_write_once_it_has_enough_changes(tmp_path: Path) -> None:
    half = a_write(*(put(f"k{number}") for number in range(MAX_GROUP_CHANGES // 2)))
    nearly = a_write(*(put(f"k{number}") for number in range(MAX_GROUP_CHANGES // 2 - 1)))

    assert (await count_outcomes_by_group(tmp_path / "1", [half, half, half]))[0] == [2, 3]
    assert (await count_outcomes_by_group(tmp_path / "2", [half, nearly, half, half]))[0] == [3, 4]


async def test_jobs_and_writes_keep_the_order_in_which_they_were_submitted(tmp_path: Path) -> None:
    counts, _ = await count_outcomes_by_group(
        tmp_path, [a_write(put("a")), None, a_write(put("b")), a_write(put("c")), None]
    )

    assert counts == [1, 1, 3]


async def test_a_store_is_full_until_enough_pending_bytes_are_committed(tmp_path: Path) -> None:
    outcomes, drained = list[WriteOutcome](), list[str]()
    async with open_store(tmp_path) as async_store:
        async_store.submit_write(a_write(put("a", bytes(MAX_PENDING_BYTES))), outcomes.append)
        assert not async_store.is_full()
        async_store.submit_write(a_write(put("b", b"1")), outcomes.append)
        assert async_store.is_full()
        for name in ("first", "second"):
            async_store.call_when_drained(partial(drained.append, name))
        assert drained == []

        await async_store.run_on_store(lambda: None)

        assert [type(outcome) for outcome in outcomes] == [WriteRejected, Committed]
        assert (drained, async_store.is_full()) == (["first", "second"], False)
        await commit(async_store, a_write(put("c")))
        assert drained == ["first", "second"]


async def test_callers_wait_while_the_rest_of_the_queue_is_too_large(tmp_path: Path) -> None:
    thread, drained = ManualExecutor(), list[str]()
    async with open_store(tmp_path, writer=thread) as async_store:
        outcomes: list[WriteOutcome] = []
        async_store.submit_write(a_write(put("a")), outcomes.append)
        job = async_store.run_on_store(lambda: None)
        async_store.submit_write(a_write(put("b", bytes(MAX_PENDING_BYTES + 1))), outcomes.append)
        async_store.call_when_drained(partial(drained.append, "drained"))
        await thread.run_next()
        await wait_on_loop_until(lambda: len(outcomes) == 1, what="the first write is committed")
        assert drained == []
        await thread.run_next()
        await job
        await thread.run_next()
        await wait_on_loop_until(lambda: len(outcomes) == 2, what="the second write is rejected")

        assert drained == ["drained"]


async def test_a_job_whose_caller_was_cancelled_still_runs(tmp_path: Path) -> None:
    ran: list[str] = []
    async with open_store(tmp_path) as async_store:
        for fails in (False, True):

            def work(fails: bool = fails) -> None:
                ran.append("work")
                if fails:
                    raise LogUnavailable("the disk")

            async_store.run_on_store(work).cancel()
            await async_store.run_on_store(lambda: None)

    assert ran == ["work", "work"]


@pytest.mark.parametrize("error", [LogUnavailable("the disk"), FollowerBehind("the tail")], ids=repr)
async def test_an_error_of_the_port_in_a_job_reaches_its_caller_only(tmp_path: Path, error: Exception) -> None:
    def fail() -> None:
        raise error

    async with open_store(tmp_path) as async_store:
        with pytest.raises(type(error), match=str(error)):
            await async_store.run_on_store(fail)
        assert await commit(async_store, a_write(put("a"))) == [Committed(1)]


@pytest.mark.parametrize("has_thread", [False, True])
async def test_an_unexpected_error_stops_the_log_and_fails_everything_that_waits(
    tmp_path: Path, has_thread: bool
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    thread, outcomes = ManualExecutor() if has_thread else None, list[WriteOutcome]()
    async with open_store(tmp_path, writer=thread) as async_store:
        feed = async_store.iter_feed(0)
        following = asyncio.ensure_future(anext(feed))
        for _ in range(5):
            await asyncio.sleep(0)
            if thread is not None:
                thread.run_submitted()
        async_store.run_on_store(fail).add_done_callback(lambda done: done.cancelled() or done.exception())
        async_store.submit_write(a_write(put("a")), outcomes.append)
        cancelled, job = async_store.run_on_store(lambda: None), async_store.run_on_store(lambda: None)
        cancelled.cancel()
        while not async_store.stopped.is_set():
            await asyncio.sleep(0)
            if thread is not None:
                thread.run_submitted()

        reason = "the log stopped after an error of its own: ZeroDivisionError('a bug')"
        assert outcomes == [WriteOutcomeUnknown(reason)]
        for waiting in (job, following):
            with pytest.raises(LogUnavailable) as stopped:
                await waiting
            assert str(stopped.value) == reason
        with pytest.raises(LogUnavailable):
            async_store.submit_write(a_write(put("a")), outcomes.append)
        with pytest.raises(LogUnavailable):
            async_store.barrier()
        async_store.sync_store.close()


async def test_an_error_during_a_group_leaves_its_writes_unknown(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    outcomes: list[WriteOutcome] = []
    async with open_store(tmp_path) as async_store:
        assert await commit(async_store, a_write(put("a"))) == [Committed(1)]
        async_store.sync_store.close()
        async_store.submit_write(a_write(put("b")), outcomes.append)
        await async_store.stopped.wait()
        await asyncio.sleep(0)

        assert [type(outcome) for outcome in outcomes] == [WriteOutcomeUnknown]


async def test_closing_finishes_what_was_submitted_and_refuses_later_calls(tmp_path: Path) -> None:
    outcomes: list[WriteOutcome] = []
    async with open_store(tmp_path) as async_store:
        async_store.submit_write(a_write(put("a")), outcomes.append)
        await async_store.close()

        assert outcomes == [Committed(1)]
        with pytest.raises(LogUnavailable, match="the log is being closed"):
            async_store.submit_write(a_write(put("b")), outcomes.append)
        with pytest.raises(LogUnavailable, match="the log is being closed"):
            async_store.run_on_store(lambda: None)
        await async_store.close()


# --- maintenance ---


async def test_a_compaction_returns_when_the_batches_are_deleted(tmp_path: Path) -> None:
    async with open_store(tmp_path, min_tail_changes=0) as async_store:
        await commit(async_store, *(a_write(put("a")) for _ in range(9)))

        await async_store.compact(5)

        assert async_store.sync_store.tail_from == 4


async def test_maintenance_alternates_with_other_work(tmp_path: Path) -> None:
    """A steady stream of writes cannot postpone it, and it cannot hold back writes for long."""
    thread, steps = ManualExecutor(), list[str]()
    async with open_store(tmp_path, writer=thread, min_tail_changes=0) as async_store:
        store = async_store.sync_store
        for number in range(12):
            store.commit_group([a_write(*(put(f"{number}-{key}") for key in range(1_000)))])
        jobs = [async_store.run_on_store(lambda: steps.append("job")) for _ in range(3)]
        tail_from = store.tail_from
        while not all(job.done() for job in jobs):
            await thread.run_next()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if store.tail_from != tail_from:
                steps.append("trimmed")
            tail_from = store.tail_from

        assert steps == ["trimmed", "job", "trimmed", "job", "job"]


async def test_a_write_is_searched_back_to_the_start_of_the_tail(tmp_path: Path) -> None:
    async with open_store(tmp_path, min_tail_changes=0) as async_store:
        writes = [a_write(put("a")) for _ in range(6)]
        assert await async_store.find_write("never", since=0) is None
        await commit(async_store, *writes)
        assert await async_store.find_write(writes[0].id, since=0) == 1
        await async_store.compact(4)

        assert await async_store.find_write(writes[4].id, since=4) == 5
        assert await async_store.find_write(writes[4].id, since=6) is None
        for since in (0, 3):
            with pytest.raises(FollowerBehind, match=f"the log reaches back to 4, not to {since}"):
                await async_store.find_write(writes[4].id, since=since)


async def commit_and_damage(async_store: AsyncSqliteStore) -> None:
    """Commit a write, and damage the line of it that the log stores."""
    await commit(async_store, a_write(put("a")))
    other = apsw.Connection(str(async_store.sync_store.database.path))
    other.execute("UPDATE log SET data = ? WHERE place = ?", (b"other", MAX_BATCH_LINES + 1))
    other.close()


async def test_a_damaged_line_before_the_first_load_ends_the_store(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        await commit_and_damage(async_store)

        with pytest.raises(LogUnavailable, match="wrong checksum"):
            await anext(async_store.iter_feed(0))

        assert async_store.stopped.is_set()
        assert "is damaged" in async_store.stop_reason


async def test_a_damaged_line_that_a_read_meets_after_a_load_stops_writes(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        load = await async_store.begin_load()
        assert [rows async for rows in load.iter_slices()] == []
        load.close()
        await commit_and_damage(async_store)

        with pytest.raises(LogUnavailable, match="wrong checksum"):
            await anext(async_store.iter_feed(0))

        (outcome,) = await commit(async_store, a_write(put("b")))
        assert isinstance(outcome, WriteRejected)
        assert "is damaged" in outcome.why


# --- the feed ---


async def read_ids(feed: AsyncIterator[Sequence[bytes]], count: int) -> list[str]:
    """Read until this many batches were received. Return their ids."""
    ids: list[str] = []
    while len(ids) < count:
        frames = await anext(feed)
        assert 0 < len(frames) <= MAX_FEED_BATCHES
        ids += [frame.decode() for frame in frames]
    return ids


async def test_a_follower_gets_older_batches_from_disk_and_new_ones_as_they_are_committed(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        writes = [a_write(put("a"), id=f"w{number}") for number in range(1, 2 * MAX_FEED_BATCHES + 8)]
        older, newer = writes[:-4], writes[-4:]
        await commit(async_store, *older)
        async with aclosing(async_store.iter_feed(3)) as feed, aclosing(async_store.iter_feed(0)) as slow_feed:
            assert await read_ids(feed, len(older) - 3) == [write.id for write in older[3:]]
            for write in newer:
                following = asyncio.ensure_future(anext(feed))
                await asyncio.sleep(0)
                await commit(async_store, write)
                assert await following == [write.id.encode()]

            assert await read_ids(slow_feed, len(writes)) == [write.id for write in writes]


async def test_a_follower_that_returns_after_a_pause_misses_no_batch(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        async with aclosing(async_store.iter_feed(0)) as feed:
            await commit(async_store, a_write(put("a"), id="w1"))
            assert await read_ids(feed, 1) == ["w1"]
        # Without followers, new batches are not cached.
        await commit(async_store, a_write(put("a"), id="w2"), a_write(put("a"), id="w3"))
        async with aclosing(async_store.iter_feed(3)) as feed, aclosing(async_store.iter_feed(1)) as other_feed:
            following = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0)
            await commit(async_store, a_write(put("a"), id="w4"))

            assert await following == [b"w4"]
            assert await read_ids(other_feed, 3) == ["w2", "w3", "w4"]


async def test_a_follower_that_is_slower_than_the_cache_misses_no_batch(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store, aclosing(async_store.iter_feed(0)) as feed:
        ids = [f"w{number}" for number in range(MAX_RECENT_BATCHES + 100)]
        await commit(async_store, a_write(put("a"), id=ids[0]))
        assert await read_ids(feed, 1) == ids[:1]
        for start in range(1, len(ids), 1_000):
            await commit(async_store, *(a_write(put("a"), id=write_id) for write_id in ids[start : start + 1_000]))

        assert await read_ids(feed, len(ids) - 1) == ids[1:]


async def test_a_follower_before_the_tail_or_after_the_end_is_behind(tmp_path: Path) -> None:
    async with open_store(tmp_path, min_tail_changes=0) as async_store:
        await commit(async_store, *(a_write(put("a"), id=f"w{number}") for number in range(1, 7)))
        await async_store.compact(4)
        async with aclosing(async_store.iter_feed(3)) as feed:
            assert await read_ids(feed, 3) == ["w4", "w5", "w6"]
        with pytest.raises(FollowerBehind, match="the log reaches back to 3, not to 2"):
            await anext(async_store.iter_feed(2))

        open_feed = async_store.iter_feed(6)
        waiting = asyncio.ensure_future(anext(open_feed))
        await async_store.run_on_store(lambda: None)
        # A follower has seen index 9, so this log is an older copy.
        with pytest.raises(FollowerBehind, match="the log is at index 6 and never reached 9: a new epoch began"):
            await anext(async_store.iter_feed(9))
        with pytest.raises(FollowerBehind, match="the log was replaced: a new epoch began"):
            await waiting
        assert (async_store.sync_store.epoch, async_store.sync_store.index) == (1, 10)
        with pytest.raises(FollowerBehind):
            await anext(async_store.iter_feed(9))
        assert async_store.sync_store.epoch == 1


# --- loads ---


async def test_a_load_returns_the_records_at_its_position_in_slices(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        await commit(async_store, *(a_write(*(put(f"{n}-{key}") for key in range(700))) for n in range(3)))
        load = await async_store.begin_load()
        await commit(async_store, a_write(put("later")))

        slices = [rows async for rows in load.iter_slices()]
        load.close()

        assert [len(rows) for rows in slices] == [1_000, 1_000, 100]
        assert len({key for rows in slices for _, key, _, _ in rows}) == 2_100
        assert load.position.index == 3


async def test_lines_are_trimmed_only_after_every_load_is_closed(tmp_path: Path) -> None:
    async with open_store(tmp_path, min_tail_changes=0) as async_store:
        await commit(async_store, *(a_write(put("a")) for _ in range(5)))
        first, second = await async_store.begin_load(), await async_store.begin_load()
        await async_store.compact(4)
        for _ in range(2):
            first.close()
        await async_store.run_on_store(lambda: None)
        assert not async_store.sync_store.should_trim()

        second.close()
        await async_store.run_on_store(lambda: None)
        await async_store.compact(4)

        assert async_store.sync_store.tail_from == 3


async def test_a_load_of_a_log_that_is_replaced_meanwhile_fails(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        await commit(async_store, *(a_write(*(put(f"{n}-{key}") for key in range(700))) for n in range(3)))
        load = await async_store.begin_load()
        slices = load.iter_slices()
        assert len(await anext(slices)) == 1_000
        restore = SqliteRestore(async_store.sync_store)
        await async_store.run_on_store(partial(restore.begin, LogPosition(0, {})))
        restore.add_records([StoredRecord("jobs", "a", 1, b"new")])
        await async_store.run_on_store(restore.finish)

        with pytest.raises(LogUnavailable, match="the log was replaced while it was being read: load again"):
            await anext(slices)
        load.close()


async def test_closing_a_load_of_a_stopped_log_is_allowed(tmp_path: Path) -> None:
    async with open_store(tmp_path) as async_store:
        load = await async_store.begin_load()
        await async_store.close()

        load.close()
