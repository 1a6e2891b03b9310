"""Saves and restores the whole state, and packs snapshots into archives.

The records of the leader, members and known servers are left out: they describe the servers of one cluster, some contain
secrets, and they would never expire in a restored log. Records whose index is their own write are resolved first, so that a restore does not
change it.

An archive is a gzipped tar of `meta.json`, `state.bin` and `SHA256SUMS`. `state.bin` is a snapshot file
(`engines.snapshot_file`) with its own checksum; such a file alone is accepted too.
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
from wharf.cluster.state.tables import ALL_TABLES, KNOWN_SERVERS
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.times import SECOND
from wharf.world import World
from wharf.world.bounded_tar import BoundedTarInfo

OMITTED_TABLES: Final = frozenset((LEADER_TABLE, MEMBERS_TABLE, KNOWN_SERVERS.name))
"""Tables that are not part of a snapshot."""

ROWS_PER_STEP: Final = 250
"""Rows processed before other tasks of the loop may run: about three milliseconds."""

KEYRING_REQUIREMENT: Final = "the key of its cluster's keyring (keyring.key) to decrypt tokens, variables and logins"


class SnapshotFailed(Exception):
    """A snapshot cannot be saved or restored. The message says why."""


async def save_state(engine: LogEngine, path: Path, *, world: World) -> SnapshotInfo:
    """Write the current state to a new file. Raises `SnapshotFailed`, or `LogUnavailable` of the engine."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = f"wharf {__version__}"
        return await save_snapshot(
            _SnapshotEngine(engine), path, world=world, program=program, needs=[KEYRING_REQUIREMENT]
        )
    except OSError as error:
        raise SnapshotFailed(f"cannot create folder {path.parent}: {error.strerror}") from error
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error


async def restore_state(engine: LogEngine, path: Path) -> int:
    """Replace the content of the log by a snapshot and return the new log index.

    Every record is decoded before anything is replaced. Raises `SnapshotFailed`, or `LogUnavailable` of the engine.
    """
    try:
        await restore_snapshot(_RestoreCheck(), path)
        return await restore_snapshot(_SnapshotEngine(engine), path)
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error
    except (DamagedRecord, NewerFormat) as error:
        raise SnapshotFailed(f"this version of Wharf cannot restore the snapshot {path}: {error}") from error


class _SnapshotEngine:
    """A log engine without the leader and member records, which snapshots do not contain."""

    def __init__(self, engine: LogEngine) -> None:
        self._engine = engine

    def load(self) -> "_SnapshotLoad":
        return _SnapshotLoad(self._engine.load())

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        return await self._engine.restore(_resolve_indexes(_without_leased(records)), position)


class _SnapshotLoad:
    """A load of the whole state without the leader and member records."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        return _without_leased(self._load.iter_slices())

    async def get_position(self) -> LogPosition:
        return await self._load.get_position()


async def _without_leased(
    slices: AsyncIterator[Sequence[StoredRecord]],
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield the records without the leader and member records."""
    async for rows in slices:
        yield [row for row in rows if row.table not in OMITTED_TABLES]


