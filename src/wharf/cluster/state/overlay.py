"""A snapshot in which a few records are not as they are: for asking what would be, without anything being written.

It answers by key and by index value as the real one would. It holds no copy and takes nothing in, so it is good for one
piece of work that does not wait.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from wharf.cluster.state.replica import Replica
from wharf.cluster.state.table import Index, Table
from wharf.contract.model.log import DeleteRecord, PutRecord

R = TypeVar("R", bound=msgspec.Struct)


class OverlayReplica(Replica):
    """The replica as it would stand after these changes, of which none holds THIS."""

    def __init__(self, replica: Replica, changes: Iterable[PutRecord | DeleteRecord]) -> None:
        super().__init__(())
        self.index, self.tables = replica.index, replica.tables
        self.epoch, self.epoch_since = replica.epoch, replica.epoch_since
        self._rows = replica._rows
        self._imagined: dict[str, dict[str, Any]] = {}
        for change in changes:
            record = change.record if isinstance(change, PutRecord) else None
            self._imagined.setdefault(change.table, {})[change.key] = record

    def get(self, table: Table[R], *key: str | int) -> R | None:
        changed = self._imagined.get(table.name)
        if changed is not None and (joined := table.build_key(*key)) in changed:
            found: R | None = changed[joined]
            return found
        return super().get(table, *key)

    def list_by_index(self, index: Index[R], *value: Hashable) -> list[R]:
        records = super().list_by_index(index, *value)
        changed = self._imagined.get(index.table)
        if changed is None:
            return records
        return self._as_imagined(index, changed, records, value)

    def iter_by_index(self, index: Index[R], *value: Hashable) -> Iterator[tuple[str, R]]:
        key_of = self.tables[index.table].get_key
        return ((key_of(record), record) for record in self.list_by_index(index, *value))

    def list_by_index_sorted(self, index: Index[R], *value: Hashable, reverse: bool = False) -> list[R]:
        table: Table[R] = self.tables[index.table]
        return sorted(self.list_by_index(index, *value), key=table.get_key, reverse=reverse)

    def _as_imagined(
        self, index: Index[R], changed: dict[str, Any], records: list[R], value: tuple[Hashable, ...]
    ) -> list[R]:
        key_of = self.tables[index.table].get_key
        wanted = value[0] if len(value) == 1 else value
        new = [record for record in changed.values() if record is not None and index.get_value(record) == wanted]
        return [*(record for record in records if key_of(record) not in changed), *new]
