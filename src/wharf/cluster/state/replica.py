"""The replica: all tables in memory. It changes only when the next batch of the log is applied.

Nothing here awaits. A caller that does not await either sees one consistent state, however many records it reads.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.state.codec import (
    UNLIMITED_FORMAT,
    HeavyRecord,
    NewerFormat,
    RecordDecoder,
    build_encoder,
    get_decoder,
)
from wharf.cluster.state.sharded_dict import ShardedDict
from wharf.cluster.state.stepwise import HEAVY_RECORD_BYTES
from wharf.cluster.state.table import Index, ListOrder, Table
from wharf.cluster.state.table_records import SMALL_RECORD_BYTES, TableRecords, release_in_steps
from wharf.cluster.state.watches import (
    RecordChange,
    TouchedGroups,
    WatchRegistry,
    add_touched_group,
    list_touched_subscriptions,
    wake_subscriptions,
)
from wharf.contract.model.log import (
    FIRST_INDEX,
    KEY_SEPARATOR,
    Batch,
    Condition,
    DeleteRecord,
    EncodedChange,
    EncodedWrite,
    LogPosition,
    PutRecord,
    StoredRecord,
    Write,
)

R = TypeVar("R", bound=msgspec.Struct)

MAX_DECODED_PER_STEP: Final = 500
"""How many changes are decoded before the event loop gets a turn: about 1.5 milliseconds."""

MAX_DECODED_BYTES_PER_STEP: Final = 250_000
"""How many bytes are decoded before the event loop gets a turn. Larger records are decoded in several steps."""

MAX_SORTED_PER_STEP: Final = 5_000
"""Keys sorted in one step: about two milliseconds."""
MAX_COMPARED_PER_STEP: Final = 1_000
"""How many records are compared after a load before the event loop gets a turn: about a millisecond."""


AppliedChange = tuple[str, str, Any, Any]
"""The change of one key: table, key, the record before and the record after. A missing record is `None`."""

AdoptableRecords = dict[tuple[str, str], msgspec.Struct]
"""Records of this process's own write by table and key. They need not be decoded when the write comes back."""


class OutOfOrder(Exception):
    """The batch or load does not follow the replica's index. The whole state must be loaded again."""


