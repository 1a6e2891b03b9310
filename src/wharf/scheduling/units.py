"""Amounts with units, as devices tell them: `11 GiB` and `11264 MiB` are the same."""

import re
from typing import Final

_AMOUNT: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*\Z")


def _scaled(base: str, **prefixes: float) -> dict[str, tuple[float, str]]:
    return {name: (factor, base) for name, factor in prefixes.items()}


_BINARY: Final = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50, "EiB": 2.0**60}
_DECIMAL: Final = {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "EB": 1e18, "B": 1.0}
_BYTES: Final = {**_BINARY, **_DECIMAL}
UNITS: Final[dict[str, tuple[float, str]]] = {
    **_scaled("B", **_BYTES),
    **{f"{name}/s": (factor, "B/s") for name, factor in _BYTES.items()},
    **_scaled("Hz", Hz=1.0, kHz=1e3, MHz=1e6, GHz=1e9),
    **_scaled("W", mW=1e-3, W=1.0, kW=1e3, MW=1e6, GW=1e9),
}


def in_base_unit(text: str) -> tuple[float, str] | None:
    """The number in the unit that all of its kind are told in, and that unit; None: it is no amount."""
    found = _AMOUNT.match(text)
    if found is None:
        return None
    number, unit = float(found[1]), found[2]
    if not unit:
        return number, ""
    factor_and_base = UNITS.get(unit)
    return None if factor_and_base is None else (number * factor_and_base[0], factor_and_base[1])
