"""The records of a server for sinks: writes over HTTP as in the audit log, and events of the cluster.

Each api process sends the writes that it executed. The first api process of a server sends all events of the cluster, so
every server with such a sink sends all of them, with the same ids.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wharf.agent.logs.audit import describe_write
from wharf.agent.logs.redaction import Redactor
from wharf.cluster.api.audit import AuditPort, AuditRecord
from wharf.cluster.api.replies.encoding import encode_json
from wharf.cluster.server.events import EventCommit, EventFeed, SubscriptionLost
from wharf.cluster.server.server import Server
from wharf.config.rules import convert_sink_settings
from wharf.config.settings import AgentSettings, RecordSinkSettings
from wharf.contract.wire.events import build_payload
from wharf.sinks.build import build_source, build_stream
from wharf.sinks.checks import InvalidSecretFile, read_sink_secret
from wharf.sinks.records import LossRecord, RecordSeverity, StreamRecord, encode_record, format_record_time
from wharf.sinks.settings import SinkSettings
from wharf.sinks.spool import SpoolError
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

WRITE_TYPE: Final = "cluster.audit"
EVENT_TYPE: Final = "cluster.event"
SPOOL_FOLDER: Final = "sinks"
"""The folder for records that wait for their receivers, in the data folder; with a folder for each process."""
EVENT_PROCESSES: Final = ("api", "api-1")
"""The process of a server that sends events."""
COMMITS_PER_STEP: Final = 50
FEED_WAIT_S: Final = 60.0
"""How long one wait for events lasts; afterwards it begins again."""


class RecordsNotSent(Exception):
    """The sinks of a server cannot be opened. The text says why and what to do."""


class ClusterWriteData(msgspec.Struct, frozen=True, kw_only=True):
    """A write or a command in a task, as the audit log has it. Fields without a value are missing."""

    request_id: str
    path: Annotated[str, Meta(description="Without the query and without secrets.")]
    status: Annotated[int, Meta(description="The HTTP status of the reply.")]
    endpoint: Annotated[str, Meta(description="The name of the endpoint, such as job.register.")] = ""
    method: str = ""
    region: str = ""
    namespace: str = ""
    accessor_id: Annotated[str, Meta(description="The caller's token, not its secret.")] = ""
    token_name: str = ""
    source: Annotated[str, Meta(description="The address of the caller.")] = ""
    index: Annotated[int, Meta(description="The log index of the write; 0 if nothing was written.")] = 0
    error: str = ""
    duration_ms: Annotated[float, Meta(description="How long a command in a task ran.")] = 0.0
    allocation_id: str = ""
    task: str = ""
    command: Annotated[tuple[str, ...], Meta(description="The words of a command in a task.")] = ()
    exit_code: Annotated[int | None, Meta(description="How the command ended, if it ended by itself.")] = None


class ClusterWriteRecord(StreamRecord, frozen=True, kw_only=True, tag=WRITE_TYPE):
    """A client called an endpoint of a server that writes."""

    data: ClusterWriteData


class ClusterEventData(msgspec.Struct, frozen=True, kw_only=True):
    """An event, as the event stream has it."""

    index: Annotated[int, Meta(description="The log index of the change.")]
    topic: Annotated[str, Meta(description="Such as Job or Allocation.")]
    type: Annotated[str, Meta(description="Such as JobRegistered.")]
    key: Annotated[str, Meta(description="The id or the name of the record.")]
    namespace: str = ""
    payload: Annotated[Any, Meta(description="The record without secrets, under a name such as Job.")]


class ClusterEventRecord(StreamRecord, frozen=True, kw_only=True, tag=EVENT_TYPE):
    """A record of the cluster changed. The id is the same on all servers."""

    data: ClusterEventData


SERVER_RECORD_TYPES: Final = (ClusterWriteRecord, ClusterEventRecord, LossRecord)
"""All types of records of a server."""


class ServerRecords:
    """The stream of one api process, with its sinks."""

    def __init__(self, world: World, settings: AgentSettings, data_folder: Path, process: str) -> None:
        """Open the spools of the sinks. Raises `RecordsNotSent`."""
        self._world = world
        self._source = build_source(process)
        self._sends_events = process in EVENT_PROCESSES
        self._event_task: asyncio.Task[Any] | None = None
        try:
            sinks = [_build_settings(name, sink) for name, sink in settings.sinks.items()]
            self.stream: Final = build_stream(
                sinks, world, folder=data_folder / SPOOL_FOLDER / process, source=self._source
            )
        except (SpoolError, InvalidSecretFile) as error:
            raise RecordsNotSent(f"records cannot be sent to sinks: {error}") from error

    def wrap_audit(self, audit: AuditPort, secrets: tuple[str, ...]) -> AuditPort:
        """Return an audit log that also sends its records to the sinks; the given one if no sink gets them."""
        return StreamedAudit(audit, self, secrets) if self.stream.wants(WRITE_TYPE) else audit

    def publish(self, record: StreamRecord, record_type: str) -> None:
        """Pass a record to the sinks. This never waits."""
        self.stream.publish(record_type, record.id, encode_record(record))

    def build_write_record(self, entry: AuditRecord, redactor: Redactor) -> ClusterWriteRecord:
        """Return the record of a write, without secrets."""
        return ClusterWriteRecord(
            id=self._world.new_id(),
            time=format_record_time(entry.at_ns),
            source=self._source,
            severity=RecordSeverity.NOTICE if entry.status < 400 else RecordSeverity.WARNING,
            data=msgspec.convert(describe_write(entry, redactor), ClusterWriteData),
        )

    def list_gauges(self) -> Iterator[tuple[str, float, str]]:
        """Yield name, value and sink of each gauge."""
        for sink in self.stream.describe_sinks():
            for name in ("waiting_records", "waiting_bytes", "sent", "lost", "rejected", "failures"):
                yield f"sinks.{name}", getattr(sink, name), sink.name

    def open(self, server: Server) -> None:
        """Start to send records, and to follow the events if a sink gets them."""
        self.stream.open()
        server.list_sink_gauges = self.list_gauges
        if self._sends_events and server.events is not None and self.stream.wants(EVENT_TYPE):
            self._event_task = start_supervised(
                self._world, self._follow_events(server.events), name="events for sinks"
            )

    async def close(self) -> None:
        """Send the last records, and close the sinks."""
        if self._event_task is not None:
            await cancel_tasks(self._event_task)
        await self.stream.close()

    async def _follow_events(self, feed: EventFeed) -> None:
        """Pass the events of each commit to the sinks, until the task is cancelled."""
        next_index = 0
        while True:
            subscription = feed.subscribe(since_index=next_index)
            try:
                while True:
                    await subscription.wait(FEED_WAIT_S)
                    for commit in subscription.take(COMMITS_PER_STEP):
                        await self._publish_commit(commit)
                        next_index = commit.index + 1
            except SubscriptionLost:
                if feed.is_closed:
                    return
                log.warning("events for sinks are incomplete: the replica was loaded again index=%d", next_index)
            finally:
                subscription.end()

    async def _publish_commit(self, commit: EventCommit) -> None:
        """Pass the events of one commit to the sinks. The process serves requests in between."""
        time = format_record_time(self._world.now_ns())
        for number, event in enumerate(commit.events):
            payload = build_payload(event.topic, event.record, is_deleted=event.is_deleted)
            data = ClusterEventData(
                index=commit.index,
                topic=event.topic,
                type=event.type,
                key=event.key,
                namespace=event.namespace,
                payload=msgspec.Raw(encode_json(payload)),
            )
            record_id = f"{commit.index}.{number}"
            self.publish(ClusterEventRecord(id=record_id, time=time, source=self._source, data=data), EVENT_TYPE)
            await asyncio.sleep(0)


class StreamedAudit:
    """An audit log that also sends its records to sinks."""

    def __init__(self, audit: AuditPort, records: ServerRecords, secrets: tuple[str, ...]) -> None:
        self._audit = audit
        self._records = records
        self._redactor = Redactor(secrets)

    def record(self, entry: AuditRecord) -> None:
        """Append the entry to the audit log and queue it for the sinks. Raises `OSError` if the log cannot be written."""
        self._records.publish(self._records.build_write_record(entry, self._redactor), WRITE_TYPE)
        self._audit.record(entry)


def _build_settings(name: str, sink: RecordSinkSettings) -> SinkSettings:
    """Return the settings of a sink with its secret. Raises `InvalidSecretFile`."""
    settings = convert_sink_settings(name, sink)
    if not sink.secret_file:
        return settings
    return msgspec.structs.replace(settings, **read_sink_secret(Path(sink.secret_file), sink.kind))
