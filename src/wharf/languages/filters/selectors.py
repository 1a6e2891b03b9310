"""From a selector to a function that reads its value from a record, checked against the types on the way.

What the types can tell is told here, before any record is read: an unknown name, a way into a scalar. What only a
record can tell is raised by the functions made here: an index out of range, a null or a missing key in the middle.

All selectors of a type, for documents: how each is written, what it holds, which operators it has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from wharf.languages.filters.errors import FilterError, find_nearest_name, make_evaluation_error, make_type_error
from wharf.languages.filters.kinds import (
    FilterField,
    FilterSubject,
    ListKind,
    MapKind,
    ReadFunction,
    StructKind,
    TextKind,
    TimeKind,
    UntypedKind,
    ValueKind,
    get_filter_subject,
)
from wharf.languages.filters.operators import list_operators
from wharf.languages.filters.scope import NameScope
from wharf.languages.filters.tree import Selector


class MissingValue:
    """Stands for a key that a map does not have, as the last part of a selector."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = MissingValue()
_EMPTY: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class ResolvedSelector:
    """What a selector leads to. `may_miss`: the value may be MISSING. `is_key`: the last part is the key of a map."""

    kind: ValueKind
    read: ReadFunction
    can_be_missing: bool
    is_key: bool


class FilterErrorBuilder:
    """Makes the errors of one expression."""

    def __init__(self, source: str) -> None:
        self.source = source

    def make_type_error(self, offset: int, reason: str) -> FilterError:
        return make_type_error(self.source, offset, reason)

    def make_evaluation_error(self, offset: int, reason: str, *, has_location: bool = False) -> FilterError:
        return make_evaluation_error(self.source, offset, reason, has_location=has_location)

    def make_unknown_selector_error(self, selector: Selector, part: int, reason: str) -> FilterError:
        """The type has nothing there."""
        return make_type_error(self.source, selector.get_part_offset(part), f"error finding value in datum: {reason}")

    def make_unreadable_selector_error(self, selector: Selector, part: int, reason: str) -> FilterError:
        """A record has nothing there."""
        return make_evaluation_error(
            self.source, selector.get_part_offset(part), f"error finding value in datum: {reason}"
        )


def resolve_selector(selector: Selector, scope: NameScope, errors: FilterErrorBuilder) -> ResolvedSelector:
    first = scope.find_field(selector.parts[0])
    if first is None:
        raise _no_field(selector, 0, scope.subject_name, scope.list_names(), errors)
    kind, read, is_key = first.kind, first.read, False
    for part in range(1, len(selector.parts)):
        step = _Step(selector, part, errors)
        kind, read, is_key = step.below(kind, read)
    if isinstance(kind, TimeKind) and kind.is_nullable:
        return ResolvedSelector(kind, _present(read), can_be_missing=True, is_key=is_key)
    return ResolvedSelector(kind, read, can_be_missing=is_key, is_key=is_key)


def _present(read: ReadFunction) -> ReadFunction:
    """A time that is null is not present: a page would fail at the first record without one otherwise."""

    def read_present(frame: object) -> object:
        value = read(frame)
        return MISSING if value is None else value

    return read_present


