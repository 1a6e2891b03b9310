"""The operators of each kind of value, and the tests that they compile to.

A test is built once, when a filter is compiled: the literal is converted and the pattern compiled here, so a misfit is
reported before any record is read. Nulls and missing keys are handled in `compiler`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Any, Final, TypeAlias

import msgspec

from wharf.languages.filters import untyped
from wharf.languages.filters.kinds import (
    BooleanKind,
    BytesKind,
    FloatKind,
    IntegerKind,
    ListKind,
    MapKind,
    StructKind,
    TextKind,
    TimeKind,
    UntypedKind,
    ValueKind,
)
from wharf.languages.filters.literals import MAX_BYTE, to_boolean, to_float, to_integer
from wharf.languages.filters.tree import FilterOperator, Match
from wharf.languages.patterns import (
    MAX_UTF8_BYTES,
    PatternError,
    compile_bytes_search,
    compile_search,
    count_match_steps,
)

ValueTest: TypeAlias = Callable[[Any], bool]
"""Takes a value of the kind that the test was built for; returns whether it matches."""

EQUAL, CONTAINS, MATCHES = FilterOperator.EQUAL, FilterOperator.CONTAINS, FilterOperator.MATCHES
IS_EMPTY, IS_NIL = FilterOperator.IS_EMPTY, FilterOperator.IS_NIL

_OPERATOR_LABELS: Final = {
    EQUAL: "== and !=",
    CONTAINS: "in and contains",
    MATCHES: "matches",
    IS_EMPTY: "is empty",
    IS_NIL: "is nil",
}
COST_SHIFT: Final = 10
COST_UNIT: Final = 1 << COST_SHIFT
"""Cost factors are in steps for this number of characters, bytes or elements."""
TEXT_COST: Final = 1
"""The cost factor of searching a text for a text: about a nanosecond for each character."""
ELEMENT_COST: Final = 32
"""The cost factor of comparing the elements of a list of one kind."""
UNTYPED_ELEMENT_COST: Final = 512
"""The cost factor of comparing elements of any kind."""
_SCALARS: Final = (TextKind, TimeKind, BooleanKind, IntegerKind, FloatKind)


class OperatorMismatch(Exception):
    """The operator or the literal does not fit the kind. `is_value_mismatch` is set if it is the literal."""

    def __init__(self, reason: str, *, is_value_mismatch: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_value_mismatch = is_value_mismatch


def list_operators(kind: ValueKind) -> tuple[FilterOperator, ...]:
    """Return the operators that values of a kind have, without the negated ones, such as `matches` without `not
    matches`.
    """
    match kind:
        case TextKind():
            operators: tuple[FilterOperator, ...] = (EQUAL, CONTAINS, MATCHES, IS_EMPTY)
        case TimeKind() | UntypedKind():
            operators = (EQUAL, CONTAINS, MATCHES, IS_EMPTY, IS_NIL)
        case BooleanKind() | IntegerKind() | FloatKind():
            operators = (EQUAL,)
        case BytesKind():
            operators = (CONTAINS, MATCHES, IS_EMPTY, IS_NIL)
        case ListKind(item=item):
            operators = (
                (CONTAINS, IS_EMPTY, IS_NIL) if isinstance(item, (*_SCALARS, UntypedKind)) else (IS_EMPTY, IS_NIL)
            )
        case MapKind(has_text_keys=has_text_keys):
            operators = (CONTAINS, IS_EMPTY, IS_NIL) if has_text_keys else (IS_EMPTY, IS_NIL)
        case _:
            operators = (IS_NIL,)
    return (*operators, IS_NIL) if kind.is_nullable and IS_NIL not in operators else operators


@dataclass(frozen=True, slots=True)
class TermTest:
    """The test of a term, and what it costs.

    `cost_factor` is the cost of a character, byte or list element in steps, times `COST_UNIT`. 0 means that the size of
    the value does not matter.
    """

    test: ValueTest
    cost_factor: int = 0
    pattern_instructions: int = 0


def make_test(match: Match, kind: ValueKind) -> TermTest:
    """Return the test for a term such as `Name contains "web"`. It ignores whether the operator is negated.

    Raises `OperatorMismatch` if the kind does not have the operator, or the literal does not fit the kind.
    """
    operator = match.operator.positive
    if operator not in list_operators(kind):
        raise OperatorMismatch(_describe_missing_operator(match, kind), is_value_mismatch=False)
    text = "" if match.value is None else match.value.text
    selector = str(match.selector)
    match operator:
        case FilterOperator.EQUAL:
            return TermTest(_make_equality_test(kind, text))
        case FilterOperator.CONTAINS:
            return TermTest(_make_containment_test(kind, text, selector), _get_containment_cost(kind))
        case FilterOperator.MATCHES:
            return _make_pattern_test(kind, text)
        case FilterOperator.IS_EMPTY:
            return TermTest(untyped.make_emptiness_test(selector) if isinstance(kind, UntypedKind) else _is_empty)
        case _:
            return TermTest(_is_nil)


def parse_literal(kind: ValueKind, text: str) -> object:
    """Convert the text of a literal to a value that can be compared with values of the kind.

    Raises `OperatorMismatch` if the text is not such a literal.
    """
    match kind:
        case BooleanKind():
            boolean = to_boolean(text)
            return _require_literal(boolean, text, "true or false")
        case IntegerKind(minimum=minimum, maximum=maximum):
            integer = to_integer(text, minimum=minimum, maximum=maximum)
            return _require_literal(integer, text, "a whole number" if minimum < 0 else "a whole number from 0")
        case FloatKind():
            number = to_float(text)
            return _require_literal(number, text, "a number")
        case _:
            return text


def _require_literal(literal: object, text: str, expected: str) -> object:
    """Return the literal, or raise `OperatorMismatch` if the conversion of its text failed (`None`)."""
    if literal is None:
        quoted_text = text if len(text) <= 80 else text[:80] + "…"
        reason = f'error getting match value in expression: "{quoted_text}" is not {expected}'
        raise OperatorMismatch(reason, is_value_mismatch=True)
    return literal


def _make_equality_test(kind: ValueKind, text: str) -> ValueTest:
    """Return a test for values that equal the literal."""
    if isinstance(kind, UntypedKind):
        return untyped.make_equality_test(text)
    literal = parse_literal(kind, text)
    to_text = _get_text_converter(kind)
    if to_text is not None:
        return lambda value: to_text(value) == text
    return partial(eq, literal)  # Implemented in C, so it takes half the time of a Python function.


def _make_containment_test(kind: ValueKind, text: str, selector: str) -> ValueTest:
    """Return a test for values that contain the literal: as part of a text, an element of a list or a key of a map."""
    match kind:
        case UntypedKind():
            return untyped.make_containment_test(text, selector)
        case TextKind() | TimeKind():
            to_text = _get_text_converter(kind)
            return (lambda value: text in value) if to_text is None else (lambda value: text in to_text(value))
        case BytesKind():
            byte = _require_literal(to_integer(text, minimum=0, maximum=MAX_BYTE), text, "a byte from 0 to 255")
            return lambda value: bool(value) and byte in value
        case ListKind(item=UntypedKind()):
            is_element = untyped.make_containment_test(text, selector)
            return lambda value: bool(value) and is_element(value)
        case ListKind(item=item):
            literal, item_to_text = parse_literal(item, text), _get_text_converter(item)
            if item_to_text is not None:
                return lambda value: any(e is not None and item_to_text(e) == text for e in value or ())
            return lambda value: bool(value) and literal in value
        case _:
            return lambda value: bool(value) and text in value


def _get_containment_cost(kind: ValueKind) -> int:
    """Return the cost factor of `contains` for values of the kind."""
    if isinstance(kind, ListKind):
        return UNTYPED_ELEMENT_COST if isinstance(kind.item, UntypedKind) else ELEMENT_COST
    return UNTYPED_ELEMENT_COST if isinstance(kind, UntypedKind) else TEXT_COST


def _make_pattern_test(kind: ValueKind, text: str) -> TermTest:
    """Return a test for values in whose text or bytes the pattern is found."""
    try:
        if isinstance(kind, BytesKind):
            search_bytes, instructions = compile_bytes_search(text)
            return TermTest(lambda value: search_bytes(value or b""), _get_pattern_cost(instructions), instructions)
        search, instructions = compile_search(text)
    except PatternError as error:
        reason = f'failed to compile regular expression "{text[:80]}": {error}'
        raise OperatorMismatch(reason, is_value_mismatch=True) from None
    cost = _get_pattern_cost(instructions)
    if isinstance(kind, UntypedKind):
        return TermTest(untyped.make_pattern_test(search), cost, instructions)
    to_text = _get_text_converter(kind)
    return TermTest(search if to_text is None else (lambda value: search(to_text(value))), cost, instructions)


def _get_pattern_cost(instructions: int) -> int:
    """Return the cost factor of a pattern. Plain text has no instructions and costs as much as `contains`."""
    return max(TEXT_COST, count_match_steps(instructions, COST_UNIT))


def count_value_steps(value: object, cost_factor: int) -> int:
    """Return the steps that a test with this cost factor takes for the value: 1 for a short one."""
    if isinstance(value, str):
        return 1 + (len(value) * (cost_factor if value.isascii() else MAX_UTF8_BYTES * cost_factor) >> COST_SHIFT)
    if isinstance(value, bytes | list | tuple | frozenset):
        return 1 + (len(value) * cost_factor >> COST_SHIFT)
    return 1


def _get_text_converter(kind: ValueKind) -> Callable[[Any], str] | None:
    """Return the function that converts values of a kind to text, or `None` if they are text already."""
    match kind:
        case TimeKind():
            return msgspec.to_builtins
        case TextKind(format=to_text):
            return to_text
        case _:
            return None


def _is_empty(value: Collection[object] | None) -> bool:
    return not value


def _is_nil(value: object) -> bool:
    return value is None


def _describe_missing_operator(match: Match, kind: ValueKind) -> str:
    """Return the error text for an operator that the kind does not have: Nomad's text, then what to write instead."""
    selector = f'on type {kind.name} for selector: "{match.selector}"'
    match match.operator.positive:
        case FilterOperator.EQUAL:
            reason = "unable to find suitable primitive comparison function for matching"
        case FilterOperator.CONTAINS if isinstance(kind, ListKind):
            reason = 'unable to find suitable primitive comparison function for "in" comparison'
        case FilterOperator.CONTAINS:
            reason = f"cannot perform in/contains operations {selector}"
        case FilterOperator.MATCHES:
            reason = f"value of type {kind.name} is not convertible to []byte"
        case FilterOperator.IS_EMPTY:
            reason = f"cannot perform is-empty operations {selector}"
        case _:
            reason = f"cannot perform is-nil operations {selector}"
    return f"{reason}; {_suggest_alternative(match, kind)}"


def _suggest_alternative(match: Match, kind: ValueKind) -> str:
    """Return what to write instead of an operator that the kind does not have."""
    labels = ", ".join(_OPERATOR_LABELS[operator] for operator in list_operators(kind))
    if isinstance(kind, ListKind) and match.operator.positive is CONTAINS:
        return f"use any {match.selector} as x {{ … }}"
    if isinstance(kind, StructKind):
        return f"name one of its fields: {', '.join(sorted(kind.fields)[:8])}"
    return f"{kind.name} has {labels}"
