"""Durations as the wire has them: whole nanoseconds. Only units and how to say one aloud live here, never a clock."""

from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE


def say_duration(nanoseconds: int) -> str:
    """A duration as people write it: `1h30m0s`, `15s`, `1.5s`, `200ms`, `0s`."""
    if nanoseconds < 0:
        return "-" + say_duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    for unit, name in ((MICROSECOND, "ns"), (MILLISECOND, "µs"), (SECOND, "ms")):
        if nanoseconds < unit:
            size = {"ns": 1, "µs": MICROSECOND, "ms": MILLISECOND}[name]
            return f"{_decimal(nanoseconds, size)}{name}"
    hours, rest = divmod(nanoseconds, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")
