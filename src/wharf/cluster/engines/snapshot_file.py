"""The snapshot file: saves the whole state of a cluster and restores it into any engine.

Format: magic bytes, the format number, frames (four bytes of length, one byte of kind, content), and the SHA-256 of
everything before it. The first frame is the header, the last the trailer; the frames between hold compressed slices of
records. A restore starts only after the checksum of the whole file is verified, so a damaged, truncated or newer file
changes nothing. Records are read in slices; the whole state is never in memory.

Records are bytes here. Callers check whether a program can read them.
"""

import asyncio
import hashlib
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from wharf.cluster.engines.port import Load, LogPosition, StoredRecord
from wharf.world import World
from wharf.world.durable_file import rename_durably, sync_file

SNAPSHOT_MAGIC: Final = b"WHARFSNAPSHOT\n"
SNAPSHOT_FORMAT: Final = 1

_KIND_HEADER: Final = 1
_KIND_SLICE: Final = 2
_KIND_TRAILER: Final = 3
_MAX_FRAME_BYTES: Final = 300_000_000
_MAX_SLICE_BYTES: Final = 1_000_000_000
_DIGEST_BYTES: Final = 32
_COMPRESSION_LEVEL: Final = 1
"""The lowest level: records compress well with it, and a snapshot should use little CPU time."""


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
        writer = await asyncio.to_thread(_SnapshotWriter, partial, header)
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


def inspect_snapshot(path: Path) -> SnapshotInfo:
    """Read the whole file and verify it. Raises `SnapshotUnusable`."""
    try:
        with path.open("rb") as file:
            return _verify_file(file, path)
    except OSError as error:
        raise SnapshotUnusable(f"the snapshot {path} cannot be read: {error.strerror or error}") from error


async def restore_snapshot(engine: SnapshotTarget, path: Path) -> int:
    """Replace everything in the engine's log and return the index of the log afterwards.

    Raises `SnapshotUnusable`, with the log unchanged, and whatever `LogEngine.restore` raises.
    """
    info = await asyncio.to_thread(inspect_snapshot, path)
    return await engine.restore(_iter_records(path, info), info.trailer.standing)


class _SnapshotWriter:
    """Writes one snapshot file."""

    def __init__(self, path: Path, header: SnapshotHeader) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._digest = hashlib.sha256()
        self._size = 0
        self._record_counts: dict[str, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._write(SNAPSHOT_MAGIC + SNAPSHOT_FORMAT.to_bytes(2, "big"))
        self._write_frame(_KIND_HEADER, self._encode(header))

    def add(self, rows: Sequence[StoredRecord]) -> None:
        """Append a slice of records."""
        for row in rows:
            self._record_counts[row.table] = self._record_counts.get(row.table, 0) + 1
        self._write_frame(_KIND_SLICE, zlib.compress(self._encode(rows), _COMPRESSION_LEVEL))

    def finish(self, header: SnapshotHeader, standing: LogPosition) -> SnapshotInfo:
        """Write the trailer and the checksum, and sync the file to disk."""
        trailer = SnapshotTrailer(standing, self._record_counts)
        self._write_frame(_KIND_TRAILER, self._encode(trailer))
        digest = self._digest.digest()
        self._file.write(digest)
        sync_file(self._file)
        return SnapshotInfo(header, trailer, self._size + len(digest), digest.hex())

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


def _verify_file(file: BinaryIO, path: Path) -> SnapshotInfo:
    """Verify a file in one pass: format, checksum, and that every slice and record can be decoded."""
    digest = hashlib.sha256()
    record_counts: dict[str, int] = {}
    header: SnapshotHeader | None = None
    trailer: SnapshotTrailer | None = None
    try:
        for kind, content in _read_frames(file, path, digest):
            if kind == _KIND_HEADER and header is None:
                header = msgspec.msgpack.decode(content, type=SnapshotHeader)
            elif kind == _KIND_SLICE and header is not None:
                for row in _decode_slice(content, path):
                    record_counts[row.table] = record_counts.get(row.table, 0) + 1
            elif kind == _KIND_TRAILER and header is not None:
                trailer = msgspec.msgpack.decode(content, type=SnapshotTrailer)
                break
            else:
                raise _build_damaged_error(path, "its parts are out of order")
    except msgspec.DecodeError as error:
        raise _build_damaged_error(path, str(error)) from error
    if header is None or trailer is None:
        raise _build_damaged_error(path, "it ends too early")
    expected = file.read(_DIGEST_BYTES)
    if digest.digest() != expected:
        raise _build_damaged_error(path, "its checksum does not match")
    if file.read(1):
        raise _build_damaged_error(path, "something follows its end")
    if record_counts != trailer.rows:
        raise _build_damaged_error(path, "rows are missing")
    return SnapshotInfo(header, trailer, file.tell(), expected.hex())


def _read_frames(file: BinaryIO, path: Path, digest: "hashlib._Hash") -> Iterator[tuple[int, bytes]]:
    """Yield the kind and content of each frame, and add the bytes read to `digest`."""
    start = file.read(len(SNAPSHOT_MAGIC) + 2)
    if start[: len(SNAPSHOT_MAGIC)] != SNAPSHOT_MAGIC:
        raise SnapshotUnusable(f"{path} is not a snapshot; nothing was changed")
    version = int.from_bytes(start[len(SNAPSHOT_MAGIC) :], "big")
    if version > SNAPSHOT_FORMAT:
        raise SnapshotUnusable(
            f"the snapshot {path} has format {version}, this program reads up to {SNAPSHOT_FORMAT}: "
            "use the newer program that wrote it; nothing was changed"
        )
    digest.update(start)
    while True:
        head = file.read(5)
        if len(head) < 5:
            raise _build_damaged_error(path, "it ends too early")
        length = int.from_bytes(head[:4], "big")
        if length > _MAX_FRAME_BYTES:
            raise _build_damaged_error(path, "a part is longer than any can be")
        content = file.read(length)
        if len(content) < length:
            raise _build_damaged_error(path, "it ends too early")
        digest.update(head)
        digest.update(content)
        yield head[4], content


def _decode_slice(content: bytes, path: Path) -> list[StoredRecord]:
    """Decompress and decode a slice of records. Raises `SnapshotUnusable` when it is incomplete or too large."""
    decompressor = zlib.decompressobj()
    try:
        plain = decompressor.decompress(content, _MAX_SLICE_BYTES)
    except zlib.error as error:
        raise _build_damaged_error(path, str(error)) from error
    if not decompressor.eof or decompressor.unconsumed_tail or decompressor.unused_data:
        raise _build_damaged_error(path, "a slice of rows is not whole")
    return msgspec.msgpack.decode(plain, type=list[StoredRecord])


async def _iter_records(path: Path, info: SnapshotInfo) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield the records of a verified file. Raises `SnapshotUnusable` when the file has changed since the verification."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        frames = _read_frames(file, path, digest)
        while True:
            kind, content = await asyncio.to_thread(next, frames)
            if kind == _KIND_TRAILER:
                break
            if kind == _KIND_SLICE:
                yield await asyncio.to_thread(_decode_slice, content, path)
    if digest.hexdigest() != info.sha256:
        raise SnapshotUnusable(f"the snapshot {path} changed while it was read: nothing was restored; try again")


def _build_damaged_error(path: Path, reason: str) -> SnapshotUnusable:
    return SnapshotUnusable(f"the snapshot {path} is damaged ({reason}): use another one; nothing was changed")
