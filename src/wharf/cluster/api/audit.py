"""What is recorded of every write over HTTP, and the port to whoever keeps the record.

A record names who, what, from where and how it ended. It never holds a body, a parameter's value or a secret.
"""

from typing import Protocol

import msgspec


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_ns: int
    """When it was answered: wall-clock time, Unix nanoseconds, from World."""
    request_id: str
    endpoint: str = ""
    """The name in the endpoint table, such as `job.register`."""
    method: str = ""
    path: str
    """Without the query."""
    region: str = ""
    namespace: str = ""
    accessor_id: str = ""
    """Of the caller's token; never its secret. Empty: anonymous, or access control is off."""
    token_name: str = ""
    source: str = ""
    """The caller's address, as seen by us or as told by a member that passed the request on."""
    status: int
    index: int = 0
    """Where in the log the write stands; 0 when nothing was written."""
    error: str = ""
    """Why it was refused, as the caller was told."""
    duration_ms: float = 0.0


class AuditPort(Protocol):
    def record(self, entry: AuditRecord) -> None:
        """Keep it. Returns when it is handed to the system; raises OSError when it cannot be kept."""
        ...


class NoAudit:
    """For an agent whose audit log is off, and for tests that do not look at it."""

    def record(self, entry: AuditRecord) -> None:
        pass


class AuditedWrite(msgspec.Struct, frozen=True):
    """One write as the audit log takes it."""

    request_id: str
    endpoint: str
    path: str
    source: str
    status: int
    index: int
    method: str = ""
    error: str = ""
    namespace: str = ""
    accessor_id: str = ""
    """Of the caller's token; empty for callers without one, and while access control is off."""
    token_name: str = ""


class WriteAuditPort(Protocol):
    def record(self, written: AuditedWrite) -> None: ...
