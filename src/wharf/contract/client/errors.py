"""What a server said no with, one type for each code. All of them are `Refusal`: code and text, and here the status too."""

from types import MappingProxyType
from typing import Final

from wharf.contract.client.transport import ClientReply
from wharf.contract.client.transport import Unreachable as Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.errors import CODE_HEADER, build_refusal


class RequestRefused(Refusal):
    """`retry_after_s`: how long the server wants to be left alone, where it says so."""

    def __init__(self, code: RefusalCode, text: str, status: int, *, retry_after_s: float | None = None) -> None:
        super().__init__(code, text)
        self.status = status
        self.retry_after_s = retry_after_s


class InvalidRequest(RequestRefused):
    """The request itself is wrong."""


class AuthenticationFailed(RequestRefused):
    """The login proves nothing."""


class Forbidden(RequestRefused):
    """The token is missing, unknown or expired, or may not do this."""


class NotFound(RequestRefused):
    """What was named does not exist."""


class Conflict(RequestRefused):
    """It was changed in the meantime: read again and decide again."""


class RequestTooLarge(RequestRefused):
    """More than the server takes."""


class RateLimited(RequestRefused):
    """Too many requests."""


class UnsupportedFormat(RequestRefused):
    """A form of the answer that is not to be had."""


class NotSupported(RequestRefused):
    """A part of the interface that these servers have not."""


class NoLeader(RequestRefused):
    """The servers have no leader just now."""


class ServerUnavailable(RequestRefused):
    """The server takes no writes just now."""


class OutcomeUnknown(RequestRefused):
    """Nobody can tell whether the write happened."""


class UnexpectedReply(Unreachable):
    """Something answered that is no server which this client understands."""


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
"""May be gone when the same is asked again."""


def build_error(reply: ClientReply) -> RequestRefused:
    """What a reply that is no success says."""
    text = reply.body.decode("utf-8", "replace") or f"status {reply.status} without a word"
    code = build_refusal(reply.status, text, code=reply.headers.get(CODE_HEADER, "")).code
    after = reply.headers.get("retry-after", "")
    retry_after_s = float(after) if after.isascii() and after.isdigit() else None
    return ERROR_TYPE_BY_CODE[code](code, text, reply.status, retry_after_s=retry_after_s)
