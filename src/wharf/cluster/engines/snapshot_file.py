"""The snapshot file: saves the whole state of a cluster and restores it into any engine.

Format: magic bytes, the format number, frames (four bytes of length, one byte of kind, content), and the SHA-256 of
everything before it. The first frame is the header, the last the trailer; the frames between hold compressed slices of
records. A restore starts only after the checksum of the whole file is verified, so a damaged, truncated or newer file
changes nothing. Records are read in slices; the whole state is never in memory. Each part has a limit that is checked
before the part is decompressed or decoded, because a file may come from another cluster.

Records are bytes here. Callers check whether a program can read them.
"""

import asyncio
import hashlib
import os
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from wharf.cluster.engines.port import Load, LogPosition, StoredRecord
from wharf.world import World
from wharf.world.durable_file import rename_durably, sync_file

SNAPSHOT_MAGIC: Final = b"WHARFSNAPSHOT\n"
SNAPSHOT_FORMAT: Final = 1

_KIND_HEADER: Final = 1
_KIND_SLICE: Final = 2
_KIND_TRAILER: Final = 3
_MAX_FRAME_BYTES: Final = 256_000_000
_MAX_SKIPPED_FRAMES: Final = 100_000
"""Limits the work of finding the trailer. A slice has about a megabyte."""
_MAX_SLICE_BYTES: Final = 256_000_000
"""Limits the memory for one slice. Programs before this limit wrote a thousand records in a slice, whatever their sizes."""
_MAX_SLICE_RECORDS: Final = 20_000
"""Limits the memory for the decoded records of one slice. No program writes more than a thousand."""
MIN_MEAN_RECORD_BYTES: Final = 1_000
"""The limit of records follows from that of bytes. The mean record of a cluster has 1,000 bytes or more."""
_MAX_TABLES: Final = 1_000
"""Limits the memory for the counts of records by table."""
MAX_NAME_BYTES: Final = 4_096
"""The size of a table's name, and of a record's key. A key has at most three names of 256 bytes, or a path of 128."""
WRITTEN_SLICE_BYTES: Final = 1_000_000
"""The content at which a slice is written. Readers hold one slice in memory."""
_DIGEST_BYTES: Final = 32
_COMPRESSION_LEVEL: Final = 1
"""The lowest level: records compress well with it, and a snapshot should use little CPU time."""


class SnapshotLimits(msgspec.Struct, frozen=True):
    """How much a snapshot may contain, however small its compressed file is."""

    max_bytes: int
    """The size of its records, and of the file, in bytes."""

    @property
    def max_records(self) -> int:
        """The number of records. Limits the memory for the keys that are already seen: about 150 bytes for each."""
        return self.max_bytes // MIN_MEAN_RECORD_BYTES


UNLIMITED: Final = SnapshotLimits(sys.maxsize)
"""For a file that was verified before, and for commands of the user who has the file."""


class SnapshotHeader(msgspec.Struct, frozen=True):
    """The first frame of a snapshot: which program saved it, and when. `needs`: what a restore needs besides the file, in sentences (such as
    a keyring)."""

    created_ns: int
    program: str
    needs: Sequence[str] = ()


