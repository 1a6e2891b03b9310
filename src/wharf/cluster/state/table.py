"""How a table is declared: its record, its key, its indexes, its order. Adding a table is one declaration.

A declaration says nothing of rows; the replica keeps those (`rows`).
"""

import enum
from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from wharf.contract.model.log import KEY_SEPARATOR, DeleteRecord, PutRecord, join_key

R = TypeVar("R", bound=msgspec.Struct)


class ListOrder(enum.Enum):
    """The order in which a table is listed."""

    KEY = "key"
    CREATED = "created"  # by CreateIndex, then key


class Index(Generic[R]):
    """A secondary index: the records that agree in some attributes. Its value is the attribute, or a tuple of several.

    A record whose last attribute is empty is left out: nobody asks for the allocations of no deployment. Where no
    attribute holds the value, `computed` gives it; None leaves the record out. It must have an answer for every record
    that can be decoded: it is asked in the middle of a batch.
    """

    __slots__ = ("attributes", "get_value", "is_composite", "name", "table")

    def __init__(self, name: str, *attributes: str, compute_value: Callable[[R], Hashable] | None = None) -> None:
        assert bool(attributes) != bool(compute_value), f"index {name} is over attributes or computed, one of the two"
        self.name = name
        self.attributes = attributes
        self.get_value: Callable[[R], Hashable] = compute_value or attrgetter(*attributes)
        self.table = ""  # Told by the table that declares it.
        self.is_composite = len(attributes) > 1
        """Its values are tuples, of which the last part may be empty."""

    def __repr__(self) -> str:
        return f"Index({self.table}.{self.name})"


PlainRecord = dict[str, Any]
"""A record as the maps and lists that its bytes hold."""


class SchemaMigration(NamedTuple):
    """A later form of a table's records. The cluster's format says which form may be written (`model.cluster.Format`)."""

    since_format: int
    """The format from which on every server can read this form."""
    upgrade: Callable[[PlainRecord], PlainRecord]
    """From the form before."""
    downgrade: Callable[[PlainRecord], PlainRecord]
    """Back to the form before, for servers that know no newer one."""


class Table(Generic[R]):
    """One kind of record and how it is kept.

    `key`: the attributes that identify a record; with none, the table's only record stands under the table's name.
    `stamped`: index fields that may hold THIS; a dotted path reaches into a field's record, list or map of records.
    `interned`: fields whose texts recur in many records, kept once.
    `shared`: fields whose whole value recurs (resources of one group's placements), decoded once and shared.
    `packed`: fields with a map that is seldom read (states of tasks), kept as its bytes and decoded by whoever reads it.
    `recurring`: fields whose value is mostly that of a relative (the record before under the key, the last one taken in,
    and the one that `kin` names, by its table and its key): they hold one value then, not several that are equal.
    `is_adopted`: whoever wrote a record takes it in as it was decided, without decoding it again (`Decoder.adopted`). For
    what is written by the thousand; what it is made of must be what a decoder makes: tuples, enums, structs.
    `since`: the cluster's format from which on the table may be written; servers of older formats do not know it.
    `forms`: every change of the record's form since the first, oldest first.
    """

    __slots__ = (
        "get_key",
        "indexes",
        "interned_fields",
        "is_adopted",
        "key_attributes",
        "migrations",
        "name",
        "order",
        "packed_fields",
        "record_type",
        "recurring_fields",
        "relative_key",
        "schema_version",
        "shared_fields",
        "since_format",
        "write_index_fields",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        record_type: type[R],
        *,
        key: tuple[str, ...],
        indexes: tuple[Index[R], ...] = (),
        order: ListOrder = ListOrder.KEY,
        write_index_fields: tuple[str, ...] = ("create_index",),
        interned_fields: tuple[str, ...] = (),
        shared_fields: Mapping[str, Any] | None = None,
        packed_fields: Mapping[str, Any] | None = None,
        recurring_fields: tuple[str, ...] = (),
        relative_key: tuple[str, Callable[[R], str]] | None = None,
        is_adopted: bool = False,
        since_format: int = 1,
        migrations: tuple[SchemaMigration, ...] = (),
    ) -> None:
        self.name = name
        self.record_type = record_type
        self.key_attributes = key
        self.get_key = _key_reader(name, key)
        self.indexes = indexes
        self.order = order
        self.write_index_fields = write_index_fields
        self.interned_fields = interned_fields
        self.shared_fields = dict(shared_fields or {})
        self.packed_fields = dict(packed_fields or {})
        assert len(recurring_fields) != 1, "give two, or none: they are read together"
        self.recurring_fields = recurring_fields
        self.relative_key = relative_key
        self.is_adopted = is_adopted
        self.since_format = since_format
        self.migrations = migrations
        self.schema_version = 1 + len(migrations)
        """The newest form, counted from 1."""
        formats = [since_format, *(form.since_format for form in migrations)]
        assert formats == sorted(set(formats)), (
            f"table {name} needs its forms in the order of the formats they came with"
        )
        assert all(path.count(".") <= 1 for path in write_index_fields), f"table {name} stamps one level deep at most"
        assert not {path.partition(".")[0] for path in write_index_fields} & set(recurring_fields), (
            f"table {name} stamps what recurs"
        )
        for index in indexes:
            index.table = name
        missing = [a for a in self._attributes_named() if a not in record_type.__struct_fields__]
        assert not missing, f"table {name} names attributes that {record_type.__name__} does not have: {missing}"

    def _attributes_named(self) -> list[str]:
        named = [*self.key_attributes, *(path.partition(".")[0] for path in self.write_index_fields)]
        named += [*self.interned_fields, *self.shared_fields, *self.packed_fields, *self.recurring_fields]
        named += [attribute for index in self.indexes for attribute in index.attributes]
        return [*named, "create_index", "modify_index"]

    def get_schema_version(self, cluster_format: int) -> int:
        """The form that may be written while this format is in force; 0: the table does not exist yet."""
        if cluster_format < self.since_format:
            return 0
        return 1 + sum(form.since_format <= cluster_format for form in self.migrations)

    def build_put(self, record: R) -> PutRecord:
        """The change that stores this record."""
        return PutRecord(self.name, self.get_key(record), record)

    def build_delete(self, *key: str | int) -> DeleteRecord:
        """The change that removes the record under this key."""
        return DeleteRecord(self.name, self.build_key(*key))

    def build_key(self, *key: str | int) -> str:
        """The key from its parts; with none, that of the table's only record."""
        if len(key) == 1 and type(only := key[0]) is str:
            return only  # Nearly always.
        if len(key) == 2 and type(key[0]) is str and type(key[1]) is str:
            return key[0] + KEY_SEPARATOR + key[1]  # Nearly always, too.
        return join_key(*map(format_key_part, key)) if key else self.name

    def __repr__(self) -> str:
        return f"Table({self.name})"


def _key_reader(table: str, attributes: tuple[str, ...]) -> Callable[[Any], str]:
    if not attributes:
        return lambda _record: table
    if len(attributes) == 1:
        return attrgetter(attributes[0])
    read = attrgetter(*attributes)
    return lambda record: join_key(*map(format_key_part, read(record)))


def format_key_part(value: str | int) -> str:
    """A number becomes text that sorts as the number does."""
    return value if isinstance(value, str) else f"{value:020d}"
