"""Times and durations as text on the wire: RFC 3339 times in UTC, and Go durations such as `5s`, `1m30s`, `1.5h` or `0`."""

import re
from datetime import UTC, datetime
from typing import Final

from wharf.contract.model.times import SECOND

ZERO_TIME: Final = "0001-01-01T00:00:00Z"
"""Go's zero time, which stands for "not set"."""


def format_time(time_ns: int) -> str:
    """Return a time in ns since 1970 as RFC 3339 text, such as `2026-01-31T12:00:00.5Z`.

    The text has as many decimals as needed. 0 becomes Go's zero time, which means "not set".
    """
    if time_ns == 0:
        return ZERO_TIME
    seconds, fraction_ns = divmod(time_ns, SECOND)
    text = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{fraction_ns:09d}".rstrip("0") if fraction_ns else ""
    return f"{text}{fraction}Z"


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


DurationText = str | int
"""A duration as text, or as a number of nanoseconds."""
