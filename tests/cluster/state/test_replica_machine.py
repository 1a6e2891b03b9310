"""The replica compared with a plain model, under generated batches."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.cluster.state.inventory import (
    CRATES,
    INDEXES,
    NOTICE,
    PARCELS,
    TABLES,
    Plain,
    apply_changes,
    as_arguments,
    batches_of_changes,
    compute_index_value,
    make_batch,
    make_empty_model,
    make_replica,
    names,
    plain,
    yards,
)
from wharf.cluster.state import Index, ReplicaLoad, Table
from wharf.contract.model.log import Condition, LogPosition, StoredRecord


def sort_by_key(records: dict[str, Plain], *, reverse: bool) -> list[str]:
    return sorted(records, reverse=reverse)


def sort_by_creation(records: dict[str, Plain], *, reverse: bool) -> list[str]:
    return sorted(records, key=lambda key: (records[key]["create_index"], key), reverse=reverse)


class ReplicaMachine(RuleBasedStateMachine):
    """A replica and its model. Every read of the replica must return what the model has."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = make_replica()
        self.model = make_empty_model()
        self.rows: dict[tuple[str, str], StoredRecord] = {}
        self.last_changes: dict[str, int] = {table.name: 1 for table in TABLES}

    @initialize(changes=batches_of_changes)
    def write_first_batch(self, changes: list[Any]) -> None:
        self._write(1, changes)

    @rule(changes=batches_of_changes, gap=st.integers(1, 3))
    def write(self, changes: list[Any], gap: int) -> None:
        self._write(self.replica.index + gap, changes)

    def _write(self, index: int, changes: list[Any]) -> None:
        batch = make_batch(index, *changes)
        self.replica.apply_batch(batch)
        self.model = apply_changes(self.model, index, changes)
        for change in batch.changes:
            self.last_changes[change.table] = index
            self.rows.pop((change.table, change.key), None)
            if change.data is not None:
                self.rows[change.table, change.key] = StoredRecord(change.table, change.key, index, change.data)

    @rule(slice_rows=st.integers(1, 5), is_new=st.booleans())
    def load(self, slice_rows: int, is_new: bool) -> None:
        """A replica that loads the state equals one that applied every batch."""
        replica = make_replica() if is_new else self.replica
        loading = ReplicaLoad(replica)
        rows = list(self.rows.values())
        for start in range(0, len(rows), slice_rows):
            loading.add_records(rows[start : start + slice_rows])
        loading.finish(LogPosition(self.replica.index, dict(self.last_changes)))
        self.replica = replica

    @rule(
        table=st.sampled_from([CRATES, PARCELS]),
        prefix=st.one_of(st.just(""), yards, names, yards.map(lambda yard: yard + "\0")),
        start=st.none() | names | st.tuples(yards, names).map("\0".join),
        reverse=st.booleans(),
    )
    def read_by_key(self, table: Table[Any], prefix: str, start: str | None, reverse: bool) -> None:
        records = self.model[table.name]
        expected = [
            records[key]
            for key in sort_by_key(records, reverse=reverse)
            if key.startswith(prefix) and (start is None or (key <= start if reverse else key >= start))
        ]

        assert expected == list(
            map(plain, self.replica.iter_by_key(table, prefix=prefix, start=start, reverse=reverse))
        )

    @rule(start=st.none() | st.tuples(st.integers(0, 9), names), reverse=st.booleans())
    def read_by_creation(self, start: tuple[int, str] | None, reverse: bool) -> None:
        records = self.model["parcels"]
        expected = [
            record
            for record in (records[key] for key in sort_by_creation(records, reverse=reverse))
            if start is None
            or (
                (record["create_index"], record["id"]) <= start
                if reverse
                else (record["create_index"], record["id"]) >= start
            )
        ]

        assert expected == list(map(plain, self.replica.iter_by_creation(PARCELS, start=start, reverse=reverse)))

    @invariant()
    def check_every_record_and_version(self) -> None:
        for table in TABLES:
            keys = [change.split("\0") for change in self.model[table.name]]
            keys += [["north", "no such crate"]] if table is CRATES else []
            for parts in keys:
                key = () if table is NOTICE else parts
                expected = self.model[table.name].get("\0".join(parts))
                version = 0 if expected is None else expected["modify_index"]

                assert expected == plain(self.replica.get(table, *key))
                assert version == self.replica.get_version(table, *key)
                assert Condition(table.name, "\0".join(parts), version) == self.replica.build_key_condition(table, *key)

    @invariant()
    def check_record_conditions(self) -> None:
        for table in TABLES:
            conditions = [self.replica.build_record_condition(table, record) for record in self.replica.iter_all(table)]

            assert {key: record["modify_index"] for key, record in self.model[table.name].items()} == {
                condition.key: condition.version for condition in conditions
            }

    @invariant()
    def check_lists_and_counts(self) -> None:
        for table in TABLES:
            records = self.model[table.name]
            in_order = sort_by_creation if table is PARCELS else sort_by_key
            for reverse in (False, True):
                expected = [records[key] for key in in_order(records, reverse=reverse)]

                assert expected == list(map(plain, self.replica.iter_all(table, reverse=reverse)))
            assert len(records) == self.replica.count_records(table)

    @invariant()
    def check_index_reads(self) -> None:
        for index in INDEXES:
            records = self.model[index.table]
            keys_by_value: dict[Any, list[str]] = {}
            for key in sorted(records):
                value = compute_index_value(index, records[key])
                if value is not None:
                    keys_by_value.setdefault(value, []).append(key)

            assert sorted(map(repr, keys_by_value)) == sorted(map(repr, self.replica.iter_index_values(index)))
            for value, keys in keys_by_value.items():
                self._check_index_value(index, as_arguments(value), [records[key] for key in keys])
            self._check_index_value(index, as_arguments("an unused value"), [])

    def _check_index_value(self, index: Index[Any], value: tuple[Any, ...], expected: list[Plain]) -> None:
        assert len(expected) == self.replica.count_by_index(index, *value)
        assert expected == list(map(plain, self.replica.list_by_index_sorted(index, *value)))
        assert expected[::-1] == list(map(plain, self.replica.list_by_index_sorted(index, *value, reverse=True)))
        assert sorted(map(repr, expected)) == sorted(
            repr(plain(record)) for record in self.replica.list_by_index(index, *value)
        )

    @invariant()
    def check_last_changes(self) -> None:
        for table in TABLES:
            assert self.last_changes[table.name] == self.replica.get_last_change(table)
        assert max(self.last_changes.values()) == self.replica.get_last_change(*TABLES)


TestReplicaMachine = ReplicaMachine.TestCase
