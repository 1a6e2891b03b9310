"""Numbers with a unit, such as `256MB` and `5 days`: what to write instead of them in a document."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

_AMOUNT: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))? ?([A-Za-z]{1,12})")
_DURATION: Final = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,9})?(?:ns|us|ms|[smh]))+")
_DURATION_UNITS: Final[Mapping[str, tuple[int, str]]] = {
    **dict.fromkeys(("d", "day", "days"), (24, "h")),
    **dict.fromkeys(("w", "week", "weeks"), (168, "h")),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), (1, "h")),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), (1, "m")),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), (1, "s")),
    **dict.fromkeys(("millis", "millisecond", "milliseconds"), (1, "ms")),
}
_FACTORS: Final[Mapping[str, Mapping[str, int]]] = {
    "MB": {**dict.fromkeys(("m", "mb", "mib", "mi"), 1), **dict.fromkeys(("g", "gb", "gib", "gi"), 1_024)},
    "MHz": {"mhz": 1, "ghz": 1_000},
}
"""What a number with a unit is multiplied by, for each unit of numbers in documents."""
UNIT_NAMES: Final[Mapping[str, str]] = {"MB": "megabytes", "MHz": "megahertz", "%": "percent"}


def find_number(text: str, unit: str) -> int | None:
    """Return the number that a text such as `1.5GB` is in a unit such as `MB`, or `None`. Without a unit, its own is dropped."""
    amount = _AMOUNT.fullmatch(text)
    if amount is None:
        return None
    factor = _FACTORS[unit].get(amount[3].lower()) if unit in _FACTORS else 1
    decimals = amount[2] or ""
    scaled = int(amount[1] + decimals) * (factor or 0)
    return scaled // 10 ** len(decimals) if factor is not None and scaled % 10 ** len(decimals) == 0 else None


def find_sized_number(text: str) -> tuple[int, str] | None:
    """Return the number and the unit that a text such as `1GB` is in documents, or `None` if it is no size or frequency.

    `5m` is a duration, and `5M` is a size.
    """
    for unit in _FACTORS:
        number = None if find_duration(text) is not None else find_number(text, unit)
        if number is not None:
            return number, unit
    return None


def find_duration(text: str) -> str | None:
    """Return the duration that a text such as `5 days` or `10s` probably means, or `None`."""
    if _DURATION.fullmatch(text) is not None:
        return text
    amount = _AMOUNT.fullmatch(text)
    unit = _DURATION_UNITS.get(amount[3].lower()) if amount is not None else None
    if amount is None or unit is None:
        return None
    number = Decimal(f"{amount[1]}.{amount[2] or 0}") * unit[0]
    whole = number.to_integral_value()
    return f"{whole if number == whole else number.normalize():f}{unit[1]}"
