"""How times and lengths of time are told to people: by how far they are from now, in one or two units."""

import datetime
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
DURATION_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
NO_TIME_TEXT: Final = "-"
JUST_NOW_NS: Final = NS_PER_SECOND


def format_rounded_duration(duration_ns: int) -> str:
    """`3d4h`, `2m5s`, `40s`, `250ms`: the two largest units."""
    if duration_ns < 0:
        return f"-{format_rounded_duration(-duration_ns)}"
    if duration_ns < NS_PER_SECOND:
        return f"{duration_ns // 1_000_000}ms" if duration_ns else "0s"
    left_s = duration_ns // NS_PER_SECOND
    parts: list[str] = []
    for name, size_s in DURATION_UNITS:
        count, left_s = divmod(left_s, size_s)
        if count:
            parts.append(f"{count}{name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts)


def format_relative_time(time: int | datetime.datetime | None, now_ns: int) -> str:
    """`3m5s ago`, `in 2h`, `now`. Of a time in ns, or of a date; no time is `-`."""
    time_ns = time if isinstance(time, int) else to_nanoseconds(time)
    if time_ns <= 0:
        return NO_TIME_TEXT
    length_ns = now_ns - time_ns
    if abs(length_ns) < JUST_NOW_NS:
        return "now"
    if length_ns > 0:
        return f"{format_rounded_duration(length_ns)} ago"
    # What is 8 hours ahead is so a moment later, too.
    return f"in {format_rounded_duration(-(length_ns // NS_PER_SECOND) * NS_PER_SECOND)}"


def format_utc_time(time: int | datetime.datetime | None) -> str:
    """As `2026-11-21 12:45:03Z`."""
    time_ns = time if isinstance(time, int) else to_nanoseconds(time)
    if time_ns <= 0:
        return NO_TIME_TEXT
    return datetime.datetime.fromtimestamp(time_ns // NS_PER_SECOND, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def to_nanoseconds(time: datetime.datetime | None) -> int:
    return 0 if time is None else int(time.timestamp()) * NS_PER_SECOND + time.microsecond * 1_000


def parse_time(text: str) -> datetime.datetime:
    """As replies hold it. Raises ValueError."""
    import msgspec

    return msgspec.convert(text, type=datetime.datetime)
