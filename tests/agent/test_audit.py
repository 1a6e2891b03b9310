"""The audit log of writes."""

import json
import stat
from pathlib import Path

from wharf.agent.logs.audit import AuditLog, open_audit_log
from wharf.cluster.api.audit import AuditRecord, NoAudit
from wharf.config.settings import AgentSettings, AuditSettings
from wharf.contract.model.times import SECOND
from wharf.sinks.rotation import Rotation

A_WRITE = AuditRecord(
    at_ns=1_767_268_800 * SECOND,
    request_id="r-1",
    method="PUT",
    path="/v1/jobs",
    namespace="default",
    accessor_id="5f3c",
    source="10.0.0.9",
    status=200,
    index=17,
)


def test_a_write_is_one_line_with_caller_request_source_and_result(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.log", Rotation())
    audit.record(A_WRITE)
    audit.close()

    assert json.loads((tmp_path / "audit.log").read_text()) == {
        "time": "2026-01-01T12:00:00.000Z",
        "request_id": "r-1",
        "method": "PUT",
        "path": "/v1/jobs",
        "namespace": "default",
        "accessor_id": "5f3c",
        "source": "10.0.0.9",
        "status": 200,
        "index": 17,
    }


def test_only_the_owner_can_read_the_audit_log(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.log", Rotation()).close()

    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_secrets_in_text_from_callers_are_redacted(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.log", Rotation(), secrets=("hunter22",))
    audit.record(
        AuditRecord(at_ns=0, request_id="", method="PUT", path="/v1/hunter22", status=400, error="token=abcdef")
    )
    audit.close()

    text = (tmp_path / "audit.log").read_text()
    assert "hunter22" not in text
    assert "abcdef" not in text


def test_the_audit_log_is_in_the_data_folder_by_default(tmp_path: Path) -> None:
    open_audit_log(AgentSettings(), tmp_path).record(A_WRITE)
    open_audit_log(AgentSettings(audit=AuditSettings(file=str(tmp_path / "b.log"))), tmp_path).record(A_WRITE)

    assert (tmp_path / "audit.log").read_text() == (tmp_path / "b.log").read_text() != ""


def test_the_audit_log_can_be_disabled(tmp_path: Path) -> None:
    assert isinstance(open_audit_log(AgentSettings(audit=AuditSettings(enabled=False)), tmp_path), NoAudit)
