"""Lists: the records in their order from any place on, and the page of them that a request asks for.

A handler says what is listed, in which order and how a place in it is named; filter, page and rights are applied here,
the same for every list. A token names the first record of the next page, so what is added or removed between two
pages moves no other record from one page to another.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.cluster.api.requests.request import QueryOptions
from wharf.cluster.api.requests.values import parse_id_prefix
from wharf.cluster.state import Replica, Table, WatchTarget
from wharf.cluster.state import watches as watch
from wharf.cluster.state.table_snapshot import RecordPosition, TableSnapshot
from wharf.contract.model.log import KEY_SEPARATOR

R = TypeVar("R", bound=msgspec.Struct)

ALL_NAMESPACES: Final = "*"


def return_record(record: Any) -> Any:
    return record


@dataclass(frozen=True, slots=True)
class ListCacheSpec:
    """What makes a whole list one that may be kept and renewed (`rolls`): all records of a table whose keys begin with
    `prefix`, of those that `chooses` takes, which looks at nothing that changes in a record. What they rest on stands
    in `rests_in` under the same keys. Lists of one `name` hold the same."""

    name: tuple[str, ...]
    table: Table[Any]
    prefix: str
    is_by_creation: bool = False
    is_selected: Callable[[Any], bool] | None = None
    dependency_table: Table[Any] | None = None

    @property
    def tables(self) -> list[Table[Any]]:
        return [self.table] if self.dependency_table is None else [self.table, self.dependency_table]

    def get_position(self, key: str, record: Any) -> Any:
        return (record.create_index, key) if self.is_by_creation else key


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """`begin(token, reverse)`: the records in order, from the place that the token names; "" is the beginning.

    `namespace_of` is set where records lie in namespaces: of a request for all namespaces the spine shows those that
    the caller may read. `may_see` says what else the caller may see.

    `form`, with a name of its own, promises that what is `shown` depends on the record and on what it `rests_on` and on
    nothing else, and that it changes with the index: then it is encoded once for each version, and kept.

    `still` is the same from the same place, but as it stands now: a long list is read from it in slices. Where there is
    none, all records are taken at once. Of either, those count that `chooses` takes.

    `rests_in` is the table that holds, under the records' keys, what they rest on.

    `told` makes the whole reply of the records, where it is no list of them: a count, or groups.
    """

    iterate: Callable[[str, bool], Iterable[R]]
    make_token: Callable[[R], str]
    index: int
    watched: Sequence[WatchTarget]
    build_view: Callable[[R], object] = return_record
    get_namespace: Callable[[R], str] | None = None
    is_visible: Callable[[R], bool] | None = None
    cache_name: str = ""
    get_dependency: Callable[[R], object] | None = None
    build_reply: Callable[[list[R]], object] | None = None
    open_snapshot: Callable[[str, bool], TableSnapshot[R]] | None = None
    is_selected: Callable[[R], bool] | None = None
    dependency_table: Table[Any] | None = None
    base_cache_spec: ListCacheSpec | None = None

    @property
    def cache_spec(self) -> ListCacheSpec | None:
        """How the whole list may be kept; None: it may not."""
        if (
            self.base_cache_spec is None
            or not self.cache_name
            or (self.get_dependency is not None and self.dependency_table is None)
        ):
            return None
        if (
            self.is_visible is not None
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
    """By namespace, then id: `<namespace>.<id>`. `more`: tables that are read for what is shown."""
    everywhere = options.namespace == ALL_NAMESPACES
    prefix = "" if everywhere else options.namespace + KEY_SEPARATOR + options.prefix
    name_of = attrgetter(table.key_attributes[1])

    def start_of(token: str) -> str | None:
        namespace, _, name = token.partition(".")
        return namespace + KEY_SEPARATOR + name if token else None

    def begin(token: str, reverse: bool) -> Iterable[R]:
        return replica.iter_by_key(table, prefix=prefix, start=start_of(token), reverse=reverse)

    def still(token: str, reverse: bool) -> TableSnapshot[R]:
        return TableSnapshot(replica, table, prefix=prefix, start=build_key_position(start_of(token)), reverse=reverse)

    def has_prefix(record: R) -> bool:
        name: str = name_of(record)
        return name.startswith(options.prefix)

    def token_of(record: R) -> str:
        return f"{record.namespace}.{name_of(record)}"  # type: ignore[attr-defined]  # the table's key has it

    chooses = has_prefix if everywhere and options.prefix else None
    return _listing(
        replica, (table, *more), begin, token_of,
        open_snapshot=still, is_selected=chooses, get_namespace=attrgetter("namespace"),
        base_cache_spec=ListCacheSpec((prefix, options.prefix), table, prefix), **parts,
    )  # fmt: skip


def list_by_creation(
    replica: Replica, table: Table[R], options: QueryOptions, *more: Table[Any], error_prefix: str = "", **parts: Any
) -> Listing[R]:  # fmt: skip
    """By CreateIndex, then id: `<CreateIndex>.<id>`; with a prefix by id: `<id>`. `where` begins what is said of a
    prefix that is none."""
    is_namespaced = "namespace" in table.record_type.__struct_fields__
    only = options.namespace if is_namespaced and options.namespace != ALL_NAMESPACES else None
    prefix = parse_id_prefix(options.prefix, error_prefix=error_prefix)

    def begin(token: str, reverse: bool) -> Iterable[R]:
        if prefix:
            return replica.iter_by_key(table, prefix=prefix, start=token or None, reverse=reverse)
        return replica.iter_by_creation(table, start=_place(token), reverse=reverse)

    def still(token: str, reverse: bool) -> TableSnapshot[R]:
        if prefix:
            return TableSnapshot(replica, table, prefix=prefix, start=build_key_position(token), reverse=reverse)
        return TableSnapshot(replica, table, by_creation=True, start=_place(token), reverse=reverse)

    def is_in_namespace(record: R) -> bool:
        return record.namespace == only  # type: ignore[attr-defined,no-any-return]  # asked of those that have one

    def token_of(record: R) -> str:
        key = table.get_key(record)
        return key if prefix else f"{record.create_index}.{key}"  # type: ignore[attr-defined]

    namespace_of = attrgetter("namespace") if is_namespaced else None
    chooses = None if only is None else is_in_namespace
    return _listing(
        replica, (table, *more), begin, token_of,
        open_snapshot=still, is_selected=chooses, get_namespace=namespace_of,
        base_cache_spec=ListCacheSpec((prefix, only or ""), table, prefix, is_by_creation=not prefix), **parts,
    )  # fmt: skip


def list_by_name(
    replica: Replica, table: Table[R], options: QueryOptions, *more: Table[Any], **parts: Any
) -> Listing[R]:
    """By the one part of the key, which is the token: names, ids."""

    def begin(token: str, reverse: bool) -> Iterable[R]:
        return replica.iter_by_key(table, prefix=options.prefix, start=token or None, reverse=reverse)

    def still(token: str, reverse: bool) -> TableSnapshot[R]:
        return TableSnapshot(replica, table, prefix=options.prefix, start=build_key_position(token), reverse=reverse)

    return _listing(replica, (table, *more), begin, table.get_key, open_snapshot=still, **parts)


def list_records(
    records: Iterable[R], *, index: int, watched: Sequence[WatchTarget], make_token: Callable[[R], str], **parts: Any
) -> Listing[R]:  # fmt: skip
    """Records that were found by an index, in the order of their tokens, as text."""
    ordered = sorted(records, key=make_token)

    def begin(token: str, reverse: bool) -> Iterable[R]:
        if not reverse:
            return dropwhile(lambda record: make_token(record) < token, ordered)
        return dropwhile(lambda record: token != "" and make_token(record) > token, reversed(ordered))

    return Listing(begin, make_token, index, watched, **parts)


def _listing(
    replica: Replica,
    tables: Sequence[Table[Any]],
    begin: Callable[[str, bool], Iterable[R]],
    token_of: Callable[[R], str],
    **parts: Any,
) -> Listing[R]:
    return Listing(
        begin, token_of, replica.get_last_change(*tables), [watch.watch_table(table) for table in tables], **parts
    )


def build_key_position(key: str | None) -> RecordPosition | None:
    return (0, key) if key else None


def _place(token: str) -> tuple[int, str] | None:
    """Where a token of creation points. Text that is no number is no error: it names the beginning."""
    if not token:
        return None
    number, _, key = token.partition(".")
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 20 else 0, key)
