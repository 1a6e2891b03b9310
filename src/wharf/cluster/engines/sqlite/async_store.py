"""Many callers, one file: gathers what has arrived into groups, answers it, and hands committed batches to followers.

Whatever touches the store happens in one line of work, in the order of arrival: a group of writes or a single job at a
time. Nothing is published and nothing answered before it is durable. It knows no socket; it lives on one event loop.
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
"""A group takes writes until it has so many: its last write waits for the first one's bytes."""

MAX_PENDING_BYTES: Final = 64_000_000
"""When so much waits to be committed, the hub is full: who brings more must wait."""

MAX_INLINE_CHANGES: Final = 200
"""A group with more goes to the writer's thread, where one is given: while it is written, barriers are answered."""

MAX_RECENT_BYTES: Final = 16_000_000
MAX_RECENT_BATCHES: Final = 4_096
"""The newest batches, encoded, for followers that keep up; others read from disk."""

MAX_FEED_BATCHES: Final = 512

T = TypeVar("T")
BatchEncoder = Callable[[Batch], bytes]

_log = logging.getLogger(__name__)


class _Job(msgspec.Struct):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class _Waiting(msgspec.Struct):
    write: EncodedWrite
    answer: Callable[[WriteOutcome], None]
    changes: int
    bytes: int


