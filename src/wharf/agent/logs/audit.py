"""The audit log: one JSON line for every write, and two for every command in a task, in a separate file that only its owner can read.

Records contain no request bodies and no secrets.
"""

from pathlib import Path
from typing import Any

import msgspec

from wharf.agent.logs.lines import format_log_time
from wharf.agent.logs.redaction import Redactor
from wharf.cluster.api.audit import AuditPort, AuditRecord, NoAudit
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import SECOND
from wharf.sinks.rotation import RotatingFile, Rotation

AUDIT_FILE = "audit.log"


class AuditLog:
    """Appends audit records to a rotating file."""

    def __init__(self, path: Path, rotation: Rotation, *, secrets: tuple[str, ...] = ()) -> None:
        """Raises OSError when the file cannot be opened."""
        self._file = RotatingFile(path, rotation, mode=0o600)
        self._redactor = Redactor(secrets)

    def record(self, entry: AuditRecord) -> None:
        """Append one record. Raises `OSError` if it cannot be written."""
        document = {"time": format_log_time(entry.at_ns / SECOND), **describe_write(entry, self._redactor)}
        self._file.write(msgspec.json.encode(document) + b"\n", now_ns=entry.at_ns)

    def close(self) -> None:
        self._file.close()


def describe_write(entry: AuditRecord, redactor: Redactor) -> dict[str, Any]:
    """Return an audit record without its time and without secrets, as a JSON object."""
    document: dict[str, Any] = msgspec.to_builtins(entry)
    del document["at_ns"]
    for name in ("path", "error"):  # These two and the command contain text of the client.
        if name in document:
            document[name] = redactor.redact(document[name])
    if entry.command:
        document["command"] = [redactor.redact(word) for word in entry.command]
    return document


def open_audit_log(settings: AgentSettings, data_folder: Path, *, secrets: tuple[str, ...] = ()) -> AuditPort:
    """Return the audit log, or `NoAudit` if it is disabled. Raises `OSError` if the file cannot be opened."""
    audit = settings.audit
    if not audit.enabled:
        return NoAudit()
    rotation = Rotation(audit.rotate_bytes.bytes, audit.rotate_duration.ns, audit.rotate_max_files)
    return AuditLog(get_audit_path(settings, data_folder), rotation, secrets=secrets)


def get_audit_path(settings: AgentSettings, data_folder: Path) -> Path:
    """Return the file of the audit log: the configured one, or the usual one in the data folder."""
    return Path(settings.audit.file) if settings.audit.file else data_folder / AUDIT_FILE