class Replica:
    """All tables of the cluster at one log index."""

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self.index = 0
        self.epoch = 0
        self.epoch_since = 0
        """An index above all indexes of earlier epochs, including those that records still contain."""
        self.tables: dict[str, Table[Any]] = {table.name: table for table in tables}
        self.watches = WatchRegistry(self.tables)
        # Decoders are kept when the state is loaded again, because they hold the values that records share.
        self._decoders: dict[str, RecordDecoder[Any]] = {
            table_name: get_decoder(table) for table_name, table in self.tables.items()
        }
        self._adopted_tables = tuple(table for table in self.tables.values() if table.is_adopted)
        self._encoders: dict[str, Callable[[Any], bytes]] = {}
        """Encoders by table name, for the format `_encoders_format`."""
        self._encoders_format = UNLIMITED_FORMAT
        self._records_by_table: dict[str, TableRecords[Any]] = self._create_empty_tables()

    def _create_empty_tables(self) -> dict[str, TableRecords[Any]]:
        """Return empty tables, linked for the sharing of values between them."""
        records_by_table = {
            table_name: TableRecords(table, self._decoders[table_name], last_change=FIRST_INDEX)
            for table_name, table in self.tables.items()
        }
        for table_records in records_by_table.values():
            table_records.link_relatives(records_by_table)
        return records_by_table

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_table_records(self, table: Table[R]) -> TableRecords[R]:
        """Return the current records of a table. A load replaces the object."""
        return self._records_by_table[table.name]

    def get(self, table: Table[R], *key: str | int) -> R | None:
        """Return the record under a key, or `None`. A table with a single record needs no key."""
        # Written out, because a registration reads 50 records and two more calls would take longer than the lookup.
        if len(key) == 1 and type(key[0]) is str:
            record_key = key[0]
        elif len(key) == 2 and type(key[0]) is str and type(key[1]) is str:
            record_key = key[0] + KEY_SEPARATOR + key[1]
        else:
            record_key = table.build_key(*key) if key else table.name
        records: ShardedDict[R] = self._records_by_table[table.name].records
        shard = records.shards.get(record_key[: records.shard_key_chars])
        return None if shard is None else shard.get(record_key)

    def list_by_index(self, index: Index[R], *value: Hashable) -> list[R]:
        """Return the records with this index value. The order is arbitrary and differs between replicas."""
        table_records: TableRecords[R] = self._records_by_table[index.table]
        records = table_records.records
        return [records[key] for key in table_records.find_keys(index, value[0] if len(value) == 1 else value)]

    def iter_by_index(self, index: Index[R], *value: Hashable) -> Iterator[tuple[str, R]]:
        """Yield the keys and records with this index value. Do not await while iterating: the state may change."""
        table_records: TableRecords[R] = self._records_by_table[index.table]
        records = table_records.records
        for key in table_records.find_keys(index, value[0] if len(value) == 1 else value):
            yield key, records[key]

    def count_by_index(self, index: Index[Any], *value: Hashable) -> int:
        """Return the number of records with this index value."""
        return len(self._records_by_table[index.table].find_keys(index, value[0] if len(value) == 1 else value))

    def list_by_index_sorted(self, index: Index[R], *value: Hashable, reverse: bool = False) -> list[R]:
        """Return the records with this index value, sorted by key."""
        table_records: TableRecords[R] = self._records_by_table[index.table]
        keys = sorted(table_records.find_keys(index, value[0] if len(value) == 1 else value), reverse=reverse)
        return [table_records.records[key] for key in keys]

    def iter_index_in_steps(self, index: Index[R], *value: Hashable) -> Iterator[list[R]]:
        """Yield the records with this index value, sorted by key, in lists for one step of the event loop each.

        Batches may be applied between the steps: each list has the newest versions, without deleted records and without
        records that had another value at the start. Some lists are empty.
        """
        table_records: TableRecords[R] = self._records_by_table[index.table]
        keys = iter(list(table_records.find_keys(index, value[0] if len(value) == 1 else value)))
        sorted_parts: list[list[str]] = []
        while part := list(islice(keys, MAX_SORTED_PER_STEP)):
            sorted_parts.append(sorted(part))
            yield []
        merged = heapq.merge(*sorted_parts)
        while part := list(islice(merged, MAX_COMPARED_PER_STEP)):
            records = self._records_by_table[index.table].records
            yield [record for key in part if (record := records.get(key)) is not None]

    def iter_index_values(self, index: Index[Any]) -> Iterator[Hashable]:
        """Iterate over the index values that at least one record has."""
        return self._records_by_table[index.table].iter_index_values(index)

    def count_index_values(self, index: Index[Any]) -> int:
        """Return the number of index values that at least one record has."""
        return self._records_by_table[index.table].count_index_values(index)

    def iter_all(self, table: Table[R], *, reverse: bool = False) -> Iterator[R]:
        """Iterate over all records in the order of the table. Do not await while iterating: the state may change."""
        if table.order is ListOrder.KEY:
            return self.iter_by_key(table, reverse=reverse)
        return self.iter_by_creation(table, reverse=reverse)

    def iter_all_in_steps(self, table: Table[R]) -> Iterator[list[R]]:
        """Yield all records in the order of the table, in lists for one step of the event loop each.

        Batches may be applied between the steps: each list has the newest versions, without deleted records.
        """
        table_records: TableRecords[R] = self._records_by_table[table.name]
        is_by_key = table.order is ListOrder.KEY
        keys = iter(list(table_records.iter_keys() if is_by_key else table_records.iter_keys_by_creation()))
        while part := list(islice(keys, MAX_COMPARED_PER_STEP)):
            records = self._records_by_table[table.name].records
            yield [record for key in part if (record := records.get(key)) is not None]

    def iter_by_key(
        self, table: Table[R], *, prefix: str = "", start: str | None = None, reverse: bool = False
    ) -> Iterator[R]:
        """Iterate over records sorted by key: those with this prefix, from the key `start` (included) upwards.

        In reverse the order is downwards from `start`. No record needs to exist under that key. Do not await meanwhile.
        """
        table_records = self._records_by_table[table.name]
        keys = table_records.iter_keys(prefix=prefix, start=start, reverse=reverse)
        return map(table_records.records.__getitem__, keys)

    def iter_by_creation(
        self, table: Table[R], *, start: tuple[int, str] | None = None, reverse: bool = False
    ) -> Iterator[R]:
        """Iterate over records sorted by CreateIndex, then key, from `start` (included) upwards; in reverse downwards."""
        table_records = self._records_by_table[table.name]
        return map(table_records.records.__getitem__, table_records.iter_keys_by_creation(start=start, reverse=reverse))

    def count_records(self, table: Table[Any]) -> int:
        """Return the number of records in a table."""
        return len(self._records_by_table[table.name].records)

    def get_last_change(self, *tables: Table[Any]) -> int:
        """Return the latest log index at which one of these tables changed."""
        return max(self._records_by_table[table.name].last_change for table in tables)

    def build_record_condition(self, table: Table[R], record: R) -> Condition:
        """Return the condition that this record has not changed since it was read."""
        return Condition(table.name, table.get_key(record), record.modify_index)  # type: ignore[attr-defined]

    def get_version(self, table: Table[Any], *key: str | int) -> int:
        """Return the version of the record under a key, or 0 if there is none."""
        record = self.get(table, *key)
        return 0 if record is None else record.modify_index

    def build_key_condition(self, table: Table[Any], *key: str | int) -> Condition:
        """Return the condition that the record under a key does not change, or still does not exist."""
        record_key = table.build_key(*key)
        record = self._records_by_table[table.name].records.get(record_key)
        return Condition(table.name, record_key, 0 if record is None else record.modify_index)

    def build_prefix_condition(self, table: Table[Any], *key_parts: str) -> Condition:
        """Return the condition that no record whose key begins with these parts is created or changed.

        Without parts, it covers the whole table. Deleted records do not count.
        """
        prefix = "".join(part + KEY_SEPARATOR for part in key_parts)
        return Condition(table.name, prefix, self.index, is_prefix=True)

    # -- writing ---------------------------------------------------------------------------------------------------

    def encode_write(
        self, write: Write, *, write_id: str, lease: int = 0, cluster_format: int = UNLIMITED_FORMAT
    ) -> EncodedWrite:
        """Encode a write for the log, in schema versions that every server can read that knows `cluster_format`."""
        return EncodedWrite(
            id=write_id,
            kind=write.kind,
            cause=write.cause,
            conditions=write.conditions,
            changes=self._encode_changes(write.changes, cluster_format),
            lease=lease,
        )

    def collect_adoptable(self, write: Write, *, cluster_format: int = UNLIMITED_FORMAT) -> AdoptableRecords:
        """Return the records of a write that need not be decoded when the write comes back from the log.

        Only tables with `is_adopted` take part, and only if records are written in their newest schema version.
        """
        adopted_tables = _list_adopted_tables(self._adopted_tables, cluster_format)
        return {
            (change.table, change.key): change.record
            for change in write.changes
            if change.table in adopted_tables and isinstance(change, PutRecord)
        }

    def _encode_changes(self, changes: Iterable[PutRecord | DeleteRecord], cluster_format: int) -> list[EncodedChange]:
        """Encode the changes of a write. A record that is stored under two keys in a row is encoded once."""
        if cluster_format != self._encoders_format:
            self._encoders, self._encoders_format = {}, cluster_format
        encoders = self._encoders
        previous_record, previous_data, previous_encode = None, b"", None
        encoded_changes = []
        for change in changes:
            table_name, data = change.table, None
            if isinstance(change, PutRecord):
                encode = encoders.get(table_name)
                if encode is None:
                    encode = encoders[table_name] = build_encoder(
                        self.tables[table_name], cluster_format=cluster_format
                    )
                # A job and its newest version are the same record under two keys.
                data = (
                    previous_data
                    if change.record is previous_record and encode == previous_encode
                    else encode(change.record)
                )
                previous_record, previous_data, previous_encode = change.record, data, encode
            encoded_changes.append(EncodedChange(table_name, change.key, data))
        return encoded_changes

    # -- applying --------------------------------------------------------------------------------------------------

    def apply_batch(self, batch: Batch) -> None:
        """Apply the next batch at once, and wake the subscriptions that it touches.

        All records are decoded before the first change, so a damaged record leaves the state unchanged. Raises
        `OutOfOrder`, `DamagedRecord` or `NewerFormat`.
        """
        application = BatchApplication(self, batch)
        for _ in application.decode_in_steps():
            pass
        application.apply_changes()
        for _ in application.wake_in_steps():
            pass

    def load_state(self, records: Iterable[StoredRecord], position: LogPosition) -> None:
        """Replace the state by a full read of the log, and wake the subscriptions of all records that differ.

        Used at the start, and by a replica that has fallen too far behind. In a new epoch earlier records cannot be
        compared, so all subscriptions are woken.
        """
        load = ReplicaLoad(self)
        load.add_records(records)
        load.finish(position)


