"""Durations as parameters have them: `5s`, `1m30s`, `100ms`, `1.5h`, or a bare `0`."""

import re
from typing import Final

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
