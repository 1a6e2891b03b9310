"""Template functions over numbers. The piped number is the left operand: `{{ 5 | subtract 2 }}` is 3."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value

MAX_LOOP_ITEMS: Final = 100_000
"""How many numbers `loop` may list: limits memory."""
INTEGER_BITS: Final = 64
"""The size of integers, signed. Larger results are errors, as in other implementations of these templates."""


def _require_number(value: Any) -> int | float:
    """Return the value if it is a number. Raises `EvaluationError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(
            f"{format_value(value)[:40] or 'an empty text'} is not a number: convert text with parseInt"
        )
    return value


def _require_64_bits(value: int | float) -> int | float:
    """Return the value if it is a float or an integer of 64 bits. Raises `EvaluationError` otherwise."""
    if isinstance(value, int) and not -(1 << (INTEGER_BITS - 1)) <= value < 1 << INTEGER_BITS:
        raise EvaluationError(f"the number does not fit in {INTEGER_BITS} bits")
    return value


def _make_arithmetic_function(calculate: Callable[[Any, Any], int | float]) -> Callable[[Any, Any], int | float]:
    """Return a template function of two numbers.

    Its second argument is the left operand, so that `{{ 5 | subtract 2 }}` is 3.
    """
    return lambda second, first: _require_64_bits(calculate(_require_number(first), _require_number(second)))


def _divide(first: int | float, second: int | float) -> int | float:
    """Return the quotient of two numbers. A quotient of integers is rounded towards zero.

    Raises `EvaluationError` for a division by 0.
    """
    if second == 0:
        raise EvaluationError("division by zero")
    if isinstance(first, int) and isinstance(second, int):
        quotient = abs(first) // abs(second)
        return quotient if (first < 0) == (second < 0) else -quotient
    return first / second


def _modulo(first: int | float, second: int | float) -> int | float:
    if not isinstance(first, int) or not isinstance(second, int):
        raise EvaluationError("modulo takes whole numbers")
    return first - second * int(_divide(first, second))


def _count_loop(*bounds: Any) -> list[int]:
    """Return the integers from a start (default 0) up to an end, end excluded. Start and end may be decimal texts."""
    start, end = (0, bounds[0]) if len(bounds) == 1 else bounds
    start, end = (
        int(bound) if isinstance(bound, str) and bound.isdecimal() else _require_number(bound) for bound in (start, end)
    )
    if not isinstance(start, int) or not isinstance(end, int):
        raise EvaluationError("loop takes whole numbers")
    if end - start > MAX_LOOP_ITEMS:
        raise EvaluationError(f"loop lists at most {MAX_LOOP_ITEMS:,} numbers")
    return list(range(start, end))


def _parse_integer(text: Any) -> int:
    try:
        return int(_require_64_bits(int(str(text).strip(), 10)))
    except ValueError:
        raise EvaluationError(f"{format_value(text)[:40]!r} is not a whole number") from None


def _parse_unsigned(text: Any) -> int:
    value = _parse_integer(text)
    if value < 0:
        raise EvaluationError(f"{value} is below zero")
    return value


def _parse_float(text: Any) -> float:
    try:
        return float(str(text))
    except ValueError:
        raise EvaluationError(f"{format_value(text)[:40]!r} is not a number") from None


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "add": (_make_arithmetic_function(lambda first, second: first + second), Arity(2, 2)),
    "subtract": (_make_arithmetic_function(lambda first, second: first - second), Arity(2, 2)),
    "multiply": (_make_arithmetic_function(lambda first, second: first * second), Arity(2, 2)),
    "divide": (_make_arithmetic_function(_divide), Arity(2, 2)),
    "modulo": (_make_arithmetic_function(_modulo), Arity(2, 2)),
    "minimum": (_make_arithmetic_function(min), Arity(2, 2)),
    "maximum": (_make_arithmetic_function(max), Arity(2, 2)),
    "loop": (_count_loop, Arity(1, 2)),
    "parseInt": (_parse_integer, Arity(1, 1)),
    "parseUint": (_parse_unsigned, Arity(1, 1)),
    "parseFloat": (_parse_float, Arity(1, 1)),
}
