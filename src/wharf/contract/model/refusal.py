"""Refused requests: an error code for programs and a text for people.

A `Refusal` is an expected outcome, not a fault. The table in `wire.errors` maps each code to an HTTP status and back.
"""

import enum
from typing import Final

NO_LEADER_TEXT: Final = "No cluster leader"
"""Nomad's text. Clients search replies for it."""
PERMISSION_DENIED: Final = "Permission denied"
"""Nomad's text. Clients compare it, so what is missing is in the detail of the refusal."""


class RefusalCode(enum.StrEnum):
    """Why a request is refused, for programs. The values are part of the wire format."""

    INVALID = "invalid"  # The request itself is wrong; a retry does not help.
    FORBIDDEN = "forbidden"  # The token does not permit the request.
    UNAUTHENTICATED = "unproven"  # The credentials of a login are not valid.
    NOT_FOUND = "unknown"  # The named object does not exist.
    CONFLICT = "conflict"  # A record has changed since it was read: read it again and decide again.
    TOO_LARGE = "too-large"  # The body is too large.
    RATE_LIMITED = "limited"  # Too many requests.
    UNSUPPORTED = "unsupported"  # The server cannot reply in the requested format.
    NOT_IMPLEMENTED = "not-ours"  # A part of Nomad's API that Wharf does not implement.
    NO_LEADER = "no-leader"  # A leader must decide, and none exists at the moment.
    UNAVAILABLE = "unavailable"  # The log accepts no writes at the moment.
    OUTCOME_UNKNOWN = "undecided"  # The write may or may not have been committed.


class RefusalReason(enum.StrEnum):
    """A more precise reason for a refusal that programs act on. The values are part of the wire format."""

    UNSPECIFIED = ""
    ACL_DISABLED = "acl-disabled"  # The cluster has no access control.
    ACTIVE_DEPLOYMENT = "active-deployment"  # The job cannot be scaled during its deployment.
    DISPATCH_INPUT = "dispatch-input"  # The payload or the meta values of a dispatch are not those that the job takes.
    EMPTY_BODY = "empty-body"  # The request needs a body.
    EXEC_DISABLED = "exec-disabled"  # The node allows no commands in tasks, whatever the token permits.
    FOREIGN_PAGE = "foreign-page"  # A browser sent the request for a web page of another site, without a token.
    NO_NODE_PATH = "no-node-path"  # No server process holds the node's connection; the node may reconnect.
    OUTDATED_REPORT = "outdated-report"  # Servers have a newer report of the node; the node must register again.
    OVERLOADED = "overloaded"  # The server has too many requests and has not begun this one; it may be repeated.
    STORE_UNREACHABLE = "store-unreachable"  # The server cannot reach the store of the cluster's state, such as etcd.
    SECRET_FILE = "secret-file"  # Nobody may read the file, whatever the token permits.

    @classmethod
    def _missing_(cls, _value: object) -> "RefusalReason":
        """Return `UNSPECIFIED` for a reason that only a newer version knows."""
        return cls.UNSPECIFIED


class Refusal(Exception):
    """The error that a request is refused: code and reason for programs, and the text for the caller.

    `retry_after_s` is the pause that the caller is asked to make before it tries again; `None` if it is unknown. `detail` says
    more than the text if the text must be that of Nomad.
    """

    def __init__(
        self,
        code: RefusalCode,
        text: str,
        reason: RefusalReason = RefusalReason.UNSPECIFIED,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.detail = detail


class Overloaded(Refusal):
    """The refusal of a request because too much work is in progress. Nothing of it was executed.

    `what_is_full` names the limit that is reached.
    """

    retry_after_s: int

    def __init__(self, what_is_full: str, retry_after_s: int, alternative: str = "") -> None:
        text = f"the server is overloaded: {what_is_full}; send the request again after {retry_after_s} s{alternative}"
        super().__init__(RefusalCode.UNAVAILABLE, text, RefusalReason.OVERLOADED, retry_after_s)


def invalid_request(text: str, reason: RefusalReason = RefusalReason.UNSPECIFIED) -> Refusal:
    """Return the refusal of a request that is wrong itself, so that a retry does not help."""
    return Refusal(RefusalCode.INVALID, text, reason)


def not_found(text: str) -> Refusal:
    """Return the refusal of a request for an object that does not exist."""
    return Refusal(RefusalCode.NOT_FOUND, text)


def permission_denied(detail: str) -> Refusal:
    """Return the refusal of a caller that lacks a permission. `detail` says for people what is missing or wrong."""
    return Refusal(RefusalCode.FORBIDDEN, PERMISSION_DENIED, detail=detail)


def no_leader(outage: str = "") -> Refusal:
    """Return the refusal of a request while the cluster has no leader.

    `outage`: since when and why the server cannot reach its store; empty if it can.
    """
    if not outage:
        return Refusal(RefusalCode.NO_LEADER, NO_LEADER_TEXT)
    return Refusal(RefusalCode.NO_LEADER, f"{NO_LEADER_TEXT}: {outage}", RefusalReason.STORE_UNREACHABLE)
