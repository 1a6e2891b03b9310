"""Reads lines of access logs into what a decision needs.

It reads the common and combined formats, optionally with times at the end of the line, and JSON with one object per line, such
as the decision log.
"""

import datetime
import re
from typing import Final

import msgspec

_LINE: Final = re.compile(
    rb'(\S+) \S+ (\S+) \[([^\]]{20})(?: ([+-]\d{4}))?\] "([A-Z]+) ([^ "]+)[^"]*" (\d{3}) \S+'
    rb'(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?([^\n]*)$'
)
_NAMED_TIME: Final = re.compile(
    rb'\b(rt|request_time|uht|upstream_header_time|urt|upstream_response_time)="?([\d.]+(?:[\d., :-]*[\d.])?)'
)
"""A time in seconds with its name. nginx writes several of them if it has asked several servers."""
_LAST_TIMES: Final = re.compile(rb" (\d+\.\d+)(?: (?:(\d+\.\d+)|-))?\s*$")
"""The duration of a request, perhaps with the time of the service, in seconds at the end of a line."""
_CREDENTIAL_MARK: Final = re.compile(rb'\bcredential_mark="?([^\s"]{1,128})')
"""A part or a hash of the credential of a request, which the log has in place of the credential itself."""
_SECONDS: Final = re.compile(rb"\d+(?:\.\d+)?")
_AFTER_USER: Final = re.compile(rb'\[([^\]]{20})(?: ([+-]\d{4}))?\] "[A-Z]+ [^ "]+[^"]*" \d{3} \S')
_ORIGIN: Final = re.compile(r"^https?://[^/]*", re.IGNORECASE)
"""The part of a target such as `http://host/path` before its path."""
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"), 1
    )
}
CREDENTIAL_PREFIX: Final = "credential:"
"""Begins the name of a caller whose credential only the service knows, in the decision log."""
CREDENTIAL_MARK: Final = b"credential_mark="
"""Begins the credential mark of a line."""
NO_USERS: Final = (b"-", b"")
"""What a line has in place of a user name if the request has none."""
MAX_CACHED_TEXTS: Final = 100_000
"""Limits the memory for decoded hosts, users, methods and paths; a full cache is cleared."""


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One logged request."""

    at_ms: int
    address: str
    user: str
    """Empty for a request without a user name."""
    method: str
    path: str
    """The path as the caller sent it."""
    duration_ms: int | None
    """`None` if the log has no durations."""
    query: str = ""
    """The query of the target."""
    first_byte_ms: int | None = None
    """The time from forwarding the request to the first byte of the reply."""
    upstream_ms: int | None = None
    """The time from forwarding the request to the last byte of the reply."""
    status: int = 0
    """The status of the reply; 0 if the log has none."""


class LogTimes(msgspec.Struct, frozen=True, gc=False):
    """The times of a logged request, as far as the log has them."""

    duration_ms: int | None = None
    first_byte_ms: int | None = None
    upstream_ms: int | None = None


NO_TIMES: Final = LogTimes()
MAX_DURATION_MS: Final = 10**12
"""30 years; protects calculations from numbers that are no durations."""


class _JsonEntry(msgspec.Struct, frozen=True):
    """A line of a log in JSON. The fields are those of the decision log, and some that other logs use."""

    method: str
    path: str
    at_ms: int = 0
    time: datetime.datetime | None = None
    address: str = ""
    remote_addr: str = ""
    caller: str = ""
    user: str = ""
    credential_mark: str = ""
    duration_ms: float | None = None
    first_byte_ms: float | None = None
    request_time: float | str | None = None
    upstream_header_time: float | str | None = None
    upstream_response_time: float | str | None = None
    status: int | str = 0


_JSON_DECODER: Final = msgspec.json.Decoder(_JsonEntry)


class AccessLogReader:
    """Reads the lines of an access log in order.

    Time stamps and texts that occur again are taken from a cache, which is faster than parsing them again.
    """

    def __init__(self) -> None:
        self.unreadable_lines = 0
        self._stamp = b""
        self._zone: bytes | None = b""
        self._at_ms = 0
        """The time of the last stamp and zone."""
        self._bracketed_stamp = b""
        self._bracketed_ms = 0
        """The time that `read_time_ms` read last, with the bytes that stood for it."""
        self._texts: dict[bytes, str] = {}

    def read_line(self, line: bytes) -> LogRecord | None:
        """Return the request that a line logs; `None` for a line of another format, which is counted as unreadable."""
        match = _LINE.match(line)
        if match is None:
            return self._read_json(line)
        host, user, stamp, zone, method, target, status, rest = match.groups()
        if not self._update_time(stamp, zone):
            self.unreadable_lines += 1
            return None
        times = _read_times(rest) if len(rest) > 1 else NO_TIMES
        cached = self._texts.get
        if user == b"-" and CREDENTIAL_MARK in rest:
            user = read_credential_mark(rest)
        return LogRecord(
            self._at_ms,
            cached(host) or self._decode(host),
            "" if user in NO_USERS else cached(user) or self._decode(user),
            cached(method) or self._decode(method),
            cached(target) or self._decode_path(target),
            times.duration_ms,
            target.partition(b"?")[2].decode("utf-8", "replace") if b"?" in target else "",
            times.first_byte_ms,
            times.upstream_ms,
            int(status),
        )

    def _update_time(self, stamp: bytes, zone: bytes | None) -> bool:
        """Set `_at_ms` to the time of a stamp such as `21/Nov/2026:15:02:44` and a zone. Return whether they are valid."""
        if stamp == self._stamp and zone == self._zone:
            return True
        at_ms = _parse_time_ms(stamp, zone)
        if at_ms is None:
            return False
        self._stamp, self._zone, self._at_ms = stamp, zone, at_ms
        return True

    def read_time_ms(self, after_user: bytes) -> int | None:
        """Return the time of a line in Unix milliseconds; `None` if the line has another format.

        `after_user` is the part of the line after host, name and user, which begins with the time in brackets.
        """
        if self._bracketed_stamp and after_user.startswith(self._bracketed_stamp):
            return self._bracketed_ms  # Most lines have the same second as the line before.
        match = _AFTER_USER.match(after_user)
        if match is None or not self._update_time(*match.groups()):
            return None
        self._bracketed_stamp = after_user[: after_user.index(b"]") + 1]
        self._bracketed_ms = self._at_ms
        return self._at_ms

    def _decode_path(self, target: bytes) -> str:
        """Return the path of a request target, without its query, and cache it."""
        path = _ORIGIN.sub("", self._decode(target.partition(b"?")[0])) or "/"
        self._texts[target] = path
        return path

    def _decode(self, part: bytes) -> str:
        """Return the text of a part of a line, from the cache if possible."""
        text = self._texts.get(part)
        if text is None:
            if len(self._texts) > MAX_CACHED_TEXTS:
                self._texts.clear()
            text = self._texts[part] = part.decode("utf-8", "replace")
        return text

    def _read_json(self, line: bytes) -> LogRecord | None:
        """Return the request of a line of JSON. Return `None` for any other line, and count it unless it is empty."""
        if not line.strip():
            return None
        try:
            entry = _JSON_DECODER.decode(line)
        except (msgspec.DecodeError, RecursionError):
            self.unreadable_lines += 1
            return None
        caller_user = entry.caller.removeprefix("user:") if entry.caller.startswith("user:") else ""
        if entry.caller.startswith(CREDENTIAL_PREFIX):
            caller_user = entry.caller
        times = _make_times(
            _round_ms(entry.duration_ms) if entry.duration_ms is not None else _sum_seconds_ms(entry.request_time),
            _round_ms(entry.first_byte_ms)
            if entry.first_byte_ms is not None
            else _sum_seconds_ms(entry.upstream_header_time),
            _sum_seconds_ms(entry.upstream_response_time),
        )
        status = str(entry.status)
        return LogRecord(
            entry.at_ms if entry.time is None else int(entry.time.timestamp() * 1_000),
            entry.address or entry.remote_addr or "0.0.0.0",
            entry.user or caller_user or _name_mark(entry.credential_mark),
            entry.method,
            _ORIGIN.sub("", entry.path.partition("?")[0]) or "/",
            times.duration_ms,
            entry.path.partition("?")[2],
            times.first_byte_ms,
            times.upstream_ms,
            int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 0,
        )


def read_credential_mark(rest: bytes) -> bytes:
    """Return the name of the caller with the credential mark in a part of a line; empty without one."""
    match = _CREDENTIAL_MARK.search(rest)
    return b"" if match is None or match[1] == b"-" else CREDENTIAL_PREFIX.encode() + match[1]


def _name_mark(mark: str) -> str:
    """Return the name of the caller with this credential mark; empty without one."""
    return f"{CREDENTIAL_PREFIX}{mark}" if mark not in ("", "-") else ""


def _read_times(rest: bytes) -> LogTimes:
    """Return the times at the end of a line: with names, or the duration and perhaps the time of the service."""
    if b"=" in rest:
        named = {name: _sum_seconds_ms(value.decode()) for name, value in _NAMED_TIME.findall(rest)}
        if named:
            return _make_times(
                named.get(b"rt", named.get(b"request_time")),
                named.get(b"uht", named.get(b"upstream_header_time")),
                named.get(b"urt", named.get(b"upstream_response_time")),
            )
    match = _LAST_TIMES.search(rest)
    if match is None:
        return NO_TIMES
    duration_ms, upstream_ms = (None if text is None else _round_ms(float(text) * 1_000) for text in match.groups())
    if duration_ms is not None and upstream_ms is not None and upstream_ms > duration_ms:
        return LogTimes(
            upstream_ms
        )  # The service cannot take longer than the request: the first number is something else.
    return LogTimes(duration_ms, upstream_ms=upstream_ms)


def _make_times(duration_ms: int | None, first_byte_ms: int | None, upstream_ms: int | None) -> LogTimes:
    """Return the times of a request. Without its duration, the longest other time is the duration."""
    if duration_ms is None:
        duration_ms = max((time for time in (first_byte_ms, upstream_ms) if time is not None), default=None)
    return LogTimes(duration_ms, first_byte_ms, upstream_ms)


def _sum_seconds_ms(value: float | str | None) -> int | None:
    """Return a time in seconds, or the sum of several in one text, in milliseconds; `None` without one."""
    if value is None:
        return None
    if isinstance(value, str):
        numbers = _SECONDS.findall(value.encode())
        return _round_ms(sum(map(float, numbers)) * 1_000) if numbers else None
    return _round_ms(value * 1_000)


def _round_ms(value: float) -> int | None:
    """Return a number of milliseconds as an integer; `None` if no duration can be that long."""
    return round(value) if 0 <= value < MAX_DURATION_MS else None


def _parse_time_ms(stamp: bytes, zone: bytes | None) -> int | None:
    """Return the time of a stamp such as `21/Nov/2026:15:02:44` with a zone such as `+0100`; `None` if it is invalid."""
    try:
        day, month, year = int(stamp[:2]), _MONTHS[stamp[3:6]], int(stamp[7:11])
        hour, minute, second = int(stamp[12:14]), int(stamp[15:17]), int(stamp[18:20])
        local_time = datetime.datetime(year, month, day, hour, minute, min(second, 59), tzinfo=datetime.UTC)
    except (ValueError, KeyError):
        return None
    offset_s = 0
    if zone is not None:
        offset_s = (int(zone[1:3]) * 60 + int(zone[3:5])) * 60 * (-1 if zone[:1] == b"-" else 1)
    return (int(local_time.timestamp()) - offset_s) * 1_000
