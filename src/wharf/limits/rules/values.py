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
_FORMAT: Final = re.compile(r"[a-z0-9]{1,16}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PATH_PREFIX: Final = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")
MAX_DURATION_MS: Final = 366 * 86_400_000
"""Longer windows would keep counters for too long."""

E = TypeVar("E", bound=Enum)


class InvalidValue(ValueError):
    """A value of the wrong kind. Its text completes an error message that starts with the name of the key."""


class TomlValueKind(msgspec.Struct, frozen=True):
    """A kind of value in a TOML file: how it is checked and converted, and how the documentation describes it."""

    description: str
    """How the documentation describes it."""
    read: Callable[[Any], Any]
    """Returns the field's value for a TOML value. Raises `InvalidValue` if the TOML value is of another kind."""


def _read_text(value: object) -> str:
    """Return the value if it is a text that is not empty. Raises `InvalidValue` otherwise."""
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{format_value(value)} is not a text: put it in quotation marks")
    return value


def _read_name(value: object) -> str:
    """Return the value if it is a valid name of a rule or resource. Raises `InvalidValue` otherwise."""
    if _NAME.fullmatch(_read_text(value)) is None:
        raise InvalidValue(
            f"{format_value(value)} is not a name: use lowercase letters, digits and `_`, starting with a letter, at most 64 characters"
        )
    return str(value)


def _read_account(value: object) -> str:
    """Return the value if it is a valid account name. Raises `InvalidValue` otherwise."""
    if re.fullmatch(r"[^\s/]+", _read_text(value)) is None:
        raise InvalidValue(f"{format_value(value)} is not an account name: it contains a space or a slash")
    return str(value)


def _read_path_prefix(value: object) -> str:
    """Return the value if it is the beginning of paths, without its last slash. Raises `InvalidValue` otherwise.

    `/` is the empty prefix.
    """
    prefix = _read_text(value).removesuffix("/")
    if prefix and _PATH_PREFIX.fullmatch(prefix) is None:
        raise InvalidValue(
            f'{format_value(value)} is not the beginning of paths: write it as "/api/v1", with letters, digits and `.`, '
            "`_`, `~` or `-` between the slashes"
        )
    return prefix


def _read_flag(value: object) -> bool:
    """Return the value if it is a boolean. Raises `InvalidValue` otherwise."""
    if not isinstance(value, bool):
        raise InvalidValue(f"{format_value(value)} is neither true nor false")
    return value


def _read_texts(value: object) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple. Raises `InvalidValue` for any other value."""
    if isinstance(value, list):
        return tuple(_read_text(entry) for entry in value)
    if isinstance(value, str) and value:
        return (value,)
    raise InvalidValue(f"{format_value(value)} is neither a text nor a list of texts")


def _read_formats(value: object) -> tuple[str, ...]:
    """Return a format or a list of formats as a tuple. Raises `InvalidValue` if one of them is not a format."""
    formats = _read_texts(value)
    for text in formats:
        if text != "*" and _FORMAT.fullmatch(text) is None:
            raise InvalidValue(
                f"{format_value(text)} is not a format: write at most 16 lowercase letters and digits without a dot, such as "
                '"json", or "*" for any format'
            )
    return formats


def _read_duration(value: object) -> int:
    """Return a duration such as `1h30m` in milliseconds. Raises `InvalidValue` if it is malformed or too long."""
    if not isinstance(value, str) or _DURATION.fullmatch(value) is None:
        raise InvalidValue(f'{format_value(value)} is not a duration: write "30s", "1m", "1h30m" or "7d"')
    length_ms = sum(int(number) * _UNIT_MS[unit] for number, unit in _DURATION_PART.findall(value[:64]))
    if not 1 <= length_ms <= MAX_DURATION_MS:
        raise InvalidValue(f"{format_value(value)} is out of range: durations are more than 0 and at most 366d")
    return length_ms


def _read_ceiling(value: object) -> int:
    """Return a ceiling: a whole number, or `UNLIMITED` for the text `unlimited`. Raises `InvalidValue` otherwise."""
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
    Raises `InvalidValue` for an unknown class or an invalid number.
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
    """Return the value if it is an integer in this range. Raises `InvalidValue` otherwise.

    `alternative` is the end of the message: what else is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidValue(f"{format_value(value)} is not a whole number from {minimum} to {maximum}{alternative}")
    return value


def _read_sha256(value: object) -> str:
    """Return the value if it is a SHA-256 in hexadecimal digits. Raises `InvalidValue` otherwise."""
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        # The value is not repeated: it may be the secret.
        raise InvalidValue("is not a SHA-256: write 64 hexadecimal digits in lowercase, never the secret itself")
    return value


