"""Applying and loading: all or nothing, in order, with clear errors, and in every schema version."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_OF_OWNER,
    NOTICE,
    PARCELS,
    PARCELS_IN_YARD,
    TABLES,
    Contents,
    Crate,
    Notice,
    Seal,
    make_batch,
    make_crate,
    make_parcel,
    make_replica,
    make_stored_record,
    plain,
)
from wharf.cluster.state import Index, OutOfOrder, Replica, ReplicaLoad, Table
from wharf.cluster.state.codec import DamagedRecord, FormatNotRaised, NewerFormat, encode_record
from wharf.cluster.state.table import SchemaMigration
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.log import WRITE_INDEX, Batch, Cause, CauseKind, EncodedChange, LogPosition, StoredRecord

CAUSE = Cause(CauseKind.REQUEST)


def insert_change(batch: Batch, table: str, key: str, data: bytes | None) -> Batch:
    """Return the batch with one more change in its middle."""
    return Batch(
        batch.index,
        batch.id,
        batch.kind,
        CAUSE,
        [*batch.changes[:1], EncodedChange(table, key, data), *batch.changes[1:]],
    )


def list_all_records(replica: Replica) -> list[Any]:
    tables = [[plain(record) for record in replica.iter_all(table)] for table in TABLES]
    changes = [replica.get_last_change(table) for table in TABLES]
    return [replica.index, replica.epoch, changes, tables, replica.count_by_index(CRATES_OF_OWNER, "north", "ann")]


def make_filled_replica() -> Replica:
    replica = make_replica()
    replica.apply_batch(make_batch(1, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))
    replica.apply_batch(
        make_batch(4, CRATES.build_put(make_crate("a", owner="ann")), PARCELS.build_put(make_parcel("p", yard="north")))
    )
    return replica


DAMAGED = {
    "nothing": b"",
    "no map": b"\x93\x01\x02\x03",
    "cut short": encode_record(PARCELS, make_parcel("q"))[:-1],
    "another record": encode_record(NOTICE, Notice(text="?")),
    "a record of another key": encode_record(PARCELS, make_parcel("r")),
    "bad text": encode_record(PARCELS, make_parcel("q")).replace(b"\xa1q", b"\xa1\xff"),
    "an invalid shared value": b"\x82\xa2ID\xa1q\xa8Contents\x01",
    "nesting without end": b"\x82\xa2ID\xa1q\xa8Contents" + b"\x91" * 100_000,
    "a format that never was": b"\x00" + encode_record(PARCELS, make_parcel("q")),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_batch_with_a_damaged_record_leaves_the_state_unchanged(data: bytes) -> None:
    replica = make_filled_replica()
    woken: list[bool] = []
    replica.watches.subscribe([watch_table(table) for table in TABLES], lambda: woken.append(True))
    before = list_all_records(replica)
    good = make_batch(5, CRATES.build_put(make_crate("b", owner="ann")), CRATES.build_delete("north", "a"))

    with pytest.raises(
        DamagedRecord, match=r"^the record parcels/'q' of index 5 is damaged \(.+\)\. Restore a snapshot"
    ):
        replica.apply_batch(insert_change(good, "parcels", "q", data))

    assert list_all_records(replica) == before
    assert woken == []
    replica.apply_batch(good)
    assert replica.index == 5, "the same replica takes in the batch once it is whole"


@given(
    st.binary(max_size=60)
    | st.binary(max_size=30).map(lambda tail: encode_record(PARCELS, make_parcel("q", yard="n"))[:9] + tail)
)
def test_any_bytes_decode_to_a_record_or_are_reported_as_damaged_or_newer(data: bytes) -> None:
    replica = make_filled_replica()
    before = list_all_records(replica)
    try:
        replica.apply_batch(Batch(5, "w", "test", CAUSE, [EncodedChange("parcels", "q", data)]))
    except (DamagedRecord, NewerFormat):
        assert list_all_records(replica) == before
    else:
        parcel = replica.get(PARCELS, "q")
        assert parcel is not None
        assert parcel.modify_index == 5


def test_a_record_of_a_newer_schema_version_is_rejected_with_the_remedy() -> None:
    replica = make_filled_replica()
    before = list_all_records(replica)
    sentence = "a record of parcels has schema version 2; this program reads up to 1. Start a newer wharf on this data."

    with pytest.raises(NewerFormat, match=f"^{re.escape(sentence)}$"):
        replica.apply_batch(
            insert_change(make_batch(5, CRATES.build_delete("north", "a")), "parcels", "q", b"\x02whatever it may be")
        )

    assert list_all_records(replica) == before


def test_an_unknown_table_is_rejected_with_the_remedy() -> None:
    replica = make_filled_replica()
    before = list_all_records(replica)
    sentence = "the log has a table 'hovercrafts' that this version of wharf does not know. Start a newer version on this data."

    with pytest.raises(NewerFormat, match=f"^{re.escape(sentence)}$"):
        replica.apply_batch(insert_change(make_batch(5, CRATES.build_delete("north", "a")), "hovercrafts", "eel", None))
    with pytest.raises(NewerFormat, match=f"^{re.escape(sentence)}$"):
        replica.load_state([StoredRecord("hovercrafts", "eel", 5, b"\x80")], LogPosition(5, {}))

    assert list_all_records(replica) == before


@pytest.mark.parametrize("index", [3, 4])
def test_a_batch_that_is_not_newer_than_the_replica_is_rejected(index: int) -> None:
    replica = make_filled_replica()
    before = list_all_records(replica)

    with pytest.raises(OutOfOrder, match=f"^batch {index} arrived after batch 4$"):
        replica.apply_batch(make_batch(index, CRATES.build_delete("north", "a")))

    assert list_all_records(replica) == before


def test_indexes_of_batches_may_have_gaps() -> None:
    replica = make_filled_replica()

    replica.apply_batch(make_batch(4_000_000_000_000, CRATES.build_put(make_crate("a"))))

    assert (replica.index, replica.get_version(CRATES, "north", "a")) == (4_000_000_000_000, 4_000_000_000_000)


# -- older formats -------------------------------------------------------------------------------------------------

CRATES_BY_OWNER_NOW = Index[Crate]("owner", "owner")
CRATES_NOW = Table(
    "crates",
    Crate,
    key=("yard", "name"),
    indexes=(CRATES_BY_OWNER_NOW,),
    migrations=(
        SchemaMigration(
            since_format=4,
            upgrade=lambda crate: {**crate, "Owner": crate["Holder"]["Name"]},
            downgrade=lambda crate: {**crate, "Holder": {"Name": crate["Owner"]}},
        ),
        SchemaMigration(
            since_format=6,
            upgrade=lambda crate: {**crate, "Weight": crate["Weight"] * 1_000},
            downgrade=lambda crate: {**crate, "Weight": crate["Weight"] // 1_000},
        ),
    ),
)


def encode_in_version(version: int, record: dict[str, Any]) -> bytes:
    data = msgspec.msgpack.encode(record)
    return data if version == 1 else bytes([version]) + data


IN_EVERY_FORMAT = {
    1: encode_in_version(
        1, {"Yard": "north", "Name": "a", "Holder": {"Name": "ann"}, "Weight": 7, "CreateIndex": WRITE_INDEX}
    ),
    2: encode_in_version(2, {"Yard": "north", "Name": "a", "Owner": "ann", "Weight": 7, "CreateIndex": WRITE_INDEX}),
    3: encode_record(CRATES_NOW, make_crate("a", owner="ann", weight=7_000)),
}


@pytest.mark.parametrize("version", IN_EVERY_FORMAT)
def test_a_record_of_any_older_schema_version_is_upgraded_when_read(version: int) -> None:
    replica = Replica([CRATES_NOW])

    replica.apply_batch(Batch(2, "w", "test", CAUSE, [EncodedChange("crates", "north\0a", IN_EVERY_FORMAT[version])]))

    assert [plain(crate) for crate in replica.list_by_index(CRATES_BY_OWNER_NOW, "ann")] == [
        plain(make_crate("a", owner="ann", weight=7_000, create_index=2, modify_index=2))
    ]


def test_an_older_record_that_its_upgrade_cannot_read_is_damaged() -> None:
    replica = Replica([CRATES_NOW])

    with pytest.raises(DamagedRecord, match="'Holder'"):
        replica.apply_batch(
            Batch(2, "w", "test", CAUSE, [EncodedChange("crates", "north\0a", encode_in_version(1, {"Yard": "north"}))])
        )


@pytest.mark.parametrize(("cluster_format", "form"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (99, 3)])
def test_a_record_is_written_in_the_newest_schema_version_that_the_format_allows(
    cluster_format: int, form: int
) -> None:
    data = encode_record(CRATES_NOW, make_crate("a", owner="ann", weight=7_000), cluster_format=cluster_format)

    assert (data[0] if data[0] < 0x80 else 1) == form


@pytest.mark.parametrize("cluster_format", [1, 4, 6])
def test_a_record_written_in_an_older_schema_version_is_read_back_unchanged(cluster_format: int) -> None:
    replica = Replica([CRATES_NOW])
    data = encode_record(CRATES_NOW, make_crate("a", owner="ann", weight=7_000), cluster_format=cluster_format)

    replica.apply_batch(Batch(2, "w", "test", CAUSE, [EncodedChange("crates", "north\0a", data)]))

    assert [plain(crate) for crate in replica.iter_all(CRATES_NOW)] == [
        plain(make_crate("a", owner="ann", weight=7_000, create_index=2, modify_index=2))
    ]


def test_a_table_that_older_servers_do_not_know_is_not_written_before_the_format_is_raised() -> None:
    table = Table("crates", Crate, key=("yard", "name"), since_format=5)

    with pytest.raises(FormatNotRaised, match="exist from format 5 on, and the cluster is at 4"):
        encode_record(table, make_crate("a"), cluster_format=4)


def test_a_table_lists_its_migrations_in_the_order_of_their_formats() -> None:
    def same(crate: dict[str, Any]) -> dict[str, Any]:
        return crate

    with pytest.raises(AssertionError, match="in the order of their formats"):
        Table(
            "crates",
            Crate,
            key=("yard", "name"),
            migrations=(SchemaMigration(6, same, same), SchemaMigration(4, same, same)),
        )


# -- markers and sharing -------------------------------------------------------------------------------------------


def test_the_write_index_placeholder_is_replaced_in_every_allowed_field() -> None:
    seal, old_seal = Seal(number=1, sealed_index=WRITE_INDEX), Seal(number=2, sealed_index=3)
    crate = make_crate(
        "a", seal=seal, repairs=(old_seal, seal), seals_by_side={"left": (seal,)}, moved_index=WRITE_INDEX
    )
    expected = plain(
        make_crate(
            "a",
            seal=Seal(number=1, sealed_index=9),
            repairs=(old_seal, Seal(number=1, sealed_index=9)),
            seals_by_side={"left": (Seal(number=1, sealed_index=9),)},
            moved_index=9,
            create_index=9,
            modify_index=9,
        )
    )
    applied, loaded = make_replica(), make_replica()

    applied.apply_batch(make_batch(9, CRATES.build_put(crate)))
    loaded.load_state([make_stored_record(CRATES, 9, crate)], LogPosition(12, {"crates": 9}))

    assert plain(applied.get(CRATES, "north", "a")) == expected
    assert plain(loaded.get(CRATES, "north", "a")) == expected


def test_a_placeholder_becomes_the_original_write_index_after_a_restore_raised_the_version() -> None:
    replica = make_replica()
    row = make_stored_record(CRATES, 5, make_crate("a", seal=Seal(sealed_index=WRITE_INDEX), moved_index=3))

    replica.load_state(
        [StoredRecord(row.table, row.key, 1_005, row.data, row.version)],
        LogPosition(1_010, {"crates": 1_005}, 1, 1_001),
    )

    assert plain(replica.get(CRATES, "north", "a")) == plain(
        make_crate("a", seal=Seal(sealed_index=5), moved_index=3, create_index=5, modify_index=1_005)
    )


def test_equal_parts_of_many_records_are_one_object_even_after_a_load() -> None:
    replica = make_replica()
    tea = Contents(goods="tea", pieces=3)
    replica.apply_batch(
        make_batch(1, *(PARCELS.build_put(make_parcel(key, yard="north east", contents=tea)) for key in "ab"))
    )
    replica.load_state(
        [make_stored_record(PARCELS, 1, make_parcel(key, yard="north east", contents=tea)) for key in "abc"],
        LogPosition(2, {"parcels": 2}),
    )
    replica.apply_batch(make_batch(3, PARCELS.build_put(make_parcel("d", yard="north east", contents=tea))))
    parcels = replica.list_by_index_sorted(PARCELS_IN_YARD, "north east")

    assert [parcel.id for parcel in parcels] == ["a", "b", "c", "d"]
    assert len({id(parcel.contents) for parcel in parcels}) == 1
    assert len({id(parcel.yard) for parcel in parcels}) == 1
    assert parcels[0].contents == tea


def test_a_shared_value_may_be_missing_or_null() -> None:
    replica = make_replica()
    null = b"\x82\xa2ID\xa1b\xa8Contents\xc0"

    replica.apply_batch(insert_change(make_batch(1, PARCELS.build_put(make_parcel("a"))), "parcels", "b", null))

    assert [parcel.contents for parcel in replica.iter_all(PARCELS)] == [None, None]


# -- the last change of a table ------------------------------------------------------------------------------------


def test_the_first_batch_sets_the_last_change_of_every_table() -> None:
    replica = make_replica()

    replica.apply_batch(make_batch(1, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    assert [replica.get_last_change(table) for table in TABLES] == [1, 1, 1]


def test_a_delete_raises_the_last_change_of_its_table_only() -> None:
    replica = make_filled_replica()

    replica.apply_batch(make_batch(6, CRATES.build_delete("north", "a")))

    assert [replica.get_last_change(table) for table in (CRATES, PARCELS, NOTICE)] == [6, 4, 1]


def test_a_load_never_lowers_a_last_change() -> None:
    replica = make_filled_replica()
    replica.apply_batch(make_batch(6, CRATES.build_delete("north", "a")))

    replica.load_state([], LogPosition(7, {"crates": 5, "parcels": 7}))

    assert [replica.get_last_change(table) for table in (CRATES, PARCELS, NOTICE)] == [6, 7, 1]


def test_a_replica_that_loads_after_a_delete_knows_the_last_change() -> None:
    replica = make_replica()

    replica.load_state([], LogPosition(7, {"crates": 6}))

    assert [replica.get_last_change(table) for table in (CRATES, PARCELS, NOTICE)] == [6, 1, 1]


# -- loads ---------------------------------------------------------------------------------------------------------


def test_readers_see_the_old_state_until_a_load_is_finished() -> None:
    replica = make_filled_replica()
    before = list_all_records(replica)
    loading = ReplicaLoad(replica)
    loading.add_records([make_stored_record(CRATES, 9, make_crate("z"))])
    finishing = loading.finish_in_steps(LogPosition(9, {"crates": 9}))

    assert list_all_records(replica) == before
    next(finishing, None)
    assert (replica.index, [crate.name for crate in replica.iter_all(CRATES)]) == (9, ["z"])


def test_a_load_with_a_damaged_record_leaves_the_state_unchanged() -> None:
    replica = make_filled_replica()
    before = list_all_records(replica)

    with pytest.raises(DamagedRecord):
        replica.load_state(
            [make_stored_record(CRATES, 9, make_crate("z")), StoredRecord("crates", "north\0y", 9, b"\x81")],
            LogPosition(9, {}),
        )

    assert list_all_records(replica) == before


def test_a_load_older_than_the_replica_is_rejected() -> None:
    """Readers have seen index 4 already; nothing lower may be answered in the same epoch."""
    replica = make_filled_replica()
    before = list_all_records(replica)

    with pytest.raises(OutOfOrder, match=r"^a load of index 3 arrived after batch 4$"):
        replica.load_state([make_stored_record(CRATES, 3, make_crate("z"))], LogPosition(3, {"crates": 3}))

    assert list_all_records(replica) == before


def test_in_a_new_epoch_no_last_change_falls_below_an_earlier_one() -> None:
    replica = make_filled_replica()
    last_changes = [replica.get_last_change(table) for table in TABLES]

    replica.load_state([make_stored_record(CRATES, 9, make_crate("z"))], LogPosition(9, {"crates": 9}, 1))

    assert (max(last_changes), [replica.get_last_change(table) for table in TABLES]) == (4, [9] * len(TABLES))


def test_a_load_of_a_new_epoch_may_have_a_smaller_index() -> None:
    replica = make_filled_replica()

    replica.load_state([make_stored_record(CRATES, 2, make_crate("z"))], LogPosition(2, {"crates": 2}, 1, 2))

    assert (replica.index, replica.epoch, replica.epoch_since) == (2, 1, 2)
    assert [crate.name for crate in replica.iter_all(CRATES)] == ["z"]


def test_a_table_that_never_changed_keeps_the_index_of_its_epoch() -> None:
    replica = make_filled_replica()
    replica.load_state([make_stored_record(CRATES, 9, make_crate("z"))], LogPosition(9, {"crates": 9}, 1))

    replica.load_state([make_stored_record(CRATES, 20, make_crate("z"))], LogPosition(20, {"crates": 20}, 1))

    assert (replica.get_last_change(CRATES), replica.get_last_change(PARCELS)) == (20, 9)


def test_replicas_that_load_a_new_epoch_at_different_times_agree_on_unchanged_tables() -> None:
    early, late = make_filled_replica(), Replica(TABLES)

    early.load_state([make_stored_record(CRATES, 9, make_crate("z"))], LogPosition(9, {"crates": 9}, 1, 7))
    late.load_state([make_stored_record(CRATES, 20, make_crate("z"))], LogPosition(20, {"crates": 20}, 1, 7))

    assert (7, 7) == (early.get_last_change(PARCELS), late.get_last_change(PARCELS))


def test_batches_can_be_applied_after_a_load() -> None:
    replica = make_replica()
    replica.load_state([make_stored_record(CRATES, 5, make_crate("a", owner="ann"))], LogPosition(9, {"crates": 5}))

    replica.apply_batch(
        make_batch(10, CRATES.build_put(make_crate("a", owner="bob")), CRATES.build_put(make_crate("b", owner="ann")))
    )

    assert [crate.name for crate in replica.list_by_index(CRATES_OF_OWNER, "north", "ann")] == ["b"]
    assert [crate.name for crate in replica.iter_all(CRATES)] == ["a", "b"]
