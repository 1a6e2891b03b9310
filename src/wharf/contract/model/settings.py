"""What settings are made of: durations, sizes, secrets, and what is said about each setting where it is declared.

A package declares its settings as a frozen struct whose fields are annotated with `About`; reading, documenting and
checking all derive from that. Nothing here reads a file.
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
    """A length of time. Written `"30s"`, `"1h30m"`, `"7d"`."""

    ns: int

    @property
    def seconds(self) -> float:
        return self.ns / SECOND

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Raises ValueError for what is no duration."""
        if text == "0":
            return cls(0)
        parts = _DURATION_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{text!r} is no duration")
        return cls(sum(round(float(number) * _UNITS_NS[unit]) for number, unit in parts))

    def __str__(self) -> str:
        """As people write it, without the zeros at the end: `5m`, not `5m0s`."""
        said = format_duration(self.ns)
        for tail, unit in (("m0s", "m"), ("h0m", "h")):
            if said.endswith(tail):
                said = said.removesuffix(tail) + unit
        return said


class Size(msgspec.Struct, frozen=True, gc=False, order=True):
    """A number of bytes. Written as a number or `"10MB"`, `"512KiB"`."""

    bytes: int

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Raises ValueError for what is no size."""
        found = _SIZE.fullmatch(text)
        unit = next((known for known in _UNITS_BYTES if found and known.lower() == found[2].lower()), None)
        if found is None or unit is None:
            raise ValueError(f"{text!r} is no size")
        return cls(round(float(found[1]) * _UNITS_BYTES[unit]))

    def __str__(self) -> str:
        for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
            if self.bytes and self.bytes % size == 0:
                return f"{self.bytes // size}{unit}"
        return str(self.bytes)


class SecretText(msgspec.Struct, frozen=True, gc=False):
    """A text that is never shown: whoever needs it asks for it by `reveal`, and every other way says `<redacted>`."""

    text: str = ""

    def reveal(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        return "<redacted>" if self.text else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


class SettingInfo(msgspec.Struct, frozen=True, kw_only=False):
    """What is said about a setting, beside its type and its default."""

    description: str
    """For people, one sentence or two; the page of all settings is made of these."""
    is_reloadable: bool = False
    """Whether a running agent takes a new value by reload; all others need a restart."""
    min_value: int | None = None
    max_value: int | None = None
    default_text: str | None = None
    """What the default is in words, where the value alone does not tell ("the host's name")."""
