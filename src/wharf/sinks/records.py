"""The envelope of all records that sinks receive, and the JSON schema of record types.

Every record is one JSON object in one line: type, version, id, time, source, severity, and `data`, which depends on type
and version. A version only gets new optional fields; any other change has a new version.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
NS_PER_SECOND: Final = 1_000_000_000
MAX_RECORD_BYTES: Final = 1 << 20
"""A longer record is not delivered but counted as lost. Protects memory, and receivers with limits of about this size."""


class RecordSeverity(StrEnum):
    """How urgent a record is, with the names of syslog."""

    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "err"


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The fields that every record has."""

    version: Annotated[int, Meta(ge=1, description="The version of this type of record.")] = 1
    id: Annotated[str, Meta(description="Unique. A record that is delivered twice has the same id both times.")]
    time: Annotated[str, Meta(description="When it happened: UTC, such as 2027-01-31T12:00:00.250Z.")]
    source: Annotated[str, Meta(description="The host and process that wrote the record.")]
    severity: Annotated[RecordSeverity, Meta(description="How urgent it is, with the names of syslog.")] = (
        RecordSeverity.INFO
    )


class LossData(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink did not deliver."""

    sink: Annotated[str, Meta(description="The name of the sink.")]
    lost: Annotated[int, Meta(ge=1, description="How many records were dropped because the sink's spool was full.")]
    first: Annotated[str, Meta(description="When the first of them was dropped.")]


class LossRecord(StreamRecord, frozen=True, kw_only=True, tag="sink.loss"):
    """Records are missing at this place of the stream: the receiver was away for too long."""

    data: LossData


class RecordHead(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of an encoded record, as formatters of sinks need it."""

    type: str
    version: int = 1
    id: str
    time: str
    source: str = ""
    severity: RecordSeverity = RecordSeverity.INFO
    data: msgspec.Raw = msgspec.Raw(b"{}")

    NUMBERS: ClassVar = {
        RecordSeverity.ERROR: 3,
        RecordSeverity.WARNING: 4,
        RecordSeverity.NOTICE: 5,
        RecordSeverity.INFO: 6,
    }

    @property
    def syslog_severity(self) -> int:
        """The number of the severity in syslog."""
        number: int = self.NUMBERS[self.severity]
        return number


encode_record: Final = msgspec.json.Encoder().encode
decode_head: Final = msgspec.json.Decoder(RecordHead).decode


def format_record_time(now_ns: int) -> str:
    """Return a time as records have it: UTC with milliseconds."""
    seconds, rest_ns = divmod(now_ns, NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000_000:03d}Z"


def parse_record_time_ns(text: str) -> int:
    """Return the time of a record in Unix nanoseconds. Raises `ValueError`."""
    time = datetime.fromisoformat(text)
    return int(time.timestamp()) * NS_PER_SECOND + time.microsecond * 1_000


def build_schema(record_types: Sequence[type[StreamRecord]]) -> dict[str, Any]:
    """Return the JSON schema of records of these types."""
    (schema, *_), components = msgspec.json.schema_components(
        [_join_types(record_types)], ref_template="#/$defs/{name}"
    )
    return {"$schema": SCHEMA_DIALECT, "title": "Records of Wharf", **schema, "$defs": components}


def _join_types(record_types: Sequence[type[StreamRecord]]) -> Any:  # A union of types is no type for the checker.
    joined: Any = record_types[0]
    for record_type in record_types[1:]:
        joined = joined | record_type
    return joined
