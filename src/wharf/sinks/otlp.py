"""Records as logs of OpenTelemetry: the body of a request of OTLP over HTTP, in its JSON form.

The record's `data` becomes the body of the log record, with all its fields. The envelope becomes attributes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.sinks.records import RecordSeverity, decode_head, encode_record, parse_record_time_ns

SCOPE_NAME: Final = "wharf"
SEVERITY_NUMBERS: Final = {
    RecordSeverity.INFO: 9,
    RecordSeverity.NOTICE: 10,
    RecordSeverity.WARNING: 13,
    RecordSeverity.ERROR: 17,
}
MAX_DEPTH: Final = 20
"""Deeper values are sent as JSON text. Protects the stack, here and in receivers."""


def build_logs_request(lines: Sequence[bytes]) -> bytes:
    """Return the body of a request with these records. Records of one source share a resource."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        head = decode_head(line)
        time_ns = str(parse_record_time_ns(head.time))
        by_source.setdefault(head.source, []).append(
            {
                "timeUnixNano": time_ns,
                "observedTimeUnixNano": time_ns,
                "severityNumber": SEVERITY_NUMBERS[head.severity],
                "severityText": head.severity.value.upper(),
                "eventName": f"wharf.{head.type}",
                "body": build_value(msgspec.json.decode(head.data)),
                "attributes": _build_attributes({
                    "wharf.record.type": head.type,
                    "wharf.record.version": head.version,
                    "log.record.uid": head.id,
                }),
            }
        )  # fmt: skip
    return encode_record({
        "resourceLogs": [
            {
                "resource": {"attributes": _build_attributes(_describe_source(source))},
                "scopeLogs": [{"scope": {"name": SCOPE_NAME}, "logRecords": records}],
            }
            for source, records in by_source.items()
        ]
    })  # fmt: skip


def _describe_source(source: str) -> dict[str, str]:
    host, _, process = source.partition("/")
    return {"service.name": SCOPE_NAME, "host.name": host, "service.instance.id": process or host}


def _build_attributes(values: Mapping[str, object]) -> list[dict[str, Any]]:
    return [{"key": key, "value": build_value(value)} for key, value in values.items()]


def build_value(value: Any, depth: int = 0) -> dict[str, Any]:
    """Return a JSON value as an `AnyValue`. Whole numbers are texts, as the JSON form of 64-bit numbers requires."""
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _ if depth >= MAX_DEPTH:
            return {"stringValue": encode_record(value).decode()}
        case list():
            return {"arrayValue": {"values": [build_value(entry, depth + 1) for entry in value]}}
        case _:
            entries = [{"key": key, "value": build_value(entry, depth + 1)} for key, entry in value.items()]
            return {"kvlistValue": {"values": entries}}


def count_rejected(reply: bytes) -> int:
    """Return how many records the reply of a receiver says it rejected (`partialSuccess`); 0 if it says nothing."""
    try:
        decoded = msgspec.json.decode(reply)
        return max(0, int(decoded["partialSuccess"]["rejectedLogRecords"]))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return 0
