"""Times and durations in nanoseconds: units, texts such as `1m30s`, and conversion to and from `datetime`. Reads no clock.

The log stores instants as nanoseconds since 1970; some fields of the wire hold the calendar form.
"""

import datetime
import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

_ROUNDED_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

DurationNs: TypeAlias = int
"""A duration in nanoseconds. Job files may write it as text, such as `30s`."""

MAX_CLOCK_SKEW_NS: Final = SECOND
"""The largest normal difference between the clocks of two servers."""


def has_passed(due_ns: int, wait_ns: int, now_ns: int) -> bool:
    """Return whether a stored deadline has passed that lies `wait_ns` after the event that started it.

    A deadline that is further away than twice this time was stored before the clock was set back, and counts as passed.
    So a wrong clock lengthens no wait to more than twice its configured duration. A small correction of the clock, such
    as by NTP, ends no wait early.
    """
    return not now_ns < due_ns <= now_ns + 2 * wait_ns + MAX_CLOCK_SKEW_NS


def format_duration(nanoseconds: int) -> str:
    """Return a duration as text in the notation of the Go language: `1h30m0s`, `15s`, `1.5s`, `200ms`, `0s`."""
    if nanoseconds < 0:
        return "-" + format_duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    for unit, name in ((MICROSECOND, "ns"), (MILLISECOND, "µs"), (SECOND, "ms")):
        if nanoseconds < unit:
            size = {"ns": 1, "µs": MICROSECOND, "ms": MILLISECOND}[name]
            return f"{_format_decimal(nanoseconds, size)}{name}"
    hours, rest = divmod(nanoseconds, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds = f"{_format_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def format_rounded_duration(duration_ns: int) -> str:
    """Return a duration by its two largest units: `3d4h`, `2m5s`, `40s`, `250ms`."""
    if duration_ns < 0:
        return f"-{format_rounded_duration(-duration_ns)}"
    if duration_ns < SECOND:
        return f"{duration_ns // 1_000_000}ms" if duration_ns else "0s"
    left_s = duration_ns // SECOND
    parts: list[str] = []
    for name, size_s in _ROUNDED_UNITS:
        count, left_s = divmod(left_s, size_s)
        if count:
            parts.append(f"{count}{name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts)


def _format_decimal(amount: int, unit: int) -> str:
    """Return `amount / unit` as a decimal number without trailing zeros: `1.5` for 1500 and 1000.

    `unit` is a power of ten.
    """
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


UNITS_NS: Final = {
    "ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}  # fmt: skip
_NUMBER_AND_UNIT: Final = re.compile(r"(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(ns|us|µs|μs|ms|s|m|h)")
_MAX_DURATION_CHARS: Final = 64
"""Limits the work for a hostile text."""
_MAX_DURATION_NS: Final = 2**63 - 1
"""About 292 years; what fits into 64 bits."""


class DurationError(ValueError):
    """The error for a text that is not a duration."""


def parse_duration_ns(text: str) -> int:
    """Return the ns of a Go duration such as `1h30m`, `-1.5s` or `0`. Raises `DurationError` if it is not one."""
    sign = -1 if text.startswith("-") else 1
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0
    total_ns = position = 0
    while unsigned and position < len(unsigned) <= _MAX_DURATION_CHARS:
        part = _NUMBER_AND_UNIT.match(unsigned, position)
        if part is None:
            break
        unit_ns, decimals = UNITS_NS[part[4]], part[2] or part[3] or ""
        total_ns += int(part[1] or 0) * unit_ns + int(decimals or 0) * unit_ns // 10 ** len(decimals)
        position = part.end()
    if not unsigned or position != len(unsigned) or total_ns > _MAX_DURATION_NS:
        raise DurationError(f'expected a duration such as 10s, 5m or 1h30m, got "{text}"')
    return sign * total_ns


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DecisionContext(msgspec.Struct, frozen=True, gc=False):
    """What a decision about new records needs from outside: the time and new IDs."""

    now_ns: int
    new_id: Callable[[], str]  # Returns a new unique ID.


def to_datetime(now_ns: int) -> datetime.datetime:
    """Return a time in ns since 1970 as a UTC datetime, truncated to microseconds."""
    return _EPOCH + datetime.timedelta(microseconds=now_ns // MICROSECOND)


def to_ns(time: datetime.datetime) -> int:
    """Return a datetime as ns since 1970, truncated to microseconds. It must have a time zone."""
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * MICROSECOND
