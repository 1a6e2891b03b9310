"""Amounts of memory and time as users write them for batch work."""

import re
from typing import Final

from wharf.contract.model.times import DurationError, parse_duration_ns

_MEMORY: Final = re.compile(r"([0-9]{1,12})([KMGT]?)(?:i?B)?", re.IGNORECASE)
_KIB_BY_UNIT: Final = {"K": 1, "": 1_024, "M": 1_024, "G": 1_024**2, "T": 1_024**3}
MAX_MEMORY_MB: Final = 1_000_000_000
"""The largest amount that a job may request."""


class AmountError(ValueError):
    """The error for a text that is not an amount. Its message says what is expected."""


def parse_memory_mb(text: str) -> int:
    """Return an amount such as `4G` or `512M` in MiB, rounded up; a number without a unit is MiB. Raises `AmountError`.

    Units are powers of 1,024, whether they are written `G`, `GB` or `GiB`.
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise AmountError(f"expected an amount of memory such as 512M or 4G, got {text!r}")
    kib = int(found[1]) * _KIB_BY_UNIT[found[2].upper()]
    amount_mb = -(-kib // 1_024)
    if amount_mb > MAX_MEMORY_MB:
        raise AmountError(f"{text} is more memory than any machine has")
    return amount_mb


def parse_time_ns(text: str) -> int:
    """Return a duration such as `90m` or `2h` in nanoseconds. Raises `AmountError` if it is not one, or not above 0."""
    try:
        duration_ns = parse_duration_ns(text)
    except DurationError as error:
        raise AmountError(str(error)) from error
    if duration_ns <= 0:
        raise AmountError(f"expected a time above 0, got {text}")
    return duration_ns
