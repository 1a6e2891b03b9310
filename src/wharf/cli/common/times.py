"""Times and durations as text for people."""

import datetime
from typing import Final

from wharf.contract.model.times import format_rounded_duration

NS_PER_SECOND: Final = 1_000_000_000
NO_TIME_TEXT: Final = "-"
JUST_NOW_NS: Final = NS_PER_SECOND
"""A time that is nearer than this is shown as `now`."""


def format_relative_time(time: int | datetime.datetime | None, now_ns: int) -> str:
    """Return a time relative to now: `3m5s ago`, `in 2h`, `now`; `-` for no time. The time is in ns or a datetime."""
    time_ns = time if isinstance(time, int) else to_nanoseconds(time)
    if time_ns <= 0:
        return NO_TIME_TEXT
    elapsed_ns = now_ns - time_ns
    if abs(elapsed_ns) < JUST_NOW_NS:
        return "now"
    if elapsed_ns > 0:
        return f"{format_rounded_duration(elapsed_ns)} ago"
    # Round up: a time 8 hours ahead must not become `in 7h59m` a moment later.
    return f"in {format_rounded_duration(-(elapsed_ns // NS_PER_SECOND) * NS_PER_SECOND)}"


def format_utc_time(time: int | datetime.datetime | None) -> str:
    """Return a UTC time such as `2026-11-21 12:45:03Z`; `-` for no time."""
    time_ns = time if isinstance(time, int) else to_nanoseconds(time)
    if time_ns <= 0:
        return NO_TIME_TEXT
    return datetime.datetime.fromtimestamp(time_ns // NS_PER_SECOND, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def to_nanoseconds(time: datetime.datetime | None) -> int:
    """Return a datetime as Unix time in nanoseconds; 0 for None."""
    return 0 if time is None else int(time.timestamp()) * NS_PER_SECOND + time.microsecond * 1_000


def parse_time(text: str) -> datetime.datetime:
    """Return the datetime of a text in the format of API replies (RFC 3339). Raises ValueError."""

    import msgspec

    return msgspec.convert(text, type=datetime.datetime)
