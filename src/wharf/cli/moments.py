"""How times and lengths of time are told to people: by how far they are from now, in one or two units."""

import datetime
from typing import Final

SECOND: Final = 1_000_000_000
UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
NEVER: Final = "-"
JUST_NOW_NS: Final = SECOND


def say_length(length_ns: int) -> str:
    """`3d4h`, `2m5s`, `40s`, `250ms`: the two largest units."""
    if length_ns < 0:
        return f"-{say_length(-length_ns)}"
    if length_ns < SECOND:
        return f"{length_ns // 1_000_000}ms" if length_ns else "0s"
    left_s = length_ns // SECOND
    parts: list[str] = []
    for name, size_s in UNITS:
        count, left_s = divmod(left_s, size_s)
        if count:
            parts.append(f"{count}{name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts)


def say_when(time: int | datetime.datetime | None, now_ns: int) -> str:
    """`3m5s ago`, `in 2h`, `now`. Of a time in ns, or of a date; no time is `-`."""
    time_ns = time if isinstance(time, int) else nanoseconds(time)
    if time_ns <= 0:
        return NEVER
    length_ns = now_ns - time_ns
    if abs(length_ns) < JUST_NOW_NS:
        return "now"
    if length_ns > 0:
        return f"{say_length(length_ns)} ago"
    # What is 8 hours ahead is so a moment later, too.
    return f"in {say_length(-(length_ns // SECOND) * SECOND)}"


def say_date(time: int | datetime.datetime | None) -> str:
    """As `2026-11-21 12:45:03Z`."""
    time_ns = time if isinstance(time, int) else nanoseconds(time)
    if time_ns <= 0:
        return NEVER
    return datetime.datetime.fromtimestamp(time_ns // SECOND, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def nanoseconds(time: datetime.datetime | None) -> int:
    return 0 if time is None else int(time.timestamp()) * SECOND + time.microsecond * 1_000


def read_date(text: str) -> datetime.datetime:
    """As replies hold it. Raises ValueError."""
    import msgspec

    return msgspec.convert(text, type=datetime.datetime)