class BatchApplication:
    """Applies one batch in steps, so that the event loop is not blocked: decode, apply, wake.

    Readers see the old state until `apply_changes`, which is a single step, and the new state afterwards. The replica must
    not apply anything else meanwhile. `adoptable` holds the records that need not be decoded (`collect_adoptable`).
    """

    def __init__(self, replica: Replica, batch: Batch, adoptable: "AdoptableRecords | None" = None) -> None:
        if batch.index <= replica.index:
            raise OutOfOrder(f"batch {batch.index} arrived after batch {replica.index}")
        self._replica = replica
        self._batch = batch
        self._start_index = replica.index
        self._adoptable: AdoptableRecords = {} if adoptable is None else adoptable
        self._decoded: list[tuple[TableRecords[Any], str, Any]] = []
        self.applied_changes: list[AppliedChange] = []
        """The change of each key; filled by `apply_changes`."""
        self._changes_by_table: dict[str, list[RecordChange]] = {}
        self._last_sequence = 0

    def decode_in_steps(self) -> Iterator[None]:
        """Decode the batch; yield between steps. The replica does not change. Raises `DamagedRecord` or `NewerFormat`."""
        records_by_table, index, changes = self._replica._records_by_table, self._batch.index, self._batch.changes
        decoded, adoptable = self._decoded, self._adoptable
        # A job and its newest version are the same record under two keys, so it is decoded once.
        previous, previous_data, previous_signature, previous_own = None, b"", None, None
        previous_heavy: HeavyRecord[Any] | None = None
        step_changes = step_bytes = 0
        for change in changes:
            data = change.data
            size = 0 if data is None else len(data)
            if step_changes and (
                step_changes >= MAX_DECODED_PER_STEP or step_bytes + size > MAX_DECODED_BYTES_PER_STEP
            ):
                yield
                step_changes = step_bytes = 0
            step_changes += 1
            table_records = records_by_table.get(change.table)
            if table_records is None:
                raise _make_unknown_table_error(change.table)
            key, signature = change.key, table_records.decoder.signature
            if data is None:
                decoded.append((table_records, key, None))
            elif adoptable and (own_record := adoptable.get((change.table, key))) is not None:
                if own_record is not previous_own or signature != previous_signature:
                    previous = table_records.decoder.adopt_record(own_record, key, data, index)
                    previous_own, previous_data, previous_signature = own_record, data, signature
                if size > SMALL_RECORD_BYTES:
                    table_records.add_large(previous)
                decoded.append((table_records, key, previous))
            elif data == previous_data and signature == previous_signature:
                if size > SMALL_RECORD_BYTES:
                    table_records.add_large(previous)
                if previous_heavy is not None and previous_heavy.record is previous:
                    table_records.announce_heavy(key, previous_heavy)
                decoded.append((table_records, key, previous))
            elif size > HEAVY_RECORD_BYTES:
                previous_heavy = yield from table_records.decoder.decode_in_steps(key, data, index)
                table_records.announce_heavy(key, previous_heavy)
                previous = previous_heavy.record
                table_records.add_large(previous)
                previous_own, previous_data, previous_signature = None, data, signature
                decoded.append((table_records, key, previous))
                yield
                step_changes = step_bytes = 0
            else:
                step_bytes += size
                previous = table_records.decoder.decode_record(key, data, index)
                if size > SMALL_RECORD_BYTES:
                    table_records.add_large(previous)
                previous_own, previous_data, previous_signature = None, data, signature
                decoded.append((table_records, key, previous))

    def apply_changes(self) -> None:
        """Apply the decoded changes in one step, and notify observers. Call it after `decode_in_steps` has ended."""
        replica, index = self._replica, self._batch.index
        assert replica.index == self._start_index, "the replica has applied something else meanwhile"
        replica.index = index
        watched = replica.watches.table_watches
        self._last_sequence = replica.watches.last_sequence
        changes_by_table: dict[str, list[RecordChange]] = {}
        self._changes_by_table, applied_changes = changes_by_table, self.applied_changes
        for table_records, key, record in self._decoded:
            table_records.last_change = index
            old = table_records.delete_record(key) if record is None else table_records.put_record(key, record)
            table_name = table_records.table.name
            applied_changes.append((table_name, key, old, record))
            if table_name in watched:
                changes_by_table.setdefault(table_name, []).append((key, old, record))
        for watches, changes in [(watched[table_name], changes) for table_name, changes in changes_by_table.items()]:
            watches.notify_observers(changes)

    def wake_in_steps(self) -> Iterator[None]:
        """Wake the subscriptions that the batch touches; yield between steps. The caller must exhaust the iterator.

        A subscription made after `apply_changes` has seen the new state already and is not woken.
        """
        if len(self._decoded) > MAX_DECODED_PER_STEP:
            yield
        touched: TouchedGroups = {}
        for table_name, changes in self._changes_by_table.items():
            if changes and (watches := self._replica.watches.table_watches.get(table_name)) is not None:
                watches.collect_touched(changes, touched=touched)
        if touched:
            subscriptions = [
                subscription
                for subscription in list_touched_subscriptions(touched)
                if subscription.sequence <= self._last_sequence
            ]
            yield from wake_subscriptions(subscriptions)


