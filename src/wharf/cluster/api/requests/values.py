"""Parsing of ids, id prefixes and durations in requests. Invalid values are refused without a lookup."""

import re
from typing import Final

from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import DurationError, format_duration, parse_duration_ns
from wharf.contract.wire.times import DurationText

UUID_CHARACTERS: Final = 36
MAX_ID_DASHES: Final = 4
HEX_DIGITS: Final = frozenset("0123456789abcdef")
UUID_PATTERN: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def parse_uuid(text: str, *, error_prefix: str) -> str:
    """Return the UUID in lower case, as records store it.

    Raises a `Refusal`, whose text begins with `error_prefix`, if it has not 36 characters or a character that is no hex
    digit.
    """
    uuid = text.lower()
    if len(uuid) != UUID_CHARACTERS:
        raise invalid_request(f"{error_prefix}UUID must be {UUID_CHARACTERS} characters")
    _check_hex_digits(uuid.replace("-", ""), error_prefix)
    return uuid


def parse_duration_field(value: DurationText, *, field: str) -> int:
    """Return a duration of a request body in nanoseconds; 0 if it is empty. A number is in nanoseconds already.

    Raises a `Refusal` that names `field`.
    """
    if isinstance(value, int):
        return value
    if not value:
        return 0
    try:
        return parse_duration_ns(value)
    except DurationError as error:
        raise invalid_request(f"{field}: {error}") from error


def format_optional_duration(duration_ns: int) -> str:
    """Return the duration as text, or "" for 0."""
    return format_duration(duration_ns) if duration_ns else ""


def parse_id_prefix(text: str, *, error_prefix: str = "") -> str:
    """Return the id prefix in lower case. It has an even number of hex digits and up to four dashes anywhere.

    Raises `Refusal` with the error prefix if it is invalid.
    """
    prefix = text.lower()
    digits = prefix.replace("-", "")
    dashes = len(prefix) - len(digits)
    if dashes > MAX_ID_DASHES:
        raise invalid_request(f'{error_prefix}UUID should have maximum of {MAX_ID_DASHES} "-"; got {dashes}')
    if not digits:
        return ""
    if len(digits) % 2:
        raise invalid_request(f"{error_prefix}Input (without hyphens) must be even length")
    _check_hex_digits(digits, error_prefix)
    return prefix


def _check_hex_digits(digits: str, error_prefix: str) -> None:
    """Raise a `Refusal`, whose text begins with `error_prefix`, if a character is not a lower-case hex digit."""
    wrong = next((character for character in digits if character not in HEX_DIGITS), None)
    if wrong is not None:
        raise invalid_request(f"{error_prefix}Invalid UUID: encoding/hex: invalid byte: {wrong!r} is not a hex digit")
