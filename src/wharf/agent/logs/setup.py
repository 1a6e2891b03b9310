"""Configures the standard library's logging in one process, and changes it while the process runs.

Code logs with `logging.getLogger(__name__)` and passes values in `extra={...}`. Levels, formats and outputs are decided
here. The newest lines are also stored in memory, for `wharf operator debug`.
"""

import collections
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO

import msgspec

from wharf.agent.logs.lines import TRACE_LEVEL, JsonLineFormatter, TextLineFormatter
from wharf.agent.logs.redaction import Redactor
from wharf.config.log_parts import get_logger_levels
from wharf.config.settings import AgentSettings, LogLevel
from wharf.config.values import list_secrets
from wharf.contract.model.times import SECOND
from wharf.sinks.rotation import RotatingFile, Rotation

MAX_RETAINED_LINES: Final = 2_000
"""Limits the log lines that are stored in memory."""

NUMBER_BY_LEVEL: Final[Mapping[LogLevel, int]] = {
    LogLevel.TRACE: TRACE_LEVEL,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
# Libraries that log too much at level info. `log_levels` can set another level for them.
_QUIET_LIBRARIES: Final[Mapping[str, int]] = {
    "asyncio": logging.WARNING,
    "uvicorn": logging.WARNING,
    "httpcore2": logging.WARNING,
    "httpx2": logging.WARNING,
    "websockets": logging.WARNING,
    "grpc": logging.WARNING,
}


class LogConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The log settings of one process."""

    level: LogLevel = LogLevel.INFO
    levels: Mapping[str, LogLevel] = {}
    """Levels of single libraries or parts of Wharf, by name."""
    json: bool = False
    file: str = ""
    rotation: Rotation = Rotation()
    secrets: tuple[str, ...] = ()
    """Texts that are removed from every line."""
    on_terminal: bool = True
    """Whether lines are also written to standard error."""


def build_log_configuration(settings: AgentSettings) -> LogConfiguration:
    """Return the log settings of the processes of an agent."""
    return LogConfiguration(
        level=settings.log_level,
        levels=settings.log_levels,
        json=settings.log_json,
        file=settings.log_file,
        rotation=Rotation(
            bytes=settings.log_rotate_bytes.bytes,
            duration_ns=settings.log_rotate_duration.ns,
            max_files=settings.log_rotate_max_files,
        ),
        secrets=tuple(list_secrets(settings)),
    )


class LineHandler(logging.Handler):
    """Formats records and passes each line to `put` with its time in nanoseconds.

    A line that cannot be formatted or written is counted in `lost_lines`. Logging never raises.
    """

    def __init__(
        self,
        put: Callable[[str, int], object],
        formatter: logging.Formatter,
        *,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lost_lines = 0
        self._put = put
        self._on_close = on_close

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(self.format(record), int(record.created * SECOND))
        except Exception:  # Top level of a log call.
            self.lost_lines += 1

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close()
        super().close()


class _ForwardingHandler(LineHandler):
    """Passes each line to `put` with the number of its level."""

    def __init__(self, put: Callable[[int, str], None], formatter: logging.Formatter) -> None:
        super().__init__(lambda _line, _at_ns: None, formatter)
        self._put_level = put

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put_level(record.levelno, self.format(record))
        except Exception:  # Top level of a log call.
            self.lost_lines += 1


class _ConfiguredLevelFilter(logging.Filter):
    """Passes only records of the configured levels, while a follower reads at a lower level."""

    def __init__(self, configuration: LogConfiguration) -> None:
        super().__init__()
        self._level = NUMBER_BY_LEVEL[configuration.level]
        self._level_by_name = _get_level_numbers(configuration)

    def filter(self, record: logging.LogRecord) -> bool:
        parts = record.name.split(".")
        for length in range(len(parts), 0, -1):
            level = self._level_by_name.get(".".join(parts[:length]))
            if level is not None:
                return record.levelno >= level
        return record.levelno >= self._level


class ProcessLogging:
    """The logging of this process. Create it once, and call `apply` again when the configuration changes."""

    def __init__(self, process: str, *, stream: TextIO | None = None) -> None:
        self._process = process
        # A command of `wharf` filters what it prints on a terminal. Lines of the log are escaped by their formatter.
        self._stream = stream if stream is not None else getattr(sys.stderr, "unfiltered", sys.stderr)
        self._retained_lines: collections.deque[str] = collections.deque(maxlen=MAX_RETAINED_LINES)
        self._handlers: list[logging.Handler] = []
        self._named_loggers: set[str] = set()
        self._configuration = LogConfiguration()
        self._forwarding: tuple[int, Callable[[int, str], None]] | None = None

    def apply(self, configuration: LogConfiguration) -> None:
        """Apply the configuration. Raises `OSError` if the log file cannot be opened; the old configuration then stays."""
        redactor = Redactor(configuration.secrets)
        handlers: list[logging.Handler] = [
            LineHandler(
                lambda line, _at_ns: self._retained_lines.append(line), JsonLineFormatter(self._process, redactor)
            )
        ]
        if configuration.file:
            file = RotatingFile(Path(configuration.file), configuration.rotation)
            formatter = self._build_formatter(configuration, redactor, colours=False, date=True)
            handlers.append(
                LineHandler(
                    lambda line, at_ns: file.write(line.encode("utf-8", "replace") + b"\n", now_ns=at_ns),
                    formatter,
                    on_close=file.close,
                )
            )
        if configuration.on_terminal:
            is_terminal = self._stream.isatty()
            colours = is_terminal and not os.environ.get("NO_COLOR")
            formatter = self._build_formatter(configuration, redactor, colours=colours, date=not is_terminal)
            handlers.append(LineHandler(lambda line, _at_ns: self._write_line(line), formatter))

        root = logging.getLogger()
        for handler in self._handlers:
            root.removeHandler(handler)
            handler.close()
        for handler in handlers:
            root.addHandler(handler)
        self._handlers = handlers
        self._configuration = configuration
        self._set_levels(configuration)
        self._start_forwarding()
        logging.captureWarnings(True)

    def forward_lines(self, level: int, put: Callable[[int, str], None]) -> None:
        """Forward lines of this level and above as JSON to `put` from now on; 0 stops forwarding.

        `put` must not block. The configured outputs do not change.
        """
        self._forwarding = (level, put) if level else None
        self.apply(self._configuration)

    def _start_forwarding(self) -> None:
        """Add the forwarding handler if lines are forwarded."""
        if self._forwarding is None:
            return
        level, put = self._forwarding
        level_filter = _ConfiguredLevelFilter(self._configuration)
        for handler in self._handlers:
            handler.addFilter(level_filter)
        forwarder = _ForwardingHandler(put, JsonLineFormatter(self._process, Redactor(self._configuration.secrets)))
        forwarder.setLevel(level)
        root = logging.getLogger()
        root.addHandler(forwarder)
        root.setLevel(min(level, NUMBER_BY_LEVEL[self._configuration.level]))
        self._handlers.append(forwarder)

    def get_retained_lines(self) -> list[str]:
        """Return the newest log lines as JSON."""
        return list(self._retained_lines)

    def close(self) -> None:
        """Remove and close all handlers of this process, and stop capturing warnings."""
        root = logging.getLogger()
        for handler in self._handlers:
            root.removeHandler(handler)
            handler.close()
        self._handlers = []
        logging.captureWarnings(False)

    def _write_line(self, line: str) -> None:
        """Write the line in one call, so that lines of several processes do not mix."""
        self._stream.write(line + "\n")
        self._stream.flush()

    def _build_formatter(
        self, configuration: LogConfiguration, redactor: Redactor, *, colours: bool, date: bool
    ) -> logging.Formatter:
        """Return the formatter for text or JSON lines."""
        if configuration.json:
            return JsonLineFormatter(self._process, redactor)
        return TextLineFormatter(self._process, redactor, has_colours=colours, has_date=date)

    def _set_levels(self, configuration: LogConfiguration) -> None:
        """Set the configured levels on the loggers, and reset those no longer configured."""
        level_by_name = dict(_QUIET_LIBRARIES) | _get_level_numbers(configuration)
        for name in self._named_loggers - set(level_by_name):
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in level_by_name.items():
            logging.getLogger(name).setLevel(level)
        self._named_loggers = set(level_by_name)
        logging.getLogger().setLevel(NUMBER_BY_LEVEL[configuration.level])


def _get_level_numbers(configuration: LogConfiguration) -> dict[str, int]:
    """Return the configured level numbers by logger name.

    A configured name is that of a library or of a part of Wharf, such as `scheduler`. A part can stand for several
    loggers.
    """
    libraries = {name: level for name, level in configuration.levels.items() if name in _QUIET_LIBRARIES}
    parts = {name: level for name, level in configuration.levels.items() if name not in _QUIET_LIBRARIES}
    levels = libraries | get_logger_levels(parts)
    return {name: NUMBER_BY_LEVEL[level] for name, level in levels.items()}
