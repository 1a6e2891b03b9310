"""Small tables that use every feature of a declaration, and helpers to write and read them.

The model that tests compare with is a dict of records by key for each table. Records are plain dicts.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import strategies as st

from wharf.cluster.state import Index, ListOrder, Replica, Table
from wharf.cluster.state.codec import encode_record
from wharf.contract.model.log import WRITE_INDEX, Batch, Cause, CauseKind, DeleteRecord, PutRecord, StoredRecord, Write
from wharf.contract.model.record import Record, SparseRecord


class Contents(Record):
    """The contents of a parcel: a shared field. Equal values of several parcels are decoded once."""

    goods: str = ""
    pieces: int = 0


class Stop(Record):
    """A stop of a parcel: a packed field, decoded only when it is read."""

    yard: str = ""
    day: int = 0


if TYPE_CHECKING:
    SharedContents = Contents | None
    PackedStops = Mapping[str, Stop] | None
else:
    SharedContents = msgspec.Raw
    PackedStops = msgspec.Raw


class Seal(Record):
    """A seal of a crate, with a write index of its own."""

    number: int = 0
    sealed_index: int = 0


class Crate(Record):
    """A record of a table in the order of its keys. The key has two parts."""

    yard: str
    name: str
    owner: str = ""
    colour: str = ""
    weight: int = 0
    seal: Seal | None = None
    repairs: tuple[Seal, ...] | None = None
    seals_by_side: dict[str, tuple[Seal, ...]] | None = None
    moved_index: int = 0
    create_index: int = 0
    modify_index: int = 0


class Parcel(SparseRecord):
    """A record of a table in the order of creation."""

    id: str
    yard: str = ""
    owner: str = ""
    contents: SharedContents = None
    stops: PackedStops = None
    create_index: int = 0
    modify_index: int = 0


class Notice(Record):
    """The only record of its table."""

    text: str = ""
    create_index: int = 0
    modify_index: int = 0


CRATES_OF_OWNER = Index[Crate]("owner", "yard", "owner")
CRATES_BY_COLOUR = Index[Crate]("colour", "colour")
CRATES_BY_SIZE = Index[Crate]("size", compute_value=lambda crate: ("big", crate.weight) if crate.weight > 1 else None)
CRATES = Table(
    "crates",
    Crate,
    key=("yard", "name"),
    indexes=(CRATES_OF_OWNER, CRATES_BY_COLOUR, CRATES_BY_SIZE),
    write_index_fields=(
        "create_index",
        "moved_index",
        "seal.sealed_index",
        "repairs.sealed_index",
        "seals_by_side.sealed_index",
    ),
    interned_fields=("yard", "owner", "colour"),
)
PARCELS_OF_OWNER = Index[Parcel]("owner", "yard", "owner")
PARCELS_IN_YARD = Index[Parcel]("yard", "yard")
PARCELS = Table(
    "parcels",
    Parcel,
    key=("id",),
    indexes=(PARCELS_OF_OWNER, PARCELS_IN_YARD),
    order=ListOrder.CREATED,
    interned_fields=("yard", "owner"),
    shared_fields={"contents": Contents},
    packed_fields={"stops": dict[str, Stop]},
)
NOTICE = Table("notice", Notice, key=())
TABLES: tuple[Table[Any], ...] = (CRATES, PARCELS, NOTICE)
INDEXES: tuple[Index[Any], ...] = tuple(index for table in TABLES for index in table.indexes)

Plain = dict[str, Any]
Model = dict[str, dict[str, Plain]]


# -- records and batches for tests without generated data ----------------------------------------------------------------------


def make_replica() -> Replica:
    return Replica(TABLES)


def make_crate(name: str, yard: str = "north", **fields: Any) -> Crate:  # The fields are those of the record.
    return Crate(yard=yard, name=name, **{"create_index": WRITE_INDEX, **fields})


def make_parcel(id: str, **fields: Any) -> Parcel:
    return Parcel(id=id, **{"create_index": WRITE_INDEX, **fields})


def make_write(*changes: PutRecord | DeleteRecord, conditions: Sequence[Any] = ()) -> Write:
    return Write("test", Cause(CauseKind.REQUEST), changes, conditions)


def make_batch(index: int, *changes: PutRecord | DeleteRecord) -> Batch:
    logged = _ENCODER.encode_write(make_write(*changes), write_id=f"write-{index}")
    return Batch(index, logged.id, logged.kind, logged.cause, logged.changes)


_ENCODER = Replica(TABLES)  # Used only to encode writes.


def make_stored_record(table: Table[Any], version: int, record: msgspec.Struct) -> StoredRecord:
    return StoredRecord(table.name, table.get_key(record), version, encode_record(table, record))


def plain(record: msgspec.Struct | None) -> Plain | None:
    """Return a record as a dict of its attributes, with builtins only."""
    if record is None:
        return None
    return {name: _plain(getattr(record, name)) for name in record.__struct_fields__}


def _plain(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return plain(value)
        case tuple():
            return [_plain(part) for part in value]
        case Mapping():
            return {name: _plain(part) for name, part in value.items()}
        case _:
            return value


# -- generated batches ---------------------------------------------------------------------------------------------

yards = st.sampled_from(["", "n", "north", "north-east", "nort\U0010ffff"])
names = st.sampled_from(["", "a", "ab", "abc", "b", "ba", "\U0010ffff", "\U0010ffff\U0010ffff", "zz"])
owners = st.sampled_from(["", "ann", "bob"])
indexes = st.sampled_from([WRITE_INDEX, 1, 2, 3])
seals = st.builds(Seal, number=st.integers(0, 3), sealed_index=indexes)
crates = st.builds(
    Crate,
    yard=yards,
    name=names,
    owner=owners,
    colour=st.sampled_from(["", "red", "blue"]),
    weight=st.integers(0, 3),
    seal=st.none() | seals,
    repairs=st.none() | st.lists(seals, max_size=2).map(tuple),
    seals_by_side=st.none() | st.dictionaries(st.sampled_from(["left", "right"]), st.tuples(seals), max_size=2),
    moved_index=indexes,
    create_index=indexes,
)
parcels = st.builds(
    Parcel,
    id=names,
    yard=yards,
    owner=owners,
    contents=st.none() | st.builds(Contents, goods=st.sampled_from(["tea", "salt"]), pieces=st.integers(0, 1)),
    stops=st.none()
    | st.dictionaries(st.sampled_from(["first", "last"]), st.builds(Stop, yard=yards, day=st.integers(0, 2))),
    create_index=indexes,
)
notices = st.builds(Notice, text=owners, create_index=indexes)
puts: st.SearchStrategy[PutRecord | DeleteRecord] = st.one_of(
    crates.map(CRATES.build_put), parcels.map(PARCELS.build_put), notices.map(NOTICE.build_put)
)
drops: st.SearchStrategy[PutRecord | DeleteRecord] = st.one_of(
    st.tuples(yards, names).map(lambda key: CRATES.build_delete(*key)),
    names.map(PARCELS.build_delete),
    st.just(NOTICE.build_delete()),
)
batches_of_changes = st.lists(puts | drops, min_size=1, max_size=6, unique_by=lambda change: (change.table, change.key))


# -- the model -----------------------------------------------------------------------------------------------------


def make_empty_model() -> Model:
    return {table.name: {} for table in TABLES}


def apply_changes(model: Model, index: int, changes: Sequence[PutRecord | DeleteRecord]) -> Model:
    """Return the model after these changes at this index."""
    after = copy.deepcopy(model)
    for change in changes:
        after[change.table].pop(change.key, None)
        if isinstance(change, PutRecord):
            record = _with_index(plain(change.record), index)
            record["modify_index"] = index
            after[change.table][change.key] = record
    return after


def _with_index(value: Any, index: int) -> Any:
    """Return the value with the index in place of each `WRITE_INDEX`. No other number in these records is equal to it."""
    match value:
        case dict():
            return {name: _with_index(part, index) for name, part in value.items()}
        case list() | tuple():
            return [_with_index(part, index) for part in value]
        case int() if value == WRITE_INDEX:
            return index
        case _:
            return value


def compute_index_value(index: Index[Any], record: Plain) -> Any:
    """Return the value of a record in an index, from its declaration; None: the record is not in the index."""
    if index is CRATES_BY_SIZE:
        return ("big", record["weight"]) if record["weight"] > 1 else None
    values = tuple(record[attribute] for attribute in index.attributes)
    if not values[-1]:
        return None
    return values if len(values) > 1 else values[0]


def as_arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