class AsyncSqliteStore:
    def __init__(
        self,
        sync_store: SqliteStore,
        *,
        encode: BatchEncoder,
        writer: Executor | None = None,
        is_writer_for_large_only: bool = False,
    ) -> None:
        """`encode` makes of a batch what followers get. `writer`: where the store works; None: on the loop itself, and so
        does what is small, if the writer is for what is large only.
        """
        self.sync_store = sync_store
        self._encode = encode
        self._writer = writer
        self._is_for_large_only = is_writer_for_large_only
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="log-reads")
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Waiting | _Job] = deque()
        self._pending_bytes = 0
        self._at_work = False
        self._is_writing_large = False
        self._tidied = False
        self._published = 0
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        self._followers = 0
        self._news = asyncio.Event()
        self._when_drained: list[Callable[[], None]] = []
        self._in_hand: Sequence[_Waiting] = ()
        self.stopped = asyncio.Event()
        self.stop_reason = ""

    async def open(self) -> None:
        """Raises `Unavailable`."""
        await self.run_on_store(self.sync_store.open)
        self._published = self.sync_store.index

    async def close(self) -> None:
        """Finishes what has arrived, then closes the file. Whoever comes later gets `Unavailable`."""
        if not self.stopped.is_set():
            done = self.run_on_store(self.sync_store.close)
            self._end("the log is being closed")
            await done
        self._readers.shutdown()

    # -- asking

    def submit_write(self, write: EncodedWrite, on_outcome: Callable[[WriteOutcome], None]) -> None:
        """`answer` is called once, on the loop, when the outcome is known. Raises `Unavailable`."""
        self._require_open()
        size = sum(len(change.data) for change in write.changes if change.data is not None)
        self._pending_bytes += size
        self._pending.append(_Waiting(write, on_outcome, len(write.changes), size))
        self._go_on()

    def run_on_store(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Something for the store to do after all that has arrived. Raises `Unavailable`."""
        self._require_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending.append(_Job(work, future))
        self._go_on()
        return future

    def barrier(self) -> "asyncio.Future[int] | int":
        """The index of the log once everything that arrived before has its outcome, but for a large group that is being
        written beside the loop: it is acknowledged to nobody yet, and whoever asks need not wait for it.
        """
        self._require_open()
        if not self._pending and (self._is_writing_large or not self._at_work):
            return self._published
        return self.run_on_store(lambda: self.sync_store.index)

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        # After all that has arrived: once this says "no", no write in hand may turn it into a "yes".
        tail_from = await self.run_on_store(lambda: self.sync_store.tail_from)
        if tail_from > 0 and since <= tail_from:
            raise FollowerBehind(f"the log reaches back to {tail_from + 1}, not to {since}")
        return await self.run_read(partial(self.sync_store.reader.find_write, write_id, since=since))

    def is_full(self) -> bool:
        return self._pending_bytes > MAX_PENDING_BYTES

    def call_when_drained(self, resume: Callable[[], None]) -> None:
        self._when_drained.append(resume)

    async def compact(self, before: int) -> None:
        """Returns when the tail begins at `before`, or as near to it as the promised tail allows."""
        await self.run_on_store(partial(self.sync_store.compact, before))
        while await self.run_on_store(self.sync_store.should_trim):
            await self.run_on_store(self.sync_store.run_maintenance_step)

    # -- streams

    async def iter_feed(self, after: int) -> AsyncGenerator[Sequence[bytes], None]:
        """Encoded batches after this index, several at a time, for ever. Raises `Behind` and `Unavailable`."""
        await self._require_reach(after)
        generation = self.sync_store.replacement_count
        self._followers += 1
        try:
            while True:
                if self.stopped.is_set():
                    raise LogUnavailable(self.stop_reason)
                if self.sync_store.replacement_count != generation:
                    raise FollowerBehind("the log was replaced: a new epoch began")
                if after >= self._published:
                    await self._news.wait()
                    continue
                last = min(self._published, after + MAX_FEED_BATCHES)
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
        """A full read as of now; whoever asks for it closes it."""
        standing, dead = await self.run_on_store(self.sync_store.begin_load)
        return AsyncSqliteLoad(self, standing, dead)

    # -- inside

    async def _require_reach(self, after: int) -> None:
        index, tail_from = await self.run_on_store(lambda: (self.sync_store.index, self.sync_store.tail_from))
        if after > index:
            await self.run_on_store(partial(self._begin_epoch, after))
            raise FollowerBehind(f"the log stands at {index} and never came as far as {after}: a new epoch began")
        if after < tail_from:
            raise FollowerBehind(f"the log reaches back to {tail_from}, not to {after}")

    def _begin_epoch(self, above: int) -> WriteGroupResult:
        if above > self.sync_store.index:  # Another follower may have been first.
            self.sync_store.begin_epoch(above=above)
        return WriteGroupResult((), ())

    async def _read_frames(self, after: int, last: int) -> tuple[Sequence[bytes], int]:
        batches = await self.run_read(partial(self.sync_store.reader.read_batches, after, last_index=last))
        if not batches:
            raise FollowerBehind(f"the log no longer reaches back to {after}")
        return [self._encode(batch) for batch in batches], batches[-1].index

    async def run_read(self, work: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._readers, work)
        except DamagedLog as damage:
            await self.run_on_store(partial(self.sync_store.suspend_writes, damage))
            raise

    def _require_open(self) -> None:
        if self.stopped.is_set():
            raise LogUnavailable(self.stop_reason)

    def _go_on(self) -> None:
        """Once everything has been read that is there to be read: that is what makes groups."""
        if not self._at_work:
            self._at_work = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        if self.sync_store.should_maintain() and not self._tidied:
            # Between any two groups, so that a steady stream of them cannot put it off.
            self._tidied = True
            self._perform(self.sync_store.run_maintenance_step, self._finish)
            return
        self._tidied = False
        if not self._pending:
            self._at_work = False
        elif isinstance(job := self._pending[0], _Job):
            self._pending.popleft()
            self._perform(partial(_attempt, job.work), partial(self._finish_job, job))
        else:
            self._in_hand = group = self._next_group()
            work = partial(self.sync_store.commit_group, [waiting.write for waiting in group])
            is_large = sum(waiting.changes for waiting in group) > MAX_INLINE_CHANGES
            self._perform(work, partial(self._finish_group, group), is_large=is_large)

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        changes = 0
        while self._pending and len(group) < MAX_GROUP_WRITES and changes < MAX_GROUP_CHANGES:
            waiting = self._pending[0]
            if isinstance(waiting, _Job):
                break
            self._pending.popleft()
            group.append(waiting)
            changes += waiting.changes
            self._pending_bytes -= waiting.bytes
        return group

    def _perform(self, work: Callable[[], T], finish: Callable[[T], None], *, is_large: bool = False) -> None:
        if self._writer is not None and (is_large or not self._is_for_large_only):
            self._is_writing_large = is_large
            done = self._loop.run_in_executor(self._writer, work)
            done.add_done_callback(partial(self._performed, finish=finish))
            return
        try:
            answer = work()
        except Exception as error:
            self._break(error)
            raise
        finish(answer)

    def _performed(self, done: asyncio.Future[T], *, finish: Callable[[T], None]) -> None:
        self._is_writing_large = False
        if (error := done.exception()) is not None:
            self._break(error)
            raise error
        finish(done.result())

    def _finish_job(self, job: _Job, attempt: "tuple[Any, BaseException | None]") -> None:
        answer, error = attempt
        self._publish(answer.batches if isinstance(answer, WriteGroupResult) else ())
        if not job.future.done():
            if error is None:
                job.future.set_result(answer)
            else:
                job.future.set_exception(error)
        self._finish(None)

    def _finish_group(self, waiting: Sequence[_Waiting], group: WriteGroupResult) -> None:
        self._in_hand = ()
        self._publish(group.batches)
        for each, outcome in zip(waiting, group.outcomes, strict=True):
            each.answer(outcome)
        if self._when_drained and not self.is_full():
            drained, self._when_drained = self._when_drained, []
            for resume in drained:
                resume()
        self._finish(None)

    def _finish(self, _: None) -> None:
        self._loop.call_soon(self._work)

    def _publish(self, batches: Sequence[Batch]) -> None:
        if self.sync_store.index == self._published:
            return
        if self._followers and batches and batches[-1].index == self.sync_store.index:
            if batches[0].index - 1 not in self._recent:
                self._forget_recent()
            for batch in batches:
                frame = self._encode(batch)
                self._recent[batch.index] = frame
                self._recent_bytes += len(frame)
            while self._recent_bytes > MAX_RECENT_BYTES or len(self._recent) > MAX_RECENT_BATCHES:
                oldest = next(iter(self._recent))
                self._recent_bytes -= len(self._recent.pop(oldest))
        else:
            self._forget_recent()
        self._published = self.sync_store.index
        self._tell()

    def _forget_recent(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _break(self, error: BaseException) -> None:
        """A broken assumption: nobody knows what the store would do next, so it does nothing any more."""
        _log.critical("the log stopped: %r", error, exc_info=error)
        self._end(f"the log stopped after an error of its own: {error!r}")
        for entry in (*self._in_hand, *self._pending):
            if isinstance(entry, _Waiting):
                entry.answer(WriteOutcomeUnknown(self.stop_reason))
            elif not entry.future.done():
                entry.future.set_exception(LogUnavailable(self.stop_reason))
        self._pending.clear()

    def _end(self, why: str) -> None:
        self.stop_reason = why
        self.stopped.set()
        self._tell()


class AsyncSqliteLoad:
    """Slices of rows, read on another thread while commits go on."""

    def __init__(self, store: AsyncSqliteStore, position: LogPosition, dead: frozenset[int]) -> None:
        self.position = position
        self._hub = store
        self._dead = dead
        self._generation = store.sync_store.replacement_count
        self._closed = False

    async def iter_slices(self) -> AsyncGenerator[Sequence[RecordTuple], None]:
        """Raises `Unavailable`."""
        read_rows = partial(
            self._hub.sync_store.reader.read_records, last_index=self.position.index, dead_lines=self._dead
        )
        place: int | None = 0
        while place is not None:
            rows, place = await self._hub.run_read(partial(read_rows, place))
            if self._hub.sync_store.replacement_count != self._generation:
                raise LogUnavailable("the log was replaced while it was being read: load again")
            if rows:
                yield rows

    def close(self) -> None:
        """Trimming may go on. The rows that were read stay right."""
        if not self._closed and not self._hub.stopped.is_set():
            self._closed = True
            self._hub.run_on_store(self._hub.sync_store.end_load)


def _attempt(work: Callable[[], T]) -> "tuple[T | None, BaseException | None]":
    """What a job makes of it: the port's errors are answers, anything else is a bug and passes through."""
    try:
        return work(), None
    except (LogUnavailable, FollowerBehind) as error:
        return None, error