class _Step:
    """One part of a selector, below what the parts before it lead to."""

    def __init__(self, selector: Selector, part: int, places: FilterErrorBuilder) -> None:
        self._selector = selector
        self._part = part
        self._name = selector.parts[part]
        self._is_last = part == len(selector.parts) - 1
        self._places = places

    def below(self, kind: ValueKind, read: ReadFunction) -> tuple[ValueKind, ReadFunction, bool]:
        match kind:
            case StructKind():
                field = kind.fields.get(self._name)
                if field is None:
                    raise _no_field(self._selector, self._part, kind.type.__name__, kind.fields, self._places)
                return field.kind, self._field(field, read, may_be_null=kind.is_nullable), False
            case MapKind(value=value, has_text_keys=True):
                return (value, self._last_key(read), True) if self._is_last else (value, self._key(read), False)
            case ListKind(item=item, has_order=True):
                return item, self._item(read, self._index()), False
            case UntypedKind():
                return kind, self._untyped(read), self._is_last
        reason = f"{self._selector.path}: at part {self._part}, invalid value kind: {kind.name}"
        raise self._places.make_unknown_selector_error(self._selector, self._part, f"{reason}; nothing lies below it")

    # -- by kind -------------------------------------------------------------------------------------------------

    def _field(self, field: FilterField, read: ReadFunction, *, may_be_null: bool) -> ReadFunction:
        get = field.read
        if not may_be_null:
            return lambda frame: get(read(frame))

        def read_field(frame: object) -> object:
            holder = read(frame)
            return self._null() if holder is None else get(holder)

        return read_field

    def _last_key(self, read: ReadFunction) -> ReadFunction:
        key = self._name

        def read_key(frame: object) -> object:
            return (read(frame) or _EMPTY).get(key, MISSING)

        return read_key

    def _key(self, read: ReadFunction) -> ReadFunction:
        key = self._name

        def read_key(frame: object) -> object:
            value = (read(frame) or _EMPTY).get(key, MISSING)
            return self._no_key() if value is MISSING else value

        return read_key

    def _item(self, read: ReadFunction, index: int) -> ReadFunction:
        def read_item(frame: object) -> object:
            items = read(frame) or ()
            return items[index] if index < len(items) else self._out_of_range(index, items)

        return read_item

    def _untyped(self, read: ReadFunction) -> ReadFunction:
        key = self._name

        def read_untyped(frame: object) -> object:
            holder = read(frame)
            if isinstance(holder, Mapping):
                value = holder.get(key, MISSING)
                return self._no_key() if value is MISSING and not self._is_last else value
            if isinstance(holder, Sequence) and not isinstance(holder, str | bytes):
                index = int(key) if _is_index(key) else None
                if index is None:
                    self._no_index()
                return holder[index] if index < len(holder) else self._out_of_range(index, holder)
            return self._null() if holder is None else self._scalar(holder)

        return read_untyped

    def _index(self) -> int:
        if not _is_index(self._name):
            at = f"{self._selector.path} at part {self._part}"
            reason = f'{at}: "{self._name}" is no index; a list takes a number, or any and all'
            raise self._places.make_unknown_selector_error(self._selector, self._part, reason)
        return int(self._name)

    # -- what only a record can tell -----------------------------------------------------------------------------

    def _unread(self, reason: str) -> NoReturn:
        raise self._places.make_unreadable_selector_error(self._selector, self._part, reason)

    def _null(self) -> NoReturn:
        self._unread(f"{self._selector.path}: at part {self._part}, invalid value kind: invalid")

    def _scalar(self, holder: object) -> NoReturn:
        kind = type(holder).__name__
        self._unread(f"{self._selector.path}: at part {self._part}, invalid value kind: {kind}")

    def _no_key(self) -> NoReturn:
        self._unread(f'{self._selector.path} at part {self._part}: couldn\'t find key "{self._name}"')

    def _no_index(self) -> NoReturn:
        self._unread(f'{self._selector.path} at part {self._part}: "{self._name}" is no index')

    def _out_of_range(self, index: int, items: Sequence[object]) -> NoReturn:
        at = f"{self._selector.path} at part {self._part}"
        self._unread(f"{at}: index {index} is out of range (length = {len(items)})")


def _is_index(text: str) -> bool:
    # More digits than that are out of range of any list, and long ones would take long to read.
    return text.isascii() and text.isdecimal() and len(text) < 19


def _no_field(
    selector: Selector, part: int, holder: str, known: Iterable[str], places: FilterErrorBuilder
) -> FilterError:
    name = selector.parts[part]
    reason = f'{selector.path} at part {part}: couldn\'t find key: struct field with name "{name}" in {holder}'
    meant = find_nearest_name(name, known)
    return places.make_unknown_selector_error(selector, part, reason + (f'; did you mean "{meant}"?' if meant else ""))


@dataclass(frozen=True, slots=True)
class SelectorInfo:
    """`<key>` and `<index>` stand for a key of a map and an index of a list. `values`: those of an enum."""

    selector: str
    kind: str
    operators: tuple[str, ...]
    values: tuple[str, ...] = ()


def list_selectors(subject: FilterSubject | type) -> tuple[SelectorInfo, ...]:
    """Every selector of a type, in the order of its fields. A type inside itself is not followed again."""
    subject = subject if isinstance(subject, FilterSubject) else get_filter_subject(subject)
    return tuple(_of_fields("", subject.fields, ()))


def _of_fields(prefix: str, fields: Mapping[str, FilterField], around: tuple[type, ...]) -> Iterator[SelectorInfo]:
    for name, field in fields.items():
        yield from _of_kind(f"{prefix}{name}", field.kind, around)


def _of_kind(selector: str, kind: ValueKind, around: tuple[type, ...]) -> Iterator[SelectorInfo]:
    operators = tuple(operator.value for operator in list_operators(kind))
    yield SelectorInfo(selector, kind.name, operators, kind.values if isinstance(kind, TextKind) else ())
    match kind:
        case StructKind(type=record) if record not in around:
            yield from _of_fields(f"{selector}.", kind.fields, (*around, record))
        case ListKind(item=item, has_order=True):
            yield from _of_kind(f"{selector}.<index>", item, around)
        case MapKind(value=value, has_text_keys=True):
            yield from _of_kind(f"{selector}.<key>", value, around)
        case UntypedKind() if not selector.endswith(".<key>"):
            yield from _of_kind(f"{selector}.<key>", kind, around)
        case _:
            pass
