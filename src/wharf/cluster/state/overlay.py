"""A view of the replica with a few changed records, to compute what would happen if they were written.

It supports reads by key and by index. It is not a copy and applies no batches, so use it only within one piece of code
that does not await.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from wharf.cluster.state.replica import Replica
from wharf.cluster.state.table import Index, Table
from wharf.contract.model.log import DeleteRecord, PutRecord

R = TypeVar("R", bound=msgspec.Struct)


class OverlayReplica(Replica):
    """The replica as it would be after these changes. Their records must not contain `WRITE_INDEX`."""

    def __init__(self, replica: Replica, changes: Iterable[PutRecord | DeleteRecord]) -> None:
        super().__init__(())
        self.index, self.tables = replica.index, replica.tables
        self.epoch, self.epoch_since = replica.epoch, replica.epoch_since
        self._records_by_table = replica._records_by_table
        self._changes_by_table: dict[str, dict[str, Any]] = {}
        for change in changes:
            record = change.record if isinstance(change, PutRecord) else None
            self._changes_by_table.setdefault(change.table, {})[change.key] = record

    def get(self, table: Table[R], *key: str | int) -> R | None:
        changed_records = self._changes_by_table.get(table.name)
        if changed_records is not None and (joined_key := table.build_key(*key)) in changed_records:
            record: R | None = changed_records[joined_key]
            return record
        return super().get(table, *key)

    def list_by_index(self, index: Index[R], *value: Hashable) -> list[R]:
        records = super().list_by_index(index, *value)
        changed_records = self._changes_by_table.get(index.table)
        if changed_records is None:
            return records
        return self._merge_changes(index, changed_records, records, value)

    def iter_by_index(self, index: Index[R], *value: Hashable) -> Iterator[tuple[str, R]]:
        get_key = self.tables[index.table].get_key
        return ((get_key(record), record) for record in self.list_by_index(index, *value))

    def count_by_index(self, index: Index[Any], *value: Hashable) -> int:
        if index.table not in self._changes_by_table:
            return super().count_by_index(index, *value)
        return len(self.list_by_index(index, *value))

    def list_by_index_sorted(self, index: Index[R], *value: Hashable, reverse: bool = False) -> list[R]:
        table: Table[R] = self.tables[index.table]
        return sorted(self.list_by_index(index, *value), key=table.get_key, reverse=reverse)

    def _merge_changes(
        self, index: Index[R], changed_records: dict[str, Any], records: list[R], value: tuple[Hashable, ...]
    ) -> list[R]:
        """Replace changed records in the result of an index read, and add those that now have the value."""
        get_key = self.tables[index.table].get_key
        index_value = value[0] if len(value) == 1 else value
        new_matches = [
            record
            for record in changed_records.values()
            if record is not None and index.get_value(record) == index_value
        ]
        return [*(record for record in records if get_key(record) not in changed_records), *new_matches]
