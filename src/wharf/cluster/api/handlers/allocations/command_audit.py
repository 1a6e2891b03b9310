"""Audit records of commands in tasks: one when the command begins, one when it ends, or one if it is refused.

What the caller types and what the command prints is never recorded.
"""

from typing import Final

import msgspec

from wharf.cluster.api.audit import AuditWriter, build_audit_record, hide_secrets, hide_stored_secrets
from wharf.cluster.api.requests.request import Request
from wharf.cluster.server.server import Server
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.message_texts import format_message
from wharf.contract.model.refusal import Overloaded, Refusal
from wharf.contract.wire.errors import STATUS_BY_CODE

BEGUN_STATUS: Final = 101
"""The HTTP status of a handshake that succeeded."""
ENDED_STATUS: Final = 200
FAILED_STATUS: Final = 500
MAX_COMMAND_CHARS: Final = 2_000
"""Limits the line of a command in the audit log. The rest is cut off: a command may be as long as a path of the API."""
CUT: Final = "…"
DISCONNECTED_TEXT: Final = "the caller closed the connection before the command ended"
ABANDONED_TEXT: Final = "the server ended the connection before the command ended"


class CommandAudit:
    """Writes the audit records of one websocket for a command."""

    def __init__(self, server: Server, audit: AuditWriter, request: Request, *, path: str, source: str) -> None:
        """`path` and `source`: the path of the request, and the address of its caller."""
        self._server = server
        self._audit = audit
        self._is_recorded = bool(source)
        """Another process of this server, which relays the command, has no address. It writes the records itself."""
        self._source = source
        self._path = path
        self._begun_s: float | None = None
        self._namespace = request.namespace
        self._allocation_id = request.path_values.get("alloc_id", "")
        self._task = ""
        self._command: tuple[str, ...] = ()
        self.request = request
        """The request; with its caller once that is known."""
        self.exit_code: int | None = None
        self.end_text = DISCONNECTED_TEXT
        """Why a command without an exit code ended."""

    def set_command(self, allocation: Allocation, task: str, command: list[str]) -> None:
        """Set which command is to run in which task."""
        self._namespace, self._allocation_id = allocation.namespace, allocation.id
        self._task, self._command = task, _cut_words(command)

    def record_begin(self) -> None:
        """Record that the command runs."""
        self._begun_s = self._server.world.monotonic_s()
        self._record(BEGUN_STATUS)

    def record_end(self) -> None:
        """Record how the command ended, if it has begun."""
        if self._begun_s is not None:
            self._record(ENDED_STATUS, "" if self.exit_code is not None else self.end_text)

    def record_refusal(self, refusal: Refusal) -> None:
        """Record why the command did not run, or was ended. A lack of capacity is not recorded: a flood would fill the disk."""
        if self._begun_s is None and isinstance(refusal, Overloaded):
            return
        text = hide_secrets(refusal.text, self.request, self._server.replica)
        self._record(STATUS_BY_CODE[refusal.code], format_message(text))

    def record_failure(self) -> None:
        """Record that a command that has begun was ended by an error, or because this server stops."""
        if self._begun_s is not None:
            self._record(FAILED_STATUS, ABANDONED_TEXT)

    def _record(self, status: int, error: str = "") -> None:
        if not self._is_recorded:
            return
        replica = self._server.replica
        record = build_audit_record(
            self._server.world,
            self.request,
            replica,
            path=self._path,
            source=self._source,
            status=status,
            error=error,
        )
        record = msgspec.structs.replace(
            record,
            namespace=self._namespace,
            allocation_id=self._allocation_id,
            task=self._task,
            command=tuple(hide_stored_secrets(word, replica) for word in self._command),
            exit_code=self.exit_code,
        )
        if self._begun_s is not None and status != BEGUN_STATUS:
            duration_ms = round((self._server.world.monotonic_s() - self._begun_s) * 1_000, 3)
            record = msgspec.structs.replace(record, duration_ms=duration_ms)
        self._audit.record(record)


def _cut_words(command: list[str]) -> tuple[str, ...]:
    """Return the words of a command, as many of their characters as a record may have."""
    words: list[str] = []
    remaining = MAX_COMMAND_CHARS
    for word in command:
        if len(word) >= remaining:
            return (*words, word[:remaining] + CUT)
        words.append(word)
        remaining -= len(word) + 1  # Empty words count too.
    return tuple(words)
