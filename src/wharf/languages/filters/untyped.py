"""Operators on untyped JSON, whose types are known only when a record is read.

A literal that cannot be converted to the type of the value is an error of that record, except inside a list, whose elements
are skipped then. So are an operator that the value does not have, and every operator but `is nil` on null.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from wharf.languages.filters.literals import to_boolean, to_number

ValueTest: TypeAlias = Callable[[object], bool]

MAX_QUOTED_CHARS: Final = 80
"""Characters of a literal that an error text repeats."""


class UnsupportedOperand(Exception):
    """The type of the value does not have the operator. The reason becomes the text of an evaluation error."""


class MismatchedLiteral(UnsupportedOperand):
    """The literal cannot be converted to the type of the value."""


def make_equality_test(text: str) -> ValueTest:
    """Return a test for scalars that equal the literal, read as the type of the value.

    The test raises `MismatchedLiteral` if the literal is not of that type.
    """
    boolean, number = to_boolean(text), to_number(text)

    def test(value: object) -> bool:
        match value:
            case str():
                return value == text
            case bool():
                if boolean is None:
                    raise _make_mismatch(text, "true or false")
                return boolean is value
            case int() | float():
                if number is None:
                    raise _make_mismatch(text, "a number")
                return float(value) == number
        raise UnsupportedOperand("unable to find suitable primitive comparison function for matching")

    return test


def _make_mismatch(text: str, expected: str) -> MismatchedLiteral:
    quoted_text = text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "…"
    return MismatchedLiteral(f'error getting match value in expression: "{quoted_text}" is not {expected}')


def make_containment_test(text: str, selector: str) -> ValueTest:
    """Return a test for values that contain the literal: a text, an object with the key, or a list with the element.

    Lists, objects and elements of another type inside a list are skipped.
    """
    equality_test = make_equality_test(text)

    def test(value: object) -> bool:
        match value:
            case str():
                return text in value
            case Mapping():
                return text in value
            case Sequence() if not isinstance(value, bytes):
                return any(_equals_scalar(equality_test, element) for element in value)
        type_name = get_type_name(value)
        raise UnsupportedOperand(
            f'cannot perform in/contains operations on type {type_name} for selector: "{selector}"'
        )

    return test


def _equals_scalar(equality_test: ValueTest, element: object) -> bool:
    if isinstance(element, Mapping | list | tuple):
        return False
    try:
        return equality_test(element)
    except MismatchedLiteral:
        return False


def make_pattern_test(search: Callable[[str], bool]) -> ValueTest:
    """Return a test for strings in which `search` finds its pattern."""

    def test(value: object) -> bool:
        if isinstance(value, str):
            return search(value)
        raise UnsupportedOperand(f"value of type {get_type_name(value)} is not convertible to []byte")

    return test


def make_emptiness_test(selector: str) -> ValueTest:
    """Return a test for empty strings, objects and lists."""

    def test(value: object) -> bool:
        if isinstance(value, str | Mapping | list | tuple):
            return not value
        raise UnsupportedOperand(
            f'cannot perform is-empty operations on type {get_type_name(value)} for selector: "{selector}"'
        )

    return test


def list_members(value: object, selector: str) -> Sequence[tuple[object, object]]:
    """Return the pairs that `any` and `all` iterate over: keys and values, or indexes and elements."""
    match value:
        case Mapping():
            return list(value.items())
        case list() | tuple():
            return list(enumerate(value))
    raise UnsupportedOperand(f"{selector} is not a list or a map")


def get_type_name(value: object) -> str:
    """Return the JSON type of a value, for error texts."""
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
