"""Parsing of ids, id prefixes and durations in requests. Invalid values are refused without a lookup."""

from typing import Final

from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import format_duration
from wharf.contract.wire.times import DurationError, DurationText, parse_duration_ns

UUID_CHARACTERS: Final = 36
UUID_HEX_DIGITS: Final = 32
LOWER_HEX_DIGITS: Final = frozenset("0123456789abcdef")
UUID_DASH_POSITIONS: Final = (8, 13, 18, 23)


def parse_uuid(given: str, *, error_prefix: str) -> str:
    """Return the UUID in lower case, as records store it. Raises `Refusal` with the prefix if it is not a UUID."""
    text = given.lower()
    digits = text.replace("-", "")
    if len(text) != UUID_CHARACTERS:
        raise invalid_request(f"{error_prefix}UUID must be {UUID_CHARACTERS} characters")
    wrong = next((letter for letter in digits if letter not in LOWER_HEX_DIGITS), None)
    if wrong is not None:
        raise invalid_request(f"{error_prefix}Invalid UUID: encoding/hex: invalid byte: {wrong!r} is no hex digit")
    return text


def parse_duration_field(given: DurationText, *, field: str) -> int:
    """Return a duration of a request body in nanoseconds; 0 if it is empty. Raises `Refusal` naming the field."""
    if isinstance(given, int):
        return given
    if not given:
        return 0
    try:
        return parse_duration_ns(given)
    except DurationError as error:
        raise invalid_request(f"{field}: {error}") from error


def format_optional_duration(duration_ns: int) -> str:
    """Return the duration as text, or "" for 0."""
    return format_duration(duration_ns) if duration_ns else ""


HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


MAX_ID_DASHES: Final = 4


def parse_id_prefix(given: str, *, error_prefix: str = "") -> str:
    """Return the id prefix in lower case. It has an even number of hex digits and up to four dashes anywhere.

    Raises `Refusal` with the error prefix if it is invalid.
    """
    digits = given.replace("-", "")
    dashes = len(given) - len(digits)
    if dashes > MAX_ID_DASHES:
        raise invalid_request(f'{error_prefix}UUID should have maximum of {MAX_ID_DASHES} "-"; got {dashes}')
    if not digits:
        return ""
    if len(digits) % 2:
        raise invalid_request(f"{error_prefix}Input (without hyphens) must be even length")
    wrong = next((letter for letter in digits if letter not in HEX_DIGITS), None)
    if wrong is not None:
        raise invalid_request(f"{error_prefix}Invalid UUID: encoding/hex: invalid byte: {wrong!r} is no hex digit")
    return given.lower()
