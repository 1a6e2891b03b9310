"""Lists of records in a defined order, which handlers return. Filters, pages and rights are applied by `encoder`.

A page token names the first record of the next page. A record that is added or removed between two pages therefore
moves no other record to another page.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.cluster.api.lists.sorted_snapshot import SortedSnapshot
from wharf.cluster.api.requests.parameters import MAX_INDEX, QueryOptions
from wharf.cluster.api.requests.values import parse_id_prefix
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica, Table, WatchTarget
from wharf.cluster.state.table_snapshot import RecordPosition, TableSnapshot
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import invalid_request

R = TypeVar("R", bound=msgspec.Struct)

ALL_NAMESPACES: Final = "*"
MAX_INDEX_DIGITS: Final = 20
"""Limits the work of parsing the index in a page token."""


def return_record(record: Any) -> Any:
    """Return the record itself: the view of lists that show whole records."""
    return record


@dataclass(frozen=True, slots=True)
class ListCacheSpec:
    """How to store a whole list in the list cache and keep it up to date."""

    name: tuple[str, ...]
    """Lists with the same name have the same content."""
    table: Table[Any]
    prefix: str
    """The list has all records whose keys have this prefix."""
    is_by_creation: bool = False
    """Whether the list is ordered by create index instead of key."""
    is_selected: Callable[[Any], bool] | None = None
    """Selects records by fields that never change; `None` selects all."""
    dependency_table: Table[Any] | None = None
    """Holds, under the same keys, the records that the views of this table's records depend on."""

    @property
    def tables(self) -> list[Table[Any]]:
        """The tables that the list depends on."""
        return [self.table] if self.dependency_table is None else [self.table, self.dependency_table]

    def get_position(self, key: str, record: Any) -> Any:
        """Return the sort key of a record in the list: its table key, or its create index and table key."""
        return (record.create_index, key) if self.is_by_creation else key


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """An ordered list of records, and how to show them."""

    iterate: Callable[[str, bool], Iterable[R]]
    """Called with a page token ("" means the beginning) and whether to reverse; returns the records from there on."""
    make_token: Callable[[R], str]
    """Returns the page token that names a record."""
    index: int
    """The log index of the last change of the list's tables."""
    watched: Sequence[WatchTarget]
    """What a blocking query waits for."""
    build_view: Callable[[R], object] = return_record
    """Returns the list item of a record."""
    large_records: Mapping[int, R] | None = None
    """The records, by identity, whose items are measured before they are encoded, because they may be too large for one step.
    Measuring takes as long as encoding. `None`: the items of all records are measured. Lists whose items are small if their
    records are use those of the table (`TableRecords`); lists of whole records do so by default.
    """
    get_namespace: Callable[[R], str] | None = None
    """Set if records have namespaces. A list over all namespaces omits those that the caller may not read."""
    get_detail_namespace: Callable[[R], str] | None = None
    """Returns the namespace in which filters with fields that the list does not show need a permission
    (`ListFeatures.detail_need`); by default that of `get_namespace`."""
    is_visible: Callable[[R], bool] | None = None
    """Further condition for the caller to see a record."""
    prepare_visibility: Callable[[SlicedWork], Awaitable[Callable[[R], bool]]] | None = None
    """Returns a further condition as `is_visible`, after work in slices that all records share."""
    cache_name: str = ""
    """A name that is unique to these views; set if encoded records may be cached.

    Then a view may depend only on the record and on what `get_dependency` returns.
    """
    get_dependency: Callable[[R], object] | None = None
    build_reply: Callable[[list[R], SlicedWork], Awaitable[object]] | None = None
    """Builds the whole reply, in slices, if it is not a list of views: a count, for example, or groups."""
    open_snapshot: Callable[[str, bool], TableSnapshot[R]] | None = None
    """As `iterate`, but returns a snapshot, so that a long list can be read in slices. Without it, all records are read
    at once."""
    open_sorted: Callable[[str, bool], SortedSnapshot[R]] | None = None
    """As `open_snapshot`, for many records in an order that no table has. Then `iterate` is not called."""
    prepare_view: Callable[[Sequence[R], SlicedWork], Awaitable[Callable[[R], object]]] | None = None
    """Returns `build_view` for these records, after work in slices."""
    choose: Callable[[list[R]], list[R]] | None = None
    """Chooses some of the records that pass all tests. The page is taken from these."""
    is_selected: Callable[[R], bool] | None = None
    """Selects the records of `iterate` and `open_snapshot` that belong to the list."""
    dependency_table: Table[Any] | None = None
    """The table of the dependencies, which are stored there under the keys of the records."""
    base_cache_spec: ListCacheSpec | None = None
    """How to cache the whole list, if its views can be cached."""

    @property
    def cache_spec(self) -> ListCacheSpec | None:
        """How to cache the whole list, or `None` if it cannot be cached."""
        if (
            self.base_cache_spec is None
            or not self.cache_name
            or (self.get_dependency is not None and self.dependency_table is None)
        ):
            return None
        if (
            self.is_visible is not None
            or self.prepare_visibility is not None
            or self.build_reply is not None
            or (self.dependency_table is not None and self.base_cache_spec.is_by_creation)
        ):
            return None
        name = (self.cache_name, *self.base_cache_spec.name)
        return replace(
            self.base_cache_spec, name=name, is_selected=self.is_selected, dependency_table=self.dependency_table
        )


