"""Resolves selectors: checks each part against the record type, and builds the function that reads the value.

Errors of the type, such as an unknown field, are raised here before any record is read. Errors of a record, such as an
index out of range, are raised by the functions built here. `list_selectors` lists all selectors of a type.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from wharf.languages.filters.errors import FilterError, make_evaluation_error, make_step_limit_error, make_type_error
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
from wharf.languages.suggestions import find_nearest_name


class MissingValue:
    """The type of `MISSING`: the value of a selector whose last part is a key that the map does not have."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = MissingValue()
MAX_LISTED_FIELDS: Final = 40
"""Limit of the fields that the error for an unknown field lists; keeps it readable."""
_EMPTY: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class ResolvedSelector:
    """The kind of the selected value, and the function that reads it from a record or frame.

    `can_be_missing`: the function may return `MISSING`. `is_key`: the last part of the selector is the key of a map.
    """

    kind: ValueKind
    read: ReadFunction
    can_be_missing: bool
    is_key: bool


class FilterErrorBuilder:
    """Builds the errors of one expression. It stores the source, so that callers do not have to pass it."""

    def __init__(self, source: str) -> None:
        self.source = source

    def make_type_error(self, offset: int, reason: str) -> FilterError:
        """Return an error of the expression against the record type."""
        return make_type_error(self.source, offset, reason)

    def make_evaluation_error(self, offset: int, reason: str, *, has_location: bool = False) -> FilterError:
        """Return an error of a record; `has_location` puts the location in the expression in front of its text."""
        return make_evaluation_error(self.source, offset, reason, has_location=has_location)

    def make_step_limit_error(self, offset: int, reason: str) -> FilterError:
        """Return the error for a record that takes too many steps."""
        return make_step_limit_error(self.source, offset, reason)

    def make_unknown_selector_error(self, selector: Selector, part: int, reason: str) -> FilterError:
        """Return the error for the part of a selector, by its index, that the record type does not have."""
        return make_type_error(self.source, selector.get_part_offset(part), f"error finding value in datum: {reason}")

    def make_unreadable_selector_error(self, selector: Selector, part: int, reason: str) -> FilterError:
        """Return the error for the part of a selector, by its index, that a record does not have."""
        return make_evaluation_error(
            self.source, selector.get_part_offset(part), f"error finding value in datum: {reason}"
        )


def resolve_selector(selector: Selector, scope: NameScope, errors: FilterErrorBuilder) -> ResolvedSelector:
    """Return the kind of the value that a selector selects, and the function that reads it from a record.

    Raises `FilterTypeError` if the record type does not have the selector.
    """
    first = scope.find_field(selector.parts[0])
    if first is None:
        raise _make_unknown_field_error(selector, 0, scope.subject_name, scope.list_names(), errors)
    kind, read, is_key = first.kind, first.read, False
    for part in range(1, len(selector.parts)):
        step = _PathStep(selector, part, errors)
        kind, read, is_key = step.descend(kind, read)
    if isinstance(kind, TimeKind) and kind.is_nullable:
        return ResolvedSelector(kind, _treat_null_as_missing(read), can_be_missing=True, is_key=is_key)
    return ResolvedSelector(kind, read, can_be_missing=is_key, is_key=is_key)


def _treat_null_as_missing(read: ReadFunction) -> ReadFunction:
    """Return a function that reads a null time as `MISSING`.

    Otherwise a filter would fail at the first record without that time.
    """

    def read_present(frame: object) -> object:
        value = read(frame)
        return MISSING if value is None else value

    return read_present


