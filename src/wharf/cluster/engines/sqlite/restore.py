"""Builds a whole log out of rows, in a file beside the one in force, and puts it in that one's place in one step.

Until the step nothing of it is visible; cut off before it, the leftover is removed at the next open. Writes are refused
meanwhile: the indexes of the new log begin after those of the old one.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import apsw

from wharf.cluster.engines.port import LogPosition, LogUnavailable, StoredRecord
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES
from wharf.cluster.engines.sqlite.lines import INSERT_LINE, compute_checksum
from wharf.cluster.engines.sqlite.store import SqliteStore
from wharf.cluster.engines.sqlite.trim import write_facts, write_last_changes

MAX_RECORDS_PER_INDEX: Final = 1_000


class SqliteRestore:
    """`begin`, `add` slices, `finish`; or `abandon`. `begin`, `finish` and `abandon` belong to the store's thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._connection: apsw.Connection | None = None
        self._place = 0
        self._tables: set[str] = set()
        self._epoch = 0

    def begin(self, position: LogPosition) -> None:
        """Raises `Unavailable`, also when another restore is on its way."""
        store = self._store
        if store.is_restoring:
            raise LogUnavailable("the log is being restored already: wait for that restore to end")
        now = store.get_position()
        self._epoch = max(now.epoch, position.epoch) + 1
        self._place = (max(now.index, position.index) + 1) * MAX_BATCH_LINES
        self._tables = set(now.last_changes)
        try:
            store.database.remove_leftovers()
            self._connection = store.database.open_or_create(store.database.restoring_path)
            self._connection.execute("BEGIN")
        except (apsw.Error, OSError) as error:
            raise LogUnavailable(store.database.describe_error(error)) from error
        store.is_restoring = True

    def add_records(self, records: Sequence[StoredRecord]) -> None:
        """Raises `Unavailable`."""
        lines = []
        place = self._place
        for row in records:
            place += 1
            if place % MAX_BATCH_LINES > MAX_RECORDS_PER_INDEX:
                place = (place // MAX_BATCH_LINES + 1) * MAX_BATCH_LINES + 1
            key = row.key.encode()
            self._tables.add(row.table)
            lines.append((place, row.table, key, compute_checksum(place, row.table, key, row.data), None, row.data))
        self._place = place
        try:
            self._building().executemany(INSERT_LINE, lines)
        except (apsw.Error, OSError) as error:
            raise LogUnavailable(self._store.database.describe_error(error)) from error

    def finish(self) -> int:
        """The new log is in force; the answer is its index. Raises `Unavailable`: the old one still is."""
        index = self._place // MAX_BATCH_LINES
        connection = self._building()
        try:
            write_last_changes(connection, dict.fromkeys(sorted(self._tables), index))
            write_facts(
                connection,
                epoch=self._epoch,
                epoch_since=index,
                tail_from=index,
                next_lease=self._store.read_next_lease_id(),
            )
            connection.execute("COMMIT")  # With synchronous = FULL: the file is whole on disk before it is renamed.
            connection.close()
        except (apsw.Error, OSError) as error:
            self.abandon()
            raise LogUnavailable(self._store.database.describe_error(error)) from error
        self._connection = None
        self._store.is_restoring = False
        self._store.replace_file(self._store.database.restoring_path)
        return index

    def abandon(self) -> None:
        """The old log stays in force."""
        if self._connection is None:
            return
        with suppress(apsw.Error):
            self._connection.close()
        self._connection = None
        self._store.is_restoring = False
        with suppress(OSError):
            self._store.database.remove_leftovers()

    def _building(self) -> apsw.Connection:
        if self._connection is None:
            raise LogUnavailable("the restore was given up")
        return self._connection
