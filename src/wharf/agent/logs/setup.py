"""Sets up the standard library's logging in one process, and changes levels while it runs.

Code logs with `logging.getLogger(__name__)` and gives values by `extra={...}`; what is shown, how and where is decided
here. The newest lines are kept in memory too, for `wharf operator debug`.
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
from wharf.agent.logs.rotation import RotatingFile, Rotation
from wharf.config.log_parts import get_logger_levels
from wharf.config.settings import AgentSettings, LogLevel
from wharf.config.values import list_secrets
from wharf.contract.model.times import SECOND

MAX_RETAINED_LINES: Final = 2_000

NUMBER_BY_LEVEL: Final[Mapping[LogLevel, int]] = {
    LogLevel.TRACE: TRACE_LEVEL,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
# Libraries that talk much about little; their own level can still be set in log_levels where it is named there.
_QUIETER: Final[Mapping[str, int]] = {
    "asyncio": logging.WARNING,
    "uvicorn": logging.WARNING,
    "httpcore2": logging.WARNING,
    "httpx2": logging.WARNING,
    "websockets": logging.WARNING,
    "grpc": logging.WARNING,
}


class LogConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """How one process logs."""

    level: LogLevel = LogLevel.INFO
    levels: Mapping[str, LogLevel] = {}
    json: bool = False
    file: str = ""
    rotation: Rotation = Rotation()
    secrets: tuple[str, ...] = ()
    """Texts that are taken out of every line."""
    on_terminal: bool = True
    """Whether lines go to the standard error output too."""


def build_log_configuration(settings: AgentSettings) -> LogConfiguration:
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
    """Formats a line and hands it on with its time in nanoseconds.

    Whatever goes wrong with a line, the work goes on: it is counted, and no traceback runs over the terminal.
    """

    def __init__(
        self, put: Callable[[str, int], object], form: logging.Formatter, *, end: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self.setFormatter(form)
        self.lost_lines = 0
        self._put = put
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(self.format(record), int(record.created * SECOND))
        except Exception:  # The top of a log call.
            self.lost_lines += 1

    def close(self) -> None:
        if self._end is not None:
            self._end()
        super().close()


class _Telling(LineHandler):
    """Gives each line on with the number of its level."""

    def __init__(self, put: Callable[[int, str], None], form: logging.Formatter) -> None:
        super().__init__(lambda _line, _at_ns: None, form)
        self._tell = put

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tell(record.levelno, self.format(record))
        except Exception:  # The top of a log call.
            self.lost_lines += 1


class _AsOrdered(logging.Filter):
    """Lets through what would be logged if nobody followed at a lower level."""

    def __init__(self, order: LogConfiguration) -> None:
        super().__init__()
        self._level = NUMBER_BY_LEVEL[order.level]
        self._named = _get_level_numbers(order)

    def filter(self, record: logging.LogRecord) -> bool:
        parts = record.name.split(".")
        for length in range(len(parts), 0, -1):
            level = self._named.get(".".join(parts[:length]))
            if level is not None:
                return record.levelno >= level
        return record.levelno >= self._level


class ProcessLogging:
    """The logging of this process. Made once; `apply` again when the configuration changed."""

    def __init__(self, process: str, *, stream: TextIO | None = None) -> None:
        self._process = process
        self._stream = stream if stream is not None else sys.stderr
        self._kept: collections.deque[str] = collections.deque(maxlen=MAX_RETAINED_LINES)
        self._own: list[logging.Handler] = []
        self._levelled: set[str] = set()
        self._order = LogConfiguration()
        self._told: tuple[int, Callable[[int, str], None]] | None = None

    def apply(self, order: LogConfiguration) -> None:
        """Raises OSError when the log's file cannot be opened; logging is then as it was."""
        redactor = Redactor(order.secrets)
        handlers: list[logging.Handler] = [
            LineHandler(lambda line, _at_ns: self._kept.append(line), JsonLineFormatter(self._process, redactor))
        ]
        if order.file:
            file = RotatingFile(Path(order.file), order.rotation)
            form = self._form(order, redactor, colours=False, date=True)
            handlers.append(
                LineHandler(
                    lambda line, at_ns: file.write(line.encode("utf-8", "replace") + b"\n", now_ns=at_ns),
                    form,
                    end=file.close,
                )
            )
        if order.on_terminal:
            is_terminal = self._stream.isatty()
            colours = is_terminal and not os.environ.get("NO_COLOR")
            form = self._form(order, redactor, colours=colours, date=not is_terminal)
            handlers.append(LineHandler(lambda line, _at_ns: self._show(line), form))

        root = logging.getLogger()
        for handler in self._own:
            root.removeHandler(handler)
            handler.close()
        for handler in handlers:
            root.addHandler(handler)
        self._own = handlers
        self._order = order
        self._set_levels(order)
        self._begin_telling()
        logging.captureWarnings(True)

    def forward_lines(self, level: int, put: Callable[[int, str], None]) -> None:
        """From now on give lines of this level and above, as JSON, to `put` too, which must not wait; 0: no more. What is
        shown and kept stays as ordered.
        """
        self._told = (level, put) if level else None
        self.apply(self._order)

    def _begin_telling(self) -> None:
        if self._told is None:
            return
        level, put = self._told
        ordered = _AsOrdered(self._order)
        for handler in self._own:
            handler.addFilter(ordered)
        telling = _Telling(put, JsonLineFormatter(self._process, Redactor(self._order.secrets)))
        telling.setLevel(level)
        root = logging.getLogger()
        root.addHandler(telling)
        root.setLevel(min(level, NUMBER_BY_LEVEL[self._order.level]))
        self._own.append(telling)

    def get_retained_lines(self) -> list[str]:
        return list(self._kept)

    def close(self) -> None:
        root = logging.getLogger()
        for handler in self._own:
            root.removeHandler(handler)
            handler.close()
        self._own = []
        logging.captureWarnings(False)

    def _show(self, line: str) -> None:
        """In one write, so that the lines of several processes do not mix."""
        self._stream.write(line + "\n")
        self._stream.flush()

    def _form(self, order: LogConfiguration, redactor: Redactor, *, colours: bool, date: bool) -> logging.Formatter:
        if order.json:
            return JsonLineFormatter(self._process, redactor)
        return TextLineFormatter(self._process, redactor, has_colours=colours, has_date=date)

    def _set_levels(self, order: LogConfiguration) -> None:
        wanted = dict(_QUIETER) | _get_level_numbers(order)
        for name in self._levelled - set(wanted):
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in wanted.items():
            logging.getLogger(name).setLevel(level)
        self._levelled = set(wanted)
        logging.getLogger().setLevel(NUMBER_BY_LEVEL[order.level])


def _get_level_numbers(order: LogConfiguration) -> dict[str, int]:
    """By logger: libraries are named as they are, parts of Wharf as `get_logger_levels` says."""
    libraries = {name: level for name, level in order.levels.items() if name in _QUIETER}
    parts = {name: level for name, level in order.levels.items() if name not in _QUIETER}
    levels = libraries | get_logger_levels(parts)
    return {name: NUMBER_BY_LEVEL[level] for name, level in levels.items()}
