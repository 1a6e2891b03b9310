"""Rows whose markers became numbers, so that another log may take them in."""

import msgspec
import pytest

from tests.cluster.state.inventory import CRATES, PARCELS, Seal, a_crate, a_parcel, a_row, plain
from tests.cluster.state.test_taking_in import CRATES_NOW, IN_EVERY_FORMAT
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import WriteIndexResolver
from wharf.contract.model.log import WRITE_INDEX, LogPosition, StoredRecord


def test_a_row_that_is_settled_says_the_same_at_whatever_index_it_is_written_again() -> None:
    seal = Seal(number=1, sealed_index=WRITE_INDEX)
    crate = a_crate("a", seal=seal, repairs=(seal, Seal(sealed_index=3)), seals_by_side={"left": (seal,)})
    settled = WriteIndexResolver([CRATES]).resolve_record(a_row(CRATES, 7, crate))
    replica = Replica([CRATES])

    replica.load_state([StoredRecord(settled.table, settled.key, 900, settled.data)], LogPosition(901, {"crates": 900}))

    seal = Seal(number=1, sealed_index=7)
    assert plain(replica.get(CRATES, "north", "a")) == plain(
        a_crate(
            "a",
            seal=seal,
            repairs=(seal, Seal(sealed_index=3)),
            seals_by_side={"left": (seal,)},
            create_index=7,
            modify_index=900,
        )
    )


def test_a_row_that_a_restore_has_raised_is_settled_at_the_index_at_which_it_was_written() -> None:
    row = a_row(PARCELS, 7, a_parcel("p"))
    settled = WriteIndexResolver([PARCELS]).resolve_record(
        StoredRecord(row.table, row.key, 1_007, row.data, row.version)
    )
    replica = Replica([PARCELS])

    replica.load_state([settled], LogPosition(2_000, {"parcels": 1_007}))

    assert plain(replica.get(PARCELS, "p")) == plain(a_parcel("p", create_index=7, modify_index=1_007))


def test_a_row_without_a_marker_is_left_as_it_is() -> None:
    row = a_row(CRATES, 7, a_crate("a", create_index=3))

    assert WriteIndexResolver([CRATES]).resolve_record(row) is row


@pytest.mark.parametrize("form", IN_EVERY_FORMAT)
def test_a_row_is_settled_in_the_form_that_it_has(form: int) -> None:
    data = IN_EVERY_FORMAT[form]
    settled = WriteIndexResolver([CRATES_NOW]).resolve_record(StoredRecord("crates", "north\0a", 7, data))
    replica = Replica([CRATES_NOW])

    replica.load_state([settled], LogPosition(7, {"crates": 7}))

    assert (settled.data[0] if settled.data[0] < 0x80 else 1) == form
    assert plain(replica.get(CRATES_NOW, "north", "a")) == plain(
        a_crate("a", owner="ann", weight=7_000, create_index=7, modify_index=7)
    )


def test_a_row_of_a_table_that_this_program_does_not_know_is_left_to_whoever_reads_it() -> None:
    row = StoredRecord("ships", "s", 7, b"\x81\xa1x\xff")

    assert WriteIndexResolver([CRATES]).resolve_record(row) is row


def test_a_row_that_an_older_program_saved_was_written_at_its_version() -> None:
    data = msgspec.msgpack.encode(["crates", "north\0a", 7, b"\x80"])

    assert msgspec.msgpack.decode(data, type=StoredRecord).write_index == 7
