"""Moments as text, as the wire has them: RFC 3339 in UTC."""

from datetime import UTC, datetime
from typing import Final

from wharf.model.durations import SECOND

NO_MOMENT: Final = "0001-01-01T00:00:00Z"


def say_moment(at_ns: int) -> str:
    """With as many digits of a second as there are; 0 is no moment."""
    if at_ns == 0:
        return NO_MOMENT
    seconds, rest = divmod(at_ns, SECOND)
    text = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{fraction}Z"