async def _resolve_indexes(
    slices: AsyncIterator[Sequence[StoredRecord]],
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield the records, with the real log index where a record stands for "the index of its own write"."""
    resolver = WriteIndexResolver(ALL_TABLES)
    async for rows in slices:
        for start in range(0, len(rows), ROWS_PER_STEP):
            yield [resolver.resolve_record(row) for row in rows[start : start + ROWS_PER_STEP]]
            await asyncio.sleep(0)


class _RestoreCheck:
    """Takes the place of a log engine in a trial restore: decodes every record of a snapshot and stores nothing."""

    def __init__(self) -> None:
        self._decoders = {table.name: RecordDecoder(table, should_open_packed=True) for table in ALL_TABLES}

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        async for rows_slice in records:
            for row in rows_slice:
                self._check_record(row)
        return position.index

    def _check_record(self, row: StoredRecord) -> None:
        """Decode a record. Raises `NewerFormat` if this version cannot read it, `DamagedRecord` if it is damaged."""
        decoder = self._decoders.get(row.table)
        if decoder is None:
            raise NewerFormat(f"it has a table {row.table} that this version does not know")
        record = decoder.decode_record(row.key, row.data, row.version)
        if isinstance(record, RecordFormat) and record.version > NEWEST_FORMAT:
            raise NewerFormat(f"its format is {record.version}; this version reads formats up to {NEWEST_FORMAT}")


STATE_FILE: Final = "state.bin"
META_FILE: Final = "meta.json"
CHECKSUMS_FILE: Final = "SHA256SUMS"
GZIP_MAGIC: Final = b"\x1f\x8b"
READ_CHUNK_BYTES: Final = 1024 * 1024
MAX_ARCHIVE_FILES: Final = 16
"""Limits the work on an archive that is not a snapshot."""
MAX_META_BYTES: Final = 1_000_000
"""Limits the memory for `meta.json` and `SHA256SUMS`."""


class InvalidArchive(Exception):
    """The archive cannot be used. The message says why."""


def is_archive(path: Path) -> bool:
    """Whether the file starts like a gzip file. False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(2) == GZIP_MAGIC
    except OSError:
        return False


def pack_archive(state: Path, archive: Path, snapshot_info: SnapshotInfo) -> bytes:
    """Write the snapshot file `state`, its metadata and checksums to `archive`. Return the archive's SHA-256 digest."""
    position = snapshot_info.trailer.standing
    meta = msgspec.json.format(
        msgspec.json.encode(
            {
                "Version": 1,
                "ID": f"{position.epoch}-{position.index}-{snapshot_info.header.created_ns // 1_000_000}",
                "Index": position.index,
                "Term": position.epoch,
                "Size": snapshot_info.size_bytes,
            }
        )
    )
    with state.open("rb") as file:
        state_digest = hashlib.file_digest(file, "sha256").hexdigest()
    checksum_text = f"{hashlib.sha256(meta).hexdigest()}  {META_FILE}\n{state_digest}  {STATE_FILE}\n".encode()
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        _add_member(tar, META_FILE, io.BytesIO(meta), len(meta), snapshot_info)
        with state.open("rb") as file:
            _add_member(tar, STATE_FILE, file, snapshot_info.size_bytes, snapshot_info)
        _add_member(tar, CHECKSUMS_FILE, io.BytesIO(checksum_text), len(checksum_text), snapshot_info)
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def unpack_archive(archive: Path, state: Path) -> None:
    """Extract the snapshot file from an archive to `state`. A bare snapshot file is moved to `state` instead.

    Raises `InvalidArchive`; `state` may then be incomplete.
    """
    with archive.open("rb") as file:
        start = file.read(len(SNAPSHOT_MAGIC))
    if start == SNAPSHOT_MAGIC:
        archive.rename(state)
        return
    if not start:
        raise InvalidArchive("failed to decompress snapshot: it is empty")
    try:
        _extract(archive, state)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InvalidArchive(f"failed to decompress snapshot: {error}") from error


def _extract(archive: Path, state: Path) -> None:
    """Extract the snapshot file from an archive to `state`, and verify the checksums. Raises `InvalidArchive`."""
    digests: dict[str, str] = {}
    checksum_text = ""
    with tarfile.open(archive, "r:gz", tarinfo=BoundedTarInfo) as tar:
        for count, member in enumerate(tar):
            if count >= MAX_ARCHIVE_FILES:
                raise InvalidArchive("the archive contains more files than a snapshot")
            inner = tar.extractfile(member)
            if inner is None or member.name not in (META_FILE, STATE_FILE, CHECKSUMS_FILE):
                continue
            if member.name == STATE_FILE:
                digests[STATE_FILE] = _copy_and_hash(inner, state)
                continue
            if member.size > MAX_META_BYTES:
                raise InvalidArchive(f"{member.name} in the archive is larger than allowed")
            text = inner.read()
            digests[member.name] = hashlib.sha256(text).hexdigest()
            if member.name == CHECKSUMS_FILE:
                checksum_text = text.decode("utf-8", "replace")
        while tar.fileobj is not None and tar.fileobj.read(READ_CHUNK_BYTES):
            pass  # Read to the end to detect a truncated archive.
    if STATE_FILE not in digests:
        raise InvalidArchive(f"the archive is not a snapshot: it contains no {STATE_FILE}")
    checksums = dict(_parse_checksums(checksum_text))
    for name in (META_FILE, STATE_FILE):
        if checksums.get(name) != digests.get(name):
            raise InvalidArchive(
                f"{name} in the archive is damaged: its checksum differs from that in {CHECKSUMS_FILE}"
            )


def _copy_and_hash(inner: IO[bytes], state: Path) -> str:
    """Write the content to `state` and return its SHA-256 digest in hex."""
    digest = hashlib.sha256()
    with state.open("wb") as out:
        while part := inner.read(READ_CHUNK_BYTES):
            digest.update(part)
            out.write(part)
    return digest.hexdigest()


def _parse_checksums(text: str) -> Iterator[tuple[str, str]]:
    """Yield file name and digest of each line of `SHA256SUMS`."""
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        yield name, digest


def _add_member(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, snapshot_info: SnapshotInfo) -> None:
    """Add a file with this name, content and size to the tar archive."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, snapshot_info.header.created_ns // SECOND
    tar.addfile(info, content)
