"""From a selector to a function that reads its value from a record, checked against the types on the way.

What the types can tell is told here, before any record is read: an unknown name, a way into a scalar. What only a
record can tell is raised by the functions made here: an index out of range, a null or a missing key in the middle.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from wharf.filters.errors import FilterError, does_not_fit, nearest, not_readable
from wharf.filters.kinds import Field, Kind, List, Map, Read, Struct, Time, Untyped
from wharf.filters.scope import Scope
from wharf.filters.tree import Selector


class Missing:
    """Stands for a key that a map does not have, as the last part of a selector."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
_EMPTY: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a selector leads to. `may_miss`: the value may be MISSING. `is_key`: the last part is the key of a map."""

    kind: Kind
    read: Read
    may_miss: bool
    is_key: bool


class Places:
    """Makes the errors of one expression."""

    def __init__(self, source: str) -> None:
        self.source = source

    def does_not_fit(self, offset: int, reason: str) -> FilterError:
        return does_not_fit(self.source, offset, reason)

    def not_readable(self, offset: int, reason: str, *, is_placed: bool = False) -> FilterError:
        return not_readable(self.source, offset, reason, is_placed=is_placed)

    def unfound(self, selector: Selector, part: int, reason: str) -> FilterError:
        """The type has nothing there."""
        return does_not_fit(self.source, selector.place_of(part), f"error finding value in datum: {reason}")

    def unread(self, selector: Selector, part: int, reason: str) -> FilterError:
        """A record has nothing there."""
        return not_readable(self.source, selector.place_of(part), f"error finding value in datum: {reason}")


def resolve(selector: Selector, scope: Scope, places: Places) -> Reading:
    first = scope.find(selector.parts[0])
    if first is None:
        raise _no_field(selector, 0, scope.subject_name, scope.names(), places)
    kind, read, is_key = first.kind, first.read, False
    for part in range(1, len(selector.parts)):
        step = _Step(selector, part, places)
        kind, read, is_key = step.below(kind, read)
    if isinstance(kind, Time) and kind.may_be_null:
        return Reading(kind, _present(read), may_miss=True, is_key=is_key)
    return Reading(kind, read, may_miss=is_key, is_key=is_key)


def _present(read: Read) -> Read:
    """A time that is null is not present: a page would fail at the first record without one otherwise."""

    def read_present(frame: object) -> object:
        value = read(frame)
        return MISSING if value is None else value

    return read_present


class _Step:
    """One part of a selector, below what the parts before it lead to."""

    def __init__(self, selector: Selector, part: int, places: Places) -> None:
        self._selector = selector
        self._part = part
        self._name = selector.parts[part]
        self._is_last = part == len(selector.parts) - 1
        self._places = places

    def below(self, kind: Kind, read: Read) -> tuple[Kind, Read, bool]:
        match kind:
            case Struct():
                field = kind.fields.get(self._name)
                if field is None:
                    raise _no_field(self._selector, self._part, kind.type.__name__, kind.fields, self._places)
                return field.kind, self._field(field, read, may_be_null=kind.may_be_null), False
            case Map(value=value, has_text_keys=True):
                return (value, self._last_key(read), True) if self._is_last else (value, self._key(read), False)
            case List(item=item, has_order=True):
                return item, self._item(read, self._index()), False
            case Untyped():
                return kind, self._untyped(read), self._is_last
        reason = f"{self._selector.path}: at part {self._part}, invalid value kind: {kind.name}"
        raise self._places.unfound(self._selector, self._part, f"{reason}; nothing lies below it")

    # -- by kind -------------------------------------------------------------------------------------------------

    def _field(self, field: Field, read: Read, *, may_be_null: bool) -> Read:
        get = field.read
        if not may_be_null:
            return lambda frame: get(read(frame))

        def read_field(frame: object) -> object:
            holder = read(frame)
            return self._null() if holder is None else get(holder)

        return read_field

    def _last_key(self, read: Read) -> Read:
        key = self._name

        def read_key(frame: object) -> object:
            return (read(frame) or _EMPTY).get(key, MISSING)

        return read_key

    def _key(self, read: Read) -> Read:
        key = self._name

        def read_key(frame: object) -> object:
            value = (read(frame) or _EMPTY).get(key, MISSING)
            return self._no_key() if value is MISSING else value

        return read_key

    def _item(self, read: Read, index: int) -> Read:
        def read_item(frame: object) -> object:
            items = read(frame) or ()
            return items[index] if index < len(items) else self._out_of_range(index, items)

        return read_item

    def _untyped(self, read: Read) -> Read:
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
            raise self._places.unfound(self._selector, self._part, reason)
        return int(self._name)

    # -- what only a record can tell -----------------------------------------------------------------------------

    def _unread(self, reason: str) -> NoReturn:
        raise self._places.unread(self._selector, self._part, reason)

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


def _no_field(selector: Selector, part: int, holder: str, known: Iterable[str], places: Places) -> FilterError:
    name = selector.parts[part]
    reason = f'{selector.path} at part {part}: couldn\'t find key: struct field with name "{name}" in {holder}'
    meant = nearest(name, known)
    return places.unfound(selector, part, reason + (f'; did you mean "{meant}"?' if meant else ""))
