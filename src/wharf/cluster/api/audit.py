"""Audit records of writes over HTTP and of commands in tasks, and the port to the audit log. The agent implements the log itself.

A record names the caller, the endpoint, the source address and the outcome. It never holds a body, a parameter value
or a secret.
"""

import logging
from typing import Final, Protocol

import msgspec

from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import UUID_PATTERN
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_TOKENS, TOKENS_BY_SECRET
from wharf.contract.model.secrets import hash_secret
from wharf.world import World
from wharf.world.log_limit import LogLimit

log = logging.getLogger(__name__)

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
    """For the end of a command in a task: how long it ran."""
    allocation_id: str = ""
    task: str = ""
    command: tuple[str, ...] = ()
    """The words of a command in a task. What its caller types is never recorded."""
    exit_code: int | None = None
    """How the command ended; `None` if it has not ended by itself."""


class AuditPort(Protocol):
    """Writes audit records to their destination."""

    def record(self, entry: AuditRecord) -> None:
        """Append the entry to the audit log. Returns once the operating system has it; raises `OSError` on failure."""
        ...


class NoAudit:
    """Discards records: for agents without an audit log, and for tests."""

    def record(self, entry: AuditRecord) -> None:
        pass


class AuditWriter:
    """Writes audit records. A failure to write one is logged, and does not fail its request."""

    def __init__(self, world: World, audit: AuditPort | None) -> None:
        self._audit = audit
        self._failures = LogLimit(world)

    @property
    def is_enabled(self) -> bool:
        return self._audit is not None

    def record(self, record: AuditRecord) -> None:
        """Append the record, if there is an audit log."""
        if self._audit is None:
            return
        try:
            self._audit.record(record)
        except OSError as failure:
            left_out = self._failures.count_event(failure.errno)
            if left_out is not None:
                log.error(
                    "audit record not written request=%s error=%s earlier_records=%d",
                    record.request_id,
                    failure,
                    left_out,
                )


def build_audit_record(
    world: World,
    request: Request,
    replica: Replica,
    *,
    path: str,
    source: str,
    status: int,
    method: str = "GET",
    index: int = 0,
    error: str = "",
) -> AuditRecord:
    """Return the record of a request."""
    token = request.caller.token
    return AuditRecord(
        at_ns=world.now_ns(),
        request_id=request.id,
        endpoint=request.endpoint.name,
        method=method,
        path=hide_secrets(path, request, replica),
        namespace=request.namespace,
        accessor_id=request.caller.accessor_id,
        token_name=token.name if token is not None else "",
        source=source,
        status=status,
        index=index,
        error=error,
    )


def hide_stored_secrets(text: str, replica: Replica) -> str:
    """Return a text without secrets of tokens that the cluster stores."""
    return UUID_PATTERN.sub(
        lambda found: HIDDEN if replica.list_by_index(TOKENS_BY_SECRET, hash_secret(found[0])) else found[0], text
    )


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
