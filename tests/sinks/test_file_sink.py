"""File sinks: records in lines, rotation, and files that cannot be written."""

import asyncio
import resource
import signal
import stat
from pathlib import Path

import pytest

from tests.sinks.receivers import NamedBatch, make_line, read_ids
from wharf.sinks.file_sink import FileSink
from wharf.sinks.port import SinkUnavailable
from wharf.sinks.rotation import Rotation, list_rotated_files
from wharf.world import RealWorld


def send(path: Path, *batches: list[bytes], rotation: Rotation = Rotation()) -> None:  # noqa: B008 - It never changes.
    async def main() -> None:
        sink = FileSink(RealWorld(), path, rotation)
        for number, batch in enumerate(batches):
            await sink.send(NamedBatch(f"s-{number}", batch))
        await sink.close()

    asyncio.run(main())


def test_records_are_lines_of_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"

    send(path, [make_line(1), make_line(2)], [make_line(3)])

    assert (read_ids(path.read_bytes()), stat.S_IMODE(path.stat().st_mode)) == (["1", "2", "3"], 0o600)


def test_a_full_file_is_rotated_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    size = 2 * (len(make_line(1)) + 1)

    send(path, [make_line(number) for number in range(7)], rotation=Rotation(size, 0, 2))

    files = [*list_rotated_files(path), path]
    assert [read_ids(file.read_bytes()) for file in files] == [["2", "3"], ["4", "5"], ["6"]]


def test_a_batch_continues_after_a_full_disk_without_repeated_or_joined_records(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    batch = NamedBatch("s-1", [make_line(number) for number in range(4)])
    limit = len(make_line(0)) + 1 + 10  # The second record is cut.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    async def main() -> None:
        sink = FileSink(RealWorld(), path, Rotation())
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(SinkUnavailable):
                await sink.send(batch)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await sink.send(batch)
        await sink.close()

    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGXFSZ, handler)

    first, part, *rest = path.read_bytes().splitlines()
    assert (read_ids(first), part, read_ids(b"\n".join(rest))) == (["0"], make_line(1)[:10], ["1", "2", "3"])


def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailable, match="cannot be written: Is a directory"):
        send(tmp_path, [make_line(1)])
