"""The declared tables of the cluster: every record survives a batch and a load unchanged."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cluster.state.inventory import CRATES, NOTICE, make_crate, make_write
from tests.contract.model.strategies import records
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.packed_map import encode_packed_as_raw
from wharf.cluster.state.tables import ALL_TABLES, JOB_VERSIONS, SCALING_POLICIES, SCALING_POLICIES_OF_JOB
from wharf.contract.model.log import WRITE_INDEX, Batch, LogPosition, StoredRecord

# Index fields that a decision takes from another record, which has its index already.
COPIED_INDEXES = {
    "allocations.job_create_index",
    "evaluations.snapshot_index",
    "evaluations.related_evals.create_index",  # Never stored.
    "evaluations.related_evals.modify_index",
}

every_table = pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)


def encode_as_stored(record: msgspec.Struct, index: int) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(record, modify_index=index), enc_hook=encode_packed_as_raw)


@every_table
@given(data=st.data())
def test_a_record_survives_a_batch_and_a_load_unchanged(table: Table[Any], data: st.DataObject) -> None:
    kind: type[msgspec.Struct] = table.record_type
    record = data.draw(records(kind))
    assume(all(number != WRITE_INDEX for number in _numbers(msgspec.to_builtins(record))))
    put = table.build_put(record)
    applied, loaded = Replica([table]), Replica([table])
    logged = applied.encode_write(make_write(put), write_id="w")
    change = logged.changes[0]
    assert change.data is not None

    applied.apply_batch(Batch(7, "w", "test", logged.cause, logged.changes))
    loaded.load_state([StoredRecord(change.table, change.key, 7, change.data)], LogPosition(9, {table.name: 7}))

    for replica in (applied, loaded):
        (stored,) = replica.iter_all(table)
        assert encode_as_stored(stored, 7) == encode_as_stored(record, 7)
        assert replica.build_record_condition(table, stored) == replica.build_key_condition(table, *_key(table, record))
        assert replica.get(table, *_key(table, record)) is stored


def _key(table: Table[Any], record: msgspec.Struct) -> list[str | int]:
    return [getattr(record, name) for name in table.key_attributes]


def _numbers(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield value


@every_table
def test_every_index_field_of_a_record_is_declared_as_a_write_index_field(table: Table[Any]) -> None:
    paths = set(_index_fields(table.record_type)) - {"modify_index"}
    missing = {path for path in paths - set(table.write_index_fields) if f"{table.name}.{path}" not in COPIED_INDEXES}

    assert missing == set()


def _index_fields(record: type[msgspec.Struct], *, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(record):
        if field.name.endswith("_index"):
            yield prefix + field.name
        elif not prefix:
            for inner in _structs_in(field.type):
                yield from _index_fields(inner, prefix=f"{field.name}.")


def _structs_in(type_: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the record types of a field, of its tuple or of its map."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        yield type_
    for part in getattr(type_, "__args__", ()):
        yield from _structs_in(part)


def test_names_of_tables_are_unique() -> None:
    names = [table.name for table in ALL_TABLES]

    assert sorted(set(names)) == sorted(names)


@every_table
def test_names_of_indexes_are_unique_within_a_table(table: Table[Any]) -> None:
    names = [index.name for index in table.indexes]

    assert sorted(set(names)) == sorted(names)


def test_versions_of_a_job_are_found_by_number_and_listed_in_their_order() -> None:
    replica = Replica([JOB_VERSIONS])
    jobs = [JOB_VERSIONS.record_type(id="web", version=version, create_index=WRITE_INDEX) for version in (10, 9, 2)]
    logged = replica.encode_write(make_write(*map(JOB_VERSIONS.build_put, jobs)), write_id="w")
    replica.apply_batch(Batch(1, "w", "test", logged.cause, logged.changes))
    namespace = jobs[0].namespace

    assert [job.version for job in replica.iter_by_key(JOB_VERSIONS, prefix=f"{namespace}\0web\0")] == [2, 9, 10]
    assert (found := replica.get(JOB_VERSIONS, namespace, "web", 9)) is not None
    assert found.version == 9
    assert replica.build_key_condition(JOB_VERSIONS, namespace, "web", 9) == replica.build_record_condition(
        JOB_VERSIONS, found
    )
    assert JOB_VERSIONS.build_delete(namespace, "web", 9).key == JOB_VERSIONS.get_key(found)


def test_a_scaling_policy_with_an_incomplete_target_can_be_applied() -> None:
    replica = Replica([SCALING_POLICIES])
    policy = SCALING_POLICIES.record_type(id="p", target={"Job": "web"})
    logged = replica.encode_write(make_write(SCALING_POLICIES.build_put(policy)), write_id="w")

    replica.apply_batch(Batch(1, "w", "test", logged.cause, logged.changes))

    assert [found.id for found in replica.list_by_index(SCALING_POLICIES_OF_JOB, "", "web")] == ["p"]


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ((), "crates"),
        (("a",), "a"),
        ((7,), "7".zfill(20)),
        (("a", "b"), "a\0b"),
        (("a", 7), "a\0" + "7".zfill(20)),
        ((7, "a"), "7".zfill(20) + "\0a"),
        (("a", "b", "c"), "a\0b\0c"),
        (("a", "b", 12), "a\0b\0" + "12".zfill(20)),
    ],
)
def test_a_key_joins_its_parts_and_pads_numbers(parts: tuple[str | int, ...], key: str) -> None:
    assert CRATES.build_key(*parts) == key


def test_the_key_of_a_record_is_made_of_its_key_attributes() -> None:
    assert CRATES.get_key(make_crate("a", "north")) == CRATES.build_key("north", "a")
    assert NOTICE.get_key(NOTICE.record_type()) == NOTICE.build_key() == "notice"
