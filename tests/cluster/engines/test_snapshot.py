"""Snapshots: saving, checking, and restoring into another engine. A damaged snapshot is rejected and changes nothing."""

import asyncio
import hashlib
import os
import stat
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.cluster.engines.contract import a_write, commit, load, put, records
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import FollowerBehind, LogEngine, LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import (
    SNAPSHOT_FORMAT,
    SNAPSHOT_MAGIC,
    SnapshotHeader,
    SnapshotTrailer,
    SnapshotUnusable,
    inspect_snapshot,
    read_snapshot_index,
    restore_snapshot,
    save_snapshot,
)
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.world import RealWorld

WORLD = RealWorld()


@asynccontextmanager
async def a_file_log(folder: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(WORLD, folder)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def a_memory_log() -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def fill(engine: LogEngine, *, batches: int = 30) -> None:
    for batch in range(batches):
        await engine.commit(a_write(*(put(f"k{batch}-{n}\0x", bytes([n]) * 50) for n in range(100))))
    await commit(engine, put("n1", b"node", table="nodes"))


async def save(engine: LogEngine, path: Path) -> Path:
    await save_snapshot(engine, path, world=WORLD, program="test", needs=["the keyring"])
    return path


async def test_a_snapshot_is_restored_completely_into_another_kind_of_engine(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source, a_memory_log() as target:
        await fill(source)
        _, position = await load(source)
        path = await save(source, tmp_path / "a.snapshot")
        await commit(target, put("gone", b"?"))

        index = await restore_snapshot(target, path)

        assert await records(source) == await records(target)
        assert index > position.index
        with pytest.raises(FollowerBehind):
            await anext(target.follow(1))


async def test_a_restored_file_log_is_the_same_after_it_is_opened_again(tmp_path: Path) -> None:
    async with a_memory_log() as source:
        await fill(source)
        expected = await records(source)
        path = await save(source, tmp_path / "a.snapshot")
    async with a_file_log(tmp_path / "log") as target:
        index = await restore_snapshot(target, path)
    async with a_file_log(tmp_path / "log") as reopened:
        assert expected == await records(reopened)
        assert index == await reopened.barrier()


async def test_inspecting_a_snapshot_returns_its_index_and_row_counts(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source:
        await fill(source, batches=2)
        path = await save(source, tmp_path / "a.snapshot")
        _, position = await load(source)

    facts = inspect_snapshot(path)
    assert facts.trailer.rows == {"jobs": 200, "nodes": 1}
    assert position == facts.trailer.standing
    assert (facts.header.program, list(facts.header.needs)) == ("test", ["the keyring"])
    assert path.stat().st_size == facts.size_bytes


async def test_an_empty_log_can_be_saved_and_restored(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source:
        path = await save(source, tmp_path / "a.snapshot")
    async with a_memory_log() as target:
        await commit(target, put("gone"))
        await restore_snapshot(target, path)

        assert await records(target) == {}


async def test_a_snapshot_is_readable_by_its_owner_only_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    async with a_file_log(tmp_path / "log") as source:
        path = await save(source, folder / "a.snapshot")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(folder.iterdir())


async def test_a_snapshot_taken_during_writes_is_the_state_of_one_index(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source, a_memory_log() as target:
        await fill(source)

        async def write_pairs() -> None:
            for number in range(200):
                await commit(source, put("left", b"%d" % number), put("right", b"%d" % number, table="nodes"))

        writing = asyncio.ensure_future(write_pairs())
        path = await save(source, tmp_path / "a.snapshot")
        await writing
        await restore_snapshot(target, path)

        restored = await records(target)
        assert restored.get(("jobs", "left")) == restored.get(("nodes", "right"))


async def test_a_flipped_bit_anywhere_is_refused_and_the_log_is_untouched(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source:
        await fill(source, batches=3)
        path = await save(source, tmp_path / "a.snapshot")
    data = path.read_bytes()
    async with a_memory_log() as target:
        await commit(target, put("existing"))
        for position in range(0, len(data), max(1, len(data) // 60)):
            path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
            with pytest.raises(SnapshotUnusable, match="nothing was changed"):
                await restore_snapshot(target, path)

        assert await records(target) == {("jobs", "existing"): b"data"}


async def test_a_truncated_or_extended_snapshot_is_rejected(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source:
        await fill(source, batches=3)
        path = await save(source, tmp_path / "a.snapshot")
    data = path.read_bytes()
    lengths = [*range(0, len(data), max(1, len(data) // 40)), len(data) - 1]
    for damaged in (*(data[:length] for length in lengths), data + b"x"):
        path.write_bytes(damaged)

        with pytest.raises(SnapshotUnusable):
            inspect_snapshot(path)


async def test_a_newer_snapshot_format_is_rejected_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "newer.snapshot"
    path.write_bytes(SNAPSHOT_MAGIC + (SNAPSHOT_FORMAT + 1).to_bytes(2, "big") + b"whatever")

    with pytest.raises(SnapshotUnusable, match=r"has format 2, this program reads up to 1: use the newer program"):
        inspect_snapshot(path)


async def test_a_snapshot_that_cannot_be_written_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source:
        with pytest.raises(SnapshotUnusable, match="cannot be written"):
            await save(source, tmp_path / "missing" / "a.snapshot")

    assert os.listdir(tmp_path) == ["log"]


# --- files of other writers ---

START = SNAPSHOT_MAGIC + SNAPSHOT_FORMAT.to_bytes(2, "big")
RECORDS = [StoredRecord("jobs", "a", 1, b"1"), StoredRecord("nodes", "n", 2, b"2")]


def frame(kind: int, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + bytes([kind]) + content


def header() -> bytes:
    return frame(1, msgspec.msgpack.encode(SnapshotHeader(5, "test")))


def slice_of(*rows: StoredRecord, tail: bytes = b"") -> bytes:
    return frame(2, zlib.compress(msgspec.msgpack.encode(rows)) + tail)


def trailer(**rows: int) -> bytes:
    return frame(3, msgspec.msgpack.encode(SnapshotTrailer(LogPosition(2, {}), rows)))


def write_file(path: Path, *parts: bytes, after: bytes = b"") -> Path:
    """Write a file with a valid checksum over its parts."""
    data = b"".join(parts)
    path.write_bytes(data + hashlib.sha256(data).digest() + after)
    return path


def test_a_file_of_another_writer_is_read_if_its_parts_are_whole(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "a", START, header(), slice_of(RECORDS[0]), slice_of(RECORDS[1]), trailer(jobs=1, nodes=1)
    )

    info = inspect_snapshot(path)

    assert (info.header.created_ns, info.trailer.rows) == (5, {"jobs": 1, "nodes": 1})
    assert info.sha256 == hashlib.sha256(path.read_bytes()[:-32]).hexdigest()
    assert info.size_bytes == path.stat().st_size


DAMAGED: dict[str, tuple[list[bytes], bytes, str]] = {
    "no header": ([START, slice_of(*RECORDS), trailer(jobs=1, nodes=1)], b"", "its parts are out of order"),
    "no header and no rows": ([START, trailer()], b"", "its parts are out of order"),
    "two headers": ([START, header(), header(), trailer()], b"", "its parts are out of order"),
    "an unknown part": ([START, header(), frame(4, b""), trailer()], b"", "its parts are out of order"),
    "no trailer": ([START, header(), slice_of(*RECORDS)], b"", "a part is longer than any can be|ends too early"),
    "too few rows": ([START, header(), slice_of(*RECORDS), trailer(jobs=1)], b"", "rows are missing"),
    "too many rows": ([START, header(), trailer(jobs=1)], b"", "rows are missing"),
    "rows of no type": ([START, header(), frame(2, zlib.compress(b"\xc0")), trailer()], b"", "Expected"),
    "a bad header": ([START, frame(1, b"\xc1"), trailer()], b"", "MessagePack"),
    "a bad trailer": ([START, header(), frame(3, b"\xc1")], b"", "MessagePack"),
    "rows that are not compressed": ([START, header(), frame(2, b"rows"), trailer()], b"", "Error -3"),
    "something after a slice": (
        [START, header(), slice_of(*RECORDS, tail=b"x"), trailer(jobs=1, nodes=1)], b"", "a slice of rows is not whole",
    ),
    "half a slice": (
        [START, header(), frame(2, zlib.compress(msgspec.msgpack.encode(RECORDS))[:-1]), trailer(jobs=1, nodes=1)],
        b"",
        "a slice of rows is not whole",
    ),
    "something after the end": ([START, header(), trailer()], b"x", "something follows its end"),
    "a part of 300 MB": ([START, header(), b"\xff\xff\xff\xff\2"], b"", "a part is longer than any can be"),
    "nothing": ([START], b"", "a part is longer than any can be|ends too early"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_whose_parts_are_not_whole_is_refused_in_spite_of_its_checksum(tmp_path: Path, case: str) -> None:
    parts, after, reason = DAMAGED[case]
    path = write_file(tmp_path / "a", *parts, after=after)

    with pytest.raises(SnapshotUnusable, match=f"is damaged .*({reason}).*: use another one; nothing was changed"):
        inspect_snapshot(path)


@pytest.mark.parametrize("data", [b"", b"WHARF", b"something else entirely", b"wharfsnapshot\n\0\1"])
def test_another_file_is_not_a_snapshot(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)

    with pytest.raises(SnapshotUnusable, match=r"a is not a snapshot; nothing was changed"):
        inspect_snapshot(path)


def test_a_missing_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotUnusable, match=r"/a cannot be read: No such file or directory"):
        inspect_snapshot(tmp_path / "a")


async def test_a_snapshot_that_changes_while_it_is_restored_is_refused(tmp_path: Path) -> None:
    """The log then keeps its state, as after any error of the records."""
    path = write_file(tmp_path / "a", START, header(), slice_of(RECORDS[0]), trailer(jobs=1))

    class ChangingTarget:
        async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
            write_file(path, START, header(), slice_of(RECORDS[0]), slice_of(), trailer(jobs=1))
            received.extend([row async for rows in records for row in rows])
            return position.index

    received: list[StoredRecord] = []
    with pytest.raises(SnapshotUnusable, match="changed while it was read: nothing was restored; try again"):
        await restore_snapshot(ChangingTarget(), path)


async def test_a_saved_snapshot_reports_its_size_and_checksum(tmp_path: Path) -> None:
    async with a_file_log(tmp_path / "log") as source:
        await fill(source, batches=2)
        path = tmp_path / "a.snapshot"

        info = await save_snapshot(source, path, world=WORLD, program="test", needs=["the keyring"])

    inspected = inspect_snapshot(path)
    assert (info.trailer, info.size_bytes, info.sha256) == (inspected.trailer, inspected.size_bytes, inspected.sha256)
    assert info.header.created_ns == inspected.header.created_ns


async def test_the_log_index_of_a_snapshot_is_read_without_its_records(tmp_path: Path) -> None:
    async with a_memory_log() as engine:
        await fill(engine, batches=3)
        info = await save_snapshot(engine, tmp_path / "a.snap", world=WORLD, program="test")

    assert read_snapshot_index(tmp_path / "a.snap") == info.trailer.standing.index > 0


@pytest.mark.parametrize("length", [0, 14, 16, 20, 40])
async def test_a_snapshot_without_its_end_has_no_log_index(tmp_path: Path, length: int) -> None:
    async with a_memory_log() as engine:
        await fill(engine, batches=1)
        await save_snapshot(engine, tmp_path / "a.snap", world=WORLD, program="test")
    (tmp_path / "a.snap").write_bytes((tmp_path / "a.snap").read_bytes()[:length])

    with pytest.raises(SnapshotUnusable, match=r"is damaged \(it has no end\)"):
        read_snapshot_index(tmp_path / "a.snap")
