"""A snapshot: the whole state of a cluster in one file, saved from and restored into any engine.

The file: a magic word, the format's number, then frames (four bytes of length, one of kind, the content), then the SHA-256
of all that precedes. The first frame is the header, the last the trailer, between them rows in compressed slices. Nothing
is believed before the checksum of the whole file has been found right; so a damaged, cut off or newer file changes
nothing. The state is never whole in memory.

Rows are bytes here. What a record means, and whether a program can read it, is the concern of whoever restores.
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

SNAPSHOT_MAGIC: Final = b"WHARFSNAPSHOT\n"
SNAPSHOT_FORMAT: Final = 1

_KIND_HEADER: Final = 1
_KIND_SLICE: Final = 2
_KIND_TRAILER: Final = 3
_FRAME_BYTES: Final = 300_000_000
_SLICE_BYTES: Final = 1_000_000_000
_DIGEST_BYTES: Final = 32
# Records compress well at the lowest level already, and a snapshot must not take the cores for long.
_LEVEL: Final = 1


class SnapshotHeader(msgspec.Struct, frozen=True):
    """Who saved it, and when. `needs`: what must be at hand beside the file, in sentences (such as a keyring)."""

    created_ns: int
    program: str
    needs: Sequence[str] = ()


class SnapshotTrailer(msgspec.Struct, frozen=True):
    standing: LogPosition
    rows: dict[str, int]
    """How many of each table."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """What a file holds, after its checksum was found right."""

    header: SnapshotHeader
    trailer: SnapshotTrailer
    size_bytes: int
    sha256: str


class SnapshotUnusable(Exception):
    """The file cannot be used. The message says which, why, and what to do."""


class SnapshotSource(Protocol):
    """What a snapshot is saved from: an engine, or a view of one that leaves something out."""

    def load(self) -> Load: ...


class SnapshotTarget(Protocol):
    """What a snapshot is restored into."""

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int: ...


async def save_snapshot(
    engine: SnapshotSource, path: Path, *, world: World, program: str, needs: Sequence[str] = ()
) -> SnapshotInfo:
    """Write the state as of now to `path`, which appears whole or not at all, readable by its owner only.

    Raises `Unavailable` as a load does, and `SnapshotRefused` when the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{world.new_id()}.partial")
    header = SnapshotHeader(world.now_ns(), program, tuple(needs))
    try:
        # Files are written on a thread: the disk may be slow, and compressing takes its time.
        writing = await asyncio.to_thread(_Writing, partial, header)
        try:
            loading = engine.load()
            async for rows in loading.iter_slices():
                await asyncio.to_thread(writing.add, rows)
            facts = await asyncio.to_thread(writing.finish, header, await loading.get_position())
            await asyncio.to_thread(_rename, partial, path)
        finally:
            writing.close()
    except OSError as error:
        raise SnapshotUnusable(f"the snapshot {path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return facts


def inspect_snapshot(path: Path) -> SnapshotInfo:
    """Read the whole file and check it. Raises `SnapshotRefused`."""
    try:
        with path.open("rb") as file:
            return _check(file, path)
    except OSError as error:
        raise SnapshotUnusable(f"the snapshot {path} cannot be read: {error.strerror or error}") from error


async def restore_snapshot(engine: SnapshotTarget, path: Path) -> int:
    """Replace all that the engine's log holds; the answer is the index where it stands then.

    Raises `SnapshotRefused`, with the log untouched, and what `Engine.restore` raises.
    """
    facts = await asyncio.to_thread(inspect_snapshot, path)
    return await engine.restore(_rows_of(path, facts), facts.trailer.standing)


class _Writing:
    """The file that a snapshot is being written to."""

    def __init__(self, path: Path, header: SnapshotHeader) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._digest = hashlib.sha256()
        self._size = 0
        self._rows: dict[str, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._write(SNAPSHOT_MAGIC + SNAPSHOT_FORMAT.to_bytes(2, "big"))
        self._write_frame(_KIND_HEADER, self._encode(header))

    def add(self, rows: Sequence[StoredRecord]) -> None:
        for row in rows:
            self._rows[row.table] = self._rows.get(row.table, 0) + 1
        self._write_frame(_KIND_SLICE, zlib.compress(self._encode(rows), _LEVEL))

    def finish(self, header: SnapshotHeader, standing: LogPosition) -> SnapshotInfo:
        """All of it is on disk when this returns."""
        trailer = SnapshotTrailer(standing, self._rows)
        self._write_frame(_KIND_TRAILER, self._encode(trailer))
        digest = self._digest.digest()
        self._file.write(digest)
        self._file.flush()
        os.fsync(self._file.fileno())
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


def _check(file: BinaryIO, path: Path) -> SnapshotInfo:
    """One pass over the file: format, checksum, and that every slice and row can be read."""
    digest = hashlib.sha256()
    counted: dict[str, int] = {}
    header: SnapshotHeader | None = None
    trailer: SnapshotTrailer | None = None
    try:
        for kind, content in _frames(file, path, digest):
            if kind == _KIND_HEADER and header is None:
                header = msgspec.msgpack.decode(content, type=SnapshotHeader)
            elif kind == _KIND_SLICE and header is not None:
                for row in _rows_in(content, path):
                    counted[row.table] = counted.get(row.table, 0) + 1
            elif kind == _KIND_TRAILER and header is not None:
                trailer = msgspec.msgpack.decode(content, type=SnapshotTrailer)
                break
            else:
                raise _damaged(path, "its parts are out of order")
    except msgspec.DecodeError as error:
        raise _damaged(path, str(error)) from error
    if header is None or trailer is None:
        raise _damaged(path, "it ends too early")
    expected = file.read(_DIGEST_BYTES)
    if digest.digest() != expected:
        raise _damaged(path, "its checksum does not add up")
    if file.read(1):
        raise _damaged(path, "something follows its end")
    if counted != trailer.rows:
        raise _damaged(path, "rows are missing")
    return SnapshotInfo(header, trailer, file.tell(), expected.hex())


def _frames(file: BinaryIO, path: Path, digest: "hashlib._Hash") -> Iterator[tuple[int, bytes]]:
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
            raise _damaged(path, "it ends too early")
        length = int.from_bytes(head[:4], "big")
        if length > _FRAME_BYTES:
            raise _damaged(path, "a part is longer than any can be")
        content = file.read(length)
        if len(content) < length:
            raise _damaged(path, "it ends too early")
        digest.update(head)
        digest.update(content)
        yield head[4], content


def _rows_in(content: bytes, path: Path) -> list[StoredRecord]:
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(content, _SLICE_BYTES)
    except zlib.error as error:
        raise _damaged(path, str(error)) from error
    if not unpacking.eof or unpacking.unconsumed_tail or unpacking.unused_data:
        raise _damaged(path, "a slice of rows is not whole")
    return msgspec.msgpack.decode(plain, type=list[StoredRecord])


async def _rows_of(path: Path, facts: SnapshotInfo) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """The rows of a file that was checked; should it have changed since, `SnapshotRefused`."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        frames = _frames(file, path, digest)
        while True:
            kind, content = await asyncio.to_thread(next, frames)
            if kind == _KIND_TRAILER:
                break
            if kind == _KIND_SLICE:
                yield await asyncio.to_thread(_rows_in, content, path)
    if digest.hexdigest() != facts.sha256:
        raise SnapshotUnusable(f"the snapshot {path} changed while it was read: nothing was restored; try again")


def _rename(partial: Path, path: Path) -> None:
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _damaged(path: Path, how: str) -> SnapshotUnusable:
    return SnapshotUnusable(f"the snapshot {path} is damaged ({how}): use another one; nothing was changed")
