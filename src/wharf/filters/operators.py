"""Which operator each kind has, and the test that it makes of one value.

A test is made once, when a filter is compiled: the literal is coerced and the pattern compiled here, and what does not
fit is told before any record is read. Nulls and missing keys are told apart by `compiling`.
"""

from collections.abc import Callable, Collection
from functools import partial
from operator import eq
from typing import Any, Final, TypeAlias

import msgspec

from wharf.filters import untyped
from wharf.filters.kinds import Boolean, Bytes, Float, Integer, Kind, List, Map, Struct, Text, Time, Untyped
from wharf.filters.literals import BYTE_MOST, to_boolean, to_float, to_integer
from wharf.filters.pattern import NoPattern, compile_bytes_search, compile_search
from wharf.filters.tree import Match, Operator

Test: TypeAlias = Callable[[Any], bool]  # Of a value of the kind that the test was made for.

EQUAL, CONTAINS, MATCHES = Operator.EQUAL, Operator.CONTAINS, Operator.MATCHES
IS_EMPTY, IS_NIL = Operator.IS_EMPTY, Operator.IS_NIL

_IN_WORDS: Final = {
    EQUAL: "== and !=",
    CONTAINS: "in and contains",
    MATCHES: "matches",
    IS_EMPTY: "is empty",
    IS_NIL: "is nil",
}
_SCALARS: Final = (Text, Time, Boolean, Integer, Float)


class Misfit(Exception):
    """The operator or the value does not fit the kind. `is_value`: it is the value that does not."""

    def __init__(self, reason: str, *, is_value: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_value = is_value


def operators_of(kind: Kind) -> tuple[Operator, ...]:
    """The positive operators that a kind has; each has its opposite."""
    match kind:
        case Text():
            own: tuple[Operator, ...] = (EQUAL, CONTAINS, MATCHES, IS_EMPTY)
        case Time() | Untyped():
            own = (EQUAL, CONTAINS, MATCHES, IS_EMPTY, IS_NIL)
        case Boolean() | Integer() | Float():
            own = (EQUAL,)
        case Bytes():
            own = (CONTAINS, MATCHES, IS_EMPTY, IS_NIL)
        case List(item=item):
            own = (CONTAINS, IS_EMPTY, IS_NIL) if isinstance(item, (*_SCALARS, Untyped)) else (IS_EMPTY, IS_NIL)
        case Map(has_text_keys=has_text_keys):
            own = (CONTAINS, IS_EMPTY, IS_NIL) if has_text_keys else (IS_EMPTY, IS_NIL)
        case _:
            own = (IS_NIL,)
    return (*own, IS_NIL) if kind.may_be_null and IS_NIL not in own else own


def make_test(match: Match, kind: Kind) -> Test:
    """The test of the positive operator of a term."""
    operator = match.operator.positive
    if operator not in operators_of(kind):
        raise Misfit(_no_operator(match, kind), is_value=False)
    text = "" if match.value is None else match.value.text
    selector = str(match.selector)
    match operator:
        case Operator.EQUAL:
            return _equality(kind, text)
        case Operator.CONTAINS:
            return _containment(kind, text, selector)
        case Operator.MATCHES:
            return _matching(kind, text)
        case Operator.IS_EMPTY:
            return untyped.is_empty(selector) if isinstance(kind, Untyped) else _is_empty
        case _:
            return _is_nil


def literal_of(kind: Kind, text: str) -> object:
    """What a text stands for where values of a kind are."""
    match kind:
        case Boolean():
            boolean = to_boolean(text)
            return _fitting(boolean, text, "true or false")
        case Integer(least=least, most=most):
            integer = to_integer(text, least=least, most=most)
            return _fitting(integer, text, "a whole number" if least < 0 else "a whole number from 0")
        case Float():
            number = to_float(text)
            return _fitting(number, text, "a number")
        case _:
            return text


def _fitting(literal: object, text: str, expected: str) -> object:
    if literal is None:
        shown = text if len(text) <= 80 else text[:80] + "…"
        reason = f'error getting match value in expression: "{shown}" is not {expected}'
        raise Misfit(reason, is_value=True)
    return literal


def _equality(kind: Kind, text: str) -> Test:
    if isinstance(kind, Untyped):
        return untyped.equals(text)
    literal = literal_of(kind, text)
    show = _show(kind)
    if show is not None:
        return lambda value: show(value) == text
    return partial(eq, literal)  # Made in C: half the time of a function of ours.


def _containment(kind: Kind, text: str, selector: str) -> Test:
    match kind:
        case Untyped():
            return untyped.contains(text, selector)
        case Text() | Time():
            show = _show(kind)
            return (lambda value: text in value) if show is None else (lambda value: text in show(value))
        case Bytes():
            byte = _fitting(to_integer(text, least=0, most=BYTE_MOST), text, "a byte from 0 to 255")
            return lambda value: bool(value) and byte in value
        case List(item=Untyped()):
            element_of = untyped.contains(text, selector)
            return lambda value: bool(value) and element_of(value)
        case List(item=item):
            literal, show_item = literal_of(item, text), _show(item)
            if show_item is not None:
                return lambda value: any(e is not None and show_item(e) == text for e in value or ())
            return lambda value: bool(value) and literal in value
        case _:
            return lambda value: bool(value) and text in value


def _matching(kind: Kind, text: str) -> Test:
    try:
        if isinstance(kind, Bytes):
            search_bytes = compile_bytes_search(text)
            return lambda value: search_bytes(value or b"")
        search = compile_search(text)
    except NoPattern as problem:
        reason = f'failed to compile regular expression "{text[:80]}": {problem}'
        raise Misfit(reason, is_value=True) from None
    if isinstance(kind, Untyped):
        return untyped.matches(search)
    show = _show(kind)
    return search if show is None else (lambda value: search(show(value)))


def _show(kind: Kind) -> Callable[[Any], str] | None:
    """How values of a kind become text, where they are none already."""
    match kind:
        case Time():
            return msgspec.to_builtins
        case Text(show=show):
            return show
        case _:
            return None


def _is_empty(value: Collection[object] | None) -> bool:
    return not value


def _is_nil(value: object) -> bool:
    return value is None


def _no_operator(match: Match, kind: Kind) -> str:
    selector = f'on type {kind.name} for selector: "{match.selector}"'
    match match.operator.positive:
        case Operator.EQUAL:
            reason = "unable to find suitable primitive comparison function for matching"
        case Operator.CONTAINS if isinstance(kind, List):
            reason = 'unable to find suitable primitive comparison function for "in" comparison'
        case Operator.CONTAINS:
            reason = f"cannot perform in/contains operations {selector}"
        case Operator.MATCHES:
            reason = f"value of type {kind.name} is not convertible to []byte"
        case Operator.IS_EMPTY:
            reason = f"cannot perform is-empty operations {selector}"
        case _:
            reason = f"cannot perform is-nil operations {selector}"
    return f"{reason}; {_advice(match, kind)}"


def _advice(match: Match, kind: Kind) -> str:
    has = ", ".join(_IN_WORDS[operator] for operator in operators_of(kind))
    if isinstance(kind, List) and match.operator.positive is CONTAINS:
        return f"use any {match.selector} as x {{ … }}"
    if isinstance(kind, Struct):
        return f"name one of its fields: {', '.join(sorted(kind.fields)[:8])}"
    return f"{kind.name} has {has}"
