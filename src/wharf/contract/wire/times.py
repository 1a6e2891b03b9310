"""Times and durations as text on the wire: RFC 3339 times in UTC, and the type of fields with durations."""

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


DurationText = str | int
"""A duration as text, or as a number of nanoseconds."""
