"""Instants: nanoseconds since 1970 as the log has them, and the calendar form that some fields of the wire take.

A `Moment` is what every decision is given of time and chance; it makes neither.
"""

import datetime
from collections.abc import Callable
from typing import Final

import msgspec

MICROSECOND_NS: Final = 1_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Moment(msgspec.Struct, frozen=True, gc=False):
    """When a decision is taken, and the ids it may use up."""

    now_ns: int
    new_id: Callable[[], str]


def to_time(now_ns: int) -> datetime.datetime:
    """The calendar form of an instant, to the microsecond."""
    return _EPOCH + datetime.timedelta(microseconds=now_ns // MICROSECOND_NS)


def to_ns(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * MICROSECOND_NS