class _PathStep:
    """One part of a selector, resolved within the value that the parts before it select."""

    def __init__(self, selector: Selector, part: int, errors: FilterErrorBuilder) -> None:
        self._selector = selector
        self._part = part
        self._name = selector.parts[part]
        self._is_last = part == len(selector.parts) - 1
        self._errors = errors

    def descend(self, kind: ValueKind, read: ReadFunction) -> tuple[ValueKind, ReadFunction, bool]:
        """Return the kind of this part's value, the function that reads it, and whether this part is a map's key.

        `kind` and `read` are those of the value that contains it.
        """
        match kind:
            case StructKind():
                field = kind.fields.get(self._name)
                if field is None:
                    raise _make_unknown_field_error(
                        self._selector, self._part, kind.type.__name__, kind.fields, self._errors
                    )
                return field.kind, self._make_field_reader(field, read, can_be_null=kind.is_nullable), False
            case MapKind(value=value, has_text_keys=True):
                return (
                    (value, self._make_last_key_reader(read), True)
                    if self._is_last
                    else (value, self._make_key_reader(read), False)
                )
            case ListKind(item=item, has_order=True):
                return item, self._make_item_reader(read, self._parse_index()), False
            case UntypedKind():
                return kind, self._make_untyped_reader(read), self._is_last
        reason = f"{self._selector.path}: at part {self._part}, invalid value kind: {kind.name}"
        raise self._errors.make_unknown_selector_error(self._selector, self._part, f"{reason}; nothing lies below it")

    # -- functions that read one part, by the kind of the container -----------------------------------------------

    def _make_field_reader(self, field: FilterField, read: ReadFunction, *, can_be_null: bool) -> ReadFunction:
        """Return a function that reads a field of a record; if the record can be null, a null is an error."""
        get_value = field.read
        if not can_be_null:
            return lambda frame: get_value(read(frame))

        def read_field(frame: object) -> object:
            container = read(frame)
            return self._raise_null() if container is None else get_value(container)

        return read_field

    def _make_last_key_reader(self, read: ReadFunction) -> ReadFunction:
        """Return a function that reads the key at the end of the selector: it may be missing."""
        key = self._name

        def read_key(frame: object) -> object:
            return (read(frame) or _EMPTY).get(key, MISSING)

        return read_key

    def _make_key_reader(self, read: ReadFunction) -> ReadFunction:
        """Return a function that reads a key in the middle of the selector: a missing key is an error."""
        key = self._name

        def read_key(frame: object) -> object:
            value = (read(frame) or _EMPTY).get(key, MISSING)
            return self._raise_missing_key() if value is MISSING else value

        return read_key

    def _make_item_reader(self, read: ReadFunction, index: int) -> ReadFunction:
        """Return a function that reads an element of a list; an index beyond the end is an error."""

        def read_item(frame: object) -> object:
            items = read(frame) or ()
            return items[index] if index < len(items) else self._raise_out_of_range(index, items)

        return read_item

    def _make_untyped_reader(self, read: ReadFunction) -> ReadFunction:
        """Return a function that reads a key of an object or an index of a list, whichever the record has."""
        key = self._name

        def read_untyped(frame: object) -> object:
            """Return the member of the untyped value that this part selects.

            Raises an error of the record if it has none.
            """
            container = read(frame)
            if isinstance(container, Mapping):
                value = container.get(key, MISSING)
                return self._raise_missing_key() if value is MISSING and not self._is_last else value
            if isinstance(container, Sequence) and not isinstance(container, str | bytes):
                index = int(key) if _is_index(key) else None
                if index is None:
                    self._raise_not_an_index()
                return container[index] if index < len(container) else self._raise_out_of_range(index, container)
            return self._raise_null() if container is None else self._raise_scalar(container)

        return read_untyped

    def _parse_index(self) -> int:
        """Return this part as the index of a list. Raises `FilterTypeError` if it is not a number."""
        if not _is_index(self._name):
            location = f"{self._selector.path} at part {self._part}"
            reason = f'{location}: "{self._name}" is not an index; a list takes a number, or any and all'
            raise self._errors.make_unknown_selector_error(self._selector, self._part, reason)
        return int(self._name)

    # -- errors of a record --------------------------------------------------------------------------------------

    def _raise_unreadable(self, reason: str) -> NoReturn:
        raise self._errors.make_unreadable_selector_error(self._selector, self._part, reason)

    def _raise_null(self) -> NoReturn:
        self._raise_unreadable(f"{self._selector.path}: at part {self._part}, invalid value kind: invalid")

    def _raise_scalar(self, container: object) -> NoReturn:
        kind = type(container).__name__
        self._raise_unreadable(f"{self._selector.path}: at part {self._part}, invalid value kind: {kind}")

    def _raise_missing_key(self) -> NoReturn:
        self._raise_unreadable(f'{self._selector.path} at part {self._part}: couldn\'t find key "{self._name}"')

    def _raise_not_an_index(self) -> NoReturn:
        self._raise_unreadable(f'{self._selector.path} at part {self._part}: "{self._name}" is not an index')

    def _raise_out_of_range(self, index: int, items: Sequence[object]) -> NoReturn:
        location = f"{self._selector.path} at part {self._part}"
        self._raise_unreadable(f"{location}: index {index} is out of range (length = {len(items)})")


