"""The kinds of values in rules, directory and settings files: how each is read, and how the documentation describes
it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from wharf.limits.core.callers.caller import LIMITED_CLASSES, CallerClass
from wharf.limits.core.rule import UNLIMITED

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(?:\d+(?:ms|s|m|h|d))+")
_DURATION_PART: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
MAX_DURATION_MS: Final = 366 * 86_400_000
"""Longer windows would keep counters for too long."""

E = TypeVar("E", bound=Enum)


class InvalidValue(ValueError):
    """A value of the wrong kind. The text follows the name of the key in the message."""


class TomlValueKind(msgspec.Struct, frozen=True):
    """A kind of value: how it is read from TOML, and how the documentation describes it."""

    description: str
    """How the documentation describes it."""
    read: Callable[[Any], Any]  # From the value in TOML to the value of the field.


def _read_text(value: object) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{format_value(value)} is not a text: put it in quotation marks")
    return value


def _read_name(value: object) -> str:
    """Return a name of a rule or resource."""
    if _NAME.fullmatch(_read_text(value)) is None:
        raise InvalidValue(
            f"{format_value(value)} is not a name: use lowercase letters, digits and `_`, starting with a letter, at most 64 characters"
        )
    return str(value)


def _read_account(value: object) -> str:
    """Return the name of an account."""
    if re.fullmatch(r"[^\s/]+", _read_text(value)) is None:
        raise InvalidValue(f"{format_value(value)} is not an account name: it contains a space or a slash")
    return str(value)


def _read_flag(value: object) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise InvalidValue(f"{format_value(value)} is neither true nor false")
    return value


def _read_texts(value: object) -> tuple[str, ...]:
    """Return one or several texts as a tuple."""
    if isinstance(value, list):
        return tuple(_read_text(entry) for entry in value)
    if isinstance(value, str) and value:
        return (value,)
    raise InvalidValue(f"{format_value(value)} is neither a text nor a list of texts")


def _read_duration(value: object) -> int:
    """Return a duration in milliseconds."""
    if not isinstance(value, str) or _DURATION.fullmatch(value) is None:
        raise InvalidValue(f'{format_value(value)} is not a duration: write "30s", "1m", "1h30m" or "7d"')
    length_ms = sum(int(number) * _UNIT_MS[unit] for number, unit in _DURATION_PART.findall(value[:64]))
    if not 1 <= length_ms <= MAX_DURATION_MS:
        raise InvalidValue(f"{format_value(value)} is out of range: durations are more than 0 and at most 366d")
    return length_ms


def _read_ceiling(value: object) -> int:
    """Return one ceiling."""
    if value == "unlimited":
        return UNLIMITED
    return _read_integer(value, 0, UNLIMITED - 1, alternative=' or "unlimited"')


# Keys of a ceiling that stand for several classes. A class name takes precedence over a group.
# Machines are in no group: a rule must name them, and `lint` checks such rules.
_GROUPS: Final[Mapping[str, tuple[CallerClass, ...]]] = {
    "any": LIMITED_CLASSES,
    "credential": tuple(caller_class for caller_class in LIMITED_CLASSES if caller_class is not CallerClass.NONE),
}
_CEILING_KEYS: Final = (*_GROUPS, *(caller_class.value for caller_class in CallerClass))


def _read_ceilings(value: object) -> Mapping[CallerClass, int]:
    """Return the ceiling of each caller class.

    A number applies to all classes. In a table, a class name takes precedence over a group name.
    """
    if not isinstance(value, dict):
        return dict.fromkeys(LIMITED_CLASSES, _read_ceiling(value))
    for key in value:
        if key not in _CEILING_KEYS:
            raise InvalidValue(f"{key!r} is not a class of callers: known are {', '.join(_CEILING_KEYS)}")
    found: dict[CallerClass, int] = {}
    for name in _CEILING_KEYS:
        if name in value:
            classes = _GROUPS[name] if name in _GROUPS else (CallerClass(name),)
            found |= dict.fromkeys(classes, _read_ceiling(value[name]))
    return found


def _read_integer(value: object, minimum: int, maximum: int, alternative: str = "") -> int:
    """Return an integer in this range. `alternative` completes the error message."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidValue(f"{format_value(value)} is not a whole number from {minimum} to {maximum}{alternative}")
    return value


def _read_sha256(value: object) -> str:
    """Return a SHA-256 in hexadecimal digits."""
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        # The value is not repeated: it may be the secret.
        raise InvalidValue("is not a SHA-256: write 64 hexadecimal digits in lowercase, never the secret itself")
    return value


def _read_timestamp(value: object) -> int:
    """Return a time in milliseconds of Unix time."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidValue(
            f"{format_value(value)} is not a time: write it without quotation marks and with an offset, such as 2027-01-31T12:00:00Z"
        )
    return int(value.timestamp() * 1_000)


TEXT: Final = TomlValueKind("A text.", _read_text)
NAME: Final = TomlValueKind("A name: lowercase letters, digits and `_`.", _read_name)
ACCOUNT: Final = TomlValueKind("The name of an account.", _read_account)
TEXTS: Final = TomlValueKind("A text, or a list of texts.", _read_texts)
FLAG: Final = TomlValueKind("True or false.", _read_flag)
DURATION: Final = TomlValueKind('A duration, such as `"30s"`, `"1m"` or `"1h30m"`.', _read_duration)
CEILINGS: Final = TomlValueKind(
    'A whole number, `"unlimited"`, or a table of these by class of callers: '
    + ", ".join(f"`{key}`" for key in _CEILING_KEYS)
    + ".",
    _read_ceilings,
)
SHA256: Final = TomlValueKind("A SHA-256, as 64 hexadecimal digits.", _read_sha256)
TIMESTAMP: Final = TomlValueKind("A time, such as `2027-01-31T12:00:00Z`.", _read_timestamp)


def make_integer_kind(minimum: int, maximum: int) -> TomlValueKind:
    """Return the kind of an integer in this range."""
    return TomlValueKind(
        f"A whole number from {minimum:,} to {maximum:,}.", lambda value: _read_integer(value, minimum, maximum)
    )


def make_choice_kind(kind: type[E], names: Sequence[E] | None = None) -> TomlValueKind:
    """Return the kind of a text that names a member of an enum."""
    members = {member.value: member for member in (names or list(kind))}
    choices = ", ".join(f'`"{name}"`' for name in members)

    def read(value: object) -> E:
        if not isinstance(value, str) or value not in members:
            raise InvalidValue(f"{format_value(value)} is not known: known are {', '.join(members)}")
        return members[value]

    return TomlValueKind(f"One of {choices}.", read)


def make_choices_kind(kind: type[E]) -> TomlValueKind:
    """Return the kind of one or several texts that name members of an enum."""
    choice_kind = make_choice_kind(kind)

    def read(value: object) -> tuple[E, ...]:
        return tuple(choice_kind.read(entry) for entry in _read_texts(value))

    return TomlValueKind(f"One, or a list, of {choice_kind.description.removeprefix('One of ')}", read)


def format_value(value: object) -> str:
    """Return a value as a file has it, cut to 60 characters."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
