"""Value types of settings (durations, sizes, secrets) and the description of a setting where it is declared.

A package declares its settings as a frozen struct whose fields are annotated with `SettingInfo`. Reading, documenting and
checking settings all derive from these declarations. Nothing here reads a file.
"""

import re
from typing import Final

import msgspec

from wharf.contract.model.times import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, format_duration

_UNITS_NS: Final = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
    "d": 24 * HOUR,
}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")

_UNITS_BYTES: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}{tail}": 1_000**power for power, letter in enumerate("KMGT", start=1) for tail in ("", "B")},
    **{f"{letter}iB": 1_024**power for power, letter in enumerate("KMGT", start=1)},
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?(?:iB|B)?)", re.IGNORECASE)


class Duration(msgspec.Struct, frozen=True, gc=False, order=True):
    """A duration, written as `"30s"`, `"1h30m"` or `"7d"`."""

    ns: int  # Nanoseconds.

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ns / SECOND

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Parse a duration such as `"30s"`, `"1h30m"`, `"7d"` or `"0"`. Raises `ValueError` if the text is not one."""
        if text == "0":
            return cls(0)
        parts = _DURATION_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{text!r} is not a duration")
        return cls(sum(round(float(number) * _UNITS_NS[unit]) for number, unit in parts))

    def __str__(self) -> str:
        """Return the short notation without trailing zeros: `5m`, not `5m0s`."""
        text = format_duration(self.ns)
        for tail, unit in (("m0s", "m"), ("h0m", "h")):
            if text.endswith(tail):
                text = text.removesuffix(tail) + unit
        return text


class Size(msgspec.Struct, frozen=True, gc=False, order=True):
    """A number of bytes, written as a number or as `"10MB"` or `"512KiB"`."""

    bytes: int

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Parse a size such as `"10MB"`, `"512KiB"` or `"1500"`. Raises `ValueError` if the text is not one."""
        match = _SIZE.fullmatch(text)
        unit = next((known for known in _UNITS_BYTES if match and known.lower() == match[2].lower()), None)
        if match is None or unit is None:
            raise ValueError(f"{text!r} is not a size")
        return cls(round(float(match[1]) * _UNITS_BYTES[unit]))

    def __str__(self) -> str:
        """Return the number of bytes in the largest decimal unit that divides it: `10MB`, `1500`."""
        for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
            if self.bytes and self.bytes % size == 0:
                return f"{self.bytes // size}{unit}"
        return str(self.bytes)


class SecretText(msgspec.Struct, frozen=True, gc=False):
    """A text that is never printed: every conversion to text returns `<redacted>`. Only `reveal` returns the text."""

    text: str = ""

    def reveal(self) -> str:
        """Return the secret itself."""
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        return "<redacted>" if self.text else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


class SettingInfo(msgspec.Struct, frozen=True, kw_only=False):
    """The description of a setting in the configuration, for its reference page and for its check."""

    description: str
    """One or two sentences for the reference page of all settings."""
    is_reloadable: bool = False
    """Whether a reload applies a new value to a running agent; otherwise the agent must be restarted."""
    min_value: int | None = None  # `None`: no limit.
    max_value: int | None = None  # `None`: no limit.
    default_text: str | None = None
    """The default in words, if the value does not explain itself ("the host's name")."""