def _is_index(text: str) -> bool:
    # A longer number is out of range of any list, and parsing a very long one would be slow.
    return text.isascii() and text.isdecimal() and len(text) < 19


def _make_unknown_field_error(
    selector: Selector, part: int, container: str, known: Iterable[str], errors: FilterErrorBuilder
) -> FilterError:
    """Return the error for an unknown field of `container`, with the most similar known name."""
    name = selector.parts[part]
    reason = f'{selector.path} at part {part}: couldn\'t find key: struct field with name "{name}" in {container}'
    suggestion = find_nearest_name(name, known)
    names = sorted(known)
    more = f" and {len(names) - MAX_LISTED_FIELDS} more" if len(names) > MAX_LISTED_FIELDS else ""
    listed = f"; the fields are {', '.join(names[:MAX_LISTED_FIELDS])}{more}" if names else ""
    return errors.make_unknown_selector_error(
        selector, part, reason + (f'; did you mean "{suggestion}"?' if suggestion else listed)
    )


@dataclass(frozen=True, slots=True)
class SelectorInfo:
    """A selector of a record type, for documentation.

    `<key>` and `<index>` in the selector stand for a key of a map and an index of a list. `values` holds the values of
    an enum and is empty for other kinds.
    """

    selector: str
    kind: str
    operators: tuple[str, ...]
    values: tuple[str, ...] = ()


def list_selectors(subject: FilterSubject | type) -> tuple[SelectorInfo, ...]:
    """Return every selector of a record type, in the order of its fields. A type nested in itself is listed once."""
    subject = subject if isinstance(subject, FilterSubject) else get_filter_subject(subject)
    return tuple(_list_of_fields("", subject.fields, ()))


def _list_of_fields(
    prefix: str, fields: Mapping[str, FilterField], enclosing_types: tuple[type, ...]
) -> Iterator[SelectorInfo]:
    """Yield the selectors of these fields and of everything within them.

    `prefix` is the selector of the record, with a dot.
    """
    for name, field in fields.items():
        yield from _list_of_kind(f"{prefix}{name}", field.kind, enclosing_types)


def _list_of_kind(selector: str, kind: ValueKind, enclosing_types: tuple[type, ...]) -> Iterator[SelectorInfo]:
    """Yield the selector itself and every selector within it. `enclosing_types` are the record types that contain it."""
    operators = tuple(operator.value for operator in list_operators(kind))
    yield SelectorInfo(selector, kind.name, operators, kind.values if isinstance(kind, TextKind) else ())
    match kind:
        case StructKind(type=record) if record not in enclosing_types:
            yield from _list_of_fields(f"{selector}.", kind.fields, (*enclosing_types, record))
        case ListKind(item=item, has_order=True):
            yield from _list_of_kind(f"{selector}.<index>", item, enclosing_types)
        case MapKind(value=value, has_text_keys=True):
            yield from _list_of_kind(f"{selector}.<key>", value, enclosing_types)
        case UntypedKind() if not selector.endswith(".<key>"):
            yield from _list_of_kind(f"{selector}.<key>", kind, enclosing_types)
        case _:
            pass
