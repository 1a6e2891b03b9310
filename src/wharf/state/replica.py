"""The state in memory: it changes only by taking in the next batch of the log, between two events.

Nothing here waits, so a caller that does not wait either sees one consistent state, however many records it reads.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from wharf.model.changes import Condition, Drop, Put, Write, join_key
from wharf.model.log import FIRST_INDEX, Batch, Change, LogWrite, Row, Standing
from wharf.state.codec import encode
from wharf.state.rows import Rows
from wharf.state.table import Index, Order, Table
from wharf.state.watches import Subscribers, Watches

R = TypeVar("R", bound=msgspec.Struct)


class OutOfOrder(Exception):
    """A batch came that does not follow the last one taken in. The feed is broken: load again."""


class Replica:
    """All tables at one index. Also the snapshot that deciders read."""

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self.index = 0
        self.epoch = 0
        self.watches = Watches()
        self.tables: dict[str, Table[Any]] = {table.name: table for table in tables}
        self._rows: dict[str, Rows[Any]] = self._empty()

    def _empty(self) -> dict[str, Rows[Any]]:
        return {name: Rows(table, last_change=FIRST_INDEX) for name, table in self.tables.items()}

    # -- reading ---------------------------------------------------------------------------------------------------

    def rows(self, table: Table[R]) -> Rows[R]:
        return self._rows[table.name]

    def get(self, table: Table[R], *key: str) -> R | None:
        """The record under the key; of a table with one record, that record."""
        return self._rows[table.name].records.get(key[0] if len(key) == 1 else _joined(table, key))

    def those(self, index: Index[R], *value: Hashable) -> list[R]:
        """The records with this value in the index, in the order in which they got it."""
        rows: Rows[R] = self._rows[index.table]
        records = rows.records
        return [records[key] for key in rows.indexed(index, value[0] if len(value) == 1 else value)]

    def count_those(self, index: Index[Any], *value: Hashable) -> int:
        return len(self._rows[index.table].indexed(index, value[0] if len(value) == 1 else value))

    def all(self, table: Table[R], *, prefix: str = "", reverse: bool = False) -> Iterator[R]:
        """Every record in the table's order; with a prefix, those whose key begins so, in order of key."""
        rows = self.rows(table)
        if prefix or table.order is Order.KEY:
            keys = rows.ordered_keys(prefix=prefix, reverse=reverse)
        else:
            keys = rows.created_keys(reverse=reverse)
        return map(rows.records.__getitem__, keys)

    def count(self, table: Table[Any]) -> int:
        return len(self._rows[table.name].records)

    def last_change(self, *tables: Table[Any]) -> int:
        """The greatest index at which one of these tables changed."""
        return max(self._rows[table.name].last_change for table in tables)

    def unchanged(self, table: Table[R], record: R) -> Condition:
        """The condition that this record is still as the decider saw it."""
        return Condition(table.name, table.key_of(record), record.modify_index)  # type: ignore[attr-defined]

    def version(self, table: Table[Any], *key: str) -> int:
        """The version under the key; 0 when nothing is there."""
        record = self.get(table, *key)
        return 0 if record is None else record.modify_index

    def as_seen(self, table: Table[Any], *key: str) -> Condition:
        """The condition that what stands under the key, if anything, is still what stands there now."""
        return Condition(table.name, _joined(table, key), self.version(table, *key))

    # -- writing ---------------------------------------------------------------------------------------------------

    def encoded(self, write: Write, *, write_id: str, lease: int = 0) -> LogWrite:
        """The write as the log takes it."""
        return LogWrite(
            id=write_id,
            kind=write.kind,
            cause=write.cause,
            conditions=write.conditions,
            changes=[self._encoded(change) for change in write.changes],
            lease=lease,
        )

    def _encoded(self, change: Put | Drop) -> Change:
        if isinstance(change, Drop):
            return Change(change.table, change.key, None)
        return Change(change.table, change.key, encode(self.tables[change.table], change.record))

    # -- taking in -------------------------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """Take in the next batch, whole, and wake those who waited for what it changed.

        Everything is decoded before anything is changed, so a damaged record leaves the state as it was.
        """
        index = batch.index
        if index <= self.index:
            raise OutOfOrder(f"batch {index} came after batch {self.index}")
        every_rows = self._rows
        decoded = []
        for change in batch.changes:
            rows = every_rows[change.table]
            data = change.data
            decoded.append((rows, change.key, None if data is None else rows.decoder.record(change.key, data, index)))
        self.index = index
        if index == FIRST_INDEX or not self.watches.tables:
            for rows, key, record in decoded:
                rows.last_change = index
                if record is None:
                    rows.drop(key)
                else:
                    rows.set(key, record)
            return
        self._apply_watched(decoded, index)

    def _apply_watched(self, decoded: list[tuple[Rows[Any], str, Any]], index: int) -> None:
        woken: Subscribers = {}
        watched = self.watches.tables
        for rows, key, record in decoded:
            rows.last_change = index
            old = rows.drop(key) if record is None else rows.set(key, record)
            watches = watched.get(rows.table.name)
            if watches is not None and (old is not None or record is not None):
                watches.collect(key, old, record, rows.table.indexes, woken)
        for subscription in woken:
            subscription.fire()

    def load(self, rows: Iterable[Row], standing: Standing) -> None:
        """Stand where a full read stands, and wake those who waited for what differs from before.

        A replica that has fallen behind the log's tail comes back so. In a new epoch nothing from before can be
        trusted, so everybody is woken.
        """
        loading = Loading(self)
        loading.take(rows)
        loading.finish(standing)


class Loading:
    """A full read on its way in, slice by slice; the replica's readers see the old state until `finish`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._records: dict[str, dict[str, Any]] = {name: {} for name in replica.tables}
        self._decode = {name: rows.decoder.record for name, rows in replica._rows.items()}

    def take(self, rows: Iterable[Row]) -> None:
        records, decode = self._records, self._decode
        for row in rows:
            table, key = row.table, row.key
            records[table][key] = decode[table](key, row.data, row.version)

    def finish(self, standing: Standing) -> None:
        replica = self._replica
        before, after = replica._rows, replica._empty()
        for name, rows in after.items():
            rows.decoder = before[name].decoder  # Keeps what it shares between records.
            rows.fill(self._records[name])
            rows.last_change = standing.last_changes.get(name, FIRST_INDEX)
        new_epoch = standing.epoch != replica.epoch
        replica._rows = after
        replica.index = standing.index
        replica.epoch = standing.epoch
        for subscription in replica.watches.everybody() if new_epoch else _affected(replica.watches, before, after):
            subscription.fire()


def _joined(table: Table[Any], key: tuple[str, ...]) -> str:
    return join_key(*key) if key else table.name


def _affected(watches: Watches, before: dict[str, Rows[Any]], after: dict[str, Rows[Any]]) -> Subscribers:
    """Those who wait on something that differs between the two states."""
    woken: Subscribers = {}
    for name, table_watches in watches.tables.items():
        old_rows, new_rows = before[name], after[name]
        if old_rows.last_change == new_rows.last_change:
            continue
        woken.update(table_watches.by_table)
        for key in _differing(old_rows.records, new_rows.records):
            old, new = old_rows.records.get(key), new_rows.records.get(key)
            table_watches.collect(key, old, new, new_rows.table.indexes, woken)
    return woken


def _differing(old: dict[str, Any], new: dict[str, Any]) -> Sequence[str]:
    gone = [key for key in old if key not in new]
    changed = [key for key, record in new.items() if key not in old or old[key].modify_index != record.modify_index]
    return gone + changed
