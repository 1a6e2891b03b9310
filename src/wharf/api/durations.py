"""Durations as bodies hold them: text like `1h0m0s`, or nanoseconds."""

from wharf.model.durations import say_duration
from wharf.model.refusal import invalid
from wharf.wire.access import Lasting
from wharf.wire.go_duration import DurationError, parse_duration_ns


def read_duration_ns(given: Lasting, *, field: str) -> int:
    """0 where nothing is given."""
    if isinstance(given, int):
        return given
    if not given:
        return 0
    try:
        return parse_duration_ns(given)
    except DurationError as error:
        raise invalid(f"{field}: {error}") from error


def shown_duration(duration_ns: int) -> str:
    """Empty for none, as tokens show it."""
    return say_duration(duration_ns) if duration_ns else ""
