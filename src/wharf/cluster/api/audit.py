"""Audit records of writes over HTTP, and the port to the audit log. The agent implements the log itself.

A record names the caller, the endpoint, the source address and the outcome. It never holds a body, a parameter value
or a secret.
"""

from typing import Protocol

import msgspec


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
