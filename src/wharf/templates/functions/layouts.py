"""Times by an example: `2006-01-02 15:04:05` is how the second of January 2006 would be written. In UTC."""

import re
from datetime import UTC, datetime
from typing import Final

_PARTS: Final = re.compile(
    r"2006|January|Jan|Monday|Mon|MST|Z07:00|Z0700|-07:00|-0700|-07|002|01|02|03|04|05|06|_2|15|PM|pm|[.,][09]+(?!\d)|1|2|3|4|5"
)
_FORMS: Final = {
    "2006": "%Y", "06": "%y", "January": "%B", "Jan": "%b", "01": "%m", "Monday": "%A", "Mon": "%a",
    "002": "%j", "02": "%d", "15": "%H", "03": "%I", "04": "%M", "05": "%S", "PM": "%p",
}  # fmt: skip
_FIXED: Final = {"MST": "UTC", "Z07:00": "Z", "Z0700": "Z", "-07:00": "+00:00", "-0700": "+0000", "-07": "+00"}


def format_time(now_ns: int, layout: str) -> str:
    moment = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
    nanoseconds = f"{now_ns % 1_000_000_000:09}"

    def put(found: re.Match[str]) -> str:
        part = found[0]
        if part in _FORMS:
            return moment.strftime(_FORMS[part])
        if part in _FIXED:
            return _FIXED[part]
        match part:
            case "1":
                return str(moment.month)
            case "2":
                return str(moment.day)
            case "_2":
                return f"{moment.day:2}"
            case "3":
                return str(moment.hour % 12 or 12)
            case "4":
                return str(moment.minute)
            case "5":
                return str(moment.second)
            case "pm":
                return moment.strftime("%p").lower()
        digits = nanoseconds[: len(part) - 1]
        if "9" in part:  # Nines leave zeros at the end away.
            digits = digits.rstrip("0")
        return part[0] + digits if digits else ""

    return _PARTS.sub(put, layout)
