"""Delivery: order, retries, losses that are counted and reported, and what happens at the end of a process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sinks.receivers import make_line, read_ids
from tests.waiting import wait_on_loop_until
from wharf.sinks import delivery as delivery_module
from wharf.sinks.delivery import MAX_QUEUED_RECORDS, SinkDelivery
from wharf.sinks.port import RecordsRejected, SinkBatch, SinkUnavailable
from wharf.sinks.records import MAX_RECORD_BYTES
from wharf.sinks.spool import RECORD_OVERHEAD_BYTES, FileSpool, MemorySpool, Spool, SpoolError
from wharf.world import RealWorld


class ListSink:
    """A sink that keeps the lines of batches. `check` may refuse a batch, or wait."""

    def __init__(self, check: Callable[[SinkBatch], Awaitable[int] | int] = lambda _batch: 0) -> None:
        self.lines: list[bytes] = []
        self.names: list[str] = []
        self.is_closed = False
        self._check = check

    async def send(self, batch: SinkBatch) -> int:
        result = self._check(batch)
        rejected = result if isinstance(result, int) else await result
        self.lines += batch.lines
        self.names.append(batch.name)
        return rejected

    async def close(self) -> None:
        self.is_closed = True

    @property
    def ids(self) -> list[str]:
        return read_ids(b"\n".join(self.lines))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STORE_INTERVAL_S", 0.0), ("MIN_RETRY_S", 0.01), ("MAX_RETRY_S", 0.02)):
        monkeypatch.setattr(delivery_module, name, value)


def make_delivery(sink: ListSink, spool: Spool | None = None, **options: Any) -> SinkDelivery:
    return SinkDelivery(
        RealWorld(),
        sink,
        spool if spool is not None else MemorySpool("s", 10 << 20),
        name="out",
        kind="test",
        source="h1/p1",
        timeout_s=options.pop("timeout_s", 5.0),
        **options,
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


def refuse_first(count: int, error: Exception) -> Callable[[SinkBatch], int]:
    """Return a check that refuses this number of batches."""
    errors = [error] * count

    def check(_batch: SinkBatch) -> int:
        if errors:
            raise errors.pop()
        return 0

    return check


def test_records_arrive_in_order_after_failures() -> None:
    sink = ListSink(refuse_first(3, SinkUnavailable("away")))

    async def scenario() -> None:
        delivery = make_delivery(sink)
        delivery.open()
        for number in range(1_200):
            delivery.publish(make_line(number))
        await wait_on_loop_until(lambda: len(sink.lines) == 1_200, what="all records")
        await wait_on_loop_until(lambda: delivery.describe().waiting_records == 0, what="an empty spool")
        status = delivery.describe()
        assert (status.sent, status.failures, status.lost, status.error) == (1_200, 3, 0, "")
        await delivery.close()

    run(scenario)

    assert sink.ids == [str(number) for number in range(1_200)]
    assert sink.is_closed


def test_a_failure_is_described_until_a_batch_is_accepted() -> None:
    sink = ListSink(refuse_first(1_000_000, SinkUnavailable("the receiver is away")))

    async def scenario() -> None:
        delivery = make_delivery(sink)
        delivery.open()
        delivery.publish(make_line(1))
        await wait_on_loop_until(lambda: delivery.describe().failures > 1, what="two failures")
        status = delivery.describe()
        assert (status.name, status.kind, status.error, status.waiting_records) == (
            "out",
            "test",
            "the receiver is away",
            1,
        )
        await delivery.close()

    run(scenario)


def test_what_a_receiver_did_not_take_is_delivered_by_the_next_process(tmp_path: Path) -> None:
    away = ListSink(refuse_first(1_000_000, SinkUnavailable("away")))
    back = ListSink()

    async def first_process() -> None:
        delivery = make_delivery(away, FileSpool(tmp_path / "out.spool", 1 << 20, "s"))
        delivery.open()
        for number in range(5):
            delivery.publish(make_line(number))
        await delivery.close()

    async def second_process() -> None:
        delivery = make_delivery(back, FileSpool(tmp_path / "out.spool", 1 << 20, "s"))
        delivery.open()
        await wait_on_loop_until(lambda: len(back.lines) == 5, what="all records")
        await delivery.close()

    run(first_process)
    run(second_process)

    assert (away.lines, back.ids) == ([], ["0", "1", "2", "3", "4"])


def test_records_that_were_just_published_are_sent_when_the_process_stops() -> None:
    sink = ListSink()

    async def scenario() -> None:
        delivery = make_delivery(sink)
        delivery.open()
        delivery.publish(make_line(1))
        await delivery.close()

    run(scenario)

    assert sink.ids == ["1"]


def test_a_receiver_that_does_not_answer_does_not_hold_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(delivery_module, "CLOSE_TIMEOUT_S", 0.05)

    async def wait_forever(_batch: SinkBatch) -> int:
        await asyncio.Event().wait()
        return 0

    async def scenario() -> None:
        delivery = make_delivery(ListSink(wait_forever), FileSpool(tmp_path / "s.spool", 1 << 20, "s"))
        delivery.open()
        delivery.publish(make_line(1))
        await delivery.close()

    run(scenario)

    assert FileSpool(tmp_path / "s.spool", 1 << 20, "s").waiting_records == 1


def test_an_attempt_that_takes_too_long_is_given_up_and_repeated() -> None:
    waits = [True]

    async def wait_once(_batch: SinkBatch) -> int:
        if waits:
            waits.pop()
            await asyncio.Event().wait()
        return 0

    sink = ListSink(wait_once)

    async def scenario() -> None:
        delivery = make_delivery(sink, timeout_s=0.05)
        delivery.open()
        delivery.publish(make_line(1))
        await wait_on_loop_until(lambda: len(sink.lines), what="the record")
        assert delivery.describe().failures == 1
        await delivery.close()

    run(scenario)


def test_only_the_bad_records_of_a_rejected_batch_are_lost() -> None:
    def reject_sevens(batch: SinkBatch) -> int:
        bad = [line for line in batch.lines if b'"number":7' in line]
        if bad:
            raise RecordsRejected("sevens are not accepted")
        return 0

    sink = ListSink(reject_sevens)

    async def scenario() -> None:
        delivery = make_delivery(sink)
        for number in range(20):
            delivery.publish(make_line(number))
        delivery.open()
        await wait_on_loop_until(lambda: len(sink.lines) == 19, what="all other records")
        assert (delivery.describe().rejected, delivery.describe().sent) == (1, 19)
        await delivery.close()

    run(scenario)

    assert sink.ids == [str(number) for number in range(20) if number != 7]
    assert len(set(sink.names)) == len(sink.names)


def test_records_that_a_receiver_rejects_in_its_reply_are_counted() -> None:
    async def scenario() -> None:
        delivery = make_delivery(ListSink(lambda _batch: 1))
        delivery.publish(make_line(1))
        delivery.publish(make_line(2))
        delivery.open()
        await wait_on_loop_until(lambda: delivery.describe().sent, what="a batch")
        assert (delivery.describe().sent, delivery.describe().rejected) == (1, 1)
        await delivery.close()

    run(scenario)


def test_losses_of_a_full_spool_are_counted_and_reported_in_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    is_away = [True]

    def check(_batch: SinkBatch) -> int:
        if is_away:
            raise SinkUnavailable("away")
        return 0

    sink = ListSink(check)
    record_bytes = len(make_line(1)) + RECORD_OVERHEAD_BYTES

    async def scenario() -> None:
        delivery = make_delivery(sink, MemorySpool("s", 3 * record_bytes))
        delivery.open()
        for number in range(8):
            delivery.publish(make_line(number))
        await wait_on_loop_until(lambda: delivery.describe().lost, what="a loss")
        assert (delivery.describe().lost, delivery.describe().waiting_records) == (5, 3)
        is_away.clear()
        await wait_on_loop_until(lambda: len(sink.lines) == 4, what="the loss record")
        delivery.publish(make_line(9))
        await wait_on_loop_until(lambda: len(sink.lines) == 5, what="a later record")
        assert delivery.describe().lost == 5
        await delivery.close()

    run(scenario)

    loss = msgspec.json.decode(sink.lines[3])
    assert (loss["type"], loss["severity"], loss["source"]) == ("sink.loss", "err", "h1/p1")
    assert (loss["data"]["sink"], loss["data"]["lost"]) == ("out", 5)
    assert [record_id for number, record_id in enumerate(sink.ids) if number != 3] == ["0", "1", "2", "9"]
    assert "records of a sink dropped" in caplog.text


def test_a_full_queue_drops_records_and_counts_them() -> None:
    async def scenario() -> None:
        delivery = make_delivery(ListSink())
        for _ in range(MAX_QUEUED_RECORDS + 3):
            delivery.publish(b"{}")
        assert (delivery.describe().lost, delivery.describe().waiting_records) == (3, MAX_QUEUED_RECORDS)

    run(scenario)


def test_a_record_that_is_too_long_is_rejected() -> None:
    async def scenario() -> None:
        delivery = make_delivery(ListSink())
        delivery.publish(b"x" * (MAX_RECORD_BYTES + 1))
        assert (delivery.describe().rejected, delivery.describe().waiting_records) == (1, 0)

    run(scenario)


class _FailingSpool(MemorySpool):
    """A spool whose disk fails for the first calls."""

    failures = 3

    def append(self, lines: Sequence[bytes]) -> int:
        if self.failures:
            self.failures -= 1
            raise SpoolError("the disk is full")
        return super().append(lines)

    def delete_through(self, last: int) -> None:
        if self.failures > -2:
            self.failures -= 1
            raise SpoolError("the disk is full")
        super().delete_through(last)


def test_records_wait_in_memory_while_the_spool_cannot_be_written() -> None:
    sink = ListSink()

    async def scenario() -> None:
        delivery = make_delivery(sink, _FailingSpool("s", 1 << 20))
        delivery.open()
        delivery.publish(make_line(1))
        await wait_on_loop_until(lambda: len(sink.lines), what="the record")
        await delivery.close()

    run(scenario)

    assert set(sink.ids) == {"1"}


def test_batches_that_are_not_full_wait_for_the_interval() -> None:
    sink = ListSink()

    async def scenario() -> None:
        delivery = make_delivery(sink, interval_s=3_600.0)
        delivery.open()
        delivery.publish(make_line(0))
        await wait_on_loop_until(lambda: len(sink.lines) == 1, what="the first record")
        for number in range(1, 500):
            delivery.publish(make_line(number))
        await wait_on_loop_until(lambda: delivery.describe().waiting_records == 499, what="stored records")
        assert len(sink.names) == 1
        delivery.publish(make_line(500))
        await wait_on_loop_until(lambda: len(sink.lines) == 501, what="a full batch")
        await delivery.close()

    run(scenario)


def test_a_batch_keeps_its_name_when_it_is_sent_again() -> None:
    names: list[str] = []

    def check(batch: SinkBatch) -> int:
        names.append(batch.name)
        if len(names) < 3:
            raise SinkUnavailable("away", retry_after_s=0.01)
        return 0

    async def scenario() -> None:
        delivery = make_delivery(ListSink(check))
        delivery.publish(make_line(1))
        delivery.open()
        await wait_on_loop_until(lambda: delivery.describe().sent, what="the record")
        await delivery.close()

    run(scenario)

    assert names == ["s-1"] * 3
