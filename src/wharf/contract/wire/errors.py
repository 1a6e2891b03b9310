"""The table that maps the code of a refusal to an HTTP status, and back."""

from types import MappingProxyType
from typing import Final

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

CODE_HEADER: Final = "x-cluster-error"
"""The reply header with the refusal code, because several codes may share an HTTP status."""
REASON_HEADER: Final = "x-cluster-error-reason"
"""The reply header with the refusal reason; absent if the reason is unspecified."""

CODE_BY_STATUS: Final = MappingProxyType(
    {status: code for code, status in STATUS_BY_CODE.items() if code is not RefusalCode.NO_LEADER}
)
"""Without status 500, which may also come from an internal error."""


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
