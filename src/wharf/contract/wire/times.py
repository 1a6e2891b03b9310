"""Moments as text, as the wire has them: RFC 3339 in UTC.

Durations as parameters have them: `5s`, `1m30s`, `100ms`, `1.5h`, or a bare `0`.
"""

import re
from datetime import UTC, datetime
from typing import Final

from wharf.contract.model.times import SECOND

ZERO_TIME: Final = "0001-01-01T00:00:00Z"


def format_time(at_ns: int) -> str:
    """With as many digits of a second as there are; 0 is no moment."""
    if at_ns == 0:
        return ZERO_TIME
    seconds, rest = divmod(at_ns, SECOND)
    text = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{fraction}Z"


UNITS_NS: Final = {
    "ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}  # fmt: skip
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST: Final = 64
_MOST_NS: Final = 2**63 - 1


class DurationError(ValueError):
    pass


def parse_duration_ns(text: str) -> int:
    """Nanoseconds; `DurationError` for anything else."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, position = 0.0, 0
    while rest and position < len(rest) <= _LONGEST:
        part = _PART.match(rest, position)
        if part is None:
            break
        total += float(part[1]) * UNITS_NS[part[2]]
        position = part.end()
    if not rest or position != len(rest) or total > _MOST_NS:
        raise DurationError(f'"{text}" is no duration; write it like 10s, 5m or 1h30m')
    return sign * round(total)


DurationText = str | int
"""A duration as text, or nanoseconds."""
