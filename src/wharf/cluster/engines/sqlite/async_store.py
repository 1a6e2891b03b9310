"""The asyncio front of `SqliteStore`: gathers writes into groups, calls back with outcomes, and feeds committed batches
to followers.

The store does one piece of work at a time, in the order of arrival: a group of writes, or a single job. No outcome and
no batch is reported before it is durable. It knows no socket and belongs to one event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    FollowerBehind,
    LogPosition,
    LogUnavailable,
    WriteOutcome,
    WriteOutcomeUnknown,
)
from wharf.cluster.engines.sqlite.reader import DamagedLog, RecordTuple
from wharf.cluster.engines.sqlite.store import SqliteStore, WriteGroupResult

MAX_GROUP_WRITES: Final = 1_000
MAX_GROUP_CHANGES: Final = 4_000
"""Limits of a group: the first write of a group waits until the last one is on disk."""

MAX_PENDING_BYTES: Final = 64_000_000
"""Protects memory: when more bytes wait to be committed, `is_full` is true and callers must wait."""

MAX_INLINE_CHANGES: Final = 200
"""A group with more changes goes to the writer thread, if there is one, so that barriers are answered while it is
written."""

MAX_RECENT_BYTES: Final = 16_000_000
MAX_RECENT_BATCHES: Final = 4_096
"""Limits of the cache of newest batches, encoded, for followers that keep up. Others read from disk."""

MAX_FEED_BATCHES: Final = 512
"""Batches that a feed yields at once, at most."""

T = TypeVar("T")
BatchEncoder = Callable[[Batch], bytes]

_log = logging.getLogger(__name__)


class _StoreJob(msgspec.Struct):
    """A function that the store must run, and the future for its result."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]


class _PendingWrite(msgspec.Struct):
    """A write that waits to be committed, with its callback and size."""

    write: EncodedWrite
    on_outcome: Callable[[WriteOutcome], None]
    change_count: int
    size_bytes: int


