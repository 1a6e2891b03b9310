"""Finds what is wrong with a JSON text that msgspec refuses, and where: msgspec itself reports neither line nor field.

Slow: call this only after a failed decoding.
"""

import json
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_SEARCHED_BYTES: Final = 1024 * 1024
"""Larger texts are not searched for the field at fault; limits the CPU time of an error."""
MAX_INTEGER_DIGITS: Final = 400
"""Longer integers are not converted; limits the CPU time of an error."""


class JsonProblem(NamedTuple):
    """What is wrong with a JSON text, and the path of the field at fault; an empty path if it is not known."""

    path: Sequence[str | int]
    message: str


class _NumberOutOfRange:
    """Stands for a number that is too large to be decoded."""


_OUT_OF_RANGE: Final = _NumberOutOfRange()


def find_json_problem(body: bytes, message: str) -> JsonProblem:
    """Return what is wrong with a JSON text. `message` is msgspec's error text."""
    if not body.strip():
        return JsonProblem((), "the JSON is empty")
    location = _find_bad_utf8(body)
    if len(body) > MAX_SEARCHED_BYTES:
        reason = message.removeprefix("JSON is malformed: ").partition(" - at `")[0]
        return JsonProblem((), f"the JSON is not UTF-8 {location}" if location else f"the JSON is malformed: {reason}")
    try:
        value = json.loads(body.decode("utf-8", "surrogateescape"), parse_int=_parse_integer, parse_float=_parse_float)
    except json.JSONDecodeError as error:
        if location:
            return JsonProblem((), f"the JSON is not UTF-8 {location}")
        if "truncated" in message:
            return JsonProblem((), f"the JSON ends too early {format_location(body, len(body))}")
        reason = error.msg[:1].lower() + error.msg[1:]
        return JsonProblem((), f"the JSON is malformed: {reason} (line {error.lineno}, column {error.colno})")
    except RecursionError:
        return JsonProblem((), "the JSON is nested too deeply")
    path: list[str | int] = []
    try:
        reason = _find_undecodable(value, path)
    except RecursionError:
        return JsonProblem((), "the JSON is nested too deeply")
    if reason:
        return JsonProblem(path, f"{reason} {location}" if location else reason)
    return JsonProblem((), f"the JSON is malformed: {message.removeprefix('JSON is malformed: ')}")


def format_location(body: bytes, byte_offset: int) -> str:
    """Return the position of a byte offset as text: `(line 2, column 5)`, both counted from 1."""
    before = body[:byte_offset]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    return f"(line {line}, column {column})"


def _find_bad_utf8(body: bytes) -> str:
    """Return the location of the first byte that is not UTF-8, or "" if there is none."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return format_location(body, error.start)
    return ""


def _parse_integer(text: str) -> int | _NumberOutOfRange:
    return int(text) if len(text) <= MAX_INTEGER_DIGITS else _OUT_OF_RANGE


def _parse_float(text: str) -> float | _NumberOutOfRange:
    number = float(text)
    return number if math.isfinite(number) else _OUT_OF_RANGE


def _find_undecodable(value: object, path: list[str | int]) -> str:
    """Return what is wrong with the first part of a value that cannot be decoded, or "". Leaves its path in `path`."""
    match value:
        case _NumberOutOfRange():
            return "the number is too large"
        case str():
            return "" if _is_unicode(value) else "the text is not UTF-8"
        case dict():
            for key, inner in value.items():
                if not _is_unicode(key):
                    return "the name of a field is not UTF-8"
                path.append(key)
                if reason := _find_undecodable(inner, path):
                    return reason
                path.pop()
        case list():
            for position, inner in enumerate(value):
                path.append(position)
                if reason := _find_undecodable(inner, path):
                    return reason
                path.pop()
    return ""


def _is_unicode(text: str) -> bool:
    """Return whether the text has no surrogates, which stand for bad bytes or for half of an escaped pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
