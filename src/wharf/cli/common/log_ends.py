"""The last lines that a failed task printed, as commands show them below the reason of the failure."""

import itertools
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import Session
from wharf.cli.common.task_output import clean_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LINES: Final = 5
"""Limit of the lines that are shown; keeps the output readable."""
MAX_LINE_CHARS: Final = 200
"""Limit of a shown line; its begin is cut off, because causes are at the end."""
READ_BYTES: Final = 8_192
"""How much of the end of a log is read to find its last lines."""
READ_TIMEOUT_S: Final = 5.0
"""Limit of the wait for a node. The reason of a failure must appear even if the node is away."""
MAX_READ_LOGS: Final = 20
"""Limit of the logs that one command reads. Protects nodes from a command that follows a job whose tasks fail again and again."""


class LogEnds:
    """Reads the ends of logs, each one once: a followed job is shown many times."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lines: dict[tuple[str, str], list[str]] = {}

    def read(self, alloc_id: str, task: str, namespace: str) -> "Sequence[str]":
        """Return the last lines of a task; none if its log is not readable, or after `MAX_READ_LOGS` logs."""
        key = (alloc_id, task)
        if key not in self._lines and len(self._lines) < MAX_READ_LOGS:
            self._lines[key] = read_log_end(self._session, alloc_id, task, namespace)
        return self._lines.get(key, ())


def read_log_end(session: Session, alloc_id: str, task: str, namespace: str) -> list[str]:
    """Return the last lines that a task printed to stderr, or else to stdout; none if no log is readable."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    for stream in ("stderr", "stdout"):
        chunks = session.client.files.logs(
            alloc_id,
            task,
            type=stream,
            origin="end",
            offset=READ_BYTES,
            namespace=namespace,
            timeout_s=READ_TIMEOUT_S,
        )
        try:
            content = b"".join(chunks)
        except Unreachable:
            return []
        except Refusal:
            continue
        if lines := get_last_lines(content):
            return lines
    return []


def get_last_lines(content: bytes) -> list[str]:
    """Return the last lines of the end of a log, without empty ones, escapes and colours.

    A log that is longer than `READ_BYTES` begins within a line, which is left out.
    """
    raw_lines = content.split(b"\n")
    if len(content) >= READ_BYTES and len(raw_lines) > 1:
        raw_lines = raw_lines[1:]
    lines = [_strip_unprintable(line) for raw_line in raw_lines[-4 * MAX_LINES :] for line in clean_lines(raw_line)]
    return _count_repetitions([line[-MAX_LINE_CHARS:] for line in lines if line])[-MAX_LINES:]


def _count_repetitions(lines: "Sequence[str]") -> list[str]:
    """Return lines with each sequence of equal ones, such as of several attempts, as one line with their number."""
    counted = [(line, len(list(group))) for line, group in itertools.groupby(lines)]
    return [line if count == 1 else f"{line} ({count} times)" for line, count in counted]


def _strip_unprintable(line: str) -> str:
    text = click.unstyle(line).expandtabs(4)
    return "".join(character for character in text if character.isprintable()).rstrip()
