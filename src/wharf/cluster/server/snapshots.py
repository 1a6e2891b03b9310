"""Saving and restoring the whole state: what of it goes into a snapshot, and what a restored one must not bring along.

Who is a member and who leads is of the moment: those records live on leases, and a restored copy would never end. They
carry secrets of the running servers too. So they are left out both ways. And a restored row must not say another index
than it did where it was saved, so it is settled first.

The archive that a snapshot travels in over HTTP: a gzipped tar of `meta.json`, `state.bin` and `SHA256SUMS`.

`state.bin` is a snapshot file (`engines.snapshot`), which carries a checksum of its own. What comes in may also be such a
file by itself, as the commands save it.
"""

import asyncio
import hashlib
import io
import tarfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from wharf import __version__
from wharf.cluster.engines.election import LEADER_TABLE, MEMBERS_TABLE
from wharf.cluster.engines.port import Load, LogEngine, LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import (
    SNAPSHOT_MAGIC,
    SnapshotInfo,
    SnapshotUnusable,
    restore_snapshot,
    save_snapshot,
)
from wharf.cluster.state.codec import DamagedRecord, NewerFormat, RecordDecoder, WriteIndexResolver
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALL_TABLES
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.times import SECOND
from wharf.world import World

LEASED_TABLES: Final = frozenset((LEADER_TABLE, MEMBERS_TABLE))

ROWS_PER_STEP: Final = 250
"""Rows in one step of the loop: about three milliseconds."""

KEYRING_REQUIREMENT: Final = (
    "the key of its cluster's keyring (keyring.key) to read what is sealed: tokens, variables, logins"
)


class SnapshotFailed(Exception):
    """A sentence: what is wrong with the file, or where it was to go."""


async def save_state(engine: LogEngine, path: Path, *, world: World) -> SnapshotInfo:
    """Write the state as of now to a new file. Raises `SavingRefused`, or `Unavailable` of the engine."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = f"wharf {__version__}"
        return await save_snapshot(_Lasting(engine), path, world=world, program=program, needs=[KEYRING_REQUIREMENT])
    except OSError as error:
        raise SnapshotFailed(f"the folder {path.parent} cannot be made: {error.strerror}") from error
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error


async def restore_state(engine: LogEngine, path: Path) -> int:
    """Replace all that the engine's log holds, and answer the index where it stands then.

    Every record is read before anything is replaced. Raises `SavingRefused`, or `Unavailable` of the engine.
    """
    try:
        await restore_snapshot(_Proof(), path)
        return await restore_snapshot(_Lasting(engine), path)
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error
    except (DamagedRecord, NewerFormat) as error:
        raise SnapshotFailed(f"the snapshot {path} cannot be restored by this program: {error}") from error


class _Lasting:
    """An engine without what is of the moment."""

    def __init__(self, engine: LogEngine) -> None:
        self._engine = engine

    def load(self) -> "_LastingLoad":
        return _LastingLoad(self._engine.load())

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        return await self._engine.restore(_settled(_lasting(records)), position)


class _LastingLoad:
    def __init__(self, load: Load) -> None:
        self._load = load

    def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        return _lasting(self._load.iter_slices())

    async def get_position(self) -> LogPosition:
        return await self._load.get_position()


async def _lasting(slices: AsyncIterator[Sequence[StoredRecord]]) -> AsyncGenerator[Sequence[StoredRecord], None]:
    async for rows in slices:
        yield [row for row in rows if row.table not in LEASED_TABLES]


async def _settled(slices: AsyncIterator[Sequence[StoredRecord]]) -> AsyncGenerator[Sequence[StoredRecord], None]:
    settling = WriteIndexResolver(ALL_TABLES)
    async for rows in slices:
        for start in range(0, len(rows), ROWS_PER_STEP):
            yield [settling.resolve_record(row) for row in rows[start : start + ROWS_PER_STEP]]
            await asyncio.sleep(0)


class _Proof:
    """Takes a restore and keeps nothing: it reads every record as a replica would."""

    def __init__(self) -> None:
        self._decoders = {table.name: RecordDecoder(table, should_open_packed=True) for table in ALL_TABLES}

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        async for some in records:
            for row in some:
                self._read(row)
        return position.index

    def _read(self, row: StoredRecord) -> None:
        decoder = self._decoders.get(row.table)
        if decoder is None:
            raise NewerFormat(f"it has a table {row.table} that this program does not know")
        record = decoder.decode_record(row.key, row.data, row.version)
        if isinstance(record, RecordFormat) and record.version > NEWEST_FORMAT:
            raise NewerFormat(f"its format is {record.version}; this program reads up to {NEWEST_FORMAT}")


STATE_FILE: Final = "state.bin"
META_FILE: Final = "meta.json"
CHECKSUMS_FILE: Final = "SHA256SUMS"
GZIP_MAGIC: Final = b"\x1f\x8b"
READ_CHUNK_BYTES: Final = 1024 * 1024
MAX_ARCHIVE_FILES: Final = 16
MAX_META_BYTES: Final = 1_000_000


class InvalidArchive(Exception):
    """A sentence about an archive that cannot be used."""


def is_archive(path: Path) -> bool:
    """Whether it begins as an archive does; what cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(2) == GZIP_MAGIC
    except OSError:
        return False


