"""Functions over numbers. The number that is piped in comes first: `{{ 5 | subtract 2 }}` is 3."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value

MAX_LOOP_ITEMS: Final = 100_000
INTEGER_BITS: Final = 64


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(
            f"{format_value(value)[:40] or 'an empty text'} is no number: parseInt makes one of a text"
        )
    return value


def _bounded(value: int | float) -> int | float:
    if isinstance(value, int) and not -(1 << (INTEGER_BITS - 1)) <= value < 1 << INTEGER_BITS:
        raise EvaluationError(f"the number does not fit {INTEGER_BITS} bits")
    return value


def _two(calculate: Callable[[Any, Any], int | float]) -> Callable[[Any, Any], int | float]:
    return lambda second, first: _bounded(calculate(_number(first), _number(second)))


def _divide(first: int | float, second: int | float) -> int | float:
    if second == 0:
        raise EvaluationError("nothing can be divided by zero")
    if isinstance(first, int) and isinstance(second, int):
        quotient = abs(first) // abs(second)  # Towards zero, as programs of this kind do it.
        return quotient if (first < 0) == (second < 0) else -quotient
    return first / second


def _modulo(first: int | float, second: int | float) -> int | float:
    if not isinstance(first, int) or not isinstance(second, int):
        raise EvaluationError("modulo takes whole numbers")
    return first - second * int(_divide(first, second))


def _loop(*bounds: Any) -> list[int]:
    begin, end = (0, bounds[0]) if len(bounds) == 1 else bounds
    begin, end = (int(one) if isinstance(one, str) and one.isdecimal() else _number(one) for one in (begin, end))
    if not isinstance(begin, int) or not isinstance(end, int):
        raise EvaluationError("loop takes whole numbers")
    if end - begin > MAX_LOOP_ITEMS:
        raise EvaluationError(f"loop goes over at most {MAX_LOOP_ITEMS:,} numbers")
    return list(range(begin, end))


def _parse_whole(text: Any) -> int:
    try:
        return int(_bounded(int(str(text).strip(), 10)))
    except ValueError:
        raise EvaluationError(f"{format_value(text)[:40]!r} is no whole number") from None


def _parse_natural(text: Any) -> int:
    value = _parse_whole(text)
    if value < 0:
        raise EvaluationError(f"{value} is below zero")
    return value


def _parse_fraction(text: Any) -> float:
    try:
        return float(str(text))
    except ValueError:
        raise EvaluationError(f"{format_value(text)[:40]!r} is no number") from None


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "add": (_two(lambda first, second: first + second), Arity(2, 2)),
    "subtract": (_two(lambda first, second: first - second), Arity(2, 2)),
    "multiply": (_two(lambda first, second: first * second), Arity(2, 2)),
    "divide": (_two(_divide), Arity(2, 2)),
    "modulo": (_two(_modulo), Arity(2, 2)),
    "minimum": (_two(min), Arity(2, 2)),
    "maximum": (_two(max), Arity(2, 2)),
    "loop": (_loop, Arity(1, 2)),
    "parseInt": (_parse_whole, Arity(1, 1)),
    "parseUint": (_parse_natural, Arity(1, 1)),
    "parseFloat": (_parse_fraction, Arity(1, 1)),
}
