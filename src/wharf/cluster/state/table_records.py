"""The records of one table in memory, with lookups by key and by index, and iteration in order."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr

from wharf.cluster.state.codec import HeavyRecord, RecordDecoder
from wharf.cluster.state.ordering import CreationOrder, SortedKeys
from wharf.cluster.state.packed_map import encode_packed_as_raw
from wharf.cluster.state.sharded_dict import ID_SHARD_KEY_CHARS, ShardedDict
from wharf.cluster.state.table import Index, ListOrder, Table

R = TypeVar("R", bound=msgspec.Struct)

SMALL_RECORD_BYTES: Final = 16 * 1024
"""Stored bytes up to which a record is small: what replies show of it takes up to a millisecond to encode."""
RELEASED_PER_STEP: Final = 500
"""Records or index entries freed in one step: about a millisecond."""
KeySet = dict[str, None]
"""A set of keys that keeps the order of insertion."""
IndexEntry = str | KeySet
"""The keys with one index value. A single key is stored as it is, because a dict takes 184 bytes more. Most values have one."""

_encode: Final = msgspec.msgpack.Encoder(enc_hook=encode_packed_as_raw).encode


class TableRecords(Generic[R]):
    """The records of one table with their indexes.

    Only the replica changes it, while it applies a batch. Records are replaced and never changed in place.
    """

    __slots__ = (
        "_arriving_heavy", "_creation_order", "_heavy", "_indexes", "_keys_by_index", "_newest_encoded", "_newest_heavy", "_newest_values", "_read_recurring", "_relatives", "_sorted_keys", "decoder",
        "large_records", "last_change", "newest", "records", "table",
    )  # fmt: skip

    def __init__(self, table: Table[R], decoder: RecordDecoder[R], *, last_change: int) -> None:
        self.table = table
        self.decoder = decoder
        # Tables that are listed by creation have random ids as keys.
        is_by_creation = table.order is ListOrder.CREATED
        self.records: ShardedDict[R] = ShardedDict(shard_key_chars=ID_SHARD_KEY_CHARS if is_by_creation else 0)
        self.last_change = last_change
        self._sorted_keys = None if is_by_creation else SortedKeys()
        self._creation_order = CreationOrder() if is_by_creation else None
        self._keys_by_index: dict[str, dict[Any, IndexEntry]] = {index.name: {} for index in table.indexes}
        self._read_recurring: Callable[[R], tuple[Any, ...]] | None = (
            attrgetter(*table.recurring_fields) if table.recurring_fields else None
        )
        self._relatives: TableRecords[Any] | None = None
        self.newest: R | None = None
        """The last record that was applied, if the table has recurring fields."""
        self._newest_values: list[Any] = [None] * len(table.recurring_fields)
        """The last value of each recurring field that was not `None`."""
        self._newest_encoded = [b""] * len(table.recurring_fields)
        """The encoded form of each of these values."""
        self._heavy: dict[str, HeavyRecord[R]] = {}
        """The heavy records of a table with recurring fields, by key."""
        self._arriving_heavy: dict[str, HeavyRecord[R]] = {}
        """Heavy records that were decoded and share values already, until they are put."""
        self._newest_heavy: HeavyRecord[R] | None = None
        """The last heavy record that arrived."""
        self.large_records: dict[int, R] = {}
        """The records of more than `SMALL_RECORD_BYTES`, by identity."""
        # The parts of each index that `put_record` uses. Its loop is the hottest one of the replica.
        self._indexes: tuple[tuple[Callable[[R], Any], bool, dict[Any, IndexEntry]], ...] = tuple(
            (index.get_value, index.is_composite, self._keys_by_index[index.name]) for index in table.indexes
        )

    def link_relatives(self, tables: Mapping[str, "TableRecords[Any]"]) -> None:
        """Store a reference to the table whose records may share values with this one's, if `relative_key` names one."""
        self._relatives = tables.get(self.table.relative_key[0]) if self.table.relative_key is not None else None

    # -- changing --------------------------------------------------------------------------------------------------

    def put_record(self, key: str, record: R) -> R | None:
        """Store a record and update the indexes. Returns the previous record under the key, if any."""
        records = self.records
        shard = records.shards.get(key[: records.shard_key_chars])
        if shard is None:
            shard = records.shards[key[: records.shard_key_chars]] = {}
        old = shard.get(key)
        if self._read_recurring is not None and not (
            (self._heavy or self._arriving_heavy) and self._replace_heavy(key, record)
        ):
            self._share_recurring_values(record, old)
        shard[key] = record
        if old is None:
            if self._sorted_keys is not None:
                self._sorted_keys.add(key)
            if self._creation_order is not None:
                self._creation_order.add(_get_create_index(record), key)
            for get_value, is_composite, keys_by_value in self._indexes:
                value = get_value(record)
                if value[-1] if is_composite else value:
                    keys = keys_by_value.get(value)
                    if keys is None:
                        keys_by_value[value] = key
                    elif isinstance(keys, str):
                        keys_by_value[value] = {keys: None, key: None}
                    else:
                        keys[key] = None
            return None
        if self.large_records and old is not record:
            self.large_records.pop(id(old), None)
        if self._creation_order is not None:
            create_index = _get_create_index(record)
            if create_index != _get_create_index(
                old
            ):  # The old record was deleted and a new one created in one change.
                self._creation_order.remove(_get_create_index(old), key)
                self._creation_order.add(create_index, key)
        for get_value, is_composite, keys_by_value in self._indexes:
            old_value = get_value(old)
            value = get_value(record)
            if old_value != value:
                if old_value[-1] if is_composite else old_value:
                    _remove_from_index(keys_by_value, old_value, key)
                if value[-1] if is_composite else value:
                    _add_to_index(keys_by_value, value, key)
        return old

    def delete_record(self, key: str) -> R | None:
        """Delete a record and return it, or `None` if there was none."""
        old = self.records.pop(key)
        if old is None:
            return None
        self._heavy.pop(key, None)
        self.large_records.pop(id(old), None)
        if self._sorted_keys is not None:
            self._sorted_keys.remove(key)
        if self._creation_order is not None:
            self._creation_order.remove(_get_create_index(old), key)
        for get_value, is_composite, keys_by_value in self._indexes:
            value = get_value(old)
            if value[-1] if is_composite else value:
                _remove_from_index(keys_by_value, value, key)
        return old

    def add_records(self, records: dict[str, R]) -> None:
        """Add records whose keys are all new.

        Fills one index with all records, then the next; that is faster than all indexes record by record.
        """
        if self._read_recurring is not None:
            for key, record in records.items():
                if not (self._arriving_heavy and self._replace_heavy(key, record)):
                    self._share_recurring_values(record, None)
        self.records.add_records(records)
        if self._sorted_keys is not None:
            self._sorted_keys.add_many(records)
        if self._creation_order is not None:
            for key, record in records.items():
                self._creation_order.add(_get_create_index(record), key)
        for get_value, is_composite, keys_by_value in self._indexes:
            for key, record in records.items():
                value = get_value(record)
                if value[-1] if is_composite else value:
                    _add_to_index(keys_by_value, value, key)

    def _share_recurring_values(self, record: R, old: R | None) -> None:
        """Replace recurring values by equal ones of related records, so that memory holds them once.

        The record was just decoded and has no other user, so its fields can be set in place. `old` is the previous record
        under the key.
        """
        read = self._read_recurring
        assert read is not None, f"{self.table.name} has no recurring fields"
        if self._relatives is not None and self._relatives.newest is record:
            return  # The same record is stored under two keys, and its values are shared already.
        relatives: list[tuple[Any, ...]] | None = None
        newest_values, newest_encoded = self._newest_values, self._newest_encoded
        for position, value in enumerate(read(record)):
            if value is None or value is newest_values[position]:
                continue
            # Compare encoded values: in Python 1, 1.0 and True are equal, but a driver must get exactly what the job says.
            encoded = _encode(value)
            if encoded == newest_encoded[position]:
                if value is not newest_values[position]:
                    force_setattr(record, self.table.recurring_fields[position], newest_values[position])
                continue
            if relatives is None:
                relative = self._find_relative(record)
                relatives = [read(each) for each in (old, relative) if each is not None]
            shared = value
            for candidates in relatives:
                candidate = candidates[position]
                if candidate == value and (candidate is value or _encode(candidate) == encoded):
                    shared = candidate
                    force_setattr(record, self.table.recurring_fields[position], shared)
                    break
            newest_values[position], newest_encoded[position] = shared, encoded
        self.newest = record

    def _find_relative(self, record: R) -> Any:
        """Return the related record that `relative_key` selects, or `None`."""
        if self._relatives is None or self.table.relative_key is None:
            return None
        return self._relatives.records.get(self.table.relative_key[1](record))

    def add_large(self, record: R) -> None:
        """Remember that a record, which is put next, has more than `SMALL_RECORD_BYTES` as it is stored."""
        self.large_records[id(record)] = record

    def announce_heavy(self, key: str, heavy: HeavyRecord[R]) -> None:
        """Replace recurring values of a heavy record that is put next by equal ones of others. Compares digests only.

        The record was just decoded and has no other user, except the table of relatives.
        """
        if not heavy.digests or self._read_recurring is None:
            return
        candidates = [self._newest_heavy, self._heavy.get(key)]
        if self._relatives is not None and self.table.relative_key is not None:
            relatives = self._relatives
            if relatives._newest_heavy is not heavy:
                candidates += (relatives._newest_heavy, relatives._heavy.get(self.table.relative_key[1](heavy.record)))
            else:
                candidates = []  # The same record is stored under two keys, and its values are shared already.
        for position, name in enumerate(self.table.recurring_fields):
            digest = heavy.digests[position]
            for candidate in candidates:
                if candidate is not None and candidate.digests[position] == digest:
                    force_setattr(heavy.record, name, getattr(candidate.record, name))
                    break
        self._newest_heavy = self._arriving_heavy[key] = heavy

    def _replace_heavy(self, key: str, record: R) -> bool:
        """Remember the digests of a heavy record in place of those of the former record. Return whether it is heavy."""
        heavy = self._arriving_heavy.pop(key, None)
        if heavy is None or heavy.record is not record:
            self._heavy.pop(key, None)
            return False
        self._heavy[key] = heavy
        return True

    def iter_containers(self) -> Iterator[Iterable[Any]]:
        """Yield the contents of the large containers of this object, with all records and index entries."""
        for shard in self.records.shards.values():
            yield shard.items()
        for keys_by_value in self._keys_by_index.values():
            yield keys_by_value.items()
        for order in (self._sorted_keys, self._creation_order):
            if order is not None:
                yield from order.iter_containers()
        yield self._heavy.items()

    # -- reading ---------------------------------------------------------------------------------------------------

    def find_keys(self, index: Index[R], value: Hashable) -> KeySet:
        """Return the keys of the records with this index value. Do not store the result: batches change it."""
        keys = self._keys_by_index[index.name].get(value, {})
        return {keys: None} if isinstance(keys, str) else keys

    def iter_index_values(self, index: Index[R]) -> Iterator[Hashable]:
        """Iterate over the index values that at least one record has."""
        return iter(self._keys_by_index[index.name])

    def count_index_values(self, index: Index[R]) -> int:
        """Return the number of index values that at least one record has."""
        return len(self._keys_by_index[index.name])

    def iter_keys(self, *, prefix: str = "", start: str | None = None, reverse: bool = False) -> Iterator[str]:
        """Iterate over keys with this prefix in order, from `start` (included) upwards, or downwards in reverse."""
        keys = self.records if self._sorted_keys is None else self._sorted_keys
        return keys.iter_prefix(prefix, start=start, reverse=reverse)

    def iter_keys_by_creation(self, *, start: tuple[int, str] | None = None, reverse: bool = False) -> Iterator[str]:
        """Iterate over keys by CreateIndex, then key, from `start` (included) upwards, or downwards in reverse."""
        assert self._creation_order is not None, f"table {self.table.name} is not sorted by creation"
        return self._creation_order.iter_keys(start=start, reverse=reverse)


