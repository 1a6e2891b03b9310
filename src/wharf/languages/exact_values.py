"""Finds values of JSON and YAML files that could not be sent exactly as they are written, such as `.inf` and `1e400`.

JSON has no such numbers: an encoder writes `null`, and servers would use the default of the field.
"""

import json
import re
from typing import Any, Final

MAX_NUMBER_CHARS: Final = 1_000
"""The longest number; limits the time to read it. 64 bits need 20 digits."""
NUMBER_FIX: Final = "write a shorter number, or put it in quotes if it is a text"
MAX_DEPTH: Final = 100
"""How deep the lists and maps of a document may nest: limits the stack of functions that walk over it."""
_MAX_ECHOED_CHARS: Final = 40
_NOT_FINITE: Final = frozenset((".inf", ".nan", "infinity", "nan"))
_JSON_TOKEN: Final = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*") | (?P<number>-?(?:Infinity|NaN|[0-9][0-9.eE+-]*)) | [^"0-9IN-]+ | .""",
    re.DOTALL | re.VERBOSE,
)


class InexactValue(Exception):
    """A value of a JSON text that cannot be sent exactly. `position` and `end` are its offsets."""

    def __init__(self, problem: str, position: int, end: int) -> None:
        super().__init__(problem)
        self.position = position
        self.end = end


def find_number_problem(text: str) -> str:
    """Return why a number of JSON or YAML cannot be sent exactly; empty if it can.

    Digits beyond the precision of a number are no problem.
    """
    shown = text if len(text) <= _MAX_ECHOED_CHARS else f"{text[:_MAX_ECHOED_CHARS]}..."
    literal = text.replace("_", "").lower()
    if literal.lstrip("+-") in _NOT_FINITE:
        return f"{shown} is not a finite number"
    if len(text) > MAX_NUMBER_CHARS:
        return f"the number {shown} is too long: it has {len(text):,} characters"
    try:
        value = float(literal)
    except ValueError:
        return ""  # A whole number in another base, such as 0x1F.
    if value in (float("inf"), float("-inf")):
        return f"the number {shown} is too large"
    if value == 0 and re.search("[1-9]", literal.partition("e")[0]):
        return f"the number {shown} is too small: write 0"
    return ""


def find_text_problem(text: str) -> str:
    """Return why a text cannot be sent; empty if it can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"the text has half of a character, \\u{ord(text[error.start]):04x}: write both halves, or remove it"
    return ""


def load_exact_json(text: str, object_pairs_hook: Any) -> Any:  # Any JSON value.
    """Return the value of a JSON text. Raises `InexactValue` for a value that cannot be sent exactly.

    Also raises what `json.loads` raises.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=object_pairs_hook, parse_float=_parse_float, parse_constant=_parse_float
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except ValueError:  # From `_parse_float`, or for a whole number with thousands of digits, or half of a character.
        raise _find_first_inexact_value(text) from None
    return value


def _parse_float(text: str) -> float:
    """Return the number. Raises `ValueError` if it cannot be sent exactly."""
    if find_number_problem(text):
        raise ValueError(text)
    return float(text)


def _find_first_inexact_value(text: str) -> InexactValue:
    """Return the problem of the first value of a valid JSON text that cannot be sent exactly."""
    for token in _JSON_TOKEN.finditer(text):
        problem = ""
        if token["number"]:
            problem = find_number_problem(token["number"])
        elif token["text"] and "\\u" in token["text"]:
            problem = find_text_problem(json.loads(token["text"]))
        if problem:
            return InexactValue(problem, token.start(), token.end())
    return InexactValue("the document has a value that cannot be sent", 0, 1)
