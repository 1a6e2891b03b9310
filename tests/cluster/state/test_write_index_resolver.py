"""`WriteIndexResolver`: replaces placeholders in stored records, so that another log can contain them."""

import msgspec
import pytest

from tests.cluster.state.inventory import CRATES, PARCELS, Seal, make_crate, make_parcel, make_stored_record, plain
from tests.cluster.state.test_apply_and_load import CRATES_NOW, IN_EVERY_FORMAT
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import WriteIndexResolver
from wharf.contract.model.log import WRITE_INDEX, LogPosition, StoredRecord


def test_a_resolved_record_is_the_same_at_any_index_it_is_written_again() -> None:
    seal = Seal(number=1, sealed_index=WRITE_INDEX)
    crate = make_crate("a", seal=seal, repairs=(seal, Seal(sealed_index=3)), seals_by_side={"left": (seal,)})
    settled = WriteIndexResolver([CRATES]).resolve_record(make_stored_record(CRATES, 7, crate))
    replica = Replica([CRATES])

    replica.load_state([StoredRecord(settled.table, settled.key, 900, settled.data)], LogPosition(901, {"crates": 900}))

    seal = Seal(number=1, sealed_index=7)
    assert plain(replica.get(CRATES, "north", "a")) == plain(
        make_crate(
            "a",
            seal=seal,
            repairs=(seal, Seal(sealed_index=3)),
            seals_by_side={"left": (seal,)},
            create_index=7,
            modify_index=900,
        )
    )


def test_a_record_with_a_raised_version_is_resolved_to_its_original_write_index() -> None:
    row = make_stored_record(PARCELS, 7, make_parcel("p"))
    settled = WriteIndexResolver([PARCELS]).resolve_record(
        StoredRecord(row.table, row.key, 1_007, row.data, row.version)
    )
    replica = Replica([PARCELS])

    replica.load_state([settled], LogPosition(2_000, {"parcels": 1_007}))

    assert plain(replica.get(PARCELS, "p")) == plain(make_parcel("p", create_index=7, modify_index=1_007))


def test_a_record_without_a_placeholder_is_unchanged() -> None:
    row = make_stored_record(CRATES, 7, make_crate("a", create_index=3))

    assert WriteIndexResolver([CRATES]).resolve_record(row) is row


@pytest.mark.parametrize("form", IN_EVERY_FORMAT)
def test_a_record_keeps_its_schema_version_when_it_is_resolved(form: int) -> None:
    data = IN_EVERY_FORMAT[form]
    settled = WriteIndexResolver([CRATES_NOW]).resolve_record(StoredRecord("crates", "north\0a", 7, data))
    replica = Replica([CRATES_NOW])

    replica.load_state([settled], LogPosition(7, {"crates": 7}))

    assert (settled.data[0] if settled.data[0] < 0x80 else 1) == form
    assert plain(replica.get(CRATES_NOW, "north", "a")) == plain(
        make_crate("a", owner="ann", weight=7_000, create_index=7, modify_index=7)
    )


def test_a_record_of_an_unknown_table_is_unchanged() -> None:
    row = StoredRecord("ships", "s", 7, b"\x81\xa1x\xff")

    assert WriteIndexResolver([CRATES]).resolve_record(row) is row


def test_a_record_saved_by_an_older_program_has_its_version_as_write_index() -> None:
    data = msgspec.msgpack.encode(["crates", "north\0a", 7, b"\x80"])

    assert msgspec.msgpack.decode(data, type=StoredRecord).write_index == 7
