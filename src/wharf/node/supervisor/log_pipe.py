"""Moves a program's output from its pipe into log files that are limited in size and number.

The kernel moves the bytes (splice), so that a killed supervisor loses no output: bytes are in the pipe or in the file.
"""

import contextlib
import errno
import fcntl
import os
import termios
from array import array
from pathlib import Path
from typing import Final

from wharf.node.log_folder import LogFolder
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

    def __init__(self, pipe: Path, folder: LogFolder, settings: RunLogSettings, stream: str) -> None:
        """Open the pipe. `stream` is `stdout` or `stderr`. The caller closes `folder`. Raises OSError."""
        # Opened for writing too: then reads do not report the end of the pipe when all other writers have closed it.
        self.descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # Without permission, the pipe keeps its default size.
            fcntl.fcntl(self.descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self._is_off = settings.is_off
        # Without O_APPEND, because the kernel cannot splice into such a file.
        self._files = RotatedFiles(
            folder,
            settings.task,
            stream,
            max_files=settings.max_files,
            max_file_bytes=settings.max_file_bytes,
        )

    def count_pending_bytes(self) -> int:
        """Return the number of bytes in the pipe that were not moved yet."""
        buffer = array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.descriptor, termios.FIONREAD, buffer)
        return buffer[0]

    def move_available(self) -> None:
        """Move output from the pipe to the log files, at most MAX_MOVE_BYTES. Raises OutputBlocked."""
        self._move()

    def move_pending(self) -> None:
        """Move all output that is in the pipe now to the log files. Raises OutputBlocked.

        Output that a process writes meanwhile is not waited for: it may have no end.
        """
        remaining = self.count_pending_bytes()
        while remaining > 0 and (moved := self._move()):
            remaining -= moved

    def _move(self) -> int:
        """Move up to MAX_MOVE_BYTES from the pipe to the current log file. Return the number of moved bytes.

        0 if the pipe is empty. If logs are off, the output is discarded. Raises OutputBlocked.
        """
        try:
            if self._is_off:
                return len(os.read(self.descriptor, MAX_MOVE_BYTES))
            file = self._files.open_writable()
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

    def close(self) -> None:
        """Close the pipe and the log file."""
        os.close(self.descriptor)
        self._files.close()
