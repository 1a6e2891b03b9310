"""Functions that compare values and look into lists and maps."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case dict():
            return "a map"
        case _:
            return "a list"


def _alike(first: Any, second: Any) -> None:
    kinds = _kind(first), _kind(second)
    if kinds[0] != kinds[1] and "nothing" not in kinds:
        raise EvaluationError(
            f"{format_value(first)[:40]} is {kinds[0]} and {format_value(second)[:40]} is {kinds[1]}: they cannot be compared"
        )


def is_equal(first: Any, *others: Any) -> bool:
    for other in others:
        _alike(first, other)
    return any(first == other for other in others)


def _is_unequal(first: Any, second: Any) -> bool:
    _alike(first, second)
    return bool(first != second)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(first: Any, second: Any) -> bool:
        _alike(first, second)
        if _kind(first) not in ("a number", "a text") or _kind(second) != _kind(first):
            raise EvaluationError(f"{_kind(first)} has no order")
        return compare(first, second)

    return ordered


def get_item(value: Any, *keys: Any) -> Any:
    for key in keys:
        match value:
            case dict():
                value = value.get(str(key))
            case list() | str() if isinstance(key, int) and not isinstance(key, bool):
                if not 0 <= key < len(value):
                    raise EvaluationError(f"there is no {key} in a {_kind(value)[2:]} of {len(value)}")
                value = value[key]
            case _:
                raise EvaluationError(f"{_kind(value)} has no {format_value(key)[:40]}")
    return value


def _cut(value: Any, *places: Any) -> Any:
    if not isinstance(value, list | str) or not all(isinstance(place, int) for place in places):
        raise EvaluationError("slice takes a text or a list, and whole numbers")
    begin, end = (*places, len(value))[:2] if len(places) == 1 else (*places, 0, len(value))[:2]
    if not 0 <= begin <= end <= len(value):
        raise EvaluationError(f"there is no {begin} to {end} in a {_kind(value)[2:]} of {len(value)}")
    return value[begin:end]


def _length(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, str | list | dict):
        raise EvaluationError(f"{_kind(value)} has no length")
    return len(value)


def _is_in(values: Any, value: Any) -> bool:
    match values:
        case None:
            return False
        case str():
            return format_value(value) in values
        case list() | dict():
            return value in values
        case _:
            raise EvaluationError(f"{_kind(values)} holds nothing")


def _contains_of(is_enough: Callable[[list[bool]], bool]) -> Callable[[Any, Any], bool]:
    return lambda asked, values: is_enough([_is_in(values, one) for one in asked or ()])


def _merge(overriding: Any, base: Any) -> dict[str, Any]:
    if not isinstance(base, dict) or not isinstance(overriding, dict):
        raise EvaluationError("mergeMap takes two maps")
    return {**base, **overriding}


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "eq": (is_equal, Arity(2, None)),
    "ne": (_is_unequal, Arity(2, 2)),
    "lt": (_ordered(lambda first, second: first < second), Arity(2, 2)),
    "le": (_ordered(lambda first, second: first <= second), Arity(2, 2)),
    "gt": (_ordered(lambda first, second: first > second), Arity(2, 2)),
    "ge": (_ordered(lambda first, second: first >= second), Arity(2, 2)),
    "not": (lambda value: not value, Arity(1, 1)),
    "index": (get_item, Arity(1, None)),
    "slice": (_cut, Arity(1, 3)),
    "len": (_length, Arity(1, 1)),
    # As in `{{ .Tags | contains "canary" }}`: what is looked for comes first.
    "contains": (lambda value, values: _is_in(values, value), Arity(2, 2)),
    "in": (_is_in, Arity(2, 2)),
    "containsAll": (_contains_of(all), Arity(2, 2)),
    "containsAny": (_contains_of(any), Arity(2, 2)),
    "containsNone": (_contains_of(lambda found: not any(found)), Arity(2, 2)),
    "containsNotAll": (_contains_of(lambda found: not all(found)), Arity(2, 2)),
    "mergeMap": (lambda added, base: _merge(base, added), Arity(2, 2)),
    "mergeMapWithOverride": (_merge, Arity(2, 2)),
}