def _read_timestamp(value: object) -> int:
    """Return a TOML time with an offset in Unix milliseconds. Raises `InvalidValue` for any other value."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidValue(
            f"{format_value(value)} is not a time: write it without quotation marks and with an offset, such as 2027-01-31T12:00:00Z"
        )
    return int(value.timestamp() * 1_000)


TEXT: Final = TomlValueKind("A text.", _read_text)
NAME: Final = TomlValueKind("A name: lowercase letters, digits and `_`.", _read_name)
ACCOUNT: Final = TomlValueKind("The name of an account.", _read_account)
PATH_PREFIX: Final = TomlValueKind("The beginning of paths, such as `/api/v1`.", _read_path_prefix)
TEXTS: Final = TomlValueKind("A text, or a list of texts.", _read_texts)
FORMATS: Final = TomlValueKind("A format, or a list of formats.", _read_formats)
FLAG: Final = TomlValueKind("True or false.", _read_flag)
DURATION: Final = TomlValueKind('A duration, such as `"30s"`, `"1m"` or `"1h30m"`.', _read_duration)
CEILINGS: Final = TomlValueKind(
    'A whole number, `"unlimited"`, or a table of these by class of callers: '
    + ", ".join(f"`{key}`" for key in _CEILING_KEYS)
    + ".",
    _read_ceilings,
)
CEILING: Final = TomlValueKind('A whole number, or `"unlimited"`.', _read_ceiling)
SHA256: Final = TomlValueKind("A SHA-256, as 64 hexadecimal digits.", _read_sha256)
TIMESTAMP: Final = TomlValueKind("A time, such as `2027-01-31T12:00:00Z`.", _read_timestamp)


def make_integer_kind(minimum: int, maximum: int) -> TomlValueKind:
    """Return the kind of an integer in this range."""
    return TomlValueKind(
        f"A whole number from {minimum:,} to {maximum:,}.", lambda value: _read_integer(value, minimum, maximum)
    )


def make_integers_kind(minimum: int, maximum: int) -> TomlValueKind:
    """Return the kind of an integer in this range, or a list of such integers."""

    def read(value: object) -> tuple[int, ...]:
        """Return the integers. Raises `InvalidValue` if one of them is no integer in the range."""
        return tuple(
            _read_integer(each, minimum, maximum, ", or a list of these")
            for each in (value if isinstance(value, list) else [value])
        )

    return TomlValueKind(f"A whole number from {minimum:,} to {maximum:,}, or a list of these.", read)


def make_duration_kind(minimum_ms: int, maximum_ms: int) -> TomlValueKind:
    """Return the kind of a duration in this range, in milliseconds."""

    def read(value: object) -> int:
        """Return the duration in milliseconds. Raises `InvalidValue` if it is malformed or out of range."""
        length_ms = _read_duration(value)
        if not minimum_ms <= length_ms <= maximum_ms:
            raise InvalidValue(f"{format_value(value)} is out of range: at most {maximum_ms // 1_000}s")
        return length_ms

    return TomlValueKind(f'A duration of at most `"{maximum_ms // 1_000}s"`.', read)


def make_choice_kind(enum: type[E], allowed_members: Sequence[E] | None = None) -> TomlValueKind:
    """Return the kind of a text that is the value of a member of an enum; by default all members are allowed."""
    members = {member.value: member for member in (allowed_members or list(enum))}
    choices = ", ".join(f'`"{name}"`' for name in members)

    def read(value: object) -> E:
        """Return the member with this value. Raises `InvalidValue` if there is none."""
        if not isinstance(value, str) or value not in members:
            raise InvalidValue(f"{format_value(value)} is not known: known are {', '.join(members)}")
        return members[value]

    return TomlValueKind(f"One of {choices}.", read)


def make_choices_kind(enum: type[E]) -> TomlValueKind:
    """Return the kind of a text, or a list of texts, that are values of members of an enum."""
    choice_kind = make_choice_kind(enum)

    def read(value: object) -> tuple[E, ...]:
        """Return the members with these values. Raises `InvalidValue` if one does not exist."""
        return tuple(choice_kind.read(entry) for entry in _read_texts(value))

    return TomlValueKind(f"One, or a list, of {choice_kind.description.removeprefix('One of ')}", read)


def format_value(value: object) -> str:
    """Return a value for a message, as it would be written in a TOML file, cut to 60 characters."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