def pack_archive(state: Path, archive: Path, facts: SnapshotInfo) -> bytes:
    """Write the archive; the SHA-256 of its bytes."""
    standing = facts.trailer.standing
    meta = msgspec.json.format(
        msgspec.json.encode(
            {
                "Version": 1,
                "ID": f"{standing.epoch}-{standing.index}-{facts.header.created_ns // 1_000_000}",
                "Index": standing.index,
                "Term": standing.epoch,
                "Size": facts.size_bytes,
            }
        )
    )
    with state.open("rb") as file:
        state_digest = hashlib.file_digest(file, "sha256").hexdigest()
    sums = f"{hashlib.sha256(meta).hexdigest()}  {META_FILE}\n{state_digest}  {STATE_FILE}\n".encode()
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        _add(tar, META_FILE, io.BytesIO(meta), len(meta), facts)
        with state.open("rb") as file:
            _add(tar, STATE_FILE, file, facts.size_bytes, facts)
        _add(tar, CHECKSUMS_FILE, io.BytesIO(sums), len(sums), facts)
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def unpack_archive(archive: Path, state: Path) -> None:
    """Take the snapshot file out of an archive. Raises `ArchiveRefused`; `state` means nothing then."""
    with archive.open("rb") as file:
        start = file.read(len(SNAPSHOT_MAGIC))
    if start == SNAPSHOT_MAGIC:
        archive.rename(state)
        return
    if not start:
        raise InvalidArchive("failed to decompress snapshot: it is empty")
    try:
        _take_out(archive, state)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InvalidArchive(f"failed to decompress snapshot: {error}") from error


def _take_out(archive: Path, state: Path) -> None:
    digests: dict[str, str] = {}
    sums = ""
    with tarfile.open(archive, "r:gz") as tar:
        for count, member in enumerate(tar):
            if count >= MAX_ARCHIVE_FILES:
                raise InvalidArchive("the archive holds more files than a snapshot has")
            inner = tar.extractfile(member)
            if inner is None or member.name not in (META_FILE, STATE_FILE, CHECKSUMS_FILE):
                continue
            if member.name == STATE_FILE:
                digests[STATE_FILE] = _copy(inner, state)
                continue
            if member.size > MAX_META_BYTES:
                raise InvalidArchive(f"{member.name} of the archive is larger than it can be")
            text = inner.read()
            digests[member.name] = hashlib.sha256(text).hexdigest()
            if member.name == CHECKSUMS_FILE:
                sums = text.decode("utf-8", "replace")
        while tar.fileobj is not None and tar.fileobj.read(READ_CHUNK_BYTES):
            pass  # To its end, so that one that was cut off is noticed.
    if STATE_FILE not in digests:
        raise InvalidArchive(f"the archive holds no {STATE_FILE}: it is no snapshot")
    told = dict(_read_sums(sums))
    for name in (META_FILE, STATE_FILE):
        if told.get(name) != digests.get(name):
            raise InvalidArchive(
                f"{name} of the archive is damaged: its checksum is another than {CHECKSUMS_FILE} says"
            )


def _copy(inner: IO[bytes], state: Path) -> str:
    digest = hashlib.sha256()
    with state.open("wb") as out:
        while part := inner.read(READ_CHUNK_BYTES):
            digest.update(part)
            out.write(part)
    return digest.hexdigest()


def _read_sums(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        yield name, digest


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, facts: SnapshotInfo) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, facts.header.created_ns // SECOND
    tar.addfile(info, content)
