"""What one look at a service found."""

from enum import Enum
from typing import Final, NamedTuple

OUTPUT_MAX_BYTES: Final = 3 * 1_024


class CheckStatus(Enum):
    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class Finding(NamedTuple):
    is_well: bool
    output: str
    status_code: int = 0  # Of HTTP.
    # A script may only warn; whether that counts as well is the check's to say (its OnUpdate).
    is_warning: bool = False


def cut(text: str) -> str:
    """At a bound of bytes, and not within a character."""
    data = text.encode(errors="replace")
    return text if len(data) <= OUTPUT_MAX_BYTES else data[:OUTPUT_MAX_BYTES].decode(errors="ignore")
