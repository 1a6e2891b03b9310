"""One table from the code of a refusal to an HTTP status, and back."""

from types import MappingProxyType
from typing import Final

from wharf.model.refusal import Code, Refusal

STATUS_OF: Final = MappingProxyType({
    Code.INVALID: 400,
    Code.UNPROVEN: 401,
    Code.FORBIDDEN: 403,
    Code.UNKNOWN: 404,
    Code.CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.UNSUPPORTED: 415,
    Code.LIMITED: 429,
    Code.NO_LEADER: 500,
    Code.NOT_OURS: 501,
    Code.UNAVAILABLE: 503,
    Code.UNDECIDED: 504,
})  # fmt: skip

CODE_HEADER: Final = "x-cluster-error"
"""Carries the code itself, so that it survives the wire whatever status it shares with others."""

CODE_OF: Final = MappingProxyType({status: code for code, status in STATUS_OF.items() if code is not Code.NO_LEADER})


def refusal_of(status: int, text: str, *, code: str = "") -> Refusal:
    """What a reply that is no success means to a caller. `code` is what the header says.

    Without it the status is all there is. A 5xx that nobody explains may come from after the write.
    """
    if code in tuple(Code):
        return Refusal(Code(code), text)
    return Refusal(CODE_OF.get(status, Code.UNDECIDED if status >= 500 else Code.INVALID), text)
