"""Template functions that compare values and read lists and maps."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value


def _describe_type(value: Any) -> str:
    """Return the type of a value, for error texts."""
    match value:
        case None:
            return "a null value"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case dict():
            return "a map"
        case _:
            return "a list"


def _require_comparable(first: Any, second: Any) -> None:
    """Raise `EvaluationError` if the values have different types. Null can be compared with any value."""
    types = _describe_type(first), _describe_type(second)
    if types[0] != types[1] and "a null value" not in types:
        raise EvaluationError(
            f"cannot compare {format_value(first)[:40]} ({types[0]}) with {format_value(second)[:40]} ({types[1]})"
        )


def is_equal(first: Any, *other_values: Any) -> bool:
    """Return whether the first value equals any of the others."""
    for other_value in other_values:
        _require_comparable(first, other_value)
    return any(first == other_value for other_value in other_values)


def _is_unequal(first: Any, second: Any) -> bool:
    _require_comparable(first, second)
    return bool(first != second)


def _make_order_test(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a template function that compares two numbers or two texts by their order."""

    def compare_ordered(first: Any, second: Any) -> bool:
        """Return the result of the comparison.

        Raises `EvaluationError` unless both values are numbers or both are texts.
        """
        _require_comparable(first, second)
        if _describe_type(first) not in ("a number", "a text") or _describe_type(second) != _describe_type(first):
            raise EvaluationError(f"only numbers and texts can be ordered, got {_describe_type(first)}")
        return compare(first, second)

    return compare_ordered


def get_item(value: Any, *keys: Any) -> Any:
    """Return the value under a key or an index; further keys look inside that value. A missing key is null."""
    for key in keys:
        match value:
            case dict():
                value = value.get(str(key))
            case list() | str() if isinstance(key, int) and not isinstance(key, bool):
                if not 0 <= key < len(value):
                    raise EvaluationError(
                        f"index {key} is out of range: the {_describe_type(value)[2:]} has length {len(value)}"
                    )
                value = value[key]
            case _:
                raise EvaluationError(f"{_describe_type(value)} has no element {format_value(key)[:40]}")
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    """Return the part of a text or list from a start (default 0) to an end (default its length), end excluded."""
    if not isinstance(value, list | str) or not all(isinstance(bound, int) for bound in bounds):
        raise EvaluationError("slice takes a text or a list, and whole numbers")
    start, end = (*bounds, len(value))[:2] if len(bounds) == 1 else (*bounds, 0, len(value))[:2]
    if not 0 <= start <= end <= len(value):
        raise EvaluationError(
            f"{start} to {end} is out of range: the {_describe_type(value)[2:]} has length {len(value)}"
        )
    return value[start:end]


def _get_length(value: Any) -> int:
    """Return the length of a text, list or map; 0 for null."""
    if value is None:
        return 0
    if not isinstance(value, str | list | dict):
        raise EvaluationError(f"{_describe_type(value)} has no length")
    return len(value)


def _contains_value(values: Any, value: Any) -> bool:
    """Return whether a list has the element, a map has the key, or a text has the part."""
    match values:
        case None:
            return False
        case str():
            return format_value(value) in values
        case list() | dict():
            return value in values
        case _:
            raise EvaluationError(f"cannot search in {_describe_type(values)}")


def _make_contains_function(combine: Callable[[list[bool]], bool]) -> Callable[[Any, Any], bool]:
    """Return a template function that searches a list, a map or a text for several values.

    `combine` receives whether each value was found, and returns the result.
    """
    return lambda searched_values, values: combine(
        [_contains_value(values, searched_value) for searched_value in searched_values or ()]
    )


def _merge_maps(overriding_map: Any, base_map: Any) -> dict[str, Any]:
    """Return the entries of both maps. For a common key, that of `overriding_map` is used."""
    if not isinstance(base_map, dict) or not isinstance(overriding_map, dict):
        raise EvaluationError("mergeMap takes two maps")
    return {**base_map, **overriding_map}


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "eq": (is_equal, Arity(2, None)),
    "ne": (_is_unequal, Arity(2, 2)),
    "lt": (_make_order_test(lambda first, second: first < second), Arity(2, 2)),
    "le": (_make_order_test(lambda first, second: first <= second), Arity(2, 2)),
    "gt": (_make_order_test(lambda first, second: first > second), Arity(2, 2)),
    "ge": (_make_order_test(lambda first, second: first >= second), Arity(2, 2)),
    "not": (lambda value: not value, Arity(1, 1)),
    "index": (get_item, Arity(1, None)),
    "slice": (_slice, Arity(1, 3)),
    "len": (_get_length, Arity(1, 1)),
    # The searched value comes first, as in `{{ .Tags | contains "canary" }}`.
    "contains": (lambda value, values: _contains_value(values, value), Arity(2, 2)),
    "in": (_contains_value, Arity(2, 2)),
    "containsAll": (_make_contains_function(all), Arity(2, 2)),
    "containsAny": (_make_contains_function(any), Arity(2, 2)),
    "containsNone": (_make_contains_function(lambda is_found: not any(is_found)), Arity(2, 2)),
    "containsNotAll": (_make_contains_function(lambda is_found: not all(is_found)), Arity(2, 2)),
    "mergeMap": (lambda added_map, base_map: _merge_maps(base_map, added_map), Arity(2, 2)),
    "mergeMapWithOverride": (_merge_maps, Arity(2, 2)),
}
