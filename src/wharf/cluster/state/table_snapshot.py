"""A consistent view of a table at one time, read in slices while the replica applies further batches.

Nothing is copied at the start. While the snapshot is open, the original record of each changed key is stored. A slice
skips the changed keys and adds their original records at their original positions. A list of a million records is thus
consistent without blocking the event loop.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from wharf.cluster.state.replica import Replica
from wharf.cluster.state.table import Index, ListOrder, Table
from wharf.cluster.state.watches import RecordChange

R = TypeVar("R", bound=msgspec.Struct)

RecordPosition = tuple[int, str]
"""The sort key of a record: CreateIndex and key; 0 and key in a list by key."""


class _RecordSnapshot(Generic[R]):
    """Retains the records of a table as they are when this object is made. Call `close` at the end."""

    def __init__(self, replica: Replica, table: Table[R]) -> None:
        self._replica = replica
        self._table = table
        self._table_records = replica.get_table_records(table)
        """A load of the whole state replaces this object, which does not change any more then."""
        self._records_before: dict[str, R | None] = {}
        """The original record of each key that has changed since then; `None` if the key had no record."""
        replica.watches.add_observer(table, self)

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """Store the original records of the keys that a batch has changed."""
        if self._replica.get_table_records(self._table) is not self._table_records:
            return
        for key, old_record, _new in changes:
            self._records_before.setdefault(key, old_record)  # type: ignore[arg-type]  # a record of this table

    def close(self) -> None:
        """Stop observing changes. Closing twice is allowed."""
        self._replica.watches.remove_observer(self._table, self)


class TableSnapshot(_RecordSnapshot[R]):
    """A snapshot of one table. Call `read_next` until it returns nothing, or `close` to end it early."""

    def __init__(
        self,
        replica: Replica,
        table: Table[R],
        *,
        by_creation: bool = False,
        prefix: str = "",
        start: RecordPosition | None = None,
        reverse: bool = False,
    ) -> None:
        """Open a snapshot. `start` is the position of the first result; no record needs to exist there."""
        assert not (by_creation and prefix), "a prefix needs the order by key"
        assert not by_creation or table.order is ListOrder.CREATED, f"{table.name} is not sorted by creation"
        super().__init__(replica, table)
        self._by_creation = by_creation
        self._prefix = prefix
        self._reverse = reverse
        self._next_position = start
        self._is_next_returned = False
        self._is_exhausted = False

    def read_next(self, max_records: int) -> list[R]:
        """Return about `max_records` further records. An empty list is the end; the snapshot is closed then."""
        while not self._is_exhausted:
            records = self._read_slice(max_records)
            if records:
                return records
        self.close()
        return []

    def _read_slice(self, max_records: int) -> list[R]:
        """Read the next slice. It may be empty before the end, if all its keys have been added since the start."""
        begin_position, is_begin_returned = self._next_position, self._is_next_returned
        keys = list(islice(self._iterate_keys(begin_position), max_records + is_begin_returned))
        records, records_before = self._table_records.records, self._records_before
        if not records_before:  # The table has not changed since the start, as almost always.
            self._is_exhausted = len(keys) < max_records + is_begin_returned
            if is_begin_returned and keys and self._get_position(records[keys[0]], keys[0]) == begin_position:
                del keys[0]
            self._next_position = None if self._is_exhausted else self._get_position(records[keys[-1]], keys[-1])
            self._is_next_returned = True
            return [records[key] for key in keys]
        positions = [(self._get_position(records[key], key), key) for key in keys]
        if is_begin_returned and positions and positions[0][0] == begin_position:
            positions = positions[1:]
        if len(keys) < max_records + is_begin_returned:
            last_position, self._is_exhausted = None, True
        else:
            last_position = positions[-1][0]
        positioned_records = [(position, records[key]) for position, key in positions if key not in records_before]
        for key, record in records_before.items():
            if record is not None and key.startswith(self._prefix):
                position = self._get_position(record, key)
                if self._is_between(position, begin_position, last_position, is_begin_returned=is_begin_returned):
                    positioned_records.append((position, record))
        positioned_records.sort(key=lambda entry: entry[0], reverse=self._reverse)
        self._next_position, self._is_next_returned = last_position, True
        return [record for _, record in positioned_records]

    def _iterate_keys(self, begin_position: RecordPosition | None) -> Iterator[str]:
        if self._by_creation:
            return self._table_records.iter_keys_by_creation(start=begin_position, reverse=self._reverse)
        start = None if begin_position is None else begin_position[1]
        return self._table_records.iter_keys(prefix=self._prefix, start=start, reverse=self._reverse)

    def _get_position(self, record: R, key: str) -> RecordPosition:
        return (record.create_index, key) if self._by_creation else (0, key)  # type: ignore[attr-defined]

    def _is_between(
        self,
        position: RecordPosition,
        begin_position: RecordPosition | None,
        last_position: RecordPosition | None,
        *,
        is_begin_returned: bool,
    ) -> bool:
        """Return whether a position is in the slice from `begin_position` to `last_position` (included).

        `begin_position` itself is included unless it was returned already. None leaves that side open.
        """
        if self._reverse:
            is_after_begin = begin_position is None or (
                position < begin_position if is_begin_returned else position <= begin_position
            )
            return is_after_begin and (last_position is None or position >= last_position)
        is_after_begin = begin_position is None or (
            position > begin_position if is_begin_returned else position >= begin_position
        )
        return is_after_begin and (last_position is None or position <= last_position)


class IndexSnapshot(_RecordSnapshot[R]):
    """A snapshot of the records with one index value, in arbitrary order. Call `close` at the end.

    Only the keys are copied at the start.
    """

    def __init__(self, replica: Replica, index: Index[R], *value: Hashable, prefers_new: bool = False) -> None:
        """With `prefers_new`, records that were indexed last come first. Until the state is loaded again, that is the order of
        creation.
        """
        super().__init__(replica, replica.tables[index.table])
        keys = self._table_records.find_keys(index, value[0] if len(value) == 1 else value)
        self._keys = list(reversed(keys) if prefers_new else keys)
        self._position = 0

    def read_next(self, max_records: int) -> list[R]:
        """Return further records. An empty list is the end."""
        keys = self._keys[self._position : self._position + max_records]
        self._position += len(keys)
        records, before = self._table_records.records, self._records_before
        # Each key had a record at the start, and if that changed, it is among the original ones.
        return [before[key] if key in before else records[key] for key in keys]  # type: ignore[misc]
