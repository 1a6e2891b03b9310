"""Which operator each kind has, and the test that it makes of one value.

A test is made once, when a filter is compiled: the literal is coerced and the pattern compiled here, and what does not
fit is told before any record is read. Nulls and missing keys are told apart by `compiling`.
"""

from collections.abc import Callable, Collection
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
from wharf.languages.patterns import SearchPatternError, compile_bytes_search, compile_search

ValueTest: TypeAlias = Callable[[Any], bool]  # Of a value of the kind that the test was made for.

EQUAL, CONTAINS, MATCHES = FilterOperator.EQUAL, FilterOperator.CONTAINS, FilterOperator.MATCHES
IS_EMPTY, IS_NIL = FilterOperator.IS_EMPTY, FilterOperator.IS_NIL

_IN_WORDS: Final = {
    EQUAL: "== and !=",
    CONTAINS: "in and contains",
    MATCHES: "matches",
    IS_EMPTY: "is empty",
    IS_NIL: "is nil",
}
_SCALARS: Final = (TextKind, TimeKind, BooleanKind, IntegerKind, FloatKind)


class OperatorMismatch(Exception):
    """The operator or the value does not fit the kind. `is_value`: it is the value that does not."""

    def __init__(self, reason: str, *, is_value_mismatch: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_value_mismatch = is_value_mismatch


def list_operators(kind: ValueKind) -> tuple[FilterOperator, ...]:
    """The positive operators that a kind has; each has its opposite."""
    match kind:
        case TextKind():
            own: tuple[FilterOperator, ...] = (EQUAL, CONTAINS, MATCHES, IS_EMPTY)
        case TimeKind() | UntypedKind():
            own = (EQUAL, CONTAINS, MATCHES, IS_EMPTY, IS_NIL)
        case BooleanKind() | IntegerKind() | FloatKind():
            own = (EQUAL,)
        case BytesKind():
            own = (CONTAINS, MATCHES, IS_EMPTY, IS_NIL)
        case ListKind(item=item):
            own = (CONTAINS, IS_EMPTY, IS_NIL) if isinstance(item, (*_SCALARS, UntypedKind)) else (IS_EMPTY, IS_NIL)
        case MapKind(has_text_keys=has_text_keys):
            own = (CONTAINS, IS_EMPTY, IS_NIL) if has_text_keys else (IS_EMPTY, IS_NIL)
        case _:
            own = (IS_NIL,)
    return (*own, IS_NIL) if kind.is_nullable and IS_NIL not in own else own


def make_test(match: Match, kind: ValueKind) -> ValueTest:
    """The test of the positive operator of a term."""
    operator = match.operator.positive
    if operator not in list_operators(kind):
        raise OperatorMismatch(_no_operator(match, kind), is_value_mismatch=False)
    text = "" if match.value is None else match.value.text
    selector = str(match.selector)
    match operator:
        case FilterOperator.EQUAL:
            return _equality(kind, text)
        case FilterOperator.CONTAINS:
            return _containment(kind, text, selector)
        case FilterOperator.MATCHES:
            return _matching(kind, text)
        case FilterOperator.IS_EMPTY:
            return untyped.make_emptiness_test(selector) if isinstance(kind, UntypedKind) else _is_empty
        case _:
            return _is_nil


def parse_literal(kind: ValueKind, text: str) -> object:
    """What a text stands for where values of a kind are."""
    match kind:
        case BooleanKind():
            boolean = to_boolean(text)
            return _fitting(boolean, text, "true or false")
        case IntegerKind(minimum=least, maximum=most):
            integer = to_integer(text, minimum=least, maximum=most)
            return _fitting(integer, text, "a whole number" if least < 0 else "a whole number from 0")
        case FloatKind():
            number = to_float(text)
            return _fitting(number, text, "a number")
        case _:
            return text


def _fitting(literal: object, text: str, expected: str) -> object:
    if literal is None:
        shown = text if len(text) <= 80 else text[:80] + "…"
        reason = f'error getting match value in expression: "{shown}" is not {expected}'
        raise OperatorMismatch(reason, is_value_mismatch=True)
    return literal


def _equality(kind: ValueKind, text: str) -> ValueTest:
    if isinstance(kind, UntypedKind):
        return untyped.make_equality_test(text)
    literal = parse_literal(kind, text)
    show = _show(kind)
    if show is not None:
        return lambda value: show(value) == text
    return partial(eq, literal)  # Made in C: half the time of a function of ours.


def _containment(kind: ValueKind, text: str, selector: str) -> ValueTest:
    match kind:
        case UntypedKind():
            return untyped.make_containment_test(text, selector)
        case TextKind() | TimeKind():
            show = _show(kind)
            return (lambda value: text in value) if show is None else (lambda value: text in show(value))
        case BytesKind():
            byte = _fitting(to_integer(text, minimum=0, maximum=MAX_BYTE), text, "a byte from 0 to 255")
            return lambda value: bool(value) and byte in value
        case ListKind(item=UntypedKind()):
            element_of = untyped.make_containment_test(text, selector)
            return lambda value: bool(value) and element_of(value)
        case ListKind(item=item):
            literal, show_item = parse_literal(item, text), _show(item)
            if show_item is not None:
                return lambda value: any(e is not None and show_item(e) == text for e in value or ())
            return lambda value: bool(value) and literal in value
        case _:
            return lambda value: bool(value) and text in value


def _matching(kind: ValueKind, text: str) -> ValueTest:
    try:
        if isinstance(kind, BytesKind):
            search_bytes = compile_bytes_search(text)
            return lambda value: search_bytes(value or b"")
        search = compile_search(text)
    except SearchPatternError as problem:
        reason = f'failed to compile regular expression "{text[:80]}": {problem}'
        raise OperatorMismatch(reason, is_value_mismatch=True) from None
    if isinstance(kind, UntypedKind):
        return untyped.make_pattern_test(search)
    show = _show(kind)
    return search if show is None else (lambda value: search(show(value)))


def _show(kind: ValueKind) -> Callable[[Any], str] | None:
    """How values of a kind become text, where they are none already."""
    match kind:
        case TimeKind():
            return msgspec.to_builtins
        case TextKind(format=show):
            return show
        case _:
            return None


def _is_empty(value: Collection[object] | None) -> bool:
    return not value


def _is_nil(value: object) -> bool:
    return value is None


def _no_operator(match: Match, kind: ValueKind) -> str:
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
    return f"{reason}; {_advice(match, kind)}"


def _advice(match: Match, kind: ValueKind) -> str:
    has = ", ".join(_IN_WORDS[operator] for operator in list_operators(kind))
    if isinstance(kind, ListKind) and match.operator.positive is CONTAINS:
        return f"use any {match.selector} as x {{ … }}"
    if isinstance(kind, StructKind):
        return f"name one of its fields: {', '.join(sorted(kind.fields)[:8])}"
    return f"{kind.name} has {has}"
