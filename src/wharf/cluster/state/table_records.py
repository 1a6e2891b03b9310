"""The records of one table in memory, found by key, by index, and in order."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr

from wharf.cluster.state.codec import RecordDecoder
from wharf.cluster.state.ordering import CreationOrder, SortedKeys
from wharf.cluster.state.packed_map import encode_packed_as_raw
from wharf.cluster.state.sharded_dict import ID_SHARD_KEY_CHARS, ShardedDict
from wharf.cluster.state.table import Index, ListOrder, Table

R = TypeVar("R", bound=msgspec.Struct)

KeySet = dict[str, None]  # A dict, for its order.

_encode: Final = msgspec.msgpack.Encoder(enc_hook=encode_packed_as_raw).encode


class TableRecords(Generic[R]):
    """Changed only by the replica while it applies a batch; records in it are never changed in place."""

    __slots__ = (
        "_created", "_found", "_indexes", "_kin", "_names", "_newest_text", "_read_recurring", "decoder", "last_change", "newest", "records",
        "table",
    )  # fmt: skip

    def __init__(self, table: Table[R], decoder: RecordDecoder[R], *, last_change: int) -> None:
        self.table = table
        self.decoder = decoder
        # What is listed by its creation has random ids for keys.
        is_by_creation = table.order is ListOrder.CREATED
        self.records: ShardedDict[R] = ShardedDict(shard_key_chars=ID_SHARD_KEY_CHARS if is_by_creation else 0)
        self.last_change = last_change
        self._names = None if is_by_creation else SortedKeys()
        self._created = CreationOrder() if is_by_creation else None
        self._found: dict[str, dict[Any, KeySet]] = {index.name: {} for index in table.indexes}
        self._read_recurring: Callable[[R], tuple[Any, ...]] | None = (
            attrgetter(*table.recurring_fields) if table.recurring_fields else None
        )
        self._kin: TableRecords[Any] | None = None
        self.newest: R | None = None
        """What was taken in last, where values recur."""
        self._newest_text = b""
        # What `set` needs of each index, unpacked: this is the hottest loop of the replica.
        self._indexes: tuple[tuple[Callable[[R], Any], bool, dict[Any, KeySet]], ...] = tuple(
            (index.get_value, index.is_composite, self._found[index.name]) for index in table.indexes
        )

    def link_relatives(self, tables: Mapping[str, "TableRecords[Any]"]) -> None:
        """The other tables, one of which may hold this one's kin."""
        self._kin = tables.get(self.table.relative_key[0]) if self.table.relative_key is not None else None

    # -- changing --------------------------------------------------------------------------------------------------

    def put_record(self, key: str, record: R) -> R | None:
        """Take the record in; returns what stood there before."""
        records = self.records
        shelf = records.shards.get(key[: records.shard_key_chars])
        if shelf is None:
            shelf = records.shards[key[: records.shard_key_chars]] = {}
        old = shelf.get(key)
        if self._read_recurring is not None:
            self._share(record, old)
        shelf[key] = record
        if old is None:
            if self._names is not None:
                self._names.add(key)
            if self._created is not None:
                self._created.add(_create_index(record), key)
            for value_of, is_composed, found in self._indexes:
                value = value_of(record)
                if value[-1] if is_composed else value:
                    keys = found.get(value)
                    if keys is None:
                        found[value] = {key: None}
                    else:
                        keys[key] = None
            return None
        if self._created is not None:
            created = _create_index(record)
            if created != _create_index(old):  # A new record took the old one's place in one change.
                self._created.remove(_create_index(old), key)
                self._created.add(created, key)
        for value_of, is_composed, found in self._indexes:
            was = value_of(old)
            value = value_of(record)
            if was != value:
                if was[-1] if is_composed else was:
                    _leave(found, was, key)
                if value[-1] if is_composed else value:
                    found.setdefault(value, {})[key] = None
        return old

    def delete_record(self, key: str) -> R | None:
        """Take the record out; returns it."""
        old = self.records.pop(key)
        if old is None:
            return None
        if self._names is not None:
            self._names.remove(key)
        if self._created is not None:
            self._created.remove(_create_index(old), key)
        for value_of, is_composed, found in self._indexes:
            value = value_of(old)
            if value[-1] if is_composed else value:
                _leave(found, value, key)
        return old

    def add_records(self, records: dict[str, R]) -> None:
        """Take in records whose keys are all new: index by index, which is faster than record by record."""
        if self._read_recurring is not None:
            for record in records.values():
                self._share(record, None)
        self.records.add_records(records)
        if self._names is not None:
            self._names.add_many(records)
        if self._created is not None:
            for key, record in records.items():
                self._created.add(_create_index(record), key)
        for value_of, is_composed, found in self._indexes:
            for key, record in records.items():
                value = value_of(record)
                if value[-1] if is_composed else value:
                    keys = found.get(value)
                    if keys is None:
                        found[value] = {key: None}
                    else:
                        keys[key] = None

    def _share(self, record: R, old: R | None) -> None:
        """Of a value that a relative holds too, keep that relative's. The record is fresh: nobody has seen it yet."""
        read = self._read_recurring
        assert read is not None, f"nothing recurs in {self.table.name}"
        if self._kin is not None and self._kin.newest is record:
            return  # One record under two keys has been here before.
        values = read(record)
        # By their bytes: to Python 1, 1.0 and true are equal, and what drivers are told must not be another of them.
        text = _encode(values)
        if self.newest is not None and text == self._newest_text:
            for name, value, their in zip(self.table.recurring_fields, values, read(self.newest), strict=True):
                if value is not their:
                    force_setattr(record, name, their)
        else:
            relatives = [each for each in (old, self.newest, self._kin_of(record)) if each is not None]
            self._share_each(record, values, [read(each) for each in relatives])
        self.newest, self._newest_text = record, text

    def _share_each(self, record: R, values: tuple[Any, ...], theirs: list[tuple[Any, ...]]) -> None:
        """No relative is known to have all of it: each value may be that of another one."""
        for name, value, *candidates in zip(self.table.recurring_fields, values, *theirs, strict=True):
            if value is None:
                continue
            for each in candidates:
                if each == value and _encode(each) == _encode(value):
                    force_setattr(record, name, each)
                    break

    def _kin_of(self, record: R) -> Any:
        if self._kin is None or self.table.relative_key is None:
            return None
        return self._kin.records.get(self.table.relative_key[1](record))

    # -- reading ---------------------------------------------------------------------------------------------------

    def find_keys(self, index: Index[R], value: Hashable) -> KeySet:
        """The keys of the records that have this value. Not to be kept: it changes with the next batch."""
        return self._found[index.name].get(value, {})

    def iter_index_values(self, index: Index[R]) -> Iterator[Hashable]:
        """Every value that some record has in the index."""
        return iter(self._found[index.name])

    def iter_keys(self, *, prefix: str = "", start: str | None = None, reverse: bool = False) -> Iterator[str]:
        """Keys in their own order, those that begin with `prefix`, from `start` on (down from it, in reverse)."""
        keys = self.records if self._names is None else self._names
        return keys.iter_prefix(prefix, start=start, reverse=reverse)

    def iter_keys_by_creation(self, *, start: tuple[int, str] | None = None, reverse: bool = False) -> Iterator[str]:
        """Keys by CreateIndex, then key, from `start` on (down from it, in reverse)."""
        assert self._created is not None, f"table {self.table.name} is not kept in order of creation"
        return self._created.iter_keys(start=start, reverse=reverse)


def _leave(found: dict[Any, KeySet], value: Any, key: str) -> None:
    keys = found[value]
    del keys[key]
    if not keys:
        del found[value]


def _create_index(record: msgspec.Struct) -> int:
    created: int = record.create_index  # type: ignore[attr-defined]  # every record of a table has one
    return created