class AsyncSqliteStore:
    """Group commit, feed and reads of one log."""

    def __init__(
        self,
        sync_store: SqliteStore,
        *,
        encode: BatchEncoder,
        writer: Executor | None = None,
        is_writer_for_large_only: bool = False,
        publish_index: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`encode`: encodes a batch for followers. `writer`: the executor on which the store works; None: the event
        loop itself. With `is_writer_for_large_only`, small groups run on the loop and only large ones on the writer.

        `publish_index` is called with each new index, before a write of this index is acknowledged.
        """
        self.sync_store = sync_store
        self._encode = encode
        self._writer = writer
        self._is_for_large_only = is_writer_for_large_only
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="log-reads")
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_PendingWrite | _StoreJob] = deque()
        self._pending_bytes = 0
        self._is_working = False
        self._is_writing_large = False
        self._has_maintained = False
        self._published_index = 0
        self._publish_index = publish_index
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        self._followers = 0
        self._published_event = asyncio.Event()
        self._drain_callbacks: list[Callable[[], None]] = []
        self._current_group: Sequence[_PendingWrite] = ()
        self.stopped = asyncio.Event()
        self.stop_reason = ""
        self._was_loaded = False

    async def open(self) -> None:
        """Open the file. Raises `LogUnavailable`."""
        await self.run_on_store(self.sync_store.open)
        self._published_index = self.sync_store.index
        self._publish_index(self._published_index)

    async def close(self) -> None:
        """Finish everything that was submitted, then close the file. Later calls raise `LogUnavailable`."""
        if not self.stopped.is_set():
            closing = self.run_on_store(self.sync_store.close)
            self._stop("the log is being closed")
            await closing
        self._readers.shutdown()

    # -- requests

    def submit_write(self, write: EncodedWrite, on_outcome: Callable[[WriteOutcome], None]) -> None:
        """Queue a write. `on_outcome` is called once, on the loop, with the outcome. Raises `LogUnavailable`."""
        self._require_open()
        size = sum(len(change.data) for change in write.changes if change.data is not None)
        self._pending_bytes += size
        self._pending.append(_PendingWrite(write, on_outcome, len(write.changes), size))
        self._schedule_work()

    def run_on_store(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function on the store after everything that was submitted before. Raises `LogUnavailable`."""
        self._require_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending.append(_StoreJob(work, future))
        self._schedule_work()
        return future

    def barrier(self) -> "asyncio.Future[int] | int":
        """Return the newest index after all earlier submissions, or a future of it.

        A large group that is being written on the writer thread is ignored: it is not acknowledged to any caller yet.
        """
        self._require_open()
        if not self._pending and (self._is_writing_large or not self._is_working):
            return self._published_index
        return self.run_on_store(lambda: self.sync_store.index)

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        """Return the index at which the write was committed, or None. Searches from the index `since`.

        Raises `FollowerBehind` if the log no longer reaches back to `since`.
        """
        # Read the tail's start after everything submitted before: a write must not be committed after this returned
        # None.
        tail_from = await self.run_on_store(lambda: self.sync_store.tail_from)
        if tail_from > 0 and since <= tail_from:
            raise FollowerBehind(f"the log reaches back to {tail_from + 1}, not to {since}")
        return await self.run_read(partial(self.sync_store.reader.find_write, write_id, since=since))

    def is_full(self) -> bool:
        return self._pending_bytes > MAX_PENDING_BYTES

    def call_when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the pending writes are below the limit again."""
        self._drain_callbacks.append(resume)

    async def compact(self, before: int) -> None:
        """Discard batches with an index below `before`, and return when that is done.

        The newest batches that the store always retains (the guaranteed tail) stay.
        """
        await self.run_on_store(partial(self.sync_store.compact, before))
        while await self.run_on_store(self.sync_store.should_trim):
            await self.run_on_store(self.sync_store.run_maintenance_step)

    # -- streams

    async def iter_feed(self, after: int) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield encoded batches after this index, several at a time, without end. Raises `FollowerBehind` and
        `LogUnavailable`."""
        await self._require_feed_reaches(after)
        generation = self.sync_store.replacement_count
        self._followers += 1
        try:
            while True:
                if self.stopped.is_set():
                    raise LogUnavailable(self.stop_reason)
                if self.sync_store.replacement_count != generation:
                    raise FollowerBehind("the log was replaced: a new epoch began")
                if after >= self._published_index:
                    await self._published_event.wait()
                    continue
                last = min(self._published_index, after + MAX_FEED_BATCHES)
                frames: Sequence[bytes]
                if after + 1 in self._recent:
                    frames = [self._recent[index] for index in range(after + 1, last + 1)]
                else:
                    frames, last = await self._read_frames(after, last)
                    if self.sync_store.replacement_count != generation:
                        continue
                yield frames
                after = last
        finally:
            self._followers -= 1

    async def begin_load(self) -> "AsyncSqliteLoad":
        """Begin a full read of the current state. The caller must close it."""
        position, dead_lines = await self.run_on_store(self.sync_store.begin_load)
        return AsyncSqliteLoad(self, position, dead_lines)

    def mark_loaded(self) -> None:
        """Record that a reader has received the whole state. From now on, damage ends only writes."""
        self._was_loaded = True

    # -- inside

    async def _require_feed_reaches(self, after: int) -> None:
        """Raise `FollowerBehind` unless the feed can start after this index.

        A follower ahead of the log proves that the log is an older copy; then a new epoch begins.
        """
        index, tail_from = await self.run_on_store(lambda: (self.sync_store.index, self.sync_store.tail_from))
        if after > index:
            await self.run_on_store(partial(self._begin_epoch, after))
            raise FollowerBehind(f"the log is at index {index} and never reached {after}: a new epoch began")
        if after < tail_from:
            raise FollowerBehind(f"the log reaches back to {tail_from}, not to {after}")

    def _begin_epoch(self, above: int) -> WriteGroupResult:
        """Begin a new epoch whose indexes exceed `above`."""
        if above > self.sync_store.index:  # Another follower may have caused it already.
            self.sync_store.begin_epoch(above=above)
        return WriteGroupResult((), ())

    async def _read_frames(self, after: int, last: int) -> tuple[Sequence[bytes], int]:
        """Read batches from disk and encode them; return them with the index of the last one."""
        batches = await self.run_read(partial(self.sync_store.reader.read_batches, after, last_index=last))
        if not batches:
            raise FollowerBehind(f"the log no longer reaches back to {after}")
        return [self._encode(batch) for batch in batches], batches[-1].index

    async def run_read(self, work: Callable[[], T]) -> T:
        """Run a read on the reader thread. If it meets a damaged line of the log, writes stop too."""
        try:
            return await self._loop.run_in_executor(self._readers, work)
        except DamagedLog as error:
            await self.run_on_store(partial(self.sync_store.suspend_writes, error))
            if not self._was_loaded:  # No process has a copy of the state, so nothing can be served from this log.
                self._stop(str(error))
            raise

    def _require_open(self) -> None:
        if self.stopped.is_set():
            raise LogUnavailable(self.stop_reason)

    def _schedule_work(self) -> None:
        """Start to work in the next iteration of the loop, after all received requests were read. This forms larger
        groups."""
        if not self._is_working:
            self._is_working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Do the next piece of work: maintenance, one job, or one group of writes."""
        if self.sync_store.should_maintain() and not self._has_maintained:
            # Maintenance alternates with other work, so that a steady stream of writes cannot postpone it.
            self._has_maintained = True
            self._run_work(self.sync_store.run_maintenance_step, self._finish)
            return
        self._has_maintained = False
        if not self._pending:
            self._is_working = False
        elif isinstance(job := self._pending[0], _StoreJob):
            self._pending.popleft()
            self._run_work(partial(_catch_port_errors, job.work), partial(self._finish_job, job))
        else:
            self._current_group = group = self._take_next_group()
            work = partial(self.sync_store.commit_group, [pending.write for pending in group])
            is_large = sum(pending.change_count for pending in group) > MAX_INLINE_CHANGES
            self._run_work(work, partial(self._finish_group, group), is_large=is_large)

    def _take_next_group(self) -> list[_PendingWrite]:
        """Remove the next writes from the queue, up to the limits of a group."""
        group: list[_PendingWrite] = []
        changes = 0
        while self._pending and len(group) < MAX_GROUP_WRITES and changes < MAX_GROUP_CHANGES:
            pending = self._pending[0]
            if isinstance(pending, _StoreJob):
                break
            self._pending.popleft()
            group.append(pending)
            changes += pending.change_count
            self._pending_bytes -= pending.size_bytes
        return group

    def _run_work(self, work: Callable[[], T], finish: Callable[[T], None], *, is_large: bool = False) -> None:
        """Run work on the writer or on the loop, then call `finish` with its result."""
        if self._writer is not None and (is_large or not self._is_for_large_only):
            self._is_writing_large = is_large
            done = self._loop.run_in_executor(self._writer, work)
            done.add_done_callback(partial(self._on_writer_done, finish=finish))
            return
        try:
            result = work()
        except Exception as error:
            self._stop_after_error(error)
            raise
        finish(result)

    def _on_writer_done(self, done: asyncio.Future[T], *, finish: Callable[[T], None]) -> None:
        """Finish work of the writer thread; stop the log if the work failed unexpectedly."""
        self._is_writing_large = False
        if (error := done.exception()) is not None:
            self._stop_after_error(error)
            raise error
        finish(done.result())

    def _finish_job(self, job: _StoreJob, attempt: "tuple[Any, BaseException | None]") -> None:
        """Publish a job's batches and resolve its future."""
        result, error = attempt
        self._publish(result.batches if isinstance(result, WriteGroupResult) else ())
        if not job.future.done():
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)
        self._finish(None)

    def _finish_group(self, writes: Sequence[_PendingWrite], group: WriteGroupResult) -> None:
        """Publish the batches of a group, then report its outcomes."""
        self._current_group = ()
        self._publish(group.batches)
        for pending, outcome in zip(writes, group.outcomes, strict=True):
            pending.on_outcome(outcome)
        if self._drain_callbacks and not self.is_full():
            callbacks, self._drain_callbacks = self._drain_callbacks, []
            for resume in callbacks:
                resume()
        self._finish(None)

    def _finish(self, _: None) -> None:
        self._loop.call_soon(self._work)

    def _publish(self, batches: Sequence[Batch]) -> None:
        """Make new batches visible to followers, and cache them while there are followers."""
        if self.sync_store.index == self._published_index:
            return
        if self._followers and batches:
            for batch in batches:
                frame = self._encode(batch)
                self._recent[batch.index] = frame
                self._recent_bytes += len(frame)
            while self._recent_bytes > MAX_RECENT_BYTES or len(self._recent) > MAX_RECENT_BATCHES:
                oldest = next(iter(self._recent))
                self._recent_bytes -= len(self._recent.pop(oldest))
        else:
            self._clear_recent()
        self._published_index = self.sync_store.index
        self._publish_index(self._published_index)
        self._wake_followers()

    def _clear_recent(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0

    def _wake_followers(self) -> None:
        event, self._published_event = self._published_event, asyncio.Event()
        event.set()

    def _stop_after_error(self, error: BaseException) -> None:
        """Stop the log after an unexpected error: the state of the store is unknown, so it must not be used further."""
        _log.critical("log stopped error=%r", error, exc_info=error)
        self._stop(f"the log stopped after an error of its own: {error!r}")
        for entry in (*self._current_group, *self._pending):
            if isinstance(entry, _PendingWrite):
                entry.on_outcome(WriteOutcomeUnknown(self.stop_reason))
            elif not entry.future.done():
                entry.future.set_exception(LogUnavailable(self.stop_reason))
        self._pending.clear()

    def _stop(self, reason: str) -> None:
        self.stop_reason = reason
        self.stopped.set()
        self._wake_followers()


class AsyncSqliteLoad:
    """A full read in slices on the reader thread, while commits continue."""

    def __init__(self, store: AsyncSqliteStore, position: LogPosition, dead_lines: frozenset[int]) -> None:
        self.position = position
        self._store = store
        self._dead_lines = dead_lines
        self._generation = store.sync_store.replacement_count
        self._closed = False

    async def iter_slices(self) -> AsyncGenerator[Sequence[RecordTuple], None]:
        """Yield the records in slices. Raises `LogUnavailable`."""
        read_rows = partial(
            self._store.sync_store.reader.read_records, last_index=self.position.index, dead_lines=self._dead_lines
        )
        next_place: int | None = 0
        while next_place is not None:
            rows, next_place = await self._store.run_read(partial(read_rows, next_place))
            if self._store.sync_store.replacement_count != self._generation:
                raise LogUnavailable("the log was replaced while it was being read: load again")
            if rows:
                yield rows
        self._store.mark_loaded()

    def close(self) -> None:
        """Allow trimming again. The records that were read stay correct."""
        if not self._closed and not self._store.stopped.is_set():
            self._closed = True
            self._store.run_on_store(self._store.sync_store.end_load)


def _catch_port_errors(work: Callable[[], T]) -> "tuple[T | None, BaseException | None]":
    """Run work and return its result or its error. Errors of the port are results; any other exception is a bug and
    passes through."""
    try:
        return work(), None
    except (LogUnavailable, FollowerBehind) as error:
        return None, error
