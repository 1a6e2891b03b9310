"""Builds the stream of a process with its sinks from their settings."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wharf.sinks.delivery import SinkDelivery
from wharf.sinks.file_sink import FileSink
from wharf.sinks.port import Sink
from wharf.sinks.rotation import Rotation
from wharf.sinks.settings import SinkKind, SinkSettings
from wharf.sinks.spool import MemorySpool, Spool, open_spool
from wharf.sinks.stream import RecordStream
from wharf.sinks.syslog_sink import SyslogSink, read_syslog_url
from wharf.world import World

OBJECT_INTERVAL_S: Final = 60.0
"""How long records wait for others before an object is stored, so that objects are not tiny."""
REQUEST_TIMEOUT_SHARE: Final = 0.9
"""The part of an attempt's timeout that its request may take, so that the request ends first and says why."""


def build_source(process: str) -> str:
    """Return the source of records: the name of the host and of the process."""
    return f"{socket.gethostname()}/{process}"


def build_stream(settings: Sequence[SinkSettings], world: World, *, folder: Path, source: str) -> RecordStream:
    """Return the stream with a sink for each of the settings. `folder` is for their spools.

    Raises `SpoolError` if the file of a spool cannot be opened.
    """
    deliveries: list[SinkDelivery] = []
    try:
        for sink in settings:
            spool: Spool
            if sink.kind is SinkKind.FILE:
                spool = MemorySpool(world.new_id(), sink.spool_bytes)
            else:
                spool = open_spool(folder, sink.name, sink.spool_bytes, world.new_id)
            deliveries.append(
                SinkDelivery(
                    world,
                    _build_sink(sink, world),
                    spool,
                    name=sink.name,
                    kind=sink.kind.value,
                    source=source,
                    timeout_s=sink.timeout_ms / 1_000,
                    types=frozenset(sink.types),
                    interval_s=OBJECT_INTERVAL_S if sink.kind is SinkKind.S3 else 0.0,
                )
            )
    except BaseException:
        for delivery in deliveries:
            delivery.close_spool()
        raise
    return RecordStream(deliveries)


def _build_sink(settings: SinkSettings, world: World) -> Sink:
    """Return the sink of these settings, which have been checked."""
    match settings.kind:
        case SinkKind.FILE:
            assert settings.path is not None, "a file sink has a path: the reader of settings checks it"
            rotation = Rotation(settings.rotate_bytes, settings.rotate_ms * 1_000_000, settings.rotate_files)
            return FileSink(world, settings.path, rotation)
        case SinkKind.SYSLOG:
            address = read_syslog_url(settings.url)
            return SyslogSink(address, facility=settings.facility, ca_file=settings.ca_file)
        case _:
            return _build_http_sink(settings, world)


def _build_http_sink(settings: SinkSettings, world: World) -> Sink:
    """Return a sink that sends HTTP requests."""
    # Imported here because the HTTP library is slow to load, and few processes have such a sink.
    from wharf.sinks.http_sink import BODIES, OTLP_BODY, HttpSender, HttpSink
    from wharf.sinks.s3_sink import S3Credentials, S3Sink

    sender = HttpSender(timeout_s=settings.timeout_ms / 1_000 * REQUEST_TIMEOUT_SHARE, ca_file=settings.ca_file)
    if settings.kind is SinkKind.S3:
        credentials = S3Credentials(
            access_key=settings.access_key, secret_key=settings.secret_key, region=settings.region
        )
        return S3Sink(
            world, sender, settings.url, bucket=settings.bucket, prefix=settings.prefix, credentials=credentials
        )
    return HttpSink(
        sender,
        settings.url,
        OTLP_BODY if settings.kind is SinkKind.OTLP else BODIES[settings.format],
        headers={settings.secret_header: settings.secret} if settings.secret else {},
        is_compressed=settings.is_compressed,
    )
