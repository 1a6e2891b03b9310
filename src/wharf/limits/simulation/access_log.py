"""Lines of access logs, read into what a decision needs. Common and combined format, with a duration behind it or not;
and JSON, one object a line, as our own log of decisions writes it.
"""

import datetime
import re
from typing import Final

import msgspec

_LINE: Final = re.compile(
    rb'(\S+) \S+ (\S+) \[([^\]]{20})(?: ([+-]\d{4}))?\] "([A-Z]+) ([^ "]+)[^"]*" (\d{3}) \S+'
    rb'(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?(?:.*? (\d+\.\d+))?\s*$'
)
_REST: Final = re.compile(rb'\[([^\]]{20})(?: ([+-]\d{4}))?\] "[A-Z]+ [^ "]+[^"]*" \d{3} \S')
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"), 1
    )
}


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    at_ms: int
    address: str
    user: str
    """Empty where nobody is named."""
    method: str
    path: str
    duration_ms: int | None


class _Entry(msgspec.Struct, frozen=True):
    """A line of JSON. The names are those of our log of decisions, and some that others use."""

    method: str
    path: str
    at_ms: int = 0
    time: datetime.datetime | None = None
    address: str = ""
    remote_addr: str = ""
    caller: str = ""
    user: str = ""
    duration_ms: float | None = None


_ENTRY: Final = msgspec.json.Decoder(_Entry)


class AccessLogReader:
    """Reads line after line. Moments are worked out once a second of the log, names of callers once each."""

    def __init__(self) -> None:
        self.unreadable_lines = 0
        self._stamp = b""
        self._zone: bytes | None = b""
        self._at_ms = 0
        self._begins = b""
        """What `moment` read last, as it stands in a line."""
        self._begins_ms = 0
        self._texts: dict[bytes, str] = {}

    def read_line(self, line: bytes) -> LogRecord | None:
        """What a line says; None for one that is not read, which is counted."""
        found = _LINE.match(line)
        if found is None:
            return self._read_json(line)
        host, user, stamp, zone, method, target, _status, duration = found.groups()
        if stamp != self._stamp or zone != self._zone:
            at_ms = _moment(stamp, zone)
            if at_ms is None:
                self.unreadable_lines += 1
                return None
            self._stamp, self._zone, self._at_ms = stamp, zone, at_ms
        known = self._texts.get
        return LogRecord(
            self._at_ms,
            known(host) or self._text(host),
            "" if user == b"-" else known(user) or self._text(user),
            known(method) or self._text(method),
            known(target) or self._path(target),
            None if duration is None else round(float(duration) * 1_000),
        )

    def read_time_ms(self, rest: bytes) -> int | None:
        """The moment in what follows host, name and user of a line; None where it is no line of that form."""
        if self._begins and rest.startswith(self._begins):
            return self._begins_ms  # Lines of one second stand together: most are known by their first letters.
        found = _REST.match(rest)
        if found is None:
            return None
        stamp, zone = found.groups()
        if stamp != self._stamp or zone != self._zone:
            at_ms = _moment(stamp, zone)
            if at_ms is None:
                return None
            self._stamp, self._zone, self._at_ms = stamp, zone, at_ms
        self._begins, self._begins_ms = rest[: rest.index(b"]") + 1], self._at_ms
        return self._at_ms

    def _path(self, target: bytes) -> str:
        """Of a target the path. Targets and other texts differ, so that they can be kept together."""
        path = self._text(target.partition(b"?")[0])
        self._texts[target] = path
        return path

    def _text(self, part: bytes) -> str:
        known = self._texts.get(part)
        if known is None:
            if len(self._texts) > 100_000:
                self._texts.clear()
            known = self._texts[part] = part.decode("utf-8", "replace")
        return known

    def _read_json(self, line: bytes) -> LogRecord | None:
        if not line.strip():
            return None
        try:
            entry = _ENTRY.decode(line)
        except (msgspec.DecodeError, RecursionError):
            self.unreadable_lines += 1
            return None
        at_ms = entry.at_ms if entry.time is None else int(entry.time.timestamp() * 1_000)
        named = entry.user or (entry.caller.removeprefix("user:") if entry.caller.startswith("user:") else "")
        return LogRecord(
            at_ms,
            entry.address or entry.remote_addr or "0.0.0.0",
            named,
            entry.method,
            entry.path.partition("?")[0],
            None if entry.duration_ms is None else round(entry.duration_ms),
        )


def _moment(stamp: bytes, zone: bytes | None) -> int | None:
    """Of `21/Nov/2026:15:02:44` and `+0100`, in milliseconds."""
    try:
        day, month, year = int(stamp[:2]), _MONTHS[stamp[3:6]], int(stamp[7:11])
        hour, minute, second = int(stamp[12:14]), int(stamp[15:17]), int(stamp[18:20])
        at = datetime.datetime(year, month, day, hour, minute, min(second, 59), tzinfo=datetime.UTC)
    except (ValueError, KeyError):
        return None
    offset_s = 0
    if zone is not None:
        offset_s = (int(zone[1:3]) * 60 + int(zone[3:5])) * 60 * (-1 if zone[:1] == b"-" else 1)
    return (int(at.timestamp()) - offset_s) * 1_000
