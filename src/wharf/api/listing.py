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

from wharf.api.request import ReadOptions
from wharf.model.changes import SEPARATOR
from wharf.model.refusal import invalid
from wharf.state import Replica, Table, Watched
from wharf.state import watches as watch
from wharf.state.still import Place, Still

R = TypeVar("R", bound=msgspec.Struct)

EVERY_NAMESPACE: Final = "*"
HEX: Final = frozenset("0123456789abcdefABCDEF")
DASHES_MAX: Final = 4


def itself(record: Any) -> Any:
    return record


@dataclass(frozen=True, slots=True)
class Kept:
    """What makes a whole list one that may be kept and renewed (`rolls`): all records of a table whose keys begin with
    `prefix`, of those that `chooses` takes, which looks at nothing that changes in a record. What they rest on stands
    in `rests_in` under the same keys. Lists of one `name` hold the same."""

    name: tuple[str, ...]
    table: Table[Any]
    prefix: str
    by_creation: bool = False
    chooses: Callable[[Any], bool] | None = None
    rests_in: Table[Any] | None = None

    @property
    def tables(self) -> list[Table[Any]]:
        return [self.table] if self.rests_in is None else [self.table, self.rests_in]

    def place_of(self, key: str, record: Any) -> Any:
        return (record.create_index, key) if self.by_creation else key


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

    begin: Callable[[str, bool], Iterable[R]]
    token_of: Callable[[R], str]
    index: int
    watched: Sequence[Watched]
    shown: Callable[[R], object] = itself
    namespace_of: Callable[[R], str] | None = None
    may_see: Callable[[R], bool] | None = None
    form: str = ""
    rests_on: Callable[[R], object] | None = None
    told: Callable[[list[R]], object] | None = None
    still: Callable[[str, bool], Still[R]] | None = None
    chooses: Callable[[R], bool] | None = None
    rests_in: Table[Any] | None = None
    order: Kept | None = None

    @property
    def kept(self) -> Kept | None:
        """How the whole list may be kept; None: it may not."""
        if self.order is None or not self.form or (self.rests_on is not None and self.rests_in is None):
            return None
        if self.may_see is not None or self.told is not None or (self.rests_in is not None and self.order.by_creation):
            return None
        name = (self.form, *self.order.name)
        return replace(self.order, name=name, chooses=self.chooses, rests_in=self.rests_in)


# -- orders --------------------------------------------------------------------------------------------------------


def by_namespace(
    replica: Replica, table: Table[R], options: ReadOptions, *more: Table[Any], **parts: Any
) -> Listing[R]:  # fmt: skip
    """By namespace, then id: `<namespace>.<id>`. `more`: tables that are read for what is shown."""
    everywhere = options.namespace == EVERY_NAMESPACE
    prefix = "" if everywhere else options.namespace + SEPARATOR + options.prefix
    name_of = attrgetter(table.key_attributes[1])

    def start_of(token: str) -> str | None:
        namespace, _, name = token.partition(".")
        return namespace + SEPARATOR + name if token else None

    def begin(token: str, reverse: bool) -> Iterable[R]:
        return replica.by_key(table, prefix=prefix, start=start_of(token), reverse=reverse)

    def still(token: str, reverse: bool) -> Still[R]:
        return Still(replica, table, prefix=prefix, start=place_of_key(start_of(token)), reverse=reverse)

    def has_prefix(record: R) -> bool:
        name: str = name_of(record)
        return name.startswith(options.prefix)

    def token_of(record: R) -> str:
        return f"{record.namespace}.{name_of(record)}"  # type: ignore[attr-defined]  # the table's key has it

    chooses = has_prefix if everywhere and options.prefix else None
    return _listing(
        replica, (table, *more), begin, token_of,
        still=still, chooses=chooses, namespace_of=attrgetter("namespace"),
        order=Kept((prefix, options.prefix), table, prefix), **parts,
    )  # fmt: skip


