"""The records of one table in memory, found by key, by index, and in order."""

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from sortedcontainers import SortedList

from wharf.state.codec import Decoder
from wharf.state.table import Index, Order, Table

R = TypeVar("R", bound=msgspec.Struct)

Keys = dict[str, None]  # A dict, for its order.


class Rows(Generic[R]):
    """Changed only by the replica while it applies a batch; records in it are never changed in place."""

    __slots__ = (
        "_by_create_index",
        "_create_indexes",
        "_indexes",
        "decoder",
        "keys",
        "last_change",
        "records",
        "table",
    )

    def __init__(self, table: Table[R], *, last_change: int) -> None:
        self.table = table
        self.decoder = Decoder(table)
        self.records: dict[str, R] = {}
        self.last_change = last_change
        self.keys: SortedList[str] = SortedList()
        self._indexes: tuple[tuple[Index[R], dict[Hashable, Keys]], ...] = tuple((index, {}) for index in table.indexes)
        # Records of one batch share a CreateIndex, so one entry serves up to a thousand of them.
        self._create_indexes: SortedList[int] = SortedList()
        self._by_create_index: dict[int, list[str]] = {}

    # -- changing --------------------------------------------------------------------------------------------------

    def set(self, key: str, record: R) -> R | None:
        """Take the record in; returns what stood there before."""
        records = self.records
        old = records.get(key)
        records[key] = record
        if old is None:
            self.keys.add(key)
            if self.table.order is Order.CREATED:
                self._add_created(key, record)
            for index, found in self._indexes:
                self._enter(index, found, index.value_of(record), key)
            return None
        for index, found in self._indexes:
            was = index.value_of(old)
            value = index.value_of(record)
            if was != value:
                self._leave(index, found, was, key)
                self._enter(index, found, value, key)
        return old

    def drop(self, key: str) -> R | None:
        """Take the record out; returns it."""
        old = self.records.pop(key, None)
        if old is None:
            return None
        self.keys.remove(key)
        if self.table.order is Order.CREATED:
            self._remove_created(key, old)
        for index, found in self._indexes:
            self._leave(index, found, index.value_of(old), key)
        return old

    def fill(self, records: dict[str, R]) -> None:
        """Take in all records of an empty table at once: sorting once is many times cheaper than a million insertions."""
        assert not self.records, "fill is for an empty table"
        self.records = records
        self.keys = SortedList(records)
        for key, record in records.items():
            for index, found in self._indexes:
                self._enter(index, found, index.value_of(record), key)
        if self.table.order is Order.CREATED:
            for key, record in records.items():
                self._by_create_index.setdefault(_create_index(record), []).append(key)
            self._create_indexes = SortedList(self._by_create_index)

    @staticmethod
    def _enter(index: Index[R], found: dict[Hashable, Keys], value: Any, key: str) -> None:
        if value[-1] if index.is_composed else value:
            keys = found.get(value)
            if keys is None:
                found[value] = {key: None}
            else:
                keys[key] = None

    @staticmethod
    def _leave(index: Index[R], found: dict[Hashable, Keys], value: Any, key: str) -> None:
        if value[-1] if index.is_composed else value:
            keys = found[value]
            del keys[key]
            if not keys:
                del found[value]

    def _add_created(self, key: str, record: R) -> None:
        created = _create_index(record)
        keys = self._by_create_index.get(created)
        if keys is None:
            self._create_indexes.add(created)
            self._by_create_index[created] = [key]
        else:
            keys.append(key)

    def _remove_created(self, key: str, record: R) -> None:
        created = _create_index(record)
        keys = self._by_create_index[created]
        keys.remove(key)
        if not keys:
            del self._by_create_index[created]
            self._create_indexes.remove(created)

    # -- reading ---------------------------------------------------------------------------------------------------

    def indexed(self, index: Index[R], value: Hashable) -> Keys:
        """The keys of the records that have this value. Not to be kept: it changes with the next batch."""
        for candidate, found in self._indexes:
            if candidate is index:
                return found.get(value, {})
        raise KeyError(f"{index} is not declared by table {self.table.name}")

    def values_of(self, index: Index[R]) -> Iterator[Hashable]:
        """Every value that some record has in the index."""
        for candidate, found in self._indexes:
            if candidate is index:
                return iter(found)
        raise KeyError(f"{index} is not declared by table {self.table.name}")

    def ordered_keys(self, *, prefix: str = "", start: str | None = None, reverse: bool = False) -> Iterator[str]:
        """Keys in their own order, those that begin with `prefix`, from `start` on (or down to it, from above)."""
        low = prefix or None
        high = prefix + "\U0010ffff" if prefix else None
        if start is not None:
            low, high = (low, start) if reverse else (max(start, prefix), high)
        return iter(self.keys.irange(low, high, reverse=reverse))

    def created_keys(self, *, start: tuple[int, str] | None = None, reverse: bool = False) -> Iterator[str]:
        """Keys by CreateIndex, then key, from `start` on."""
        assert self.table.order is Order.CREATED, f"table {self.table.name} is not kept in order of creation"
        low, high = None, None
        if start is not None:
            low, high = (None, start[0]) if reverse else (start[0], None)
        for created in self._create_indexes.irange(low, high, reverse=reverse):
            for key in sorted(self._by_create_index[created], reverse=reverse):
                if start is None or ((created, key) <= start if reverse else (created, key) >= start):
                    yield key


def _create_index(record: msgspec.Struct) -> int:
    created: int = record.create_index  # type: ignore[attr-defined]  # every record of a table has one
    return created
