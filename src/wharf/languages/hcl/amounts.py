"""Numbers with a unit, such as `256MB` and `5 days`: what to write instead of them in a document."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

_AMOUNT: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))? ?([A-Za-z]{1,12}|%)")
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
    "MB": {
        **dict.fromkeys(("m", "mb", "mib", "mi"), 1),
        **dict.fromkeys(("g", "gb", "gib", "gi"), 1_024),
        **dict.fromkeys(("t", "tb", "tib", "ti"), 1_024**2),
    },
    "MHz": {"mhz": 1, "ghz": 1_000},
    "%": {"%": 1, "percent": 1},
}
"""What a number with a unit is multiplied by, for each unit of numbers in documents."""
_SIZE_UNITS: Final = ("MB", "MHz")
_CORE_SHARE: Final = re.compile(r"[0-9]{1,6}m|[0-9]{0,3}\.[0-9]{1,6}")
"""A share of a core as Kubernetes writes it, such as `500m` or `0.5`."""
CORE_SHARE_FIX: Final = "write megahertz, such as 500: CPU is not counted in cores; Cores reserves whole cores"
UNIT_NAMES: Final[Mapping[str, str]] = {"MB": "megabytes", "MHz": "megahertz", "%": "percent"}


def find_number(text: str, unit: str) -> int | None:
    """Return the number that a text such as `1.5GB` is in a unit such as `MB`, or `None`, for example for another unit."""
    amount = _AMOUNT.fullmatch(text)
    if amount is None:
        return None
    factor = _FACTORS.get(unit, {}).get(amount[3].lower())
    decimals = amount[2] or ""
    scaled = int(amount[1] + decimals) * (factor or 0)
    return scaled // 10 ** len(decimals) if factor is not None and scaled % 10 ** len(decimals) == 0 else None


def is_core_share(text: str) -> bool:
    """Return whether a text is a share of a core as Kubernetes writes it, such as `500m` or `0.5`."""
    return _CORE_SHARE.fullmatch(text) is not None


def explain_number(text: str, unit: str) -> str:
    """Return which whole number to write instead of a text such as `1GB` or `500m`, or an empty text if none is known."""
    if unit == "MHz" and is_core_share(text):
        return CORE_SHARE_FIX
    number = find_number(text, unit)
    if number is not None:
        return f"write {number}, without a unit: the number is in {UNIT_NAMES[unit]}"
    return f"write the number of {UNIT_NAMES[unit]}, without a unit" if _AMOUNT.fullmatch(text) and unit else ""


def find_sized_number(text: str) -> tuple[int, str] | None:
    """Return the number and the unit that a text such as `1GB` is in documents, or `None` if it is no size or frequency.

    `5m` is a duration, and `5M` is a size.
    """
    for unit in _SIZE_UNITS:
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
