"""The table that maps the code of a refusal to an HTTP status, and back."""

from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason

STATUS_BY_CODE: Final = MappingProxyType({
    RefusalCode.INVALID: 400,
    RefusalCode.UNAUTHENTICATED: 401,
    RefusalCode.FORBIDDEN: 403,
    RefusalCode.NOT_FOUND: 404,
    RefusalCode.CONFLICT: 409,
    RefusalCode.TOO_LARGE: 413,
    RefusalCode.UNSUPPORTED: 415,
    RefusalCode.RATE_LIMITED: 429,
    RefusalCode.NO_LEADER: 500,
    RefusalCode.NOT_IMPLEMENTED: 501,
    RefusalCode.UNAVAILABLE: 503,
    RefusalCode.OUTCOME_UNKNOWN: 504,
})  # fmt: skip

_PLAIN_DETAIL_CHARACTERS: Final = " \"',;:(){}=*/"
CODE_HEADER: Final = "x-cluster-error"
"""The reply header with the refusal code, because several codes may share an HTTP status."""
REASON_HEADER: Final = "x-cluster-error-reason"
"""The reply header with the refusal reason; absent if the reason is unspecified."""
DETAIL_HEADER: Final = "x-cluster-error-detail"
"""The reply header that says more about a refusal than its text, for people; percent-encoded UTF-8. Absent if there is no more."""
MAX_DETAIL_BYTES: Final = 1_024
"""Limit of the encoded detail. Protects the limits of clients and proxies for headers."""

CODE_BY_STATUS: Final = MappingProxyType(
    {status: code for code, status in STATUS_BY_CODE.items() if code is not RefusalCode.NO_LEADER}
)
"""Without status 500, which may also come from an internal error."""


def encode_detail(detail: str) -> str:
    """Return the value of the header with a detail."""
    return quote(detail, safe=_PLAIN_DETAIL_CHARACTERS)[:MAX_DETAIL_BYTES]


def decode_detail(value: str) -> str:
    """Return the detail of a header, or an empty text without one."""
    return unquote(value[:MAX_DETAIL_BYTES], errors="replace")


def build_refusal(status: int, text: str, *, code: str = "", reason: str = "") -> Refusal:
    """Return the `Refusal` for an error reply with this HTTP status and text.

    `code` and `reason` are the values of the reply headers `x-cluster-error` and `x-cluster-error-reason`, or empty. If
    `code` is not a refusal code, the status selects the code. A status of 500 or above that is not in the table becomes
    `OUTCOME_UNKNOWN`, because the server may already have committed the write.
    """
    if code in tuple(RefusalCode):
        return Refusal(RefusalCode(code), text, RefusalReason(reason))
    fallback = RefusalCode.OUTCOME_UNKNOWN if status >= 500 else RefusalCode.INVALID
    return Refusal(CODE_BY_STATUS.get(status, fallback), text, RefusalReason(reason))