class ReplicaLoad:
    """Loads a full read of the log slice by slice. Readers see the old state until `finish`.

    The replica must not apply anything else meanwhile. If a slice fails, the replica is unchanged.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._start_index = replica.index
        self._records_by_table = replica._create_empty_tables()
        self._added_keys: dict[str, list[str]] = {table_name: [] for table_name in self._records_by_table}
        self._replaced: dict[str, TableRecords[Any]] = {}
        """The tables that the loaded ones have replaced."""

    def add_records(self, stored_records: Iterable[StoredRecord]) -> None:
        """Decode and add the next slice of records at once."""
        for _ in self.add_in_steps(stored_records):
            pass

    def add_in_steps(self, stored_records: Iterable[StoredRecord]) -> Iterator[None]:
        """Decode and add the next slice of records; yield between steps. The caller must exhaust the iterator.

        100 records take about a millisecond; pass at most 500 at a time.
        """
        slice_by_table: dict[str, dict[str, Any]] = {}
        step_bytes = 0
        for stored in stored_records:
            table_name, key, size = stored.table, stored.key, len(stored.data)
            if table_name not in self._records_by_table:
                raise _make_unknown_table_error(table_name)
            table_records = self._records_by_table[table_name]
            if step_bytes + size > MAX_DECODED_BYTES_PER_STEP and step_bytes:
                self._add_slice(slice_by_table)
                slice_by_table, step_bytes = {}, 0
                yield
            step_bytes += size
            if size > HEAVY_RECORD_BYTES:
                heavy = yield from table_records.decoder.decode_in_steps(
                    key, stored.data, stored.version, stored.write_index
                )
                table_records.announce_heavy(key, heavy)
                record = heavy.record
            else:
                record = table_records.decoder.decode_record(key, stored.data, stored.version, stored.write_index)
            if size > SMALL_RECORD_BYTES:
                table_records.add_large(record)
            slice_by_table.setdefault(table_name, {})[key] = record
        self._add_slice(slice_by_table)

    def _add_slice(self, slice_by_table: Mapping[str, dict[str, Any]]) -> None:
        """Add decoded records, by table and key."""
        for table_name, records in slice_by_table.items():
            self._records_by_table[table_name].add_records(records)
            if self._start_index:  # The first load wakes all subscriptions, so it needs no list of new keys.
                old_records = self._replica._records_by_table[table_name].records
                self._added_keys[table_name] += [key for key in records if key not in old_records]

    def view_state(self) -> Replica:
        """Return a replica of the records that have been added, for reading only. Its index is 0."""
        state = Replica(self._replica.tables.values())
        state._records_by_table = self._records_by_table
        return state

    def finish(self, position: LogPosition) -> None:
        """Replace the replica's state, and wake the subscriptions of all records that differ."""
        for _ in self.finish_in_steps(position):
            pass

    def finish_in_steps(self, position: LogPosition) -> Iterator[None]:
        """Replace the replica's state in short steps, and yield between them; the caller must exhaust the iterator.

        Readers see the new state after the first step, and batches may be applied again. Subscriptions are woken by the
        last steps.
        """
        replica, before, after = self._replica, self._replica._records_by_table, self._records_by_table
        assert replica.index == self._start_index, "the replica has applied something else during the load"
        is_new_epoch = position.epoch != replica.epoch
        if position.index < replica.index and not is_new_epoch:
            raise OutOfOrder(f"a load of index {position.index} arrived after batch {replica.index}")
        # The log may record no change of a table in this epoch, while an earlier epoch had changes of it. Such a table gets
        # the start of the epoch as its last change. That index is above all earlier ones, so a client never sees it fall. It
        # is equal on all replicas, and not above any later change, so no client misses one.
        epoch_start = position.epoch_since or position.index
        default_last_change = max(epoch_start, FIRST_INDEX) if is_new_epoch else FIRST_INDEX
        for table_name, table_records in after.items():
            last_change = position.last_changes.get(table_name, default_last_change)
            table_records.last_change = (
                last_change if is_new_epoch else max(last_change, before[table_name].last_change)
            )
        self._replaced = dict(before)
        replica._records_by_table = after
        replica.index = position.index
        replica.epoch = position.epoch
        replica.epoch_since = position.epoch_since
        if is_new_epoch or not self._start_index:
            yield from wake_subscriptions(list_touched_subscriptions(replica.watches.collect_all()))
            return
        touched: TouchedGroups = {}
        changed_tables = [
            table_name
            for table_name in replica.watches.table_watches
            if before[table_name].last_change != after[table_name].last_change
        ]
        for table_name in changed_tables:
            add_touched_group(touched, replica.watches.table_watches[table_name].table_subscribers)
        for table_name in changed_tables:
            for keys in _split_keys(chain(before[table_name].records, self._added_keys[table_name])):
                yield
                _collect_differing(replica.watches, before[table_name], after[table_name], keys, touched=touched)
        yield from wake_subscriptions(list_touched_subscriptions(touched))

    def release_replaced_in_steps(self) -> Iterator[None]:
        """Free the memory of the replaced state in short steps after `finish`, and yield between them."""
        yield from release_in_steps(self._replaced)


