"""What operators follow live: the records of this process as server-sent events, and the recorded changes by operators.

A connection ends when the limiter stops, or when its reader is too slow. A client continues with the id of the last event.
"""

import asyncio
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.admin.errors import ActionError
from wharf.limits.decisions.record_publisher import AUDIT_FILE
from wharf.limits.decisions.records import AUDIT_TYPE, RECORD_TYPES, OperatorChangeRecord, build_change_record
from wharf.limits.decisions.service import DecisionService
from wharf.sinks.records import build_schema
from wharf.sinks.stream import StreamFollower, TooManyFollowers

EVENT_STREAM_TYPE: Final = "text/event-stream"
KEEP_ALIVE_S: Final = 15.0
"""How often a comment is sent, so that clients and proxies notice a dead connection."""
WRITE_TIMEOUT_S: Final = 30.0
"""A client that does not read for this time is disconnected."""
RETRY_MS: Final = 2_000
"""How long a client should wait before it connects again."""
MAX_TYPES: Final = 16
"""Protects memory: more types do not exist."""
MAX_AUDIT_ENTRIES: Final = 1_000
"""Limits the length of a reply."""
MAX_AUDIT_BYTES: Final = 8 << 20
"""At most this much of the end of the audit file is read; protects memory."""
_LAST_EVENT_ID: Final = re.compile(rb"(?im)^last-event-id:[ \t]*([^\r\n]{1,200})[ \t]*\r?$")


def read_last_event_id(head: bytes, query: Mapping[str, str]) -> str:
    """Return the id of the last event that a client received, from its header or the parameter `after`; empty without."""
    match = _LAST_EVENT_ID.search(head)
    return match[1].decode("latin-1").strip() if match is not None else query.get("after", "")


def read_types(query: Mapping[str, str]) -> frozenset[str]:
    """Return the types in the parameter `types`, separated by commas; those of audit records without it.

    `all` stands for all types. Raises `ActionError` if one is unknown.
    """
    text = query.get("types", AUDIT_TYPE)
    known = list_known_types()
    if text == "all":
        return frozenset(known)
    types = text.split(",", MAX_TYPES)
    for name in types:
        if name not in known:
            raise ActionError(f"{name[:40]!r} is not a type of record: use all, or some of {', '.join(known)}")
    return frozenset(types)


def list_known_types() -> list[str]:
    """Return the types of all records of a limiter."""
    return [str(record_type.__struct_config__.tag) for record_type in RECORD_TYPES]


class EventSender:
    """Sends the records of this process to one client as server-sent events."""

    def __init__(self, service: DecisionService, writer: asyncio.StreamWriter) -> None:
        self._service = service
        self._writer = writer

    async def send_events(self, types: frozenset[str], after_id: str) -> None:
        """Send the head of the reply, and events until the client disconnects or the stream ends.

        Raises `ActionError` if too many clients follow, and `ConnectionError` or `TimeoutError` if the client is gone.
        """
        stream = self._service.records.stream
        try:
            follower = stream.follow(types, after_id=after_id)
        except TooManyFollowers as error:
            raise ActionError(str(error), 503) from None
        try:
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM_TYPE}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
            # This event shows clients at once that they miss nothing from now on.
            await self._write(head.encode() + b"retry: %d\nevent: following\ndata: {}\n\n" % RETRY_MS)
            while not follower.is_ended:
                await follower.wait(KEEP_ALIVE_S)
                await self._send_waiting(follower)
        finally:
            stream.unfollow(follower)

    async def _send_waiting(self, follower: StreamFollower) -> None:
        """Send the records that wait, or a comment if there are none."""
        entries, lost = follower.take()
        parts = [
            b"id: %b\nevent: %b\ndata: %b\n\n" % (entry.id.encode(), entry.type.encode(), entry.line)
            for entry in entries
        ]
        if lost:
            parts.append(b'event: lost\ndata: {"lost":%d}\n\n' % lost)
        await self._write(b"".join(parts) or b": keep-alive\n\n")

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            self._writer.write(data)
            await self._writer.drain()


def list_audit_records(folder: Path, source: str, *, since_ms: int, count: int) -> list[OperatorChangeRecord]:
    """Return the newest records of changes by operators, oldest first, from the audit file.

    Only the last `MAX_AUDIT_BYTES` of the file are read. Raises `OSError` if it cannot be read.
    """
    records: deque[OperatorChangeRecord] = deque(maxlen=min(count, MAX_AUDIT_ENTRIES))
    for number, entry in _iterate_audit_entries(folder / AUDIT_FILE):
        if entry["at_ms"] >= since_ms:
            records.append(build_change_record(entry, source=source, line_number=number))
    return list(records)


def _iterate_audit_entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the entries of the end of the audit file with the offset of their lines. Incomplete lines are left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = file.seek(0, 2)
        offset = max(0, size - MAX_AUDIT_BYTES)
        file.seek(offset)
        if offset:
            offset += len(file.readline())  # The rest of a line.
        for line in file:
            try:
                entry = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # A crash of the machine can cut the last line.
            finally:
                offset += len(line)
            yield offset - len(line), entry


def describe_schema() -> dict[str, Any]:
    """Return the JSON schema of all records of a limiter."""
    return build_schema(RECORD_TYPES)
