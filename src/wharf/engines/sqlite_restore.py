"""Builds a whole log out of rows, in a file beside the one in force, and puts it in that one's place in one step.

Until the step nothing of it is visible; cut off before it, the leftover is removed at the next open. Writes are refused
meanwhile: the indexes of the new log begin after those of the old one.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import apsw

from wharf.engines.port import Row, Standing, Unavailable
from wharf.engines.sqlite_file import LINES_PER_BATCH
from wharf.engines.sqlite_lines import INSERT_LINE, checksum_of
from wharf.engines.sqlite_store import Store
from wharf.engines.sqlite_trim import write_facts, write_last_changes

ROWS_AT_AN_INDEX: Final = 1_000


class Restore:
    """`begin`, `add` slices, `finish`; or `abandon`. `begin`, `finish` and `abandon` belong to the store's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: apsw.Connection | None = None
        self._place = 0
        self._tables: set[str] = set()
        self._epoch = 0

    def begin(self, standing: Standing) -> None:
        """Raises `Unavailable`, also when another restore is on its way."""
        store = self._store
        if store.restoring:
            raise Unavailable("the log is being restored already: wait for that restore to end")
        now = store.standing()
        self._epoch = max(now.epoch, standing.epoch) + 1
        self._place = (max(now.index, standing.index) + 1) * LINES_PER_BATCH
        self._tables = set(now.last_changes)
        try:
            store.file.remove_leftovers()
            self._connection = store.file.open_new(store.file.restoring_path)
            self._connection.execute("BEGIN")
        except (apsw.Error, OSError) as error:
            raise Unavailable(store.file.sentence(error)) from error
        store.restoring = True

    def add(self, rows: Sequence[Row]) -> None:
        """Raises `Unavailable`."""
        lines = []
        place = self._place
        for row in rows:
            place += 1
            if place % LINES_PER_BATCH > ROWS_AT_AN_INDEX:
                place = (place // LINES_PER_BATCH + 1) * LINES_PER_BATCH + 1
            key = row.key.encode()
            self._tables.add(row.table)
            lines.append((place, row.table, key, checksum_of(place, row.table, key, row.data), None, row.data))
        self._place = place
        try:
            self._building().executemany(INSERT_LINE, lines)
        except (apsw.Error, OSError) as error:
            raise Unavailable(self._store.file.sentence(error)) from error

    def finish(self) -> int:
        """The new log is in force; the answer is its index. Raises `Unavailable`: the old one still is."""
        index = self._place // LINES_PER_BATCH
        connection = self._building()
        try:
            write_last_changes(connection, dict.fromkeys(sorted(self._tables), index))
            write_facts(
                connection,
                epoch=self._epoch,
                epoch_since=index,
                tail_from=index,
                next_lease=self._store.next_lease(),
            )
            connection.execute("COMMIT")  # With synchronous = FULL: the file is whole on disk before it is renamed.
            connection.close()
        except (apsw.Error, OSError) as error:
            self.abandon()
            raise Unavailable(self._store.file.sentence(error)) from error
        self._connection = None
        self._store.restoring = False
        self._store.replace_file(self._store.file.restoring_path)
        return index

    def abandon(self) -> None:
        """The old log stays in force."""
        if self._connection is None:
            return
        with suppress(apsw.Error):
            self._connection.close()
        self._connection = None
        self._store.restoring = False
        with suppress(OSError):
            self._store.file.remove_leftovers()

    def _building(self) -> apsw.Connection:
        if self._connection is None:
            raise Unavailable("the restore was given up")
        return self._connection
