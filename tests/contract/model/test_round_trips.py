"""Round trips of every record: encoding and decoding returns an equal record."""

import importlib
import pkgutil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wharf.contract.model
from tests.contract.model.strategies import SEPARATELY_DECODED_FIELDS, records
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.record import Record, SparseRecord, to_wire_name


def list_record_types() -> list[type[msgspec.Struct]]:
    """Return all record types of the model."""
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


EVERY_RECORD = list_record_types()
each_record = pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: record.__name__)


def decode_remaining_parts(decoded: msgspec.Struct, *, packed: bool) -> msgspec.Struct:
    """Decode the parts of a record that are decoded separately."""
    parts = {
        name: getattr(decoded, name) for (record, name) in SEPARATELY_DECODED_FIELDS if isinstance(decoded, record)
    }
    codec = msgspec.msgpack if packed else msgspec.json
    return msgspec.structs.replace(
        decoded,
        **{
            name: codec.decode(part, type=SEPARATELY_DECODED_FIELDS[type(decoded), name])
            for name, part in parts.items()
            if part is not None
        },
    )


@each_record
@given(data=st.data())
def test_a_record_is_the_same_after_json_and_after_msgpack(record: type[msgspec.Struct], data: st.DataObject) -> None:
    original = data.draw(records(record))

    assert (
        decode_remaining_parts(msgspec.json.decode(msgspec.json.encode(original), type=record), packed=False)
        == original
    )
    assert (
        decode_remaining_parts(msgspec.msgpack.decode(msgspec.msgpack.encode(original), type=record), packed=True)
        == original
    )


@each_record
def test_a_record_is_frozen_and_not_tracked_by_the_garbage_collector(record: type[msgspec.Struct]) -> None:
    assert (record.__struct_config__.frozen, record.__struct_config__.gc) == (True, False)


@each_record
def test_unknown_fields_of_newer_programs_are_skipped(record: type[msgspec.Struct]) -> None:
    assert not record.__struct_config__.forbid_unknown_fields


@each_record
def test_every_attribute_has_the_same_wire_name_in_all_records(record: type[msgspec.Struct]) -> None:
    names = record.__struct_encode_fields__

    assert len({name.lower() for name in names}) == len(names)
    assert [name for name in names if not name[0].isupper() or "_" in name] == []


@pytest.mark.parametrize("record", [kind for kind in EVERY_RECORD if issubclass(kind, SparseRecord)])
def test_a_sparse_record_omits_only_zero_values(record: type[msgspec.Struct]) -> None:
    fields = msgspec.structs.fields(record)

    # A default other than zero would be omitted on the wire, and other programs would decode it as zero.
    assert [field.name for field in fields if field.default not in (msgspec.NODEFAULT, "", b"", 0, False, None)] == []


def test_an_allocation_without_other_fields_encodes_only_its_statuses() -> None:
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
def test_attribute_names_are_converted_to_wire_names(attribute: str, name: str) -> None:
    assert to_wire_name(attribute) == name
