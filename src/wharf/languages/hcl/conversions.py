"""Conversion of values to types, and the common type of several values."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.numerals import Number, NumberError, format_number, parse_number
from wharf.languages.hcl.values import (
    ANY,
    BOOL,
    MAPPINGS,
    MIXED,
    NUMBER,
    SEQUENCES,
    STRING,
    CollectionType,
    HclList,
    HclMap,
    HclObject,
    HclTuple,
    ObjectType,
    PrimitiveType,
    TupleType,
    Value,
    ValueType,
    build_set,
    describe_type,
    describe_value,
    get_type,
    measure_value,
)

_BOOL_TEXTS: Final = {"true": True, "false": False, "1": True, "0": False}


class ConversionError(ValueError):
    """A value does not convert to a type. `fix` is a sentence that says what to write."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def to_text(value: Value) -> str:
    """Convert a text, number or bool to text. Raises `ConversionError`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Fraction):
        return format_number(value)
    fix = "use jsonencode, or join for a list" if value is not None else ""
    raise ConversionError(f"expected a text, got {describe_value(value)}", fix)


def to_number_value(value: Value) -> Number:
    """Convert a number, or a text that reads as a number. Raises `ConversionError`."""
    if isinstance(value, bool):
        raise ConversionError("expected a number, got a bool")
    if isinstance(value, int | Fraction):
        return value
    if isinstance(value, str):
        try:
            return parse_number(value)
        except NumberError as error:
            reason = str(error)
            raise ConversionError(
                "expected a number, got a text that is not a number" if reason == "not a number" else reason
            ) from None
    raise ConversionError(f"expected a number, got {describe_value(value)}")


def to_whole(value: Value) -> int:
    """Convert to a whole number. Raises `ConversionError`."""
    number = to_number_value(value)
    if isinstance(number, Fraction):
        raise ConversionError("expected a whole number, got a fraction")
    return number


def to_bool(value: Value) -> bool:
    """Convert a bool, or a text such as "true". Raises `ConversionError`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        converted = _BOOL_TEXTS.get(value)
        if converted is not None:
            return converted
        fix = f"write {value.lower()} in lower case" if value.lower() in ("true", "false") else "write true or false"
        raise ConversionError("expected true or false, got another text", fix)
    raise ConversionError(f"expected true or false, got {describe_value(value)}")


def convert_value(value: Value, kind: ValueType, budget: Budget) -> Value:
    """Return the value converted to a type. Null converts to every type. Raises `ConversionError`."""
    if value is None or kind is ANY or kind is MIXED:
        return value
    if isinstance(kind, PrimitiveType):
        return to_text(value) if kind == STRING else to_number_value(value) if kind == NUMBER else to_bool(value)
    budget.use_steps(measure_value(value) >> 3)
    if isinstance(kind, CollectionType):
        return _convert_to_collection(value, kind, budget)
    if isinstance(kind, TupleType):
        return _convert_to_tuple(value, kind, budget)
    return _convert_to_object(value, kind, budget)


def _convert_to_collection(value: Value, kind: CollectionType, budget: Budget) -> Value:
    """Return a list, set or map with all items converted."""
    if kind.kind == "map":
        if not isinstance(value, MAPPINGS):
            raise ConversionError(f"expected a map, got {describe_value(value)}")
        if isinstance(value, HclMap) and value.item_type == kind.item:
            return value
        item_type = kind.item if kind.item != ANY else _find_item_type(list(value.entries.values()))
        entries = {
            name: _convert_part(item, item_type, budget, f'at key "{name[:80]}"')
            for name, item in value.entries.items()
        }
        return HclMap(entries, item_type)
    if not isinstance(value, SEQUENCES):
        fix = "put the value in [ ]" if not isinstance(value, MAPPINGS) else ""
        raise ConversionError(f"expected a {kind.kind}, got {describe_value(value)}", fix)
    if isinstance(value, HclList) and kind.kind == "list" and value.item_type == kind.item:
        return value
    item_type = kind.item if kind.item != ANY else _find_item_type(value.items)
    items = tuple([_convert_part(item, item_type, budget, f"at item {n}") for n, item in enumerate(value.items)])
    return HclList(items, item_type) if kind.kind == "list" else build_set(items, item_type)


def _convert_to_tuple(value: Value, kind: TupleType, budget: Budget) -> Value:
    if not isinstance(value, SEQUENCES):
        raise ConversionError(f"expected a tuple, got {describe_value(value)}")
    if len(value.items) != len(kind.items):
        raise ConversionError(f"expected a tuple of {len(kind.items)} items, got {len(value.items)}")
    pairs = zip(value.items, kind.items, strict=True)
    return HclTuple(tuple([_convert_part(item, part, budget, f"at item {n}") for n, (item, part) in enumerate(pairs)]))


