"""Durations as the wire has them: whole nanoseconds. Only units and how to say one aloud live here, never a clock.

Instants: nanoseconds since 1970 as the log has them, and the calendar form that some fields of the wire take.

A `Moment` is what every decision is given of time and chance; it makes neither.
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
    """A duration as people write it: `1h30m0s`, `15s`, `1.5s`, `200ms`, `0s`."""
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
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


MICROSECOND_NS: Final = 1_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DecisionContext(msgspec.Struct, frozen=True, gc=False):
    """When a decision is taken, and the ids it may use up."""

    now_ns: int
    new_id: Callable[[], str]


def to_datetime(now_ns: int) -> datetime.datetime:
    """The calendar form of an instant, to the microsecond."""
    return _EPOCH + datetime.timedelta(microseconds=now_ns // MICROSECOND_NS)


def to_ns(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * MICROSECOND_NS
