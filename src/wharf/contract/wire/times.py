"""Times and durations as text on the wire: RFC 3339 times in UTC, and Go durations such as `5s`, `1m30s`, `1.5h` or `0`."""

import re
from datetime import UTC, datetime
from typing import Final

from wharf.contract.model.times import SECOND

ZERO_TIME: Final = "0001-01-01T00:00:00Z"
"""Go's zero time, which stands for "not set"."""


def format_time(time_ns: int) -> str:
    """Format ns since 1970 as RFC 3339, with as many decimals as needed. 0 means "not set"."""
    if time_ns == 0:
        return ZERO_TIME
    seconds, rest = divmod(time_ns, SECOND)
    text = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{fraction}Z"


UNITS_NS: Final = {
    "ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}  # fmt: skip
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_MAX_DURATION_CHARS: Final = 64
_MAX_DURATION_NS: Final = 2**63 - 1


class DurationError(ValueError):
    """The text is not a duration."""


def parse_duration_ns(text: str) -> int:
    """Parse a duration into ns. Raises `DurationError`."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, position = 0.0, 0
    while rest and position < len(rest) <= _MAX_DURATION_CHARS:
        part = _PART.match(rest, position)
        if part is None:
            break
        total += float(part[1]) * UNITS_NS[part[2]]
        position = part.end()
    if not rest or position != len(rest) or total > _MAX_DURATION_NS:
        raise DurationError(f'expected a duration such as 10s, 5m or 1h30m, got "{text}"')
    return sign * round(total)


DurationText = str | int
"""A duration as text, or as a number of nanoseconds."""