# -- orders --------------------------------------------------------------------------------------------------------


def list_by_namespace(
    replica: Replica, table: Table[R], options: QueryOptions, *more: Table[Any], **parts: Any
) -> Listing[R]:  # fmt: skip
    """Return the listing of a table by namespace, then id. A page token is `<namespace>.<id>`.

    `more`: further tables that the views read. `parts`: further fields of the `Listing`.
    """
    is_everywhere = options.namespace == ALL_NAMESPACES
    prefix = "" if is_everywhere else options.namespace + KEY_SEPARATOR + options.prefix
    get_name = attrgetter(table.key_attributes[1])

    def parse_token(token: str) -> str | None:
        namespace, _, name = token.partition(".")
        return namespace + KEY_SEPARATOR + name if token else None

    def iterate(token: str, reverse: bool) -> Iterable[R]:
        return replica.iter_by_key(table, prefix=prefix, start=parse_token(token), reverse=reverse)

    def open_snapshot(token: str, reverse: bool) -> TableSnapshot[R]:
        return TableSnapshot(
            replica, table, prefix=prefix, start=build_key_position(parse_token(token)), reverse=reverse
        )

    def has_prefix(record: R) -> bool:
        name: str = get_name(record)
        return name.startswith(options.prefix)

    def make_token(record: R) -> str:
        return f"{record.namespace}.{get_name(record)}"  # type: ignore[attr-defined]  # part of the key

    is_selected = has_prefix if is_everywhere and options.prefix else None
    return _build_listing(
        replica, (table, *more), iterate, make_token,
        open_snapshot=open_snapshot, is_selected=is_selected, get_namespace=attrgetter("namespace"),
        base_cache_spec=ListCacheSpec((prefix, options.prefix), table, prefix), **parts,
    )  # fmt: skip


def list_by_creation(
    replica: Replica, table: Table[R], options: QueryOptions, *more: Table[Any], error_prefix: str = "", **parts: Any
) -> Listing[R]:  # fmt: skip
    """Return the listing of a table by CreateIndex, then id. A page token is `<CreateIndex>.<id>`.

    With an id prefix, it is ordered by id and the token is the id. Raises `Refusal`, whose text begins with
    `error_prefix`, if the id prefix is invalid. `more`: further tables that the views read. `parts`: further fields of
    the `Listing`.
    """
    is_namespaced = "namespace" in table.record_type.__struct_fields__
    namespace = options.namespace if is_namespaced and options.namespace != ALL_NAMESPACES else None
    prefix = parse_id_prefix(options.prefix, error_prefix=error_prefix)

    def iterate(token: str, reverse: bool) -> Iterable[R]:
        if prefix:
            return replica.iter_by_key(table, prefix=prefix, start=token or None, reverse=reverse)
        return replica.iter_by_creation(table, start=_parse_creation_token(token), reverse=reverse)

    def open_snapshot(token: str, reverse: bool) -> TableSnapshot[R]:
        if prefix:
            return TableSnapshot(replica, table, prefix=prefix, start=build_key_position(token), reverse=reverse)
        return TableSnapshot(replica, table, by_creation=True, start=_parse_creation_token(token), reverse=reverse)

    def is_in_namespace(record: R) -> bool:
        return record.namespace == namespace  # type: ignore[attr-defined,no-any-return]  # used only if it has one

    def make_token(record: R) -> str:
        key = table.get_key(record)
        return key if prefix else f"{record.create_index}.{key}"  # type: ignore[attr-defined]

    get_namespace = attrgetter("namespace") if is_namespaced else None
    is_selected = None if namespace is None else is_in_namespace
    return _build_listing(
        replica, (table, *more), iterate, make_token,
        open_snapshot=open_snapshot, is_selected=is_selected, get_namespace=get_namespace,
        base_cache_spec=ListCacheSpec((prefix, namespace or ""), table, prefix, is_by_creation=not prefix), **parts,
    )  # fmt: skip