@lru_cache(maxsize=8)
def _list_adopted_tables(tables: tuple[Table[Any], ...], cluster_format: int) -> frozenset[str]:
    """Return the names of those tables whose records are written in their newest schema version. Cached: each write asks."""
    return frozenset(table.name for table in tables if table.get_schema_version(cluster_format) == table.schema_version)


def _collect_differing(
    watches: WatchRegistry,
    before: TableRecords[Any],
    after: TableRecords[Any],
    keys: Iterable[str],
    *,
    touched: TouchedGroups,
) -> None:
    """Collect the subscriptions of those records, among these keys, that differ between the two states."""
    table_watches = watches.table_watches.get(after.table.name)
    if table_watches is None:
        return  # All subscriptions of the table have been closed meanwhile.
    differing_changes: list[RecordChange] = []
    for key in keys:
        old, new = before.records.get(key), after.records.get(key)
        if old is None or new is None or old.modify_index != new.modify_index:
            differing_changes.append((key, old, new))
    if differing_changes:
        table_watches.collect_touched(differing_changes, touched=touched)


def _split_keys(keys: Iterable[str]) -> Iterator[list[str]]:
    """Split keys into lists that are compared in one step each."""
    keys = iter(keys)
    while step := list(islice(keys, MAX_COMPARED_PER_STEP)):
        yield step


def _make_unknown_table_error(table_name: str) -> NewerFormat:
    return NewerFormat(
        f"the log has a table {table_name!r} that this version of wharf does not know. Start a newer version on this data."
    )
