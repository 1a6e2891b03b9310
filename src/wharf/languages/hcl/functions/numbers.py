"""Functions of numbers."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.numerals import TOO_LARGE, Number, NumberError, limit_number, to_number
from wharf.languages.hcl.values import Value, describe_value

MAX_POWER_BITS: Final = 100_000
"""The bits of a power of fractions before it is rounded. Limits the time of one call."""
MAX_WHOLE_BITS: Final = 1_100
"""A whole number with more bits is larger than any that is allowed."""
MAX_DIGIT_COUNT: Final = 1_000
MAX_BASE: Final = 62
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
CASELESS_BASE: Final = 36
"""Up to this base, upper and lower case digits are equal."""
_MIN_EXACT_DISTANCE: Final = 1e-9


def _raise_to_power(context: CallContext, base: Number, exponent: Number) -> Value:
    context.budget.use_steps(100)
    if base == 0 and exponent < 0:
        raise FunctionError("0 has no negative power", argument=1)
    if isinstance(exponent, Fraction):
        if base < 0:
            raise FunctionError("a negative number has no power with a fraction", argument=0)
        try:
            return to_number(math.pow(base, exponent))
        except OverflowError:
            raise FunctionError(TOO_LARGE) from None
    if base in (0, 1, -1):
        return base**exponent if exponent >= 0 else base ** (-exponent)
    if isinstance(base, int) and exponent >= 0:
        if (abs(base).bit_length() - 1) * exponent > MAX_WHOLE_BITS:
            raise FunctionError(TOO_LARGE)
        return limit_number(base**exponent)
    fraction = Fraction(base)
    bits = max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) * abs(exponent)
    if bits <= MAX_POWER_BITS:
        context.budget.use_steps(bits >> 3)
        return limit_number(fraction**exponent)
    try:
        return to_number(math.pow(base, exponent))
    except OverflowError:
        raise FunctionError(TOO_LARGE) from None


def _get_logarithm(context: CallContext, number: Number, base: Number) -> Value:
    if number <= 0:
        raise FunctionError("only a number above zero has a logarithm", argument=0)
    if base <= 0 or base == 1:
        raise FunctionError("the base is a number above zero other than 1", argument=1)
    quotient = _get_natural_logarithm(number) / _get_natural_logarithm(base)
    nearest = round(quotient)
    if abs(quotient - nearest) < _MIN_EXACT_DISTANCE:
        try:
            if _raise_to_power(context, base, nearest) == number:
                return nearest
        except (FunctionError, NumberError):
            pass
    return to_number(quotient)


def _get_natural_logarithm(number: Number) -> float:
    fraction = Fraction(number)
    return math.log(fraction.numerator) - math.log(fraction.denominator)


def _parse_integer(context: CallContext, text: Value, base: int) -> Value:
    if not isinstance(text, str):
        raise FunctionError(f"expected a text, got {describe_value(text)}", argument=0, fix="put the number in quotes")
    if not 2 <= base <= MAX_BASE:
        raise FunctionError(f"the base is between 2 and {MAX_BASE}", argument=1)
    digits = text.removeprefix("-")
    if len(digits) > MAX_DIGIT_COUNT:
        raise FunctionError(f"the text is longer than {MAX_DIGIT_COUNT:,} digits", argument=0)
    if base <= CASELESS_BASE:
        digits = digits.lower()
    number = 0
    context.budget.use_steps(len(digits))
    for digit in digits:
        value = _DIGITS.find(digit)
        if value < 0 or value >= base:
            raise FunctionError(f"the text is not a whole number in base {base}", argument=0)
        number = number * base + value
    if not digits:
        raise FunctionError(f"the text is not a whole number in base {base}", argument=0)
    return limit_number(-number if text.startswith("-") else number)


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("abs", "n:number", lambda _, n: abs(n)),
        define_function("ceil", "n:number", lambda _, n: math.ceil(n)),
        define_function("floor", "n:number", lambda _, n: math.floor(n)),
        define_function("log", "n:number base:number", _get_logarithm),
        define_function("max", "n...:number", lambda _, *n: max(n), min_variadic=1),
        define_function("min", "n...:number", lambda _, *n: min(n), min_variadic=1),
        define_function("pow", "n:number exponent:number", _raise_to_power),
        define_function("signum", "i:whole", lambda _, i: (i > 0) - (i < 0)),
        define_function("parseint", "text:any base:whole", _parse_integer),
    )
)
