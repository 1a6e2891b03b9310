"""The kinds of value that a rules file or a directory file may hold: how each is read, and how a page describes it."""

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

E = TypeVar("E", bound=Enum)


class InvalidValue(ValueError):
    """A value that is not of its kind. The text says what is expected, and goes on after the key."""


class ValueKind(msgspec.Struct, frozen=True):
    description: str
    """What the page says of it."""
    read: Callable[[Any], Any]  # What TOML gives, and what the key's type is: checked where it is read.


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{format_value(value)} is not a text: write it in quotation marks")
    return value


def _name(value: object) -> str:
    if _NAME.fullmatch(_text(value)) is None:
        raise InvalidValue(
            f"{format_value(value)} is no name: use small letters, digits and `_`, beginning with a letter, 64 at most"
        )
    return str(value)


def _account(value: object) -> str:
    if re.fullmatch(r"[^\s/]+", _text(value)) is None:
        raise InvalidValue(f"{format_value(value)} is no name of an account: it holds a space or a slash")
    return str(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(f"{format_value(value)} is neither true nor false")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text(entry) for entry in value)
    if isinstance(value, str) and value:
        return (value,)
    raise InvalidValue(f"{format_value(value)} is neither a text nor a list of texts")


def _duration(value: object) -> int:
    if not isinstance(value, str) or _DURATION.fullmatch(value) is None:
        raise InvalidValue(f'{format_value(value)} is no duration: write "30s", "1m", "1h30m" or "7d"')
    length_ms = sum(int(number) * _UNIT_MS[unit] for number, unit in _DURATION_PART.findall(value[:64]))
    if not 1 <= length_ms <= MAX_DURATION_MS:
        raise InvalidValue(f"{format_value(value)} is out of bounds: give more than 0 and at most 366d")
    return length_ms


def _ceiling(value: object) -> int:
    if value == "unlimited":
        return UNLIMITED
    return _number(value, 0, UNLIMITED - 1, or_else=' or "unlimited"')


# Machines are in no group: who means them says so, and `lint` looks at it.
# Keys of a ceiling that stand for several kinds of caller. What is named more closely is stronger.
_GROUPS: Final[Mapping[str, tuple[CallerClass, ...]]] = {
    "any": LIMITED_CLASSES,
    "credential": tuple(case for case in LIMITED_CLASSES if case is not CallerClass.NONE),
}
_CALLERS: Final = (*_GROUPS, *(case.value for case in CallerClass))


def _ceilings(value: object) -> Mapping[CallerClass, int]:
    if not isinstance(value, dict):
        return dict.fromkeys(LIMITED_CLASSES, _ceiling(value))
    for key in value:
        if key not in _CALLERS:
            raise InvalidValue(f"{key!r} is no kind of caller: there are {', '.join(_CALLERS)}")
    found: dict[CallerClass, int] = {}
    for name in _CALLERS:
        if name in value:
            cases = _GROUPS[name] if name in _GROUPS else (CallerClass(name),)
            found |= dict.fromkeys(cases, _ceiling(value[name]))
    return found


def _number(value: object, least: int, most: int, or_else: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidValue(f"{format_value(value)} is no whole number from {least} to {most}{or_else}")
    return value


def _sha256(value: object) -> str:
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        # The value is not repeated: it may be the secret.
        raise InvalidValue("is no SHA-256: write its 64 hexadecimal digits in small letters, never the secret itself")
    return value


def _moment(value: object) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidValue(
            f"{format_value(value)} is no moment: write it without quotation marks and with its offset, as 2027-01-31T12:00:00Z"
        )
    return int(value.timestamp() * 1_000)


TEXT: Final = ValueKind("A text.", _text)
NAME: Final = ValueKind("A name: small letters, digits and `_`.", _name)
ACCOUNT: Final = ValueKind("The name of an account.", _account)
TEXTS: Final = ValueKind("A text, or a list of texts.", _texts)
FLAG: Final = ValueKind("True or false.", _flag)
DURATION: Final = ValueKind('A duration, such as `"30s"`, `"1m"` or `"1h30m"`.', _duration)
CEILINGS: Final = ValueKind(
    'A whole number, `"unlimited"`, or a table of these by kind of caller: '
    + ", ".join(f"`{key}`" for key in _CALLERS)
    + ".",
    _ceilings,
)
SHA256: Final = ValueKind("A SHA-256, as 64 hexadecimal digits.", _sha256)
TIMESTAMP: Final = ValueKind("A moment, such as `2027-01-31T12:00:00Z`.", _moment)


def make_integer_kind(minimum: int, maximum: int) -> ValueKind:
    return ValueKind(f"A whole number from {minimum:,} to {maximum:,}.", lambda value: _number(value, minimum, maximum))


def make_choice_kind(kind: type[E], names: Sequence[E] | None = None) -> ValueKind:
    members = {member.value: member for member in (names or list(kind))}
    said = ", ".join(f'`"{name}"`' for name in members)

    def read(value: object) -> E:
        if not isinstance(value, str) or value not in members:
            raise InvalidValue(f"{format_value(value)} is not known: there are {', '.join(members)}")
        return members[value]

    return ValueKind(f"One of {said}.", read)


def make_choices_kind(kind: type[E]) -> ValueKind:
    one = make_choice_kind(kind)

    def read(value: object) -> tuple[E, ...]:
        return tuple(one.read(entry) for entry in _texts(value))

    return ValueKind(f"One, or a list, of {one.description.removeprefix('One of ')}", read)


def format_value(value: object) -> str:
    """A value as its file writes it, cut to a length that fits a line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