def _add_to_index(keys_by_value: dict[Any, IndexEntry], value: Any, key: str) -> None:
    """Add a key to the entry of an index value."""
    keys = keys_by_value.get(value)
    if keys is None:
        keys_by_value[value] = key
    elif isinstance(keys, str):
        keys_by_value[value] = {keys: None, key: None}
    else:
        keys[key] = None


def _remove_from_index(keys_by_value: dict[Any, IndexEntry], value: Any, key: str) -> None:
    """Remove a key from the entry of an index value, and the entry if it is empty. Raises `KeyError` if it is not there."""
    keys = keys_by_value[value]
    if isinstance(keys, str):
        if keys != key:
            raise KeyError(key)
        del keys_by_value[value]
        return
    del keys[key]
    if not keys:
        del keys_by_value[value]


def _get_create_index(record: msgspec.Struct) -> int:
    create_index: int = record.create_index  # type: ignore[attr-defined]  # every record of a table has one
    return create_index


def release_in_steps(tables: dict[str, TableRecords[Any]]) -> Iterator[None]:
    """Empty `tables` and free what only they hold; yield between steps. The caller must exhaust the iterator.

    Python frees a dict with all that it holds in one step: 0.2 s for 100,000 allocations.

    Nothing is changed in the tables themselves, because a list that is being read may still use one.
    """
    while tables:
        _, table = tables.popitem()
        chunks: list[list[Any]] = []
        for chunk in _iter_chunks(table.iter_containers()):
            chunks.append(chunk)
            yield
        del table  # Frees the containers only: the chunks hold their content.
        while chunks:
            chunks.pop()
            yield


def _iter_chunks(containers: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
    """Yield the content of the containers in chunks. A container may not change meanwhile."""
    for container in containers:
        entries = iter(container)
        while chunk := list(islice(entries, RELEASED_PER_STEP)):
            yield chunk
