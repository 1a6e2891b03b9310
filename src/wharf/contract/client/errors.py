"""Errors of the client, one type for each refusal code. All are `Refusal`s with code and text, and also hold the status."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from wharf.contract.client.transport import ClientReply
from wharf.contract.client.transport import Unreachable as Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.errors import CODE_HEADER, DETAIL_HEADER, REASON_HEADER, build_refusal, decode_detail

LIMITER_HEADER: Final = "x-cluster-limits-id"
"""A header of all replies that pass the rate limiter of an API."""
MAX_JSON_REFUSAL_BYTES: Final = 16 * 1024
"""Limits the work of reading a refusal; a longer one is shown as it is."""


class RequestRefused(Refusal):
    """The error for a request that a server refused. `retry_after_s` is the pause that the server requests, or None."""

    def __init__(
        self,
        code: RefusalCode,
        text: str,
        status: int,
        *,
        reason: RefusalReason = RefusalReason.UNSPECIFIED,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(code, text, reason, retry_after_s, detail)
        self.status = status
        self.is_read = False
        """Whether the request can have changed nothing, because it only reads."""
        self.is_by_limiter = False
        """Whether the rate limiter in front of the API refused the request, because of a limit or a ban."""
        self.other_failures: tuple[Exception, ...] = ()
        """The failures of the other servers that the call tried, if it tried several."""


class InvalidRequest(RequestRefused):
    """The request is invalid."""


class AuthenticationFailed(RequestRefused):
    """The credentials of the login are not valid."""


class Forbidden(RequestRefused):
    """The token is missing, unknown or expired, or lacks the permission."""


class NotFound(RequestRefused):
    """The named object does not exist."""


class Conflict(RequestRefused):
    """The record has changed in the meantime: read it again and decide again."""


class RequestTooLarge(RequestRefused):
    """The request is larger than the server accepts."""


class RateLimited(RequestRefused):
    """The client has sent too many requests."""


class UnsupportedFormat(RequestRefused):
    """The reply is not available in the requested format."""


class NotSupported(RequestRefused):
    """The servers do not support this part of the API."""


class NoLeader(RequestRefused):
    """The servers have no leader at the moment."""


class ServerUnavailable(RequestRefused):
    """The server accepts no writes at the moment."""


class OutcomeUnknown(RequestRefused):
    """The write may or may not have been committed: read the record before you retry."""


class UnexpectedReply(Unreachable):
    """The reply does not have the expected format; probably another program than a Wharf server sent it."""


ERROR_TYPE_BY_CODE: Final = MappingProxyType({
    RefusalCode.INVALID: InvalidRequest,
    RefusalCode.UNAUTHENTICATED: AuthenticationFailed,
    RefusalCode.FORBIDDEN: Forbidden,
    RefusalCode.NOT_FOUND: NotFound,
    RefusalCode.CONFLICT: Conflict,
    RefusalCode.TOO_LARGE: RequestTooLarge,
    RefusalCode.RATE_LIMITED: RateLimited,
    RefusalCode.UNSUPPORTED: UnsupportedFormat,
    RefusalCode.NOT_IMPLEMENTED: NotSupported,
    RefusalCode.NO_LEADER: NoLeader,
    RefusalCode.UNAVAILABLE: ServerUnavailable,
    RefusalCode.OUTCOME_UNKNOWN: OutcomeUnknown,
})  # fmt: skip

TRANSIENT_ERRORS: Final = (NoLeader, ServerUnavailable, RateLimited, OutcomeUnknown)
"""Errors for which a retry may succeed."""


def get_requested_delay_s(error: Exception | None) -> float | None:
    """Return the pause that the server which sent this error requests before the next attempt; `None` if it does not."""
    return error.retry_after_s if isinstance(error, RequestRefused) else None


def parse_retry_after_s(seconds: str) -> float | None:
    """Return the pause that the value of a `Retry-After` header requests; `None` if it is not a number of seconds."""
    return float(seconds) if seconds.isascii() and seconds.isdigit() else None


def build_error(reply: ClientReply) -> RequestRefused:
    """Return the error for a reply with an error status. The refusal code in its header selects the error type."""
    text = _read_text(reply)
    refusal = build_refusal(
        reply.status, text, code=reply.headers.get(CODE_HEADER, ""), reason=reply.headers.get(REASON_HEADER, "")
    )
    retry_after_s = _get_requested_pause_s(reply, refusal)
    error_type = ERROR_TYPE_BY_CODE[refusal.code]
    detail = decode_detail(reply.headers.get(DETAIL_HEADER, ""))
    error = error_type(
        refusal.code, text, reply.status, reason=refusal.reason, retry_after_s=retry_after_s, detail=detail
    )
    error.is_by_limiter = is_by_limiter(reply.headers)
    return error


def is_by_limiter(headers: Mapping[str, str]) -> bool:
    """Return whether the rate limiter in front of the API sent a reply with an error status, because of these headers."""
    return CODE_HEADER not in headers and LIMITER_HEADER in headers


def _read_text(reply: ClientReply) -> str:
    """Return the text of a refusal for people. A rate limiter and some proxies send it as `message` of a JSON object."""
    text = reply.body.decode("utf-8", "replace")
    if text.startswith("{") and len(reply.body) <= MAX_JSON_REFUSAL_BYTES:
        try:
            message = msgspec.json.decode(reply.body)["message"]
        except (msgspec.DecodeError, KeyError):
            message = None
        if isinstance(message, str) and message:
            return message
    return text or f"status {reply.status} with an empty body"


def _get_requested_pause_s(reply: ClientReply, refusal: Refusal) -> float | None:
    """Return the pause that the header `Retry-After` requests, or `None`.

    All of Wharf's own replies with status 503 have this header, but it counts only if the server is overloaded. After
    other failures another server may reply at once, so the caller's own backoff decides.
    """
    is_own = CODE_HEADER in reply.headers
    if is_own and refusal.code is RefusalCode.UNAVAILABLE and refusal.reason is not RefusalReason.OVERLOADED:
        return None
    return parse_retry_after_s(reply.headers.get("retry-after", ""))
