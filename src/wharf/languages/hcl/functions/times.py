"""Functions of times. The current time is not available: the result of an evaluation does not depend on it."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Final, NamedTuple

from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.values import Value

_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]{1,9})?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_DURATION: Final = re.compile(r"[+-]?(?:0|(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:ns|us|µs|μs|ms|s|m|h))+")
_DURATION_PART: Final = re.compile(r"([0-9]*\.?[0-9]*)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_NANOSECONDS: Final = {
    "ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3_600 * 10**9,
}  # fmt: skip
_TOKEN: Final = re.compile(r"'((?:[^']|'')*+)'|([A-Za-z])\2*+|[^A-Za-z']++|'", re.DOTALL)
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MAX_DURATION_CHARS: Final = 200


class _Time(NamedTuple):
    """A point in time with its zone, and the nanoseconds after the full second."""

    full_second: datetime
    nanoseconds: int


def _read_time(text: str, argument: int) -> _Time:
    """Return the time of a text. Raises `FunctionError`."""
    match = _TIME.fullmatch(text)
    if match is not None:
        sign = -1 if match[8] == "-" else 1
        hours, minutes = int(match[9] or 0), int(match[10] or 0)
        try:
            if hours > 23 or minutes > 59:
                raise ValueError
            zone = timezone(sign * timedelta(hours=hours, minutes=minutes))
            numbers = [int(match[group]) for group in range(1, 7)]
            moment = datetime(*numbers, tzinfo=zone)  # type: ignore[arg-type,misc]  # six numbers
        except ValueError:
            pass
        else:
            return _Time(moment, int((match[7] or ".0")[1:].ljust(9, "0")))
    raise FunctionError("the time has the form of RFC 3339", argument=argument, fix="write it as 2026-01-31T12:00:00Z")


def _get_offset(moment: datetime) -> tuple[str, int, int]:
    """Return the sign, hours and minutes of the zone."""
    seconds = int(moment.utcoffset().total_seconds())  # type: ignore[union-attr]  # times have a zone
    return "-" if seconds < 0 else "+", abs(seconds) // 3600, abs(seconds) % 3600 // 60


def _format_offset(moment: datetime, separator: str) -> str:
    sign, hours, minutes = _get_offset(moment)
    return f"{sign}{hours:02}{separator}{minutes:02}"


def _is_utc(moment: datetime) -> bool:
    return not moment.utcoffset()


_FORMATS: Final[Mapping[str, Callable[[datetime], str]]] = {
    "YYYY": lambda t: f"{t.year:04}",
    "YY": lambda t: f"{t.year % 100:02}",
    "MMMM": lambda t: _MONTHS[t.month - 1],
    "MMM": lambda t: _MONTHS[t.month - 1][:3],
    "MM": lambda t: f"{t.month:02}",
    "M": lambda t: str(t.month),
    "DD": lambda t: f"{t.day:02}",
    "D": lambda t: str(t.day),
    "EEEE": lambda t: _DAYS[t.weekday()],
    "EEE": lambda t: _DAYS[t.weekday()][:3],
    "hh": lambda t: f"{t.hour:02}",
    "h": lambda t: str(t.hour),
    "HH": lambda t: f"{t.hour % 12 or 12:02}",
    "H": lambda t: str(t.hour % 12 or 12),
    "AA": lambda t: "AM" if t.hour < 12 else "PM",
    "aa": lambda t: "am" if t.hour < 12 else "pm",
    "mm": lambda t: f"{t.minute:02}",
    "m": lambda t: str(t.minute),
    "ss": lambda t: f"{t.second:02}",
    "s": lambda t: str(t.second),
    "Z": lambda t: "Z" if _is_utc(t) else _format_offset(t, ":"),
    "ZZZ": lambda t: "UTC" if _is_utc(t) else _format_offset(t, ""),
    "ZZZZ": lambda t: _format_offset(t, ""),
    "ZZZZZ": lambda t: _format_offset(t, ":"),
}


def _format_date(context: CallContext, spec: str, text: str) -> Value:
    moment = _read_time(text, 1).full_second
    pieces: list[str] = []
    for match in _TOKEN.finditer(spec):
        context.budget.use_steps(2)
        token = match[0]
        if match[1] is not None:
            pieces.append(match[1].replace("''", "'") or "'")
        elif token == "'":
            raise FunctionError("a quote in the format has no end", argument=0)
        elif match[2] is not None:
            formatter = _FORMATS.get(token)
            if formatter is None:
                raise FunctionError(
                    f'the format "{token[:20]}" does not exist', argument=0,
                    fix=f"the formats are {', '.join(_FORMATS)}; put other text in single quotes",
                )  # fmt: skip
            pieces.append(formatter(moment))
        else:
            pieces.append(token)
    return "".join(pieces)


def _add_duration(context: CallContext, text: str, duration: str) -> Value:
    context.budget.use_steps(20)
    moment = _read_time(text, 0)
    if len(duration) > MAX_DURATION_CHARS or not _DURATION.fullmatch(duration):
        raise FunctionError("the duration has units", argument=1, fix="write it as 1h30m, with ns, us, ms, s, m or h")
    total = sum(
        int(
            Fraction(part[1].rstrip(".") if not part[1].startswith(".") else f"0{part[1]}") * _UNIT_NANOSECONDS[part[2]]
        )
        for part in _DURATION_PART.finditer(duration)
    )
    nanoseconds = moment.nanoseconds + (-total if duration.startswith("-") else total)
    try:
        result = moment.full_second + timedelta(seconds=nanoseconds // 10**9)
    except OverflowError:
        raise FunctionError("the result is outside the years 1 to 9999", argument=1) from None
    zone = "Z" if _is_utc(result) else _format_offset(result, ":")
    return f"{result.year:04}-{result.month:02}-{result.day:02}T{result.hour:02}:{result.minute:02}:{result.second:02}{zone}"


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("formatdate", "format:text time:text", _format_date),
        define_function("timeadd", "time:text duration:text", _add_duration),
    )
)
