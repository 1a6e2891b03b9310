"""Values of expressions and their types.

Text is `str` (normalized to NFC), a bool is `bool`, a number is `int` or `Fraction`, and null is `None`. Collections are
the classes of this module. A tuple is what a list literal gives, with a type for each item; the items of a list have one
type. Objects and maps differ in the same way.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

from wharf.languages.hcl.budget import MAX_RESULT_BYTES, MAX_VALUE_DEPTH, VALUE_BYTES, BudgetExceeded


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type without parts."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class CollectionType:
    """A list, set or map, by `kind`, whose items have one type."""

    kind: str
    item: "ValueType"

    def __str__(self) -> str:
        return f"{self.kind}({self.item})"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple with a type for each item."""

    items: tuple["ValueType", ...]

    def __str__(self) -> str:
        return f"tuple([{', '.join(map(str, self.items))}])"


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object with a type for each attribute."""

    attributes: Mapping[str, "ValueType"]

    def __str__(self) -> str:
        return f"object({{{', '.join(f'{name} = {kind}' for name, kind in self.attributes.items())}}})"


ValueType: TypeAlias = PrimitiveType | CollectionType | TupleType | ObjectType

MAX_ACCENTS: Final = 1_000
"""How many combining characters in sequence are sorted: the library takes time in the square of them, 0.5 ms for 1,000."""
STRING: Final = PrimitiveType("string")
NUMBER: Final = PrimitiveType("number")
BOOL: Final = PrimitiveType("bool")
ANY: Final = PrimitiveType("any")
"""Any type. It is also the type of null."""
MIXED: Final = PrimitiveType("object")
"""The common type of objects with different attributes: each keeps its own type."""


class HclTuple:
    """A tuple, such as the list literal `[1, "a"]`.

    `sensitive_keys` are the positions of the items that come from sensitive variables. `None`: no part of the tuple does. An
    item that is not among them may have sensitive parts of its own.
    """

    __slots__ = ("depth", "items", "sensitive_keys", "size")

    def __init__(self, items: Sequence["Value"], sensitive_keys: Set[Any] | None = None) -> None:
        self.items = items
        self.sensitive_keys = sensitive_keys
        self.size, self.depth = _measure_items(items)


class HclList:
    """A list whose items have one type."""

    __slots__ = ("depth", "item_type", "items", "size")

    def __init__(self, items: Sequence["Value"], item_type: ValueType) -> None:
        self.items = items
        self.item_type = item_type
        self.size, self.depth = _measure_items(items)


class HclSet:
    """Different items of one type, in a fixed order: texts and numbers are sorted. Build it with `build_set`."""

    __slots__ = ("depth", "item_type", "items", "size")

    def __init__(self, items: Sequence["Value"], item_type: ValueType) -> None:
        self.items = items
        self.item_type = item_type
        self.size, self.depth = _measure_items(items)


class HclObject:
    """An object, such as the literal `{ a = 1, b = "x" }`. `sensitive_keys` are those of a tuple, with names for positions."""

    __slots__ = ("depth", "entries", "sensitive_keys", "size")

    def __init__(self, entries: Mapping[str, "Value"], sensitive_keys: Set[Any] | None = None) -> None:
        self.entries = entries
        self.sensitive_keys = sensitive_keys
        self.size, self.depth = _measure_items(entries.values())
        self.size += sum(map(len, entries))


class HclMap:
    """A map whose values have one type."""

    __slots__ = ("depth", "entries", "item_type", "size")

    def __init__(self, entries: Mapping[str, "Value"], item_type: ValueType) -> None:
        self.entries = entries
        self.item_type = item_type
        self.size, self.depth = _measure_items(entries.values())
        self.size += sum(map(len, entries))


HclSequence: TypeAlias = HclTuple | HclList | HclSet
HclMapping: TypeAlias = HclObject | HclMap
Value: TypeAlias = str | bool | int | Fraction | HclTuple | HclList | HclSet | HclObject | HclMap | None
SEQUENCES: Final = (HclTuple, HclList, HclSet)
MAPPINGS: Final = (HclObject, HclMap)
COLLECTIONS: Final = (*SEQUENCES, *MAPPINGS)


def has_sensitive_parts(value: Value) -> bool:
    """Return whether a value is a literal with parts that come from sensitive variables."""
    return isinstance(value, HclObject | HclTuple) and value.sensitive_keys is not None


def list_sensitive_parts(value: Value, *, is_sensitive: bool) -> Iterator[Any]:
    """Yield the sensitive parts of a value as JSON has them: all of it, or those that its marks name."""
    if is_sensitive:
        yield to_plain(value)
    elif isinstance(value, HclObject | HclTuple) and value.sensitive_keys is not None:
        for key, item in value.entries.items() if isinstance(value, HclObject) else enumerate(value.items):
            yield from list_sensitive_parts(item, is_sensitive=key in value.sensitive_keys)


def measure_value(value: Value) -> int:
    """Return the size of a value in bytes, as the limits count it."""
    if isinstance(value, str):
        return len(value) + VALUE_BYTES
    return value.size if isinstance(value, COLLECTIONS) else VALUE_BYTES


def require_size(size: int) -> None:
    """Raise `BudgetExceeded` if a value of this size is too large."""
    if size > MAX_RESULT_BYTES:
        raise BudgetExceeded(f"the value is larger than {MAX_RESULT_BYTES // 1_000_000} MB", "build a smaller value")


def _measure_items(items: Iterable[Value]) -> tuple[int, int]:
    """Return the size and depth of a collection. Raises `BudgetExceeded`, because shared parts count each time."""
    size = VALUE_BYTES
    depth = 0
    for item in items:
        if isinstance(item, str):
            size += len(item) + VALUE_BYTES
        elif isinstance(item, COLLECTIONS):
            size += item.size + VALUE_BYTES
            depth = max(depth, item.depth)
        else:
            size += VALUE_BYTES
    require_size(size)
    if depth >= MAX_VALUE_DEPTH:
        raise BudgetExceeded(f"lists and maps are nested more than {MAX_VALUE_DEPTH} deep", "build a flatter value")
    return size, depth + 1


def normalize_text(text: str) -> str:
    """Return the text in the normal form NFC. Accents beyond `MAX_ACCENTS` in sequence are normalized in parts."""
    if text.isascii():
        return text
    if len(text) <= MAX_ACCENTS:
        return unicodedata.normalize("NFC", text)
    parts: list[str] = []
    start = length = 0
    for at, is_accent in enumerate(map(unicodedata.combining, text)):
        length = length + 1 if is_accent else 0
        if length > MAX_ACCENTS:
            parts.append(text[start:at])
            start, length = at, 0
    return "".join(unicodedata.normalize("NFC", part) for part in (*parts, text[start:]))


def get_type(value: Value) -> ValueType:
    """Return the type of a value. Takes time in proportion to its size."""
    match value:
        case str():
            return STRING
        case bool():
            return BOOL
        case None:
            return ANY
        case int() | Fraction():
            return NUMBER
        case HclTuple():
            return TupleType(tuple([get_type(item) for item in value.items]))
        case HclObject():
            return ObjectType({name: get_type(item) for name, item in value.entries.items()})
        case HclList():
            return CollectionType("list", value.item_type)
        case HclSet():
            return CollectionType("set", value.item_type)
        case HclMap():
            return CollectionType("map", value.item_type)


def describe_value(value: Value) -> str:
    """Return the kind of a value with its article, for messages. Never the value itself: it may be a secret."""
    match value:
        case str():
            return "a text"
        case bool():
            return "a bool"
        case None:
            return "null"
        case int() | Fraction():
            return "a number"
        case HclTuple() | HclList():
            return "a list"
        case HclSet():
            return "a set"
        case HclObject():
            return "an object"
        case HclMap():
            return "a map"


def describe_type(kind: ValueType) -> str:
    """Return a type as text for messages, cut if it is long."""
    text = str(kind)
    return text if len(text) <= 120 else f"{text[:117]}..."


def build_key(value: Value) -> Any:
    """Return a hashable key that is equal for equal values of the same type only. Takes time in proportion to its size."""
    match value:
        case str():
            return value
        case bool():
            return ("bool", value)
        case None:
            return None
        case int() | Fraction():
            return ("number", value)
        case HclTuple() | HclList() | HclSet():
            return (type(value).__name__, tuple([build_key(item) for item in value.items]))
        case HclObject() | HclMap():
            entries = sorted(value.entries.items())
            return (type(value).__name__, tuple([(name, build_key(item)) for name, item in entries]))


def build_set(items: Iterable[Value], item_type: ValueType) -> HclSet:
    """Return a set of the different items. Texts and numbers are sorted; other items have a fixed order too."""
    different = list({build_key(item): item for item in items}.values())
    if all(isinstance(item, str) for item in different) or all(
        isinstance(item, int | Fraction) and not isinstance(item, bool) for item in different
    ):
        different.sort()
    else:
        different.sort(key=lambda item: repr(build_key(item)))
    return HclSet(tuple(different), item_type)


def to_plain(value: Value) -> Any:
    """Return the value as JSON has it: fractions and numbers beyond 64 bits are floats."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return value if -(1 << 63) <= value < 1 << 63 else float(value)
        case Fraction():
            return float(value)
        case HclTuple() | HclList() | HclSet():
            return [to_plain(item) for item in value.items]
        case HclObject() | HclMap():
            return {name: to_plain(item) for name, item in value.entries.items()}
