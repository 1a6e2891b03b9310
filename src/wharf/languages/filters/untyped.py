"""Operators on any JSON, where each record tells what a value is.

What a value can not be compared with is not equal to it; an operator that the value does not have is an error of that
record, as is null, which is only ever asked for by `is nil`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from wharf.languages.filters.literals import to_boolean, to_number

ValueTest: TypeAlias = Callable[[object], bool]


class UnsupportedOperand(Exception):
    """The value does not have the operator; the reason goes into the error of the record."""


def make_equality_test(text: str) -> ValueTest:
    boolean, number = to_boolean(text), to_number(text)

    def test(value: object) -> bool:
        match value:
            case str():
                return value == text
            case bool():
                return boolean is value
            case int() | float():
                return number is not None and value == number
        raise UnsupportedOperand("unable to find suitable primitive comparison function for matching")

    return test


def make_containment_test(text: str, selector: str) -> ValueTest:
    """A substring, a key of an object, an element of a list; elements that are no scalars are passed over."""
    equal = make_equality_test(text)

    def test(value: object) -> bool:
        match value:
            case str():
                return text in value
            case Mapping():
                return text in value
            case Sequence() if not isinstance(value, bytes):
                return any(_holds(equal, element) for element in value)
        kind = get_type_name(value)
        raise UnsupportedOperand(f'cannot perform in/contains operations on type {kind} for selector: "{selector}"')

    return test


def _holds(equal: ValueTest, element: object) -> bool:
    if isinstance(element, Mapping | list | tuple):
        return False
    return equal(element)


def make_pattern_test(search: Callable[[str], bool]) -> ValueTest:
    def test(value: object) -> bool:
        if isinstance(value, str):
            return search(value)
        raise UnsupportedOperand(f"value of type {get_type_name(value)} is not convertible to []byte")

    return test


def make_emptiness_test(selector: str) -> ValueTest:
    def test(value: object) -> bool:
        if isinstance(value, str | Mapping | list | tuple):
            return not value
        raise UnsupportedOperand(
            f'cannot perform is-empty operations on type {get_type_name(value)} for selector: "{selector}"'
        )

    return test


def list_members(value: object, selector: str) -> Sequence[tuple[object, object]]:
    """What a collection walks over: keys and values, or indexes and elements."""
    match value:
        case Mapping():
            return list(value.items())
        case list() | tuple():
            return list(enumerate(value))
    raise UnsupportedOperand(f"{selector} is not a list or a map")


def get_type_name(value: object) -> str:
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
