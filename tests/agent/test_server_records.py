"""Records of a server: writes and events of a real agent reach its sinks, also those of the time without a receiver."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.processes import run, running
from tests.agent.test_processes import A_JOB, write_agent_config
from tests.sinks.receivers import running_receiver
from tests.waiting import wait_until
from wharf.agent.logs.redaction import Redactor
from wharf.agent.server_records import (
    SERVER_RECORD_TYPES,
    ClusterEventRecord,
    ClusterWriteRecord,
    RecordsNotSent,
    ServerRecords,
)
from wharf.cluster.api.audit import AuditRecord, NoAudit
from wharf.config.rules import CLUSTER_RECORD_TYPES
from wharf.config.settings import AgentSettings, RecordSinkSettings
from wharf.sinks.settings import SinkKind
from wharf.world import RealWorld

A_WRITE = AuditRecord(
    at_ns=1_800_000_000_250_000_000,
    request_id="r-1",
    method="PUT",
    path="/v1/hunter22",
    status=400,
    error="bad",
    index=17,
)


def read_records(path: Path, record_type: str) -> list[Any]:
    """Return the records of a type in a file of a sink."""
    if not path.exists():
        return []
    return [record for record in map(json.loads, path.read_bytes().splitlines()) if record["type"] == record_type]


def test_writes_and_events_of_an_agent_reach_its_sinks_also_after_an_outage(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    file_of_records = tmp_path / "records.jsonl"
    with running_receiver() as receiver:
        receiver.stop()
        more = f"""
[sinks.file]
path = "{file_of_records}"
[sinks.collector]
kind = "http"
url = "{receiver.url}"
types = ["cluster.audit"]
"""
        with running(folder, "agent", "--config", str(write_agent_config(folder, more))) as agent:
            agent.wait_ready()
            agent.put("/v1/jobs", A_JOB)
            events = wait_until(
                lambda: [
                    record
                    for record in read_records(file_of_records, "cluster.event")
                    if record["data"]["type"] == "JobRegistered"
                ],
                what="the event of the job",
            )
            metrics: Any = agent.get("/v1/metrics")
            receiver.start()
            wait_until(lambda: receiver.accepted, what="the records of the outage")

        (write,) = [
            record
            for record in read_records(file_of_records, "cluster.audit")
            if record["data"]["endpoint"] == "job.register"
        ]
        received = [json.loads(line) for request in receiver.accepted for line in request.body.splitlines()]

    waiting = {
        gauge["Labels"]["sink"]: gauge["Value"]
        for gauge in metrics["Gauges"]
        if gauge["Name"].endswith("sinks.waiting_records")
    }
    assert waiting["collector"] >= 1
    event = msgspec.convert(events[0], ClusterEventRecord)
    assert (event.id, event.data.topic, event.data.key) == (f"{write['data']['index']}.0", "Job", "hello")
    assert event.data.payload["Job"]["ID"] == "hello"
    assert msgspec.convert(write, ClusterWriteRecord).data.path == "/v1/jobs"
    assert write in received
    assert {record["type"] for record in received} == {"cluster.audit"}


def test_an_agent_with_an_invalid_sink_does_not_start(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    file = write_agent_config(folder, '[sinks.collector]\nkind = "http"\nurl = "logs"\n')

    result = run(folder, "agent", "--config", str(file))

    assert result.returncode != 0
    assert "sinks.collector.url: 'logs' is not the URL of a receiver" in result.stderr


def make_records(tmp_path: Path, **sinks: RecordSinkSettings) -> ServerRecords:
    return ServerRecords(RealWorld(), AgentSettings(sinks=sinks), tmp_path, "api")


def test_secrets_in_text_from_callers_are_not_sent(tmp_path: Path) -> None:
    record = make_records(tmp_path).build_write_record(A_WRITE, Redactor(("hunter22",)))

    assert "hunter22" not in record.data.path
    assert (record.time, record.severity, record.data.index) == ("2027-01-15T08:00:00.250Z", "warning", 17)


def test_the_audit_log_is_wrapped_only_if_a_sink_gets_writes(tmp_path: Path) -> None:
    audit = NoAudit()
    events = RecordSinkSettings(path=str(tmp_path / "x"), types=("cluster.event",))
    writes = RecordSinkSettings(path=str(tmp_path / "x"), types=("cluster.audit",))

    wrapped = [make_records(tmp_path, out=sink).wrap_audit(audit, ()) is not audit for sink in (events, writes)]

    assert wrapped == [False, True]


def test_a_sink_without_a_readable_secret_is_an_error(tmp_path: Path) -> None:
    sink = RecordSinkSettings(kind=SinkKind.HTTP, url="https://h", secret_file=str(tmp_path / "none"))

    with pytest.raises(RecordsNotSent, match=r"records cannot be sent to sinks: .+none cannot be read"):
        make_records(tmp_path, out=sink)


def test_every_type_of_record_can_be_selected() -> None:
    assert {record_type.__struct_config__.tag for record_type in SERVER_RECORD_TYPES} == CLUSTER_RECORD_TYPES
