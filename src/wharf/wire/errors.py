"""One table from the code of a refusal to an HTTP status, and back."""

from types import MappingProxyType
from typing import Final

from wharf.model.refusal import Code, Refusal

STATUS_OF: Final = MappingProxyType({
    Code.INVALID: 400,
    Code.FORBIDDEN: 403,
    Code.UNKNOWN: 404,
    Code.CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.LIMITED: 429,
    Code.NO_LEADER: 500,
    Code.NOT_OURS: 501,
    Code.UNAVAILABLE: 503,
    Code.UNDECIDED: 504,
})  # fmt: skip

CODE_OF: Final = MappingProxyType({status: code for code, status in STATUS_OF.items()})


def refusal_of(status: int, text: str) -> Refusal:
    """What a reply that is no success means to a caller."""
    return Refusal(CODE_OF.get(status, Code.UNAVAILABLE if status >= 500 else Code.INVALID), text)