def list_by_name(
    replica: Replica, table: Table[R], options: QueryOptions, *more: Table[Any], **parts: Any
) -> Listing[R]:
    """Return the listing of a table by key, for tables whose key has one part: a name or an id. The key is the page
    token.

    `more`: further tables that the views read. `parts`: further fields of the `Listing`.
    """

    def iterate(token: str, reverse: bool) -> Iterable[R]:
        return replica.iter_by_key(table, prefix=options.prefix, start=token or None, reverse=reverse)

    def open_snapshot(token: str, reverse: bool) -> TableSnapshot[R]:
        return TableSnapshot(replica, table, prefix=options.prefix, start=build_key_position(token), reverse=reverse)

    return _build_listing(replica, (table, *more), iterate, table.get_key, open_snapshot=open_snapshot, **parts)


def list_records(
    records: Iterable[R], *, index: int, watched: Sequence[WatchTarget], make_token: Callable[[R], str], **parts: Any
) -> Listing[R]:  # fmt: skip
    """Return the listing of records that were read already, ordered by their page tokens as text.

    `parts`: further fields of the `Listing`.
    """
    ordered = sorted(records, key=make_token)

    def iterate(token: str, reverse: bool) -> Iterable[R]:
        if not reverse:
            return dropwhile(lambda record: make_token(record) < token, ordered)
        return dropwhile(lambda record: token != "" and make_token(record) > token, reversed(ordered))

    return Listing(iterate, make_token, index, watched, **parts)


def _build_listing(
    replica: Replica,
    tables: Sequence[Table[Any]],
    iterate: Callable[[str, bool], Iterable[R]],
    make_token: Callable[[R], str],
    **parts: Any,
) -> Listing[R]:
    """Return the listing with the index and watch targets of the tables, the first of which holds the records.

    `parts`: further fields of the `Listing`.
    """
    if "build_view" not in parts and "prepare_view" not in parts:
        parts.setdefault("large_records", replica.get_table_records(tables[0]).large_records)
    return Listing(
        iterate, make_token, replica.get_last_change(*tables), [watch_table(table) for table in tables], **parts
    )


def build_key_position(key: str | None) -> RecordPosition | None:
    """Return the position of a table key for a `TableSnapshot`; `None`, the beginning, if there is no key."""
    return (0, key) if key else None


def _parse_creation_token(token: str) -> tuple[int, str] | None:
    """Return the create index and id in a page token `<CreateIndex>.<id>`, or `None` if the token is empty.

    Text that is not a number means create index 0. Raises `Refusal` if the number is no log index.
    """
    if not token:
        return None
    number, _, key = token.partition(".")
    return parse_token_index(number), key


def parse_token_index(number: str) -> int:
    """Return the log index in a page token; 0 if the text is not a number. Raises `Refusal` if it is out of range."""
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return 0
    significant = digits.lstrip("0") or "0"
    if digits != number or len(significant) > MAX_INDEX_DIGITS or int(significant) > MAX_INDEX:
        raise invalid_request(f"next_token is out of range: it begins with a log index of at most {MAX_INDEX}")
    return int(significant)