class SnapshotTrailer(msgspec.Struct, frozen=True):
    """The log position of the snapshot and the number of records."""

    standing: LogPosition
    rows: dict[str, int]
    """Number of records by table."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """What a snapshot file contains, according to its verified header and trailer."""

    header: SnapshotHeader
    trailer: SnapshotTrailer
    size_bytes: int
    sha256: str
    plain_bytes: int = 0
    """The size of its records before compression."""


class SnapshotUnusable(Exception):
    """The file cannot be used. The message says which, why, and what to do."""


class SnapshotSource(Protocol):
    """What a snapshot is saved from: an engine, or a view of an engine that leaves out some records."""

    def load(self) -> Load: ...


class SnapshotTarget(Protocol):
    """What a snapshot is restored into."""

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int: ...


async def save_snapshot(
    engine: SnapshotSource, path: Path, *, world: World, program: str, needs: Sequence[str] = ()
) -> SnapshotInfo:
    """Write the current state to `path`. The file appears complete or not at all, readable by its owner only.

    Raises `LogUnavailable` as a load does, and `SnapshotUnusable` when the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{world.new_id()}.partial")
    header = SnapshotHeader(world.now_ns(), program, tuple(needs))
    try:
        # Files are written on a thread, because disk writes and compression would block the event loop.
        writer = await asyncio.to_thread(SnapshotFileWriter, partial, header)
        try:
            load = engine.load()
            async for rows in load.iter_slices():
                await asyncio.to_thread(writer.add, rows)
            info = await asyncio.to_thread(writer.finish, header, await load.get_position())
            await asyncio.to_thread(rename_durably, partial, path)
        finally:
            writer.close()
    except OSError as error:
        raise SnapshotUnusable(f"the snapshot {path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return info


def inspect_snapshot(path: Path, limits: SnapshotLimits = UNLIMITED) -> SnapshotInfo:
    """Read the whole file and verify it. Raises `SnapshotUnusable`."""
    try:
        with path.open("rb") as file:
            reader = SnapshotFileReader(file, str(path), limits)
            for _ in reader.iter_slices():
                pass
            return reader.get_info()
    except OSError as error:
        raise SnapshotUnusable(f"the snapshot {path} cannot be read: {error.strerror or error}") from error


def read_snapshot_index(path: Path) -> int:
    """Return the log index of a snapshot file, from its trailer. Nothing is verified. Raises `SnapshotUnusable`."""
    try:
        with path.open("rb") as file:
            file.seek(len(SNAPSHOT_MAGIC) + 2)
            for _ in range(_MAX_SKIPPED_FRAMES):
                head = file.read(5)
                length = int.from_bytes(head[:4], "big")
                if len(head) < 5 or length > _MAX_FRAME_BYTES:
                    break
                if head[4] == _KIND_TRAILER:
                    return msgspec.msgpack.decode(file.read(length), type=SnapshotTrailer).standing.index
                file.seek(length, os.SEEK_CUR)
    except OSError as error:
        raise SnapshotUnusable(f"the snapshot {path} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotUnusable(f"the snapshot {path} is damaged ({error}): use another one") from error
    raise SnapshotUnusable(f"the snapshot {path} is damaged (it has no end): use another one")


async def restore_snapshot(engine: SnapshotTarget, path: Path, limits: SnapshotLimits = UNLIMITED) -> int:
    """Replace everything in the engine's log and return the index of the log afterwards.

    Raises `SnapshotUnusable`, with the log unchanged, and whatever `LogEngine.restore` raises.
    """
    return await restore_verified(engine, path, await asyncio.to_thread(inspect_snapshot, path, limits))


async def restore_verified(engine: SnapshotTarget, path: Path, info: SnapshotInfo) -> int:
    """Replace everything in the engine's log by a file that was verified already, with this result."""
    return await engine.restore(_iter_records(path, info), info.trailer.standing)


class SnapshotFileWriter:
    """Writes one snapshot file."""

    def __init__(self, path: Path, header: SnapshotHeader) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._digest = hashlib.sha256()
        self._size = 0
        self._plain_size = 0
        self._record_counts: dict[str, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._write(SNAPSHOT_MAGIC + SNAPSHOT_FORMAT.to_bytes(2, "big"))
        self._write_frame(_KIND_HEADER, self._encode(header))

    def add(self, rows: Sequence[StoredRecord]) -> int:
        """Append records, in slices of limited size. Return by how many bytes the file grew."""
        size_before = self._size
        pending: list[StoredRecord] = []
        size = 0
        for row in rows:
            self._record_counts[row.table] = self._record_counts.get(row.table, 0) + 1
            pending.append(row)
            size += len(row.data)
            if size >= WRITTEN_SLICE_BYTES:
                self._write_slice(pending)
                pending, size = [], 0
        if pending:
            self._write_slice(pending)
        return self._size - size_before

    def _write_slice(self, rows: Sequence[StoredRecord]) -> None:
        plain = self._encode(rows)
        self._plain_size += len(plain)
        self._write_frame(_KIND_SLICE, zlib.compress(plain, _COMPRESSION_LEVEL))

    def finish(self, header: SnapshotHeader, standing: LogPosition) -> SnapshotInfo:
        """Write the trailer and the checksum, and sync the file to disk."""
        trailer = SnapshotTrailer(standing, self._record_counts)
        self._write_frame(_KIND_TRAILER, self._encode(trailer))
        digest = self._digest.digest()
        self._file.write(digest)
        sync_file(self._file)
        return SnapshotInfo(header, trailer, self._size + len(digest), digest.hex(), self._plain_size)

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _write_frame(self, kind: int, content: bytes) -> None:
        self._write(len(content).to_bytes(4, "big") + bytes([kind]))
        self._write(content)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)


class ReadableFile(Protocol):
    """A file from which a snapshot is read: a file on disk, or a file in an archive."""

    def read(self, size: int, /) -> bytes: ...


class SnapshotFileReader:
    """Reads a snapshot file in one pass and verifies it: format, checksum, limits, and that every slice can be decoded.

    The file is usable only if `iter_slices` came to its end, because the checksum is there.
    """

    def __init__(self, file: ReadableFile, name: str, limits: SnapshotLimits) -> None:
        """`name`: which snapshot it is, for error texts."""
        self._file = file
        self._name = name
        self._limits = limits
        self._digest = hashlib.sha256()
        self._size = 0
        self._plain_size = 0
        self._record_counts: dict[str, int] = {}
        self._record_count = 0
        self._info: SnapshotInfo | None = None

    def get_info(self) -> SnapshotInfo:
        """Return what the file contains. Call after the end of `iter_slices`."""
        assert self._info is not None, "the file was read to its end"
        return self._info

    def iter_slices(self) -> Generator[list[StoredRecord], None, None]:
        """Yield the records of each slice. Raises `SnapshotUnusable`, also at the end of a file with a wrong checksum."""
        header: SnapshotHeader | None = None
        trailer: SnapshotTrailer | None = None
        try:
            for kind, content in self._iter_frames():
                if kind == _KIND_HEADER and header is None:
                    header = msgspec.msgpack.decode(content, type=SnapshotHeader)
                elif kind == _KIND_SLICE and header is not None:
                    rows = self._decode_slice(content)
                    self._count_records(rows)
                    yield rows
                elif kind == _KIND_TRAILER and header is not None:
                    trailer = msgspec.msgpack.decode(content, type=SnapshotTrailer)
                    break
                else:
                    raise self._build_damaged_error("its parts are out of order")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._build_damaged_error(str(error)) from error
        if header is None or trailer is None:
            raise self._build_damaged_error("it ends too early")
        expected = self._file.read(_DIGEST_BYTES)
        if self._digest.digest() != expected:
            raise self._build_damaged_error("its checksum does not match")
        if self._file.read(1):
            raise self._build_damaged_error("something follows its end")
        if self._record_counts != trailer.rows:
            raise self._build_damaged_error("rows are missing")
        self._info = SnapshotInfo(header, trailer, self._size + _DIGEST_BYTES, expected.hex(), self._plain_size)

    def _iter_frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and content of each frame, and add the bytes read to the checksum."""
        start = self._file.read(len(SNAPSHOT_MAGIC) + 2)
        if start[: len(SNAPSHOT_MAGIC)] != SNAPSHOT_MAGIC:
            raise SnapshotUnusable(f"the file {self._name} is not a snapshot; nothing was changed")
        version = int.from_bytes(start[len(SNAPSHOT_MAGIC) :], "big")
        if version > SNAPSHOT_FORMAT:
            raise SnapshotUnusable(
                f"the snapshot {self._name} has format {version}, this program reads up to {SNAPSHOT_FORMAT}: "
                "use the newer program that wrote it; nothing was changed"
            )
        self._add(start)
        while True:
            head = self._file.read(5)
            if len(head) < 5:
                raise self._build_damaged_error("it ends too early")
            length = int.from_bytes(head[:4], "big")
            if length > _MAX_FRAME_BYTES:
                raise self._build_damaged_error("a part is longer than any can be")
            content = self._file.read(length)
            if len(content) < length:
                raise self._build_damaged_error("it ends too early")
            self._add(head)
            self._add(content)
            yield head[4], content

    def _add(self, data: bytes) -> None:
        """Add bytes of the file to its checksum and its size."""
        self._digest.update(data)
        self._size += len(data)
        if self._size > self._limits.max_bytes:
            raise self._build_size_error()

    def _decode_slice(self, content: bytes) -> list[StoredRecord]:
        """Decompress and decode a slice of records. Raises `SnapshotUnusable` when it is incomplete or too large."""
        decompressor = zlib.decompressobj()
        remaining_bytes = self._limits.max_bytes - self._plain_size
        try:
            plain = decompressor.decompress(content, min(_MAX_SLICE_BYTES, remaining_bytes + 1))
        except zlib.error as error:
            raise self._build_damaged_error(str(error)) from error
        self._plain_size += len(plain)
        if self._plain_size > self._limits.max_bytes:
            raise self._build_size_error()
        if not decompressor.eof or decompressor.unconsumed_tail or decompressor.unused_data:
            raise self._build_damaged_error("a slice of rows is not whole")
        if _read_array_length(plain) > _MAX_SLICE_RECORDS:
            raise self._build_damaged_error("a slice has more rows than any can have")
        return msgspec.msgpack.decode(plain, type=list[StoredRecord])

    def _count_records(self, rows: Sequence[StoredRecord]) -> None:
        """Count records by table. Raises `SnapshotUnusable` beyond a limit."""
        counts = self._record_counts
        for row in rows:
            if len(row.table) > MAX_NAME_BYTES or len(row.key) > MAX_NAME_BYTES:
                raise self._build_damaged_error(f"a name in it has more than {MAX_NAME_BYTES:,} characters")
            counts[row.table] = counts.get(row.table, 0) + 1
        if len(counts) > _MAX_TABLES:
            raise self._build_damaged_error(f"it has more than {_MAX_TABLES:,} tables")
        self._record_count += len(rows)
        if self._record_count > self._limits.max_records:
            raise SnapshotUnusable(
                f"the snapshot {self._name} has more than {self._limits.max_records:,} records, the limit of a "
                "snapshot; nothing was changed"
            )

    def _build_size_error(self) -> SnapshotUnusable:
        return SnapshotUnusable(
            f"the snapshot {self._name} has more than {self._limits.max_bytes:,} bytes of records, the limit of "
            "snapshots.max_size: raise it if the snapshot is yours; nothing was changed"
        )

    def _build_damaged_error(self, reason: str) -> SnapshotUnusable:
        return SnapshotUnusable(
            f"the snapshot {self._name} is damaged ({reason}): use another one; nothing was changed"
        )


def _read_array_length(data: bytes) -> int:
    """Return the number of elements that a MessagePack array announces; 0 if the data is no array."""
    match data[:1]:
        case b"\xdc":
            return int.from_bytes(data[1:3], "big")
        case b"\xdd":
            return int.from_bytes(data[1:5], "big")
        case kind if kind and kind[0] & 0xF0 == 0x90:
            return kind[0] & 0x0F
    return 0


async def _iter_records(path: Path, info: SnapshotInfo) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield the records of a verified file. Raises `SnapshotUnusable` when the file has changed since the verification."""
    try:
        with path.open("rb") as file:
            reader = SnapshotFileReader(file, str(path), UNLIMITED)
            slices = reader.iter_slices()
            while (rows := await asyncio.to_thread(next, slices, None)) is not None:
                yield rows
    except SnapshotUnusable as error:
        raise _build_changed_error(path) from error
    if reader.get_info().sha256 != info.sha256:
        raise _build_changed_error(path)


def _build_changed_error(path: Path) -> SnapshotUnusable:
    return SnapshotUnusable(f"the snapshot {path} changed while it was read: nothing was restored; try again")
