"""Formats log records as text lines for operators and as JSON lines for programs."""

import logging
import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from wharf.agent.logs.redaction import Redactor
from wharf.world.request_id import get_request_id
from wharf.world.terminal_text import escape_controls

TRACE_LEVEL: Final = 5
"""The number of level `trace`, below DEBUG, which the standard library does not define."""

LEVEL_NAME_BY_NUMBER: Final = {
    TRACE_LEVEL: "trace",
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
    logging.CRITICAL: "error",
}
_COLOURS: Final = {"trace": "2", "debug": "2", "info": "32", "warn": "33", "error": "31;1"}
_OWN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id", "taskName"}
_CACHE_ATTRIBUTE: Final = "_wharf_line"
_HIDDEN_FIELDS: Final = frozenset({"color_message"})


def get_level_name(number: int) -> str:
    """Return the name of the level, or of the next lower named level."""
    return LEVEL_NAME_BY_NUMBER.get(number) or next(
        (name for level, name in sorted(LEVEL_NAME_BY_NUMBER.items(), reverse=True) if level <= number), "trace"
    )


def get_level_number(name: str) -> int:
    """Return the lowest number of the level with this name."""
    return min(number for number, level in LEVEL_NAME_BY_NUMBER.items() if level == name)


class FormattedLine(msgspec.Struct, frozen=True):
    """The content of one log line, already redacted."""

    at_s: float
    level: str
    process: str
    logger: str
    message: str
    request_id: str
    fields: dict[str, object]
    error: str
    """The traceback, for errors that carry one."""


def format_record(record: logging.LogRecord, process: str, redactor: Redactor) -> FormattedLine:
    """Return the content of the record. It is cached on the record, because several handlers share one redactor."""
    cached = getattr(record, _CACHE_ATTRIBUTE, None)
    if cached is not None and cached[0] is redactor:
        line: FormattedLine = cached[1]
        return line
    line = _build_line(record, process, redactor)
    setattr(record, _CACHE_ATTRIBUTE, (redactor, line))
    return line


def _build_line(record: logging.LogRecord, process: str, redactor: Redactor) -> FormattedLine:
    """Return the redacted content of the record."""
    fields = {
        name: value
        for name, value in vars(record).items()
        if name not in _OWN_ATTRIBUTES and name not in _HIDDEN_FIELDS and not name.startswith("_")
    }
    error = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
    return FormattedLine(
        at_s=record.created,
        level=get_level_name(record.levelno),
        process=process,
        logger=record.name,
        message=redactor.redact(record.getMessage()),
        request_id=getattr(record, "request_id", "") or get_request_id(),
        fields=redactor.redact_fields(fields),
        error=redactor.redact(error),
    )


class JsonLineFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def __init__(self, process: str, redactor: Redactor) -> None:
        super().__init__()
        self._process = process
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted record as a JSON object. Empty fields are omitted."""
        line = format_record(record, self._process, self._redactor)
        document: dict[str, object] = {
            "time": format_log_time(line.at_s),
            "level": line.level,
            "process": line.process,
            "logger": line.logger,
            "message": line.message,
        }
        if line.request_id:
            document["request_id"] = line.request_id
        if line.fields:
            document["fields"] = line.fields
        if line.error:
            document["error"] = line.error
        return msgspec.json.encode(document).decode()


class TextLineFormatter(logging.Formatter):
    """Formats a record as text for operators, such as `12:00:01.250 info api listening address=127.0.0.1:4646`."""

    def __init__(self, process: str, redactor: Redactor, *, has_colours: bool, has_date: bool) -> None:
        super().__init__()
        self._process = process
        self._redactor = redactor
        self._colours = has_colours
        self._date = has_date

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted record as a line of text. Further lines of a message or traceback are indented."""
        line = format_record(record, self._process, self._redactor)
        time = format_log_time(line.at_s) if self._date else format_log_time(line.at_s)[11:23]
        fields = dict(line.fields) | ({"request": line.request_id} if line.request_id else {})
        fields_text = "".join(f"  {self._dim(f'{name}=')}{_format_value(value)}" for name, value in fields.items())
        message, error = _format_texts(line.message, line.error)
        return f"{self._dim(time)} {self._level(line.level)} {line.process:<6} {message}{fields_text}{error}"

    def _level(self, level: str) -> str:
        return f"\x1b[{_COLOURS[level]}m{level:<5}\x1b[0m" if self._colours else f"{level:<5}"

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colours else text


class WrittenLogLine(msgspec.Struct, frozen=True):
    """A log line, decoded from the JSON text that `JsonLineFormatter` wrote."""

    time: str
    level: str
    process: str
    logger: str
    message: str
    request_id: str = ""
    fields: dict[str, object] = {}
    error: str = ""


_read_line = msgspec.json.Decoder(WrittenLogLine).decode


def render_line(written: str) -> str:
    """Return a JSON log line as text for operators."""
    line = _read_line(written)
    fields = dict(line.fields) | ({"request": line.request_id} if line.request_id else {})
    fields_text = "".join(f"  {name}={_format_value(value)}" for name, value in fields.items())
    message, error = _format_texts(line.message, line.error)
    return f"{line.time} {line.level:<5} {line.process:<6} {message}{fields_text}{error}"


def format_log_time(at_s: float) -> str:
    """Return the time in UTC with milliseconds: `2026-01-31T12:00:01.250Z`."""
    fraction, second = math.modf(at_s)
    seconds, microseconds = divmod(round(fraction * 1_000_000), 1_000_000)  # Rounded as `datetime` does.
    return f"{_format_second(int(second) + seconds)}.{microseconds // 1_000:03d}Z"


@lru_cache(maxsize=8)
def _format_second(second: int) -> str:
    """Return a whole second in UTC without its zone. Cached, because many lines have the same second."""
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _format_texts(message: str, error: str) -> tuple[str, str]:
    """Return message and error with indented further lines, so that they look like one entry, and escaped controls."""
    error = "\n    " + escape_controls(error).replace("\n", "\n    ") if error else ""
    return escape_controls(message).replace("\n", "\n    "), error


def _format_value(value: object) -> str:
    """Return a field value as text, in quotes if it could be misread."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    needs_quotes = text == "" or any(character in text for character in ' "=\n\t')
    return escape_controls(msgspec.json.encode(text).decode() if needs_quotes and isinstance(value, str) else text)
