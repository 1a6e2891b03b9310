"""Converts the text of a literal to a value of a field's kind. It makes no difference whether the literal is quoted.

Each function returns `None` if the text is not a literal of that kind.
"""

import math
import re
from typing import Final

from wharf.languages.filters.kinds import MAX_INTEGER, MIN_INTEGER

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})

# The prefix selects the base; single underscores may separate digits.
_INTEGER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[bB](?P<binary>(?:_?[01])+)|0[oO](?P<octal>(?:_?[0-7])+)"
    r"|(?P<old_octal>0(?:_?[0-7])*)|(?P<decimal>[1-9](?:_?[0-9])*))"
)
_BASES: Final = {"hex": 16, "binary": 2, "octal": 8, "old_octal": 8, "decimal": 10}
# Decimal and hexadecimal floats as Go writes them: a hexadecimal one has a binary exponent.
_DECIMAL_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
MAX_FLOAT_CHARS: Final = 1_000
"""Longer texts are not parsed: limits the CPU time of a conversion."""
_MAX_INTEGER_CHARS: Final = 200
"""Longer texts are not parsed: 64 bits need fewer digits in any base, even with many leading zeros."""
MAX_BYTE: Final = 255
"""The largest number that an element of a bytes field can be compared with."""


def to_boolean(text: str) -> bool | None:
    """Return the boolean that the text stands for, such as true for "t" or "1". Return `None` for any other text."""
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def to_integer(text: str, *, minimum: int = MIN_INTEGER, maximum: int = MAX_INTEGER) -> int | None:
    """Return the integer that the text stands for.

    Return `None` if the text is not an integer from `minimum` to `maximum`. If `minimum` is not negative, a text with a
    sign is not valid either.
    """
    parsed = _INTEGER.fullmatch(text)
    if parsed is None or len(text) > _MAX_INTEGER_CHARS or (parsed["sign"] and minimum >= 0):
        return None
    base_name = str(parsed.lastgroup)
    number = int(parsed[base_name].replace("_", ""), _BASES[base_name])
    number = -number if parsed["sign"] == "-" else number
    return number if minimum <= number <= maximum else None


def to_float(text: str) -> float | None:
    """Return the finite number that the text stands for, or `None` if it is not a number or too large."""
    if len(text) > MAX_FLOAT_CHARS:
        return None
    if _HEX_FLOAT.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return None
    if not _DECIMAL_FLOAT.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def to_number(text: str) -> float | None:
    """Return the number that the text stands for as a float, because Nomad stores the numbers of untyped JSON as floats.

    Integers in another base are accepted too. Return `None` for any other text.
    """
    number = to_float(text)
    if number is not None:
        return number
    integer = to_integer(text)
    return None if integer is None else float(integer)
