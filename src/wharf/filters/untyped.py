"""Operators on any JSON, where each record tells what a value is.

What a value can not be compared with is not equal to it; an operator that the value does not have is an error of that
record, as is null, which is only ever asked for by `is nil`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from wharf.filters.literals import to_boolean, to_number

Test: TypeAlias = Callable[[object], bool]


class Unsuitable(Exception):
    """The value does not have the operator; the reason goes into the error of the record."""


def equals(text: str) -> Test:
    boolean, number = to_boolean(text), to_number(text)

    def test(value: object) -> bool:
        match value:
            case str():
                return value == text
            case bool():
                return boolean is value
            case int() | float():
                return number is not None and value == number
        raise Unsuitable("unable to find suitable primitive comparison function for matching")

    return test


def contains(text: str, selector: str) -> Test:
    """A substring, a key of an object, an element of a list; elements that are no scalars are passed over."""
    equal = equals(text)

    def test(value: object) -> bool:
        match value:
            case str():
                return text in value
            case Mapping():
                return text in value
            case Sequence() if not isinstance(value, bytes):
                return any(_holds(equal, element) for element in value)
        kind = name_of(value)
        raise Unsuitable(f'cannot perform in/contains operations on type {kind} for selector: "{selector}"')

    return test


def _holds(equal: Test, element: object) -> bool:
    if isinstance(element, Mapping | list | tuple):
        return False
    return equal(element)


def matches(search: Callable[[str], bool]) -> Test:
    def test(value: object) -> bool:
        if isinstance(value, str):
            return search(value)
        raise Unsuitable(f"value of type {name_of(value)} is not convertible to []byte")

    return test


def is_empty(selector: str) -> Test:
    def test(value: object) -> bool:
        if isinstance(value, str | Mapping | list | tuple):
            return not value
        raise Unsuitable(f'cannot perform is-empty operations on type {name_of(value)} for selector: "{selector}"')

    return test


def members(value: object, selector: str) -> Sequence[tuple[object, object]]:
    """What a collection walks over: keys and values, or indexes and elements."""
    match value:
        case Mapping():
            return list(value.items())
        case list() | tuple():
            return list(enumerate(value))
    raise Unsuitable(f"{selector} is not a list or a map")


def name_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case str():
            return "string"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case Mapping():
            return "map"
        case list() | tuple():
            return "list"
        case _:
            return type(value).__name__