def _convert_to_object(value: Value, kind: ObjectType, budget: Budget) -> Value:
    if not isinstance(value, MAPPINGS):
        raise ConversionError(f"expected an object, got {describe_value(value)}")
    for name in kind.attributes:
        if name not in value.entries:
            raise ConversionError(f'expected an object with the attribute "{name[:80]}", which is missing')
    return HclObject(
        {
            name: _convert_part(value.entries[name], part, budget, f'at attribute "{name[:80]}"')
            for name, part in kind.attributes.items()
        }
    )


def _convert_part(value: Value, kind: ValueType, budget: Budget, where: str) -> Value:
    """Convert a part of a value. Errors name the part."""
    try:
        return convert_value(value, kind, budget)
    except ConversionError as error:
        raise ConversionError(f"{where}: {error.message}", error.fix) from None


def _find_item_type(items: Sequence[Value]) -> ValueType:
    """Return the common type of items. Raises `ConversionError`."""
    kind = unify_all([get_type(item) for item in items])
    if kind is None:
        raise ConversionError("the items have no common type")
    return kind


def unify_all(kinds: Sequence[ValueType]) -> ValueType | None:
    """Return the common type of several types, or `None` if they have none. No types give `ANY`."""
    common: ValueType = ANY
    previous: ValueType | None = None
    for kind in kinds:
        if kind == previous:
            continue
        previous = kind
        unified = unify_types(common, kind)
        if unified is None:
            return None
        common = unified
    return common


def unify_types(left: ValueType, right: ValueType) -> ValueType | None:
    """Return the type to which values of both types convert, or `None` if there is none."""
    if left == right or right == ANY:
        return left
    if left == ANY:
        return right
    if isinstance(left, PrimitiveType) and isinstance(right, PrimitiveType):
        if STRING in (left, right) and MIXED not in (left, right):
            return STRING
        return None
    if isinstance(left, ObjectType) and isinstance(right, ObjectType):
        return _unify_objects(left, right)
    if MIXED in (left, right):
        return MIXED if isinstance(left if right == MIXED else right, ObjectType) else None
    if _is_mapping(left) and _is_mapping(right):
        item = unify_all([*_list_items(left), *_list_items(right)])
        return None if item is None else CollectionType("map", item)
    if _is_sequence(left) and _is_sequence(right):
        return _unify_sequences(left, right)
    return None


def _unify_sequences(left: ValueType, right: ValueType) -> ValueType | None:
    """Return a list or set of the common type of all items. Tuples of equal length may unify item by item."""
    item = unify_all([*_list_items(left), *_list_items(right)])
    if item is not None:
        are_sets = all(isinstance(kind, CollectionType) and kind.kind == "set" for kind in (left, right))
        return CollectionType("set" if are_sets else "list", item)
    if isinstance(left, TupleType) and isinstance(right, TupleType) and len(left.items) == len(right.items):
        items = [unify_types(*pair) for pair in zip(left.items, right.items, strict=True)]
        if None not in items:
            return TupleType(tuple([item for item in items if item is not None]))
    return None


def _unify_objects(left: ObjectType, right: ObjectType) -> ValueType | None:
    if left.attributes.keys() != right.attributes.keys():
        return MIXED
    unified: dict[str, ValueType] = {}
    for name, kind in left.attributes.items():
        common = unify_types(kind, right.attributes[name])
        if common is None:
            return None
        unified[name] = common
    return ObjectType(unified)


def _is_sequence(kind: ValueType) -> bool:
    return isinstance(kind, TupleType) or (isinstance(kind, CollectionType) and kind.kind != "map")


def _is_mapping(kind: ValueType) -> bool:
    return isinstance(kind, ObjectType) or (isinstance(kind, CollectionType) and kind.kind == "map")


def _list_items(kind: ValueType) -> Sequence[ValueType]:
    match kind:
        case TupleType(items):
            return items
        case ObjectType(attributes):
            return tuple(attributes.values())
        case CollectionType(item=item):
            return (item,)
        case _:
            return ()


def unify_values(values: Sequence[Value], budget: Budget) -> Sequence[Value] | None:
    """Return the values converted to their common type, or `None` if they have none."""
    for value in values:
        budget.use_steps(measure_value(value) >> 3)
    common = unify_all([get_type(value) for value in values])
    if common is None:
        return None
    return [convert_value(value, common, budget) for value in values]


def describe_pair(left: ValueType, right: ValueType) -> str:
    """Return two types as text for a message."""
    return f"{describe_type(left)} and {describe_type(right)}"


__all__ = [
    "BOOL",
    "ConversionError",
    "convert_value",
    "describe_pair",
    "to_bool",
    "to_number_value",
    "to_text",
    "to_whole",
    "unify_all",
    "unify_types",
    "unify_values",
]
