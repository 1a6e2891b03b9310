"""Times and durations in nanoseconds: units, formatting, and conversion to and from `datetime`. Reads no clock.

The log stores instants as nanoseconds since 1970; some fields of the wire hold the calendar form.
"""

import datetime
from collections.abc import Callable
from typing import Final

import msgspec

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE


def format_duration(nanoseconds: int) -> str:
    """Format a duration in Go's notation: `1h30m0s`, `15s`, `1.5s`, `200ms`, `0s`."""
    if nanoseconds < 0:
        return "-" + format_duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    for unit, name in ((MICROSECOND, "ns"), (MILLISECOND, "µs"), (SECOND, "ms")):
        if nanoseconds < unit:
            size = {"ns": 1, "µs": MICROSECOND, "ms": MILLISECOND}[name]
            return f"{_decimal(nanoseconds, size)}{name}"
    hours, rest = divmod(nanoseconds, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(amount: int, unit: int) -> str:
    """Format `amount / unit` as a decimal number without trailing zeros. `unit` is a power of ten."""
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DecisionContext(msgspec.Struct, frozen=True, gc=False):
    """The time of a decision, and a function that returns new IDs for its records."""

    now_ns: int
    new_id: Callable[[], str]


def to_datetime(now_ns: int) -> datetime.datetime:
    """Return the UTC datetime of a time in ns since 1970, truncated to microseconds."""
    return _EPOCH + datetime.timedelta(microseconds=now_ns // MICROSECOND)


def to_ns(time: datetime.datetime) -> int:
    """Return a datetime as ns since 1970, truncated to microseconds."""
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * MICROSECOND
