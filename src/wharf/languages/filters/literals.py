"""From the text of a value to what a field holds. Quotes mean nothing: the field's kind decides.

Each function returns None for a text that does not fit.
"""

import math
import re
from typing import Final

from wharf.languages.filters.kinds import MAX_INTEGER, MIN_INTEGER

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})

# The base is told by what stands in front; a single underscore may part digits.
_INTEGER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[bB](?P<binary>(?:_?[01])+)|0[oO](?P<octal>(?:_?[0-7])+)"
    r"|(?P<old_octal>0(?:_?[0-7])*)|(?P<decimal>[1-9](?:_?[0-9])*))"
)
_BASES: Final = {"hex": 16, "binary": 2, "octal": 8, "old_octal": 8, "decimal": 10}
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# More digits than 64 bits take in any base, with a good many zeros in front.
_DIGITS_MAX: Final = 200
MAX_BYTE: Final = 255


def to_boolean(text: str) -> bool | None:
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def to_integer(text: str, *, minimum: int = MIN_INTEGER, maximum: int = MAX_INTEGER) -> int | None:
    found = _INTEGER.fullmatch(text)
    if found is None or len(text) > _DIGITS_MAX or (found["sign"] and minimum >= 0):
        return None
    base = str(found.lastgroup)
    number = int(found[base].replace("_", ""), _BASES[base])
    number = -number if found["sign"] == "-" else number
    return number if minimum <= number <= maximum else None


def to_float(text: str) -> float | None:
    if not _FLOAT.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def to_number(text: str) -> int | float | None:
    """For numbers of any JSON, which may be whole or not: both forms are understood."""
    whole = to_integer(text)
    return to_float(text) if whole is None else whole
