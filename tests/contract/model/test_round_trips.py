"""Every record survives the wire and the log: what is written is what is read."""

import importlib
import pkgutil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wharf.contract.model
from tests.contract.model.strategies import DECODED_APART, records
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.record import Record, SparseRecord, to_wire_name


def every_record() -> list[type[msgspec.Struct]]:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(wharf.contract.model.__path__, "wharf.contract.model.")
    ]
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Record | SparseRecord) and value not in (Record, SparseRecord)
    }
    return sorted(found, key=lambda record: (record.__module__, record.__name__))


EVERY_RECORD = every_record()
each_record = pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: record.__name__)


def decoded_whole(decoded: msgspec.Struct, *, packed: bool) -> msgspec.Struct:
    """A record in which the parts that are decoded apart are decoded too."""
    parts = {name: getattr(decoded, name) for (record, name) in DECODED_APART if isinstance(decoded, record)}
    codec = msgspec.msgpack if packed else msgspec.json
    return msgspec.structs.replace(
        decoded,
        **{
            name: codec.decode(part, type=DECODED_APART[type(decoded), name])
            for name, part in parts.items()
            if part is not None
        },
    )


@each_record
@given(data=st.data())
def test_a_record_is_the_same_after_json_and_after_msgpack(record: type[msgspec.Struct], data: st.DataObject) -> None:
    made = data.draw(records(record))

    assert decoded_whole(msgspec.json.decode(msgspec.json.encode(made), type=record), packed=False) == made
    assert decoded_whole(msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=record), packed=True) == made


@each_record
def test_a_record_is_frozen_and_none_of_the_collectors_business(record: type[msgspec.Struct]) -> None:
    assert (record.__struct_config__.frozen, record.__struct_config__.gc) == (True, False)


@each_record
def test_an_older_program_skips_the_fields_that_it_does_not_know(record: type[msgspec.Struct]) -> None:
    assert not record.__struct_config__.forbid_unknown_fields


@each_record
def test_every_field_has_one_name_on_the_wire(record: type[msgspec.Struct]) -> None:
    names = record.__struct_encode_fields__

    assert len({name.lower() for name in names}) == len(names)
    assert [name for name in names if not name[0].isupper() or "_" in name] == []


@pytest.mark.parametrize("record", [kind for kind in EVERY_RECORD if issubclass(kind, SparseRecord)])
def test_a_sparse_record_drops_only_zeros(record: type[msgspec.Struct]) -> None:
    fields = msgspec.structs.fields(record)

    # A default that is no zero would be dropped on the wire and read as a zero by others.
    assert [field.name for field in fields if field.default not in (msgspec.NODEFAULT, "", b"", 0, False, None)] == []


def test_a_bare_allocation_shows_its_states_only() -> None:
    bare = Allocation(id="a1", desired_status="run", client_status="pending")  # type: ignore[arg-type]  # as text, for brevity

    assert msgspec.json.encode(bare) == b'{"ID":"a1","DesiredStatus":"run","ClientStatus":"pending"}'


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        ("job_id", "JobID"),
        ("memory_max_mb", "MemoryMaxMB"),
        ("device_ids", "DeviceIDs"),
        ("max_token_ttl", "MaxTokenTTL"),
    ],
)
def test_names_are_spelled_as_on_the_wire(attribute: str, name: str) -> None:
    assert to_wire_name(attribute) == name
