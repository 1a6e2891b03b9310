"""Declarations of tables: record type, key, indexes and order. A new table needs one declaration and no other code.

The records themselves are stored in `TableRecords`.
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
    """A secondary index: finds records by the value of an attribute, or by the tuple of several attributes.

    A record whose last attribute is empty is not in the index: nobody lists, for example, the allocations without a
    deployment. `compute_value` replaces the attributes; if it returns `None`, the record is not in the index. It must not
    raise for any record that can be decoded, because it is called while a batch is applied.
    """

    __slots__ = ("attributes", "get_value", "is_composite", "name", "table")

    def __init__(self, name: str, *attributes: str, compute_value: Callable[[R], Hashable] | None = None) -> None:
        assert bool(attributes) != bool(compute_value), f"index {name} is over attributes or computed, one of the two"
        self.name = name
        self.attributes = attributes
        self.get_value: Callable[[R], Hashable] = compute_value or attrgetter(*attributes)
        self.table = ""  # Set by the table that declares the index.
        self.is_composite = len(attributes) > 1
        """Whether values are tuples, whose last part may be empty."""

    def __repr__(self) -> str:
        return f"Index({self.table}.{self.name})"


PlainRecord = dict[str, Any]
"""A record as plain maps and lists, as decoded without a type."""


class SchemaMigration(NamedTuple):
    """A new schema version of a table's records. It may be written once the cluster's format (`RecordFormat`) allows it."""

    since_format: int
    """The first format that allows this version: from it on every server can read it."""
    upgrade: Callable[[PlainRecord], PlainRecord]
    """Converts a record of the previous version to this one."""
    downgrade: Callable[[PlainRecord], PlainRecord]
    """Converts a record of this version to the previous one, for servers that do not know this one."""


class Table(Generic[R]):
    """A kind of record, and how its records are stored in the log and in memory.

    `key`: the attributes that identify a record. Without any, the table has a single record, whose key is the table name.
    `write_index_fields`: fields that may contain `WRITE_INDEX`, the placeholder for the index of the write. A dotted path
    names a field of a nested record, or of a list or map of records.
    Three settings save memory where many records have equal values:
    `interned_fields`: texts, such as a node's name. Equal texts of all tables are one object.
    `shared_fields`: structs, such as the resources of a group's allocations. A cache by encoded bytes returns one object
    for equal values of this table.
    `recurring_fields`: values that seldom differ from one of three values: that of the previous record with this key, the
    last one of this field in the table, and that of the record that `relative_key` names. If the values are equal, the new
    record refers to that object. `relative_key` is a table and a function that returns the key in it.
    `packed_fields`: fields with a map that is rarely read (task states). It is stored as bytes and decoded on each read.
    `is_adopted`: the process that wrote a record uses it without decoding it again (`RecordDecoder.adopt_record`). Meant
    for tables with many writes. Their records must consist of the types that a decoder produces: tuples, enums, structs.
    `since_format`: the first cluster format in which the table may be written. Servers of older formats do not know it.
    `migrations`: all changes of the record's schema, oldest first.
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
        self.get_key = _make_key_reader(name, key)
        self.indexes = indexes
        self.order = order
        self.write_index_fields = write_index_fields
        self.interned_fields = interned_fields
        self.shared_fields = dict(shared_fields or {})
        self.packed_fields = dict(packed_fields or {})
        assert len(recurring_fields) != 1, "recurring_fields needs two or more fields, because they are read as a tuple"
        self.recurring_fields = recurring_fields
        self.relative_key = relative_key
        self.is_adopted = is_adopted
        self.since_format = since_format
        self.migrations = migrations
        self.schema_version = 1 + len(migrations)
        """The newest schema version, counted from 1."""
        formats = [since_format, *(migration.since_format for migration in migrations)]
        assert formats == sorted(set(formats)), f"table {name} must list its migrations in the order of their formats"
        assert all(path.count(".") <= 1 for path in write_index_fields), (
            f"table {name} has a write index field nested too deep"
        )
        assert not {path.partition(".")[0] for path in write_index_fields} & set(recurring_fields), (
            f"table {name} has a field that is both a write index field and recurring"
        )
        for index in indexes:
            index.table = name
        missing = [
            attribute for attribute in self._list_named_attributes() if attribute not in record_type.__struct_fields__
        ]
        assert not missing, f"table {name} names attributes that {record_type.__name__} does not have: {missing}"

    def _list_named_attributes(self) -> list[str]:
        """Return all record attributes that the declaration mentions."""
        attributes = [*self.key_attributes, *(path.partition(".")[0] for path in self.write_index_fields)]
        attributes += [*self.interned_fields, *self.shared_fields, *self.packed_fields, *self.recurring_fields]
        attributes += [attribute for index in self.indexes for attribute in index.attributes]
        return [*attributes, "create_index", "modify_index"]

    def get_schema_version(self, cluster_format: int) -> int:
        """Return the schema version to write while this format is active; 0 if the table may not be written yet."""
        if cluster_format < self.since_format:
            return 0
        return 1 + sum(migration.since_format <= cluster_format for migration in self.migrations)

    def build_put(self, record: R) -> PutRecord:
        """Return the change that stores this record."""
        return PutRecord(self.name, self.get_key(record), record)

    def build_delete(self, *key: str | int) -> DeleteRecord:
        """Return the change that deletes the record under this key."""
        return DeleteRecord(self.name, self.build_key(*key))

    def build_key(self, *key: str | int) -> str:
        """Return the key made of these parts; without parts, the key of the table's only record."""
        if len(key) == 1 and type(key_part := key[0]) is str:
            return key_part  # The most frequent case.
        if len(key) == 2 and type(key[0]) is str and type(key[1]) is str:
            return key[0] + KEY_SEPARATOR + key[1]  # The next most frequent case.
        return join_key(*map(format_key_part, key)) if key else self.name

    def __repr__(self) -> str:
        return f"Table({self.name})"


def _make_key_reader(table: str, attributes: tuple[str, ...]) -> Callable[[Any], str]:
    """Return a function that reads the key from a record."""
    if not attributes:
        return lambda _record: table
    if len(attributes) == 1:
        return attrgetter(attributes[0])
    read = attrgetter(*attributes)
    return lambda record: join_key(*map(format_key_part, read(record)))


def format_key_part(value: str | int) -> str:
    """Return a part of a key as text. Numbers are padded with zeros, so that their texts sort like the numbers."""
    return value if isinstance(value, str) else f"{value:020d}"
