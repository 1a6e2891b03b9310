"""Moves a program's output from its pipe into log files that are limited in size and number.

The kernel moves the bytes (splice), so that a killed supervisor loses no output: bytes are in the pipe or in the file.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from wharf.node.rotated_files import RotatedFiles
from wharf.node.supervisor.messages import RunLogSettings

PIPE_BYTES: Final = 256 * 1024
"""Requested capacity of a pipe; a full pipe makes the program wait."""
MAX_MOVE_BYTES: Final = 1 << 20
"""Bytes moved at a time; protects other runs from a program that writes without pause."""
F_SETPIPE_SZ: Final = 1031


class OutputBlocked(Exception):
    """The error of log files that cannot be written at present. Output that was not moved is still in the pipe."""


class LogPipe:
    """The pipe of one output stream of a program, and the log files to which its output is moved."""

    def __init__(self, pipe: Path, settings: RunLogSettings, stream: str) -> None:
        """Open the pipe. `stream` is `stdout` or `stderr`. Raises OSError."""
        # Opened for writing too: then reads do not report the end of the pipe when all other writers have closed it.
        self.descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # Without permission, the pipe keeps its default size.
            fcntl.fcntl(self.descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self._folder = settings.folder
        self._is_off = settings.is_off
        # Without O_APPEND, because the kernel cannot splice into such a file.
        self._files = RotatedFiles(
            Path(settings.folder),
            settings.task,
            stream,
            max_files=settings.max_files,
            max_file_bytes=settings.max_file_bytes,
        )

    def drain(self, *, is_complete: bool) -> None:
        """Move available output from the pipe to the log files; if `is_complete`, until the pipe is empty.

        Raises OutputBlocked.
        """
        while True:
            moved = self._move()
            if not moved or (not is_complete and moved < MAX_MOVE_BYTES):
                return

    def _move(self) -> int:
        """Move up to MAX_MOVE_BYTES from the pipe to the current log file. Return the number of moved bytes.

        0 if the pipe is empty. If logs are off, the output is discarded. Raises OutputBlocked.
        """
        try:
            if self._is_off:
                return len(os.read(self.descriptor, MAX_MOVE_BYTES))
            file = self._open_file()
            moved = os.splice(
                self.descriptor,
                file,
                min(max(1, self._files.free_bytes), MAX_MOVE_BYTES),
                flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE,
            )
        except BlockingIOError:
            return 0
        except OSError as error:
            raise OutputBlocked(error.strerror or errno.errorcode.get(error.errno or 0, "?")) from error
        self._files.count_written(moved)
        return moved

    def _open_file(self) -> int:
        """Return the descriptor of the log file to write to; a missing folder is created. Raises OSError."""
        try:
            return self._files.open_writable()
        except FileNotFoundError:
            os.makedirs(self._folder, exist_ok=True)
            return self._files.open_writable()

    def close(self) -> None:
        """Close the pipe and the log file."""
        os.close(self.descriptor)
        self._files.close()