def by_creation_or_prefix(
    replica: Replica, table: Table[R], options: ReadOptions, *more: Table[Any], where: str = "", **parts: Any
) -> Listing[R]:  # fmt: skip
    """By CreateIndex, then id: `<CreateIndex>.<id>`; with a prefix by id: `<id>`. `where` begins what is said of a
    prefix that is none."""
    is_namespaced = "namespace" in table.record.__struct_fields__
    only = options.namespace if is_namespaced and options.namespace != EVERY_NAMESPACE else None
    prefix = read_id_prefix(options.prefix, where=where)

    def begin(token: str, reverse: bool) -> Iterable[R]:
        if prefix:
            return replica.by_key(table, prefix=prefix, start=token or None, reverse=reverse)
        return replica.by_creation(table, start=_place(token), reverse=reverse)

    def still(token: str, reverse: bool) -> Still[R]:
        if prefix:
            return Still(replica, table, prefix=prefix, start=place_of_key(token), reverse=reverse)
        return Still(replica, table, by_creation=True, start=_place(token), reverse=reverse)

    def is_in_namespace(record: R) -> bool:
        return record.namespace == only  # type: ignore[attr-defined,no-any-return]  # asked of those that have one

    def token_of(record: R) -> str:
        key = table.key_of(record)
        return key if prefix else f"{record.create_index}.{key}"  # type: ignore[attr-defined]

    namespace_of = attrgetter("namespace") if is_namespaced else None
    chooses = None if only is None else is_in_namespace
    return _listing(
        replica, (table, *more), begin, token_of,
        still=still, chooses=chooses, namespace_of=namespace_of,
        order=Kept((prefix, only or ""), table, prefix, by_creation=not prefix), **parts,
    )  # fmt: skip


def by_name(replica: Replica, table: Table[R], options: ReadOptions, *more: Table[Any], **parts: Any) -> Listing[R]:
    """By the one part of the key, which is the token: names, ids."""

    def begin(token: str, reverse: bool) -> Iterable[R]:
        return replica.by_key(table, prefix=options.prefix, start=token or None, reverse=reverse)

    def still(token: str, reverse: bool) -> Still[R]:
        return Still(replica, table, prefix=options.prefix, start=place_of_key(token), reverse=reverse)

    return _listing(replica, (table, *more), begin, table.key_of, still=still, **parts)


def gathered(
    records: Iterable[R], *, index: int, watched: Sequence[Watched], token_of: Callable[[R], str], **parts: Any
) -> Listing[R]:  # fmt: skip
    """Records that were found by an index, in the order of their tokens, as text."""
    ordered = sorted(records, key=token_of)

    def begin(token: str, reverse: bool) -> Iterable[R]:
        if not reverse:
            return dropwhile(lambda record: token_of(record) < token, ordered)
        return dropwhile(lambda record: token != "" and token_of(record) > token, reversed(ordered))

    return Listing(begin, token_of, index, watched, **parts)


def _listing(
    replica: Replica,
    tables: Sequence[Table[Any]],
    begin: Callable[[str, bool], Iterable[R]],
    token_of: Callable[[R], str],
    **parts: Any,
) -> Listing[R]:
    return Listing(begin, token_of, replica.last_change(*tables), [watch.whole(table) for table in tables], **parts)


def place_of_key(key: str | None) -> Place | None:
    return (0, key) if key else None


def _place(token: str) -> tuple[int, str] | None:
    """Where a token of creation points. Text that is no number is no error: it names the beginning."""
    if not token:
        return None
    number, _, key = token.partition(".")
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 20 else 0, key)


def read_id_prefix(given: str, *, where: str = "") -> str:
    """The beginning of an id: hex digits, an even number of them, and dashes anywhere, four at most."""
    digits = given.replace("-", "")
    dashes = len(given) - len(digits)
    if dashes > DASHES_MAX:
        raise invalid(f'{where}UUID should have maximum of {DASHES_MAX} "-"; got {dashes}')
    if not digits:
        return ""
    if len(digits) % 2:
        raise invalid(f"{where}Input (without hyphens) must be even length")
    wrong = next((letter for letter in digits if letter not in HEX), None)
    if wrong is not None:
        raise invalid(f"{where}Invalid UUID: encoding/hex: invalid byte: {wrong!r} is no hex digit")
    return given.lower()
