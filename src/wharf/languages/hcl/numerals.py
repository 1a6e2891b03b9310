"""Exact numbers: `int` for whole numbers, `Fraction` for all others. Sizes are limited, so no operation takes long.

Decimals are exact, and so is `1 / 3 * 3`. Only the text of a number is rounded, to `MAX_DIGITS` digits (record 0229).
"""

import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Final, TypeAlias

Number: TypeAlias = int | Fraction

MAX_DIGITS: Final = 155
"""The significant digits in the text of a fraction such as 1/3, as many as 512 bits have."""
MAX_LITERAL_CHARS: Final = 1_000
"""The length of a number in a document. Protects the conversion, which takes quadratic time."""
MAX_EXPONENT: Final = 400
"""The largest exponent, up or down, of a number in a document."""
MAX_NUMBER: Final = int(1.7976931348623157e308)
"""The largest number that JSON readers accept: the largest 64-bit float."""
MAX_DENOMINATOR_BITS: Final = 4_096
"""A fraction with a longer denominator is rounded to `MAX_DIGITS` digits."""
MAX_FLOAT_DIGITS: Final = 17
NUMBER_PATTERN: Final = r"[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_NUMBER_TEXT: Final = re.compile(rf"([+-]?)({NUMBER_PATTERN})")
_PARTS: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_TEXT_CONTEXT: Final = Context(prec=MAX_DIGITS, rounding=ROUND_HALF_EVEN, Emax=999_999, Emin=-999_999)
TOO_LARGE: Final = "the number is larger than 1.8e308"


class NumberError(ValueError):
    """The text is not a number, or the number is too large or too small."""


def parse_literal(text: str) -> Number:
    """Return the number of a literal that matches `NUMBER_PATTERN`. Raises `NumberError` beyond the limits."""
    if len(text) < 18 and text.isdecimal():
        return int(text)
    if len(text) > MAX_LITERAL_CHARS:
        raise NumberError(f"a number has at most {MAX_LITERAL_CHARS:,} characters")
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise NumberError("not a number")
    whole, fraction, exponent_text = parts[1], parts[2] or "", parts[3] or "0"
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return 0
    if len(exponent_text.lstrip("+-0")) > 6:
        raise NumberError(f"the exponent is outside -{MAX_EXPONENT} to {MAX_EXPONENT}")
    if abs(int(exponent_text)) > MAX_EXPONENT:
        raise NumberError(f"the exponent is outside -{MAX_EXPONENT} to {MAX_EXPONENT}")
    exponent = int(exponent_text) - len(fraction)
    if len(digits) + exponent > MAX_EXPONENT:
        raise NumberError(TOO_LARGE)
    if exponent >= 0:
        return limit_number(int(digits) * 10**exponent)
    return limit_number(Fraction(int(digits), 10**-exponent))


def parse_number(text: str) -> Number:
    """Return the number of a text: decimal, with an optional sign. Raises `NumberError`."""
    match = _NUMBER_TEXT.fullmatch(text)
    if match is None:
        raise NumberError("not a number")
    number = parse_literal(match[2])
    return -number if match[1] == "-" else number


def limit_number(number: Number) -> Number:
    """Return the number in its shortest form, rounded if its denominator is too long. Raises `NumberError`."""
    if isinstance(number, Fraction):
        if number.denominator == 1:
            number = number.numerator
        elif number.denominator.bit_length() > MAX_DENOMINATOR_BITS:
            number = Fraction(_round_to_decimal(number))
            if number.denominator.bit_length() > MAX_DENOMINATOR_BITS:
                raise NumberError("the number is too close to zero")
    if not -MAX_NUMBER <= number <= MAX_NUMBER:
        raise NumberError(TOO_LARGE)
    return number


def _round_to_decimal(number: Fraction) -> Decimal:
    return _TEXT_CONTEXT.divide(Decimal(number.numerator), Decimal(number.denominator))


def format_number(number: Number) -> str:
    """Return the number in plain decimals, without an exponent or trailing zeros."""
    if isinstance(number, int):
        return str(number)
    text = format(_round_to_decimal(number), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def to_number(value: float) -> Number:
    """Return the shortest decimal number that stands for a float. Raises `NumberError` for infinity and NaN."""
    if value != value or value in (float("inf"), float("-inf")):
        raise NumberError(TOO_LARGE)
    return limit_number(Fraction(repr(value)))


def divide(left: Number, right: Number) -> Number:
    """Return the exact quotient. Raises `NumberError` for a division by zero."""
    if right == 0:
        raise NumberError("division by zero")
    return limit_number(Fraction(left) / right)


def get_remainder(left: Number, right: Number) -> Number:
    """Return the remainder, with the sign of the left number. Raises `NumberError` for a division by zero."""
    if right == 0:
        raise NumberError("division by zero")
    remainder: Number = (-left if left < 0 else left) % (-right if right < 0 else right)
    return limit_number(-remainder if left < 0 else remainder)
