"""The state in memory: it changes only by taking in the next batch of the log, between two events.

Nothing here waits, so a caller that does not wait either sees one consistent state, however many records it reads.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.state.codec import UNLIMITED_FORMAT, NewerFormat, RecordDecoder, build_encoder
from wharf.cluster.state.table import Index, ListOrder, Table
from wharf.cluster.state.table_records import TableRecords
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
"""Changes decoded in one step: a millisecond and a half."""

MAX_COMPARED_PER_STEP: Final = 1_000
"""Records compared in one step after a load: about a millisecond."""


AppliedChange = tuple[str, str, Any, Any]
"""What became of one key: its table, the key, the record before and the one after; None where there is none."""

AdoptableRecords = dict[tuple[str, str], msgspec.Struct]
"""By table and key: records of a write of our own, as they were decided."""


class OutOfOrder(Exception):
    """What came does not follow what was taken in before. Load again."""


class Replica:
    """All tables at one index. Also the snapshot that deciders read."""

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self.index = 0
        self.epoch = 0
        self.epoch_since = 0
        """Above every index told before this epoch, so also above those that a record still holds from then."""
        self.tables: dict[str, Table[Any]] = {table.name: table for table in tables}
        self.watches = WatchRegistry(self.tables)
        # They outlive a load: what records share goes on being shared.
        self._decoders: dict[str, RecordDecoder[Any]] = {
            name: RecordDecoder(table) for name, table in self.tables.items()
        }
        self._rows: dict[str, TableRecords[Any]] = self._empty()

    def _empty(self) -> dict[str, TableRecords[Any]]:
        every_rows = {
            name: TableRecords(table, self._decoders[name], last_change=FIRST_INDEX)
            for name, table in self.tables.items()
        }
        for rows in every_rows.values():
            rows.link_relatives(every_rows)
        return every_rows

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_table_records(self, table: Table[R]) -> TableRecords[R]:
        return self._rows[table.name]

    def get(self, table: Table[R], *key: str | int) -> R | None:
        """The record under the key; of a table with one record, that record."""
        return self._rows[table.name].records.get(table.build_key(*key))

    def list_by_index(self, index: Index[R], *value: Hashable) -> list[R]:
        """The records with this value in the index, in no order that means anything: two replicas may differ in it."""
        rows: TableRecords[R] = self._rows[index.table]
        records = rows.records
        return [records[key] for key in rows.find_keys(index, value[0] if len(value) == 1 else value)]

    def iter_by_index(self, index: Index[R], *value: Hashable) -> Iterator[tuple[str, R]]:
        """The same records one after the other, each with its key; follows the state while it is read."""
        rows: TableRecords[R] = self._rows[index.table]
        records = rows.records
        for key in rows.find_keys(index, value[0] if len(value) == 1 else value):
            yield key, records[key]

    def count_by_index(self, index: Index[Any], *value: Hashable) -> int:
        return len(self._rows[index.table].find_keys(index, value[0] if len(value) == 1 else value))

    def list_by_index_sorted(self, index: Index[R], *value: Hashable, reverse: bool = False) -> list[R]:
        """The same records in order of key, as lists show them."""
        rows: TableRecords[R] = self._rows[index.table]
        keys = sorted(rows.find_keys(index, value[0] if len(value) == 1 else value), reverse=reverse)
        return [rows.records[key] for key in keys]

    def iter_index_values(self, index: Index[Any]) -> Iterator[Hashable]:
        """Every value that some record has in the index."""
        return self._rows[index.table].iter_index_values(index)

    def iter_all(self, table: Table[R], *, reverse: bool = False) -> Iterator[R]:
        """Every record in the table's order.

        This and the next two follow the state while they are read: read them to the end, or as far as needed, before
        you wait for anything.
        """
        if table.order is ListOrder.KEY:
            return self.iter_by_key(table, reverse=reverse)
        return self.iter_by_creation(table, reverse=reverse)

    def iter_by_key(
        self, table: Table[R], *, prefix: str = "", start: str | None = None, reverse: bool = False
    ) -> Iterator[R]:
        """Records in order of key: those whose key begins with `prefix`, from the key `start` on, itself included.

        In reverse `start` is the greatest key given. No record need stand under it.
        """
        rows = self._rows[table.name]
        keys = rows.iter_keys(prefix=prefix, start=start, reverse=reverse)
        return map(rows.records.__getitem__, keys)

    def iter_by_creation(
        self, table: Table[R], *, start: tuple[int, str] | None = None, reverse: bool = False
    ) -> Iterator[R]:
        """Records by CreateIndex, then key, from `start` on, itself included; in reverse down from there."""
        rows = self._rows[table.name]
        return map(rows.records.__getitem__, rows.iter_keys_by_creation(start=start, reverse=reverse))

    def count_records(self, table: Table[Any]) -> int:
        return len(self._rows[table.name].records)

    def get_last_change(self, *tables: Table[Any]) -> int:
        """The greatest index at which one of these tables changed."""
        return max(self._rows[table.name].last_change for table in tables)

    def build_record_condition(self, table: Table[R], record: R) -> Condition:
        """The condition that this record is still as the decider saw it."""
        return Condition(table.name, table.get_key(record), record.modify_index)  # type: ignore[attr-defined]

    def get_version(self, table: Table[Any], *key: str | int) -> int:
        """The version under the key; 0 when nothing is there."""
        record = self.get(table, *key)
        return 0 if record is None else record.modify_index

    def build_key_condition(self, table: Table[Any], *key: str | int) -> Condition:
        """The condition that what stands under the key, if anything, is still what stands there now."""
        return Condition(table.name, table.build_key(*key), self.get_version(table, *key))

    # -- writing ---------------------------------------------------------------------------------------------------

    def encode_write(
        self, write: Write, *, write_id: str, lease: int = 0, cluster_format: int = UNLIMITED_FORMAT
    ) -> EncodedWrite:
        """The write as the log takes it, in forms that every server reads which knows `cluster_format`."""
        return EncodedWrite(
            id=write_id,
            kind=write.kind,
            cause=write.cause,
            conditions=write.conditions,
            changes=self._encoded(write.changes, cluster_format),
            lease=lease,
        )

    def collect_adoptable(self, write: Write, *, cluster_format: int = UNLIMITED_FORMAT) -> AdoptableRecords:
        """What whoever wrote this may keep, and need not decode when it comes back: what plans write by the thousand."""
        adopted = [
            table.name
            for table in self.tables.values()
            if table.is_adopted and table.get_schema_version(cluster_format) == table.schema_version
        ]
        return {
            (change.table, change.key): change.record
            for change in write.changes
            if change.table in adopted and isinstance(change, PutRecord)
        }

    def _encoded(self, changes: Iterable[PutRecord | DeleteRecord], cluster_format: int) -> list[EncodedChange]:
        encoders: dict[str, Callable[[Any], bytes]] = {}
        before, data_before, encode_before = None, b"", None
        coded = []
        for change in changes:
            name, data = change.table, None
            if isinstance(change, PutRecord):
                encode = encoders.get(name)
                if encode is None:
                    encode = encoders[name] = build_encoder(self.tables[name], cluster_format=cluster_format)
                # A job and its newest version are one record under two keys.
                data = data_before if change.record is before and encode == encode_before else encode(change.record)
                before, data_before, encode_before = change.record, data, encode
            coded.append(EncodedChange(name, change.key, data))
        return coded

    # -- taking in -------------------------------------------------------------------------------------------------

    def apply_batch(self, batch: Batch) -> None:
        """Take in the next batch, whole, and wake those who waited for what it changed.

        Everything is decoded before anything is changed, so a damaged record leaves the state as it was. Raises
        `OutOfOrder`, and `Damaged` or `NewerFormat` of `codec`.
        """
        applying = BatchApplication(self, batch)
        for _ in applying.decode_in_steps():
            pass
        applying.apply_changes()
        for _ in applying.wake_in_steps():
            pass

    def load_state(self, records: Iterable[StoredRecord], position: LogPosition) -> None:
        """Stand where a full read stands, and wake those who waited for what differs from before.

        A replica that has fallen behind the log's tail comes back so. In a new epoch nothing from before can be
        trusted, so everybody is woken.
        """
        loading = ReplicaLoad(self)
        loading.add_records(records)
        loading.finish(position)


class BatchApplication:
    """The next batch on its way in, for a loop that must go on: decode it in steps, take it in, wake in steps.

    Readers see the state before until `take_in`, which is one step, and the state after from then on. The replica takes
    in nothing else meanwhile. `held`: of a write of our own, records that need not be decoded (`Replica.held`).
    """

    def __init__(self, replica: Replica, batch: Batch, adoptable: "AdoptableRecords | None" = None) -> None:
        if batch.index <= replica.index:
            raise OutOfOrder(f"batch {batch.index} came after batch {replica.index}")
        self._replica = replica
        self._batch = batch
        self._begun_at = replica.index
        self._held: AdoptableRecords = {} if adoptable is None else adoptable
        self._decoded: list[tuple[TableRecords[Any], str, Any]] = []
        self.applied_changes: list[AppliedChange] = []
        """What became of each key, once it is taken in."""
        self._changed: dict[str, list[RecordChange]] = {}
        self._subscribed_last = 0

    def decode_in_steps(self) -> Iterator[None]:
        """Yields when there is more to decode. Nothing is changed yet; raises `Damaged` and `NewerFormat`."""
        every_rows, index, changes = self._replica._rows, self._batch.index, self._batch.changes
        decoded, held = self._decoded, self._held
        # A job and its newest version are one record under two keys.
        twin, twin_data, twin_of = None, b"", None
        for start in range(0, len(changes), MAX_DECODED_PER_STEP):
            if start:
                yield
            for change in changes[start : start + MAX_DECODED_PER_STEP]:
                rows = every_rows.get(change.table)
                if rows is None:
                    raise _unknown_table(change.table)
                key, data = change.key, change.data
                if data is None:
                    decoded.append((rows, key, None))
                elif held and (own := held.get((change.table, key))) is not None:
                    decoded.append((rows, key, rows.decoder.adopt_record(own, key, data, index)))
                elif data == twin_data and rows.decoder.signature == twin_of:
                    decoded.append((rows, key, twin))
                else:
                    twin, twin_data, twin_of = (
                        rows.decoder.decode_record(key, data, index),
                        data,
                        rows.decoder.signature,
                    )
                    decoded.append((rows, key, twin))

    def apply_changes(self) -> None:
        """All of it, once it is decoded; also notes what those who wait must be compared with."""
        replica, index = self._replica, self._batch.index
        assert replica.index == self._begun_at, "a replica that takes in a batch takes in nothing else"
        replica.index = index
        watched = replica.watches.table_watches
        self._subscribed_last = replica.watches.last_sequence
        changed: dict[str, list[RecordChange]] = {name: [] for name in watched}
        self._changed, taken = changed, self.applied_changes
        for rows, key, record in self._decoded:
            rows.last_change = index
            old = rows.delete_record(key) if record is None else rows.put_record(key, record)
            name = rows.table.name
            taken.append((name, key, old, record))
            if watched and (changes := changed.get(name)) is not None:
                changes.append((key, old, record))
        for watches, changes in [(watched[name], changes) for name, changes in changed.items() if changes]:
            watches.notify_observers(changes)

    def wake_in_steps(self) -> Iterator[None]:
        """Those who waited for what changed. Yields when there is more to do: drive it to its end.

        Who subscribed after `take_in` has read the state after, and is left alone.
        """
        if len(self._decoded) > MAX_DECODED_PER_STEP:
            yield
        touched: TouchedGroups = {}
        for name, changes in self._changed.items():
            if changes and (watches := self._replica.watches.table_watches.get(name)) is not None:
                watches.collect_touched(changes, touched=touched)
        if touched:
            woken = [
                waiter for waiter in list_touched_subscriptions(touched) if waiter.sequence <= self._subscribed_last
            ]
            yield from wake_subscriptions(woken)


class ReplicaLoad:
    """A full read on its way in, slice by slice; the replica's readers see the old state until it is finished.

    The replica takes in nothing else meanwhile. Whatever fails on the way leaves it as it was.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._begun_at = replica.index
        self._rows = replica._empty()
        self._added: dict[str, list[str]] = {name: [] for name in self._rows}

    def add_records(self, stored_records: Iterable[StoredRecord]) -> None:
        """The next slice. A hundred rows take about a millisecond: where a loop must go on, give 250 at once."""
        slices: dict[str, dict[str, Any]] = {}
        for row in stored_records:
            name, key = row.table, row.key
            if name not in self._rows:
                raise _unknown_table(name)
            slices.setdefault(name, {})[key] = self._rows[name].decoder.decode_record(
                key, row.data, row.version, row.write_index
            )
        for name, records in slices.items():
            self._rows[name].add_records(records)
            if self._begun_at:  # A first load wakes everybody: no need to note what is new.
                before = self._replica._rows[name].records
                self._added[name] += [key for key in records if key not in before]

    def finish(self, position: LogPosition) -> None:
        """Stand where the read stands, and wake those who wait for what differs from before."""
        for _ in self.finish_in_steps(position):
            pass

    def finish_in_steps(self, position: LogPosition) -> Iterator[None]:
        """As `finish`, in steps small enough for a loop that must go on; nothing happens unless it is driven.

        After the first step readers see the new state, and the feed may go on; waiters are woken by the last step.
        """
        replica, before, after = self._replica, self._replica._rows, self._rows
        assert replica.index == self._begun_at, "a replica that is being loaded takes in no batches"
        is_new_epoch = position.epoch != replica.epoch
        if position.index < replica.index and not is_new_epoch:
            raise OutOfOrder(f"a load that stands at {position.index} came after batch {replica.index}")
        # Of a table that the log knows no change of, an earlier epoch may have told anything up to where it stood. The
        # index at which this one began exceeds all of those, and is the same for every replica that loads: whoever asks
        # one and then another sees no step back. It is no greater than any change to come, so nobody misses one.
        began_at = position.epoch_since or position.index
        unchanged_at = max(began_at, FIRST_INDEX) if is_new_epoch else FIRST_INDEX
        for name, rows in after.items():
            last_change = position.last_changes.get(name, unchanged_at)
            rows.last_change = last_change if is_new_epoch else max(last_change, before[name].last_change)
        replica._rows = after
        replica.index = position.index
        replica.epoch = position.epoch
        replica.epoch_since = position.epoch_since
        if is_new_epoch or not self._begun_at:
            yield from wake_subscriptions(list_touched_subscriptions(replica.watches.collect_all()))
            return
        touched: TouchedGroups = {}
        moved = [name for name in replica.watches.table_watches if before[name].last_change != after[name].last_change]
        for name in moved:
            add_touched_group(touched, replica.watches.table_watches[name].table_subscribers)
        for name in moved:
            for keys in _in_steps(chain(before[name].records, self._added[name])):
                yield
                _collect_differing(replica.watches, before[name], after[name], keys, touched=touched)
        yield from wake_subscriptions(list_touched_subscriptions(touched))


def _collect_differing(
    watches: WatchRegistry,
    before: TableRecords[Any],
    after: TableRecords[Any],
    keys: Iterable[str],
    *,
    touched: TouchedGroups,
) -> None:
    """Note those who wait on a record among these that differs between the two states."""
    table_watches = watches.table_watches.get(after.table.name)
    if table_watches is None:
        return  # They all have ended since.
    differing: list[RecordChange] = []
    for key in keys:
        old, new = before.records.get(key), after.records.get(key)
        if old is None or new is None or old.modify_index != new.modify_index:
            differing.append((key, old, new))
    if differing:
        table_watches.collect_touched(differing, touched=touched)


def _in_steps(keys: Iterable[str]) -> Iterator[list[str]]:
    keys = iter(keys)
    while step := list(islice(keys, MAX_COMPARED_PER_STEP)):
        yield step


def _unknown_table(name: str) -> NewerFormat:
    return NewerFormat(
        f"the log has a table {name!r} that this program does not know. Start a newer wharf on this data."
    )
