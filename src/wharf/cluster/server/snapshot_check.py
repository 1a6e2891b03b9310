"""Checks a snapshot before it is restored: reads and decodes everything in it, and writes what will be restored to a new file.

A snapshot may be damaged, or come from another cluster. The new file contains only records that this program reads, in small
slices and without those that a restore omits, so the log can be replaced without further checks. Nothing here waits; a server runs it in a process of its own, which is limited in
memory and CPU time.

References to records that do not exist are not refused: every program must live with them (ADR 166).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from wharf.cluster.engines.port import LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import (
    SnapshotFileWriter,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotLimits,
    SnapshotUnusable,
)
from wharf.cluster.server.snapshot_archive import SnapshotArchiveReader
from wharf.cluster.server.snapshots import OMITTED_TABLES, SnapshotFailed
from wharf.cluster.state.codec import DamagedRecord, NewerFormat, RecordDecoder, WriteIndexResolver
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALL_TABLES, CLUSTER_FORMAT
from wharf.contract.model.cluster import KeyringKey, RecordFormat
from wharf.world.disk_space import measure_disk_space

CHECKED_SLICE_RECORDS: Final = 250
"""Records in a slice of the checked file: the event loop sends one to the log in about a millisecond."""
CHECKED_SLICE_BYTES: Final = 256_000
"""The size at which a slice of the checked file is full."""
MAX_RECORD_BYTES: Final = 16_000_000
"""The largest record that any log accepts."""
MAX_INDEX: Final = 1 << 50
"""The largest log index. A log in SQLite multiplies it by 1,024, and clients read it as a floating-point number."""
MAX_EPOCH: Final = 1 << 40
DISK_CHECK_BYTES: Final = 16_000_000
"""How much is written between two checks of the free disk space."""


def check_snapshot(
    source: Path,
    target: Path,
    limits: SnapshotLimits,
    *,
    name: str,
    wrapping_keys: Sequence[str] | None = None,
    require_wanted: Callable[[], None] = lambda: None,
) -> SnapshotInfo:
    """Check the archive or snapshot file `source`, and write its records to the new snapshot file `target`.

    Return what `target` contains. `name` is how error texts call the snapshot. `wrapping_keys` are the fingerprints of the
    keys that the servers have; `None` if they may get another one before they start. `require_wanted` is called before each
    slice and may raise to stop the check.

    Raises `SnapshotFailed` if the snapshot cannot be restored or the disk is nearly full, and `OSError`.
    """
    reader = SnapshotArchiveReader(source, limits, name=name)
    try:
        return _check_records(reader, target, RecordCheck(wrapping_keys), require_wanted)
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error
    except NewerFormat as error:
        raise SnapshotFailed(
            f"this version of Wharf cannot restore the snapshot {name}: {error}; nothing was changed"
        ) from error
    except DamagedRecord as error:
        raise SnapshotFailed(
            f"the snapshot {name} is damaged: {error}; use another one; nothing was changed"
        ) from error


def _check_records(
    reader: SnapshotArchiveReader, target: Path, check: "RecordCheck", require_wanted: Callable[[], None]
) -> SnapshotInfo:
    """Write the checked records to `target` and return what it contains."""
    space = _DiskSpaceGuard(target.parent)
    header = SnapshotHeader(0, "wharf")
    with closing(SnapshotFileWriter(target, header)) as writer:
        for rows in reader.iter_slices():
            require_wanted()
            for part in _iter_parts(check.check_records(rows)):
                space.add(writer.add(part))
        check.check_completeness()
        return writer.finish(header, check.check_position(reader.get_info().trailer.standing))


class RecordCheck:
    """Checks the records of one snapshot, one after another."""

    def __init__(self, wrapping_keys: Sequence[str] | None) -> None:
        self._wrapping_keys = wrapping_keys
        self._decoders = {table.name: RecordDecoder(table, should_open_packed=True) for table in ALL_TABLES}
        self._resolver = WriteIndexResolver(ALL_TABLES)
        self._seen_keys: dict[str, set[str]] = {table.name: set() for table in ALL_TABLES}
        self._newest_version = 0

    def check_records(self, rows: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """Yield the records to restore, with their write indexes. Raises `NewerFormat` or `DamagedRecord`."""
        for row in rows:
            self._check_record(row)
            if row.table not in OMITTED_TABLES:
                yield self._resolver.resolve_record(row)

    def check_completeness(self) -> None:
        """Raise `DamagedRecord` if the snapshot lacks the record that each cluster has from its first write on."""
        if not self._seen_keys[CLUSTER_FORMAT.name]:
            raise DamagedRecord("it contains no cluster: the record of its format is missing")

    def check_position(self, position: LogPosition) -> LogPosition:
        """Return the position of the snapshot, without tables that are unknown. Raises `DamagedRecord`."""
        if not max(self._newest_version, 0) <= position.index <= MAX_INDEX:
            raise DamagedRecord(f"its log index {position.index} is below that of a record, or above {MAX_INDEX}")
        if not (0 <= position.epoch <= MAX_EPOCH and 0 <= position.epoch_since <= position.index):
            raise DamagedRecord(f"its epoch {position.epoch}, since index {position.epoch_since}, is impossible")
        last_changes = {
            table: index
            for table, index in position.last_changes.items()
            if table in self._decoders and 0 <= index <= position.index
        }
        return LogPosition(position.index, last_changes, position.epoch, position.epoch_since)

    def _check_record(self, row: StoredRecord) -> None:
        """Decode a record. Raises `NewerFormat` if this version cannot read it, `DamagedRecord` if it is damaged."""
        decoder = self._decoders.get(row.table)
        if decoder is None:
            raise NewerFormat(f"it has a table {row.table[:100]!a} that this version does not know")
        where = f"the record {row.table}/{row.key[:300]!a}"
        if len(row.data) > MAX_RECORD_BYTES:
            raise DamagedRecord(
                f"{where} has {len(row.data):,} bytes, more than any log accepts ({MAX_RECORD_BYTES:,})"
            )
        if not (0 < row.version <= MAX_INDEX and 0 <= row.original_version <= MAX_INDEX):
            raise DamagedRecord(f"{where} has the impossible index {row.version} ({row.original_version})")
        seen_keys = self._seen_keys[row.table]
        if row.key in seen_keys:
            raise DamagedRecord(f"{where} is there twice")
        seen_keys.add(row.key)
        self._newest_version = max(self._newest_version, row.version)
        try:
            record = decoder.decode_record(row.key, row.data, row.version, row.write_index)
        except DamagedRecord as error:
            raise DamagedRecord(f"{where} cannot be decoded: {error.__cause__ or error}") from error
        if decoder.table.get_key(record) != row.key:
            raise DamagedRecord(f"{where} belongs under another key")
        if isinstance(record, KeyringKey) and self._wrapping_keys is not None:
            self._check_keyring_key(record, self._wrapping_keys)
        if isinstance(record, RecordFormat) and record.version > NEWEST_FORMAT:
            raise NewerFormat(f"its format is {record.version}; this version reads formats up to {NEWEST_FORMAT}")
        try:
            for index in decoder.table.indexes:
                hash(index.get_value(record))
        except Exception as error:  # Whatever an index raises, it would raise in every server that loads the record.
            raise DamagedRecord(f"{where} cannot be indexed: {error!r}") from error

    def _check_keyring_key(self, key: KeyringKey, wrapping_keys: Sequence[str]) -> None:
        """Raise `SnapshotFailed` if the servers have no key to decrypt this one. They would not start any more."""
        if key.wrapped_with not in wrapping_keys:
            raise SnapshotFailed(
                f"the keyring in the snapshot is encrypted with the wrapping key {key.wrapped_with!a}, and this server has "
                f"{', '.join(wrapping_keys) or 'none'}: add the keyring file of the cluster that the snapshot comes from to that of "
                "each server, and reload (documentation page Access control); nothing was changed"
            )


class _DiskSpaceGuard:
    """Stops a check before the disk is nearly full: other programs and the log need the space."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unchecked_bytes = DISK_CHECK_BYTES

    def add(self, size: int) -> None:
        """Count written bytes. Raises `SnapshotFailed`."""
        self._unchecked_bytes += size
        if self._unchecked_bytes >= DISK_CHECK_BYTES:
            self._unchecked_bytes = 0
            require_disk_space(self._folder)


class DiskTooFull(SnapshotFailed):
    """The disk has too little space for a restore."""


def require_disk_space(folder: Path, size: int = 0) -> None:
    """Raise `DiskTooFull` if the disk of the folder would be nearly full with `size` more bytes."""
    space = measure_disk_space(folder)
    if space.available_bytes - size < space.needed_bytes:
        raise DiskTooFull(
            f"the disk of {folder} has too little space: {size >> 20} MB needed, {space.available_bytes >> 20} MB free, of which "
            f"{space.needed_bytes >> 20} MB stay free; make room; nothing was changed"
        )


def _iter_parts(rows: Iterable[StoredRecord]) -> Iterator[Sequence[StoredRecord]]:
    """Yield the records in parts of limited count and size."""
    part: list[StoredRecord] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row.data)
        if len(part) >= CHECKED_SLICE_RECORDS or size >= CHECKED_SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
