"""Builds snapshot files and archives for tests, also such that no program would write."""

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from wharf.cluster.engines.port import LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import (
    SNAPSHOT_FORMAT,
    SNAPSHOT_MAGIC,
    SnapshotFileWriter,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotTrailer,
)
from wharf.cluster.server.snapshot_archive import pack_archive

HEADER: Final = SnapshotHeader(1_000_000_000, "wharf")


def write_snapshot(path: Path, *records: StoredRecord, position: LogPosition | None = None) -> Path:
    """Write a snapshot file with these records."""
    writer = SnapshotFileWriter(path, HEADER)
    writer.add(records)
    index = max((record.version for record in records), default=1)
    writer.finish(HEADER, position or LogPosition(index, {}))
    writer.close()
    return path


def pack(state: Path, archive: Path) -> Path:
    """Pack a snapshot file into an archive."""
    trailer = SnapshotTrailer(LogPosition(7, {}), {})
    pack_archive(state, archive, SnapshotInfo(HEADER, trailer, state.stat().st_size, ""))
    return archive


def pack_files(archive: Path, *files: tuple[str, bytes]) -> Path:
    """Write an archive with these files, in this order."""
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive


def read_files(archive: Path) -> dict[str, bytes]:
    """Return the files in an archive."""
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # All are files.


def write_slices(path: Path, slices: Sequence[bytes], rows: Mapping[str, int]) -> Path:
    """Write a snapshot file with slices of any content, and with a valid checksum."""
    frames = [
        (1, msgspec.msgpack.encode(HEADER)),
        *((2, zlib.compress(content)) for content in slices),
        (3, msgspec.msgpack.encode(SnapshotTrailer(LogPosition(1, {}), dict(rows)))),
    ]
    data = SNAPSHOT_MAGIC + SNAPSHOT_FORMAT.to_bytes(2, "big")
    data += b"".join(len(content).to_bytes(4, "big") + bytes([kind]) + content for kind, content in frames)
    path.write_bytes(data + hashlib.sha256(data).digest())
    return path


def write_zeros(path: Path, size: int) -> Path:
    """Write an archive that unpacks to a file of `size` zeros. A thousandth of it is needed."""
    info = tarfile.TarInfo("other.bin")
    info.size = size
    # A gzip file may have several parts. All but the first are equal here.
    path.write_bytes(gzip.compress(info.tobuf()) + gzip.compress(bytes(10_000_000)) * (size // 10_000_000))
    return path
