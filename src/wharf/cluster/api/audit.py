"""Audit records of writes over HTTP, and the port to the audit log. The agent implements the log itself.

A record names the caller, the endpoint, the source address and the outcome. It never holds a body, a parameter value
or a secret.
"""

from typing import Final, Protocol

import msgspec

from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import UUID_PATTERN
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_TOKENS, TOKENS_BY_SECRET
from wharf.contract.model.secrets import hash_secret

HIDDEN: Final = "<hidden>"
"""Stands for a secret, and for a value that may be one."""
ACCESSOR_PARAMETER: Final = "accessor_id"


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log. The field names are the JSON keys."""

    at_ns: int
    """Time of the reply: wall clock, Unix nanoseconds."""
    request_id: str
    endpoint: str = ""
    """The name in the endpoint table, such as `job.register`."""
    method: str = ""
    path: str
    """The path of the request, without the query."""
    region: str = ""
    namespace: str = ""
    accessor_id: str = ""
    """Accessor of the caller's token, never its secret. Empty for anonymous callers and while access control is off."""
    token_name: str = ""
    source: str = ""
    """The caller's address, as seen by this server or as reported by the server that relayed the request."""
    status: int
    index: int = 0
    """Log index of the write; 0 if nothing was written."""
    error: str = ""
    """The error text sent to the caller; empty on success."""
    duration_ms: float = 0.0


class AuditPort(Protocol):
    """Writes audit records to their destination."""

    def record(self, entry: AuditRecord) -> None:
        """Append the entry to the audit log. Returns once the operating system has it; raises `OSError` on failure."""
        ...


class NoAudit:
    """Discards records: for agents without an audit log, and for tests."""

    def record(self, entry: AuditRecord) -> None:
        pass


def hide_secrets(text: str, request: Request, replica: Replica) -> str:
    """Return a text without those values of the request's path and query that are, or may be, secrets of tokens.

    The secret of a stored token is recognized anywhere. A value in place of an accessor id may also be the secret of a
    token that was deleted or belongs to another cluster, so it is hidden unless a token has this accessor id.
    """
    for name, value in (*request.path_values.items(), *request.query.items()):
        if name == ACCESSOR_PARAMETER:
            may_be_secret = replica.get(ACL_TOKENS, value) is None
        else:
            is_uuid = UUID_PATTERN.fullmatch(value) is not None
            may_be_secret = is_uuid and bool(replica.list_by_index(TOKENS_BY_SECRET, hash_secret(value)))
        if may_be_secret and value:
            text = text.replace(value, HIDDEN)
    return text
