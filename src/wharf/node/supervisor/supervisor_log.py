"""The log file of the task supervisor, limited in size: `supervisor.log` and one older file.

The supervisor's standard error is this file, so that it also has the error with which a supervisor ends.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO, Final

LOG_FILE: Final = "supervisor.log"
OLD_LOG_FILE: Final = "supervisor.log.1"
MAX_LOG_BYTES: Final = 5_000_000
"""Size at which a new log file is begun; protects the disk of the node. The file before the older one is deleted."""


def open_log(folder: Path) -> BinaryIO:
    """Open the log file in the supervisor's folder for appending; begin a new one if it is full. Raises OSError."""
    with contextlib.suppress(OSError):
        if (folder / LOG_FILE).stat().st_size >= MAX_LOG_BYTES:
            os.replace(folder / LOG_FILE, folder / OLD_LOG_FILE)
    return open(folder / LOG_FILE, "ab")


class StandardErrorHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers
    """Writes log lines to standard error, and begins a new log file when standard error is a full one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(sys.stderr)
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. Errors are ignored: nothing else can be done about them here."""
        super().emit(record)
        with contextlib.suppress(OSError):
            self._rotate_if_full()

    def _rotate_if_full(self) -> None:
        """Begin a new log file if standard error is the log file of the folder and is full. Raises OSError."""
        descriptor = sys.stderr.fileno()
        status = os.fstat(descriptor)
        if status.st_size < MAX_LOG_BYTES or not os.path.samestat(status, os.stat(self._folder / LOG_FILE)):
            return
        with open_log(self._folder) as file:
            for standard_descriptor in (sys.stdout.fileno(), descriptor):
                os.dup2(file.fileno(), standard_descriptor)
