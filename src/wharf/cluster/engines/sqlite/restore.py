"""Builds a new log from records, in a file beside the active one, and replaces the active one in a single step.

Before that step nothing of it is visible; after a crash, the next opening deletes the unfinished file. Writes are
rejected meanwhile, because the indexes of the new log continue after those of the old one.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import apsw

from wharf.cluster.engines.port import LogPosition, LogUnavailable, LogUnchanged, RestoreOutcomeUnknown, StoredRecord
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES
from wharf.cluster.engines.sqlite.lines import INSERT_LINE, compute_checksum
from wharf.cluster.engines.sqlite.store import SqliteStore
from wharf.cluster.engines.sqlite.trim import write_facts, write_last_changes

MAX_RECORDS_PER_INDEX: Final = 1_000
"""Fewer than the places of an index, so that a batch of the restored log never needs more lines than it has."""


class SqliteRestore:
    """One restore: `begin`, `add_records` for each slice, then `finish` or `abandon`. All but `add_records` run on the
    store's thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._connection: apsw.Connection | None = None
        self._place = 0
        self._tables: set[str] = set()
        self._epoch = 0

    def begin(self, position: LogPosition) -> None:
        """Create the new file. Raises `LogUnchanged`, also when another restore is running."""
        store = self._store
        if store.is_restoring:
            raise LogUnchanged("the log is being restored already: wait for that restore to end")
        current = store.get_position()
        self._epoch = max(current.epoch, position.epoch) + 1
        self._place = (max(current.index, position.index) + 1) * MAX_BATCH_LINES
        self._tables = set(current.last_changes)
        try:
            store.database.remove_leftovers()
            self._connection = store.database.open_or_create(store.database.restoring_path)
            self._connection.execute("BEGIN")
        except (apsw.Error, OSError) as error:
            raise LogUnchanged(store.database.describe_error(error)) from error
        store.is_restoring = True

    def add_records(self, records: Sequence[StoredRecord]) -> None:
        """Add a slice of records to the new file. Raises `LogUnchanged`."""
        lines = []
        place = self._place
        for record in records:
            place += 1
            if place % MAX_BATCH_LINES > MAX_RECORDS_PER_INDEX:
                place = (place // MAX_BATCH_LINES + 1) * MAX_BATCH_LINES + 1
            key = record.key.encode()
            self._tables.add(record.table)
            lines.append(
                (place, record.table, key, compute_checksum(place, record.table, key, record.data), None, record.data)
            )
        self._place = place
        try:
            self._require_connection().executemany(INSERT_LINE, lines)
        except (apsw.Error, OSError) as error:
            raise LogUnchanged(self._store.database.describe_error(error)) from error

    def finish(self) -> int:
        """Activate the new log and return its index.

        Raises `LogUnchanged` if the old log stays active, and `RestoreOutcomeUnknown` if the new one may be.
        """
        index = self._place // MAX_BATCH_LINES
        connection = self._require_connection()
        try:
            write_last_changes(connection, dict.fromkeys(sorted(self._tables), index))
            write_facts(
                connection,
                epoch=self._epoch,
                epoch_since=index,
                tail_from=index,
                next_lease=self._store.read_next_lease_id(),
            )
            connection.execute("COMMIT")  # With synchronous = FULL, the file is complete on disk before it is renamed.
            connection.close()
        except (apsw.Error, OSError) as error:
            self.abandon()
            raise LogUnchanged(self._store.database.describe_error(error)) from error
        self._connection = None
        self._store.is_restoring = False
        try:
            self._store.replace_file(self._store.database.restoring_path)
        except (LogUnavailable, OSError) as error:
            raise RestoreOutcomeUnknown(str(error)) from error
        return index

    def abandon(self) -> None:
        """Delete the new file; the old log stays active. Does nothing after `finish`."""
        if self._connection is None:
            return
        with suppress(apsw.Error):
            self._connection.close()
        self._connection = None
        self._store.is_restoring = False
        with suppress(OSError):
            self._store.database.remove_leftovers()

    def _require_connection(self) -> apsw.Connection:
        if self._connection is None:
            raise LogUnchanged("the restore was abandoned")
        return self._connection
