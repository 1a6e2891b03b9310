"""Reads records and batches from the file, on its own connection, while commits continue. Never writes.

Committed lines never change, so a read at an index needs no long transaction. It reads the lines up to that index in
slices and skips those that were dead at the start. That is correct as long as nothing is trimmed meanwhile. It verifies
the checksum of every line.

A lock serializes calls from several threads.
"""

import threading
from collections.abc import Set as AbstractSet
from typing import Final

import apsw

from wharf.cluster.engines.port import Batch, EncodedChange, LogUnavailable
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES, LogDatabase
from wharf.cluster.engines.sqlite.lines import compute_checksum, decode_head_line, get_batch_index

_ROWS: Final = """
SELECT place, table_name, key, checksum, data FROM log
WHERE place > ? AND place < ? AND table_name IS NOT NULL ORDER BY place LIMIT ?
"""
_LINES: Final = "SELECT place, table_name, key, checksum, data FROM log WHERE place >= ? AND place < ? ORDER BY place"
_HEAD: Final = "SELECT place FROM log WHERE place >= ? AND table_name IS NULL AND key = ?"

RecordTuple = tuple[str, str, int, bytes]
"""The fields of a `StoredRecord`. The encoder accepts a tuple too, which costs less to build."""


class DamagedLog(LogUnavailable):
    """A line has a wrong checksum, or the structure of the file is broken."""


class LineReader:
    """Reads lines of the log."""

    def __init__(self, file: LogDatabase) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None

    def read_records(
        self,
        after: int,
        *,
        last_index: int,
        dead_lines: AbstractSet[int],
        max_lines: int = 1_000,
        max_bytes: int = 1_000_000,
    ) -> tuple[list[RecordTuple], int | None]:
        """Return the records on lines after the place `after`, up to `last_index`, and the place to continue from; None
        at the end."""
        rows: list[RecordTuple] = []
        place, size, line_count = after, 0, 0
        with self._lock:
            try:
                lines = self._get_connection().execute(_ROWS, (after, (last_index + 1) * MAX_BATCH_LINES, max_lines))
                for place, table, key, checksum, data in lines:
                    line_count += 1
                    if place in dead_lines:
                        continue
                    if checksum != compute_checksum(place, table, key, data):
                        raise self._build_damage_error(place)
                    rows.append((table, key.decode(), get_batch_index(place), data))
                    size += len(data)
                    if size >= max_bytes:
                        lines.close()
                        return rows, place
            except apsw.Error as error:
                raise self._translate_error(error) from error
        return rows, place if line_count == max_lines else None

    def read_batches(self, after: int, *, last_index: int, max_bytes: int = 1_000_000) -> list[Batch]:
        """Return complete batches after the index `after`, up to `last_index` or the size limit. Empty if the next one
        is trimmed."""
        batches: list[Batch] = []
        size = 0
        with self._lock:
            try:
                for index in range(after + 1, last_index + 1):
                    batch, batch_size = self._read_batch(index)
                    if batch is None:
                        break  # Trimmed after the caller's check.
                    batches.append(batch)
                    size += batch_size
                    if size >= max_bytes:
                        break
            except apsw.Error as error:
                raise self._translate_error(error) from error
        return batches

    def find_write(self, write_id: str, *, since: int) -> int | None:
        """Return the index of the batch of this write, searching from `since`; None if it is not there."""
        with self._lock:
            try:
                head = self._get_connection().execute(_HEAD, (since * MAX_BATCH_LINES, write_id.encode())).fetchone()
            except apsw.Error as error:
                raise self._translate_error(error) from error
        return None if head is None else get_batch_index(head[0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read_batch(self, index: int) -> tuple[Batch | None, int]:
        """Read one batch and its size; None if it is not there. Raises `DamagedLog`."""
        first, size = index * MAX_BATCH_LINES, 0
        head, write_id, changes = None, "", list[EncodedChange]()
        for place, table, key, checksum, data in self._get_connection().execute(
            _LINES, (first, first + MAX_BATCH_LINES)
        ):
            if checksum != compute_checksum(place, table, key, data):
                raise self._build_damage_error(place)
            if table is None:
                head, write_id = decode_head_line(data), key.decode()
            else:
                changes.append(EncodedChange(table, key.decode(), data))
                size += len(key) + len(data or b"")
        if head is None:
            return None, 0
        if head.changes != len(changes):
            raise self._build_damage_error(first)
        return Batch(index, write_id, head.kind, head.cause, changes), size + 100

    def _get_connection(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = self._file.open_reader()
        return self._connection

    def _build_damage_error(self, place: int) -> DamagedLog:
        error = apsw.CorruptError(
            f"the line at {get_batch_index(place)}/{place % MAX_BATCH_LINES} has a wrong checksum"
        )
        return DamagedLog(self._file.describe_error(error))

    def _translate_error(self, error: apsw.Error) -> LogUnavailable:
        """Return the port's error for an error of SQLite."""
        sentence = self._file.describe_error(error)
        return (
            DamagedLog(sentence)
            if isinstance(error, (apsw.CorruptError, apsw.NotADBError))
            else LogUnavailable(sentence)
        )
