"""Reads rows and batches back from the file, on a connection of its own, while commits go on.

Lines never change once they are committed, so a read at an index needs no long transaction: it takes the lines up to
that index in slices, skips those that were dead then, and stays right as long as nothing is trimmed meanwhile. It
checks every line against its checksum and says so when one does not add up. It never writes.

May be used from any one thread at a time; a lock sees to it.
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
"""A `Row` as the encoder takes it, without the cost of making one."""


class DamagedLog(LogUnavailable):
    """A line does not add up, or the file's structure is broken."""


class LineReader:
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
        """Rows on lines with a place after `after` and an index up to `upto`; and the place to go on from, if any."""
        rows: list[RecordTuple] = []
        place, size, seen = after, 0, 0
        with self._lock:
            try:
                lines = self._open().execute(_ROWS, (after, (last_index + 1) * MAX_BATCH_LINES, max_lines))
                for place, table, key, checksum, data in lines:
                    seen += 1
                    if place in dead_lines:
                        continue
                    if checksum != compute_checksum(place, table, key, data):
                        raise self._damage(place)
                    rows.append((table, key.decode(), get_batch_index(place), data))
                    size += len(data)
                    if size >= max_bytes:
                        lines.close()
                        return rows, place
            except apsw.Error as error:
                raise self._translate(error) from error
        return rows, place if seen == max_lines else None

    def read_batches(self, after: int, *, last_index: int, max_bytes: int = 1_000_000) -> list[Batch]:
        """Whole batches with an index after `after`, up to `upto`, as many as fit; none if the next is not there."""
        batches: list[Batch] = []
        size = 0
        with self._lock:
            try:
                for index in range(after + 1, last_index + 1):
                    batch, batch_size = self._read_batch(index)
                    if batch is None:
                        break  # Trimmed since the caller looked.
                    batches.append(batch)
                    size += batch_size
                    if size >= max_bytes:
                        break
            except apsw.Error as error:
                raise self._translate(error) from error
        return batches

    def find_write(self, write_id: str, *, since: int) -> int | None:
        with self._lock:
            try:
                head = self._open().execute(_HEAD, (since * MAX_BATCH_LINES, write_id.encode())).fetchone()
            except apsw.Error as error:
                raise self._translate(error) from error
        return None if head is None else get_batch_index(head[0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read_batch(self, index: int) -> tuple[Batch | None, int]:
        first, size = index * MAX_BATCH_LINES, 0
        head, write_id, changes = None, "", list[EncodedChange]()
        for place, table, key, checksum, data in self._open().execute(_LINES, (first, first + MAX_BATCH_LINES)):
            if checksum != compute_checksum(place, table, key, data):
                raise self._damage(place)
            if table is None:
                head, write_id = decode_head_line(data), key.decode()
            else:
                changes.append(EncodedChange(table, key.decode(), data))
                size += len(key) + len(data or b"")
        if head is None:
            return None, 0
        if head.changes != len(changes):
            raise self._damage(first)
        return Batch(index, write_id, head.kind, head.cause, changes), size + 100

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = self._file.open_reader()
        return self._connection

    def _damage(self, place: int) -> DamagedLog:
        error = apsw.CorruptError(f"the line at {get_batch_index(place)}/{place % MAX_BATCH_LINES} does not add up")
        return DamagedLog(self._file.describe_error(error))

    def _translate(self, error: apsw.Error) -> LogUnavailable:
        sentence = self._file.describe_error(error)
        return (
            DamagedLog(sentence)
            if isinstance(error, (apsw.CorruptError, apsw.NotADBError))
            else LogUnavailable(sentence)
        )
