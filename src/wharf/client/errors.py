"""What a server said no with, one type for each code. All of them are `Refusal`: code and text, and here the status too."""

from types import MappingProxyType
from typing import Final

from wharf.client.exchange import Reply
from wharf.client.exchange import Unreachable as Unreachable
from wharf.model.refusal import Code, Refusal
from wharf.wire.errors import CODE_HEADER, refusal_of


class Refused(Refusal):
    """`retry_after_s`: how long the server wants to be left alone, where it says so."""

    def __init__(self, code: Code, text: str, status: int, *, retry_after_s: float | None = None) -> None:
        super().__init__(code, text)
        self.status = status
        self.retry_after_s = retry_after_s


class Invalid(Refused):
    """The request itself is wrong."""


class Unproven(Refused):
    """The login proves nothing."""


class Forbidden(Refused):
    """The token is missing, unknown or expired, or may not do this."""


class NotFound(Refused):
    """What was named does not exist."""


class Conflict(Refused):
    """It was changed in the meantime: read again and decide again."""


class TooLarge(Refused):
    """More than the server takes."""


class Limited(Refused):
    """Too many requests."""


class Unsupported(Refused):
    """A form of the answer that is not to be had."""


class LeftOut(Refused):
    """A part of the interface that these servers have not."""


class NoLeader(Refused):
    """The servers have no leader just now."""


class Unavailable(Refused):
    """The server takes no writes just now."""


class Undecided(Refused):
    """Nobody can tell whether the write happened."""


class NotUnderstood(Unreachable):
    """Something answered that is no server which this client understands."""


TYPE_OF: Final = MappingProxyType({
    Code.INVALID: Invalid,
    Code.UNPROVEN: Unproven,
    Code.FORBIDDEN: Forbidden,
    Code.UNKNOWN: NotFound,
    Code.CONFLICT: Conflict,
    Code.TOO_LARGE: TooLarge,
    Code.LIMITED: Limited,
    Code.UNSUPPORTED: Unsupported,
    Code.NOT_OURS: LeftOut,
    Code.NO_LEADER: NoLeader,
    Code.UNAVAILABLE: Unavailable,
    Code.UNDECIDED: Undecided,
})  # fmt: skip

PASSING: Final = (NoLeader, Unavailable, Limited, Undecided)
"""May be gone when the same is asked again."""


def refused(reply: Reply) -> Refused:
    """What a reply that is no success says."""
    text = reply.body.decode("utf-8", "replace") or f"status {reply.status} without a word"
    code = refusal_of(reply.status, text, code=reply.headers.get(CODE_HEADER, "")).code
    after = reply.headers.get("retry-after", "")
    retry_after_s = float(after) if after.isascii() and after.isdigit() else None
    return TYPE_OF[code](code, text, reply.status, retry_after_s=retry_after_s)
