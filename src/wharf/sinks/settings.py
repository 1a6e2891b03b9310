"""The settings of sinks as values. Limiter and agent read them from their own files."""

from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_SPOOL_BYTES: Final = 64 << 20
"""Enough for about 100,000 records, which is an hour of 30 refusals a second."""
MAX_SINKS: Final = 16
"""Limits the threads and connections of one process."""


class SinkKind(StrEnum):
    """What a sink sends records to."""

    FILE = "file"
    SYSLOG = "syslog"
    HTTP = "http"
    OTLP = "otlp"
    S3 = "s3"


class HttpFormat(StrEnum):
    """The form of the body of a request to an HTTP receiver."""

    LINES = "lines"
    """One JSON object in each line (`application/x-ndjson`)."""
    ARRAY = "array"
    """A JSON array (`application/json`)."""


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one sink. Each kind uses some of them."""

    name: str
    kind: SinkKind
    types: tuple[str, ...] = ()
    """The types of the records that it gets; empty for all."""
    path: Path | None = None
    """The file of a file sink."""
    rotate_bytes: int = 100_000_000
    rotate_ms: int = 24 * 3_600_000
    rotate_files: int = 10
    url: str = ""
    """Where to send records: `https://…`, or for syslog `udp://host:port`, `tcp://…`, `tls://…` or `unix:///path`."""
    facility: int = 16
    """The facility of syslog; 16 is local0."""
    format: HttpFormat = HttpFormat.LINES
    is_compressed: bool = False
    """Whether request bodies are compressed with gzip."""
    secret: str = ""
    """The value of the header `secret_header`; empty for none."""
    secret_header: str = "authorization"
    ca_file: str = ""
    """The CA certificate of the receiver; empty for those of the system."""
    timeout_ms: int = 10_000
    """How long each attempt may take."""
    spool_bytes: int = DEFAULT_SPOOL_BYTES
    """The maximum size of the records that wait for the receiver."""
    bucket: str = ""
    prefix: str = ""
    """The start of the names of objects."""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
