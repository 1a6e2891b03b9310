"""Delivers the records of one sink: stores them in its spool, sends them in order and in batches, and retries.

Publishing a record never waits. A record is deleted from the spool after the receiver accepted it, so it can arrive twice,
with the same id. Records are lost only if the spool is full, or if the receiver rejects them for their content. Both are
counted and logged, and a record of the type `sink.loss` marks the place of dropped ones in the stream.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from wharf.sinks.port import RecordsRejected, Sink, SinkUnavailable
from wharf.sinks.records import (
    MAX_RECORD_BYTES,
    LossData,
    LossRecord,
    RecordSeverity,
    encode_record,
    format_record_time,
)
from wharf.sinks.spool import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Spool, SpoolBatch, SpoolError
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import cancel_tasks, start_supervised, wait_for_event

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_QUEUED_RECORDS: Final = 20_000
"""Records in memory that wait for the spool. More are dropped and counted; limits memory while the disk is slow."""
MAX_QUEUED_BYTES: Final = 16 << 20
"""The same by size."""
STORE_INTERVAL_S: Final = 0.2
"""How long a record may wait for others before they are stored together. A crash of the process loses those that wait."""
MIN_RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 30.0
"""The longest wait after a failure. A receiver that has returned gets records at most this much later."""
CLOSE_TIMEOUT_S: Final = 2.0
"""How long the last records may take to be sent when the process stops. What is left stays in the spool."""


class SinkStatus(msgspec.Struct, frozen=True):
    """The state of a sink, for operators and metrics."""

    name: str
    kind: str
    waiting_records: int
    waiting_bytes: int
    sent: int
    """Records that the receiver accepted, since the process started."""
    lost: int
    """Records that were dropped because spool or memory was full."""
    rejected: int
    """Records that the receiver rejected for their content, and records that were too long."""
    failures: int
    """Attempts that failed and are repeated."""
    error: str
    """Why the last attempt failed; empty if it succeeded."""


class SinkDelivery:
    """The queue, the spool and the sender of one sink."""

    def __init__(
        self,
        world: World,
        sink: Sink,
        spool: Spool,
        *,
        name: str,
        kind: str,
        source: str,
        timeout_s: float,
        types: frozenset[str] = frozenset(),
        interval_s: float = 0.0,
    ) -> None:
        """`types` are the types of the records that this sink gets; empty for all. `timeout_s` limits each attempt.

        A batch that is not full is sent at the earliest `interval_s` after the batch before it.
        """
        self.name: Final = name
        self.types: Final = types
        self._kind = kind
        self._world = world
        self._sink = sink
        self._spool = spool
        self._source = source
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._queue_event = asyncio.Event()
        self._spool_event = asyncio.Event()
        self._close_event = asyncio.Event()
        self._spool_lock = asyncio.Lock()
        self._backoff = Backoff(world.random, min_s=MIN_RETRY_S, max_s=MAX_RETRY_S)
        self._log_limit = LogLimit(world)
        self._sent = self._lost = self._rejected = self._failures = 0
        self._error = ""
        self._unreported_losses = 0
        """How many records were dropped since the last `sink.loss` record, which reports such a number to the receiver."""
        self._first_loss = ""
        self._tasks: list[asyncio.Task[Any]] = []

    def describe(self) -> SinkStatus:
        """Return the state of this sink."""
        return SinkStatus(
            self.name,
            self._kind,
            len(self._queue) + self._spool.waiting_records,
            self._queued_bytes + self._spool.waiting_bytes,
            self._sent,
            self._lost,
            self._rejected,
            self._failures,
            self._error,
        )

    def publish(self, line: bytes) -> None:
        """Queue an encoded record, without a line feed. If the queue is full, it is dropped and counted."""
        if len(line) > MAX_RECORD_BYTES:
            self._count_rejected(1, f"a record has {len(line):,} bytes, more than {MAX_RECORD_BYTES:,}")
            return
        if len(self._queue) >= MAX_QUEUED_RECORDS or self._queued_bytes + len(line) > MAX_QUEUED_BYTES:
            self._count_lost(1)
            return
        self._queue.append(line)
        self._queued_bytes += len(line)
        self._queue_event.set()

    def open(self) -> None:
        """Start to store and to send records, also those that an earlier process has stored."""
        self._spool_event.set()
        self._tasks = [
            start_supervised(self._world, self._run_store_loop(), name=f"sink {self.name}: store"),
            start_supervised(self._world, self._run_send_loop(), name=f"sink {self.name}: send"),
        ]

    async def close(self) -> None:
        """Stop: store all queued records, and send what the receiver takes within `CLOSE_TIMEOUT_S`."""
        self._close_event.set()
        self._queue_event.set()
        self._spool_event.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                # What has begun is not cancelled: it would be done, or arrive, a second time.
                if self._tasks:
                    await asyncio.wait(self._tasks)
                while await self._store_queue() or self._spool.waiting_records:
                    if not await self._send_next_batch():
                        break
        except (SinkUnavailable, SpoolError, TimeoutError) as error:
            log.info("sink closed before its last records were sent sink=%s error=%s", self.name, error)
        await cancel_tasks(*self._tasks)
        self._tasks = []
        with contextlib.suppress(SpoolError):
            await self._store_queue()
        if self._queue:
            log.error("sink closed with records in memory sink=%s records=%d", self.name, len(self._queue))
        await self._sink.close()
        await self._call_spool(self._spool.close)

    def close_spool(self) -> None:
        """Close the spool of a delivery that was never opened."""
        if not self._tasks:
            self._spool.close()

    # -- from memory to the spool -----------------------------------------------------------------------------------

    async def _run_store_loop(self) -> None:
        """Move queued records to the spool, several together, until the delivery is closed."""
        while True:
            await self._queue_event.wait()
            await wait_for_event(self._close_event, STORE_INTERVAL_S)
            if self._close_event.is_set():
                return  # `close` stores the rest.
            self._queue_event.clear()
            try:
                await self._store_queue()
            except SpoolError as error:
                # They stay in memory, which is limited too.
                self._report_failure(str(error))
                self._queue_event.set()
                await wait_for_event(self._close_event, MAX_RETRY_S)

    async def _store_queue(self) -> bool:
        """Move all queued records to the spool. Those that do not fit are dropped and counted. Raises `SpoolError`.

        Return whether any were stored.
        """
        has_stored = False
        while self._queue or self._unreported_losses:
            lines = list(self._queue)
            losses = self._unreported_losses
            added = [self._build_loss_record(), *lines] if losses else lines
            stored = await self._call_spool(partial(self._spool.append, added))
            if not lines and not stored:
                break  # Not even the loss record fits.
            for line in lines:
                self._queued_bytes -= len(line)
                self._queue.popleft()
            if losses and stored:
                self._unreported_losses -= losses
            if stored:
                has_stored = True
                self._spool_event.set()
            if stored < len(added):
                # A loss record that did not fit is written later; only records of the stream count.
                self._count_lost(len(lines) - max(0, stored - (1 if losses else 0)))
                break
        return has_stored

    def _build_loss_record(self) -> bytes:
        """Return the encoded record that reports the dropped records."""
        return encode_record(
            LossRecord(
                id=self._world.new_id(),
                time=format_record_time(self._world.now_ns()),
                source=self._source,
                severity=RecordSeverity.ERROR,
                data=LossData(sink=self.name, lost=self._unreported_losses, first=self._first_loss),
            )
        )

    # -- from the spool to the receiver -----------------------------------------------------------------------------

    async def _run_send_loop(self) -> None:
        """Send the records of the spool in order, with retries, until the delivery is closed."""
        while not self._close_event.is_set():
            try:
                if not await self._send_next_batch():
                    self._spool_event.clear()
                    if not self._spool.waiting_records and not self._close_event.is_set():
                        await self._spool_event.wait()
                    continue
                self._backoff.reset()
                await self._wait_for_full_batch()
            except (SinkUnavailable, SpoolError) as error:
                retry_after_s = error.retry_after_s if isinstance(error, SinkUnavailable) else None
                await wait_for_event(self._close_event, self._backoff.next_delay_s(retry_after_s))

    async def _wait_for_full_batch(self) -> None:
        """Wait until a batch is full, or `interval_s` has passed."""
        end_s = self._world.monotonic_s() + self._interval_s
        while (left_s := end_s - self._world.monotonic_s()) > 0 and not (
            self._has_full_batch() or self._close_event.is_set()
        ):
            self._spool_event.clear()
            if not self._close_event.is_set():
                await wait_for_event(self._spool_event, left_s)

    def _has_full_batch(self) -> bool:
        return self._spool.waiting_records >= MAX_BATCH_RECORDS or self._spool.waiting_bytes >= MAX_BATCH_BYTES

    async def _send_next_batch(self) -> bool:
        """Send the oldest batch and delete it from the spool. Return whether there was one.

        Raises `SinkUnavailable`, and `SpoolError` if the spool cannot be read.
        """
        batch = await self._call_spool(self._spool.read)
        if batch is None:
            return False
        try:
            await self._send(batch)
        except SinkUnavailable as error:
            self._failures += 1
            self._report_failure(str(error))
            raise
        self._error = ""
        await self._call_spool(partial(self._spool.delete_through, batch.last))
        if self._unreported_losses:
            self._queue_event.set()  # Now there is space for the record that reports them.
        return True

    async def _send(self, batch: SpoolBatch) -> None:
        """Send a batch. If it is rejected, send its halves, so that only bad records are lost. Raises `SinkUnavailable`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                rejected = await self._sink.send(batch)
        except TimeoutError:
            raise SinkUnavailable(f"no answer within {self._timeout_s:g} s") from None
        except RecordsRejected as error:
            count = len(batch.lines)
            if count == 1:
                self._count_rejected(1, str(error))
                return
            for part, lines in (("a", batch.lines[: count // 2]), ("b", batch.lines[count // 2 :])):
                await self._send(SpoolBatch(batch.name + part, lines, batch.last))
            return
        if rejected:
            self._count_rejected(rejected, "the receiver accepted only a part of the batch")
        self._sent += len(batch.lines) - rejected

    async def _call_spool(self, work: Callable[[], T]) -> T:
        """Call the spool on a thread, one call at a time. A call that has begun ends, also if the caller is cancelled."""
        async with self._spool_lock:
            call = asyncio.to_thread(work)
            task = self._world.start_task(call, name=f"sink {self.name}: spool")
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                await asyncio.wait([task])
                raise

    # -- counts and log lines ---------------------------------------------------------------------------------------

    def _count_lost(self, count: int) -> None:
        self._lost += count
        if not self._unreported_losses:
            self._first_loss = format_record_time(self._world.now_ns())
        self._unreported_losses += count
        left_out = self._log_limit.count_event("lost")
        if left_out is not None:
            log.error("records of a sink dropped: its spool is full sink=%s lost=%d", self.name, self._lost)

    def _count_rejected(self, count: int, reason: str) -> None:
        self._rejected += count
        left_out = self._log_limit.count_event("rejected")
        if left_out is not None:
            log.error("records of a sink rejected sink=%s error=%s rejected=%d", self.name, reason, self._rejected)

    def _report_failure(self, reason: str) -> None:
        self._error = reason
        left_out = self._log_limit.count_event(reason)
        if left_out is not None:
            waiting = self.describe().waiting_records
            log.warning("sink unavailable; trying again sink=%s error=%s waiting=%d", self.name, reason, waiting)


def publish_to_all(deliveries: Sequence[SinkDelivery], record_type: str, line: bytes) -> None:
    """Queue an encoded record for every sink that gets its type."""
    for delivery in deliveries:
        if not delivery.types or record_type in delivery.types:
            delivery.publish(line)
