"""Moves a program's output from its pipe into log files that are limited in size and number.

The kernel moves the bytes (splice), so that a killed supervisor loses no output: bytes are in the pipe or in the file.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from wharf.node.supervisor.messages import RunLogSettings

PIPE_BYTES: Final = 256 * 1024
"""Requested capacity of a pipe; a full pipe makes the program wait."""
MAX_MOVE_BYTES: Final = 1 << 20
F_SETPIPE_SZ: Final = 1031


class OutputBlocked(Exception):
    """The log files cannot be written at present. Output that was not moved is still in the pipe."""


class LogPipe:
    """One pipe and its log files `<task>.<stream>.<n>`, of which the newest are retained."""

    def __init__(self, pipe: Path, settings: RunLogSettings, stream: str) -> None:
        """`stream`: `stdout` or `stderr`. Raises OSError."""
        # Opened for writing too: a pipe that has a writer reports no suffix of file when the other writers close it.
        self.descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # Without permission, the pipe keeps its default size.
            fcntl.fcntl(self.descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self._settings = settings
        self._stem = f"{settings.task}.{stream}."
        self._file: int | None = None
        self._number = 0
        self._size = 0

    def drain(self, *, is_complete: bool) -> None:
        """Move available output to the files; if `is_complete`, until the pipe is empty. Raises OutputBlocked."""
        while True:
            moved = self._move()
            if not moved or (not is_complete and moved < MAX_MOVE_BYTES):
                return

    def _move(self) -> int:
        """Move up to MAX_MOVE_BYTES and return the number of bytes moved. Raises OutputBlocked."""
        try:
            if self._settings.is_off:
                return len(os.read(self.descriptor, MAX_MOVE_BYTES))
            file = self._open()
            capacity_bytes = max(1, self._settings.max_file_bytes - self._size)
            moved = os.splice(
                self.descriptor,
                file,
                min(capacity_bytes, MAX_MOVE_BYTES),
                flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE,
            )
        except BlockingIOError:
            return 0
        except OSError as error:
            raise OutputBlocked(error.strerror or errno.errorcode.get(error.errno or 0, "?")) from error
        self._size += moved
        return moved

    def _open(self) -> int:
        """Return the file to write to. If the newest is full, open the next and delete the oldest."""
        if self._file is None:
            self._number = max(self._list_file_numbers(), default=0)
            self._file = self._open_number()
        if self._size >= self._settings.max_file_bytes:
            os.close(self._file)
            self._number += 1
            self._file = self._open_number()
            for number in self._list_file_numbers():
                if number <= self._number - self._settings.max_files:
                    (Path(self._settings.folder) / f"{self._stem}{number}").unlink(missing_ok=True)
        return self._file

    def _open_number(self) -> int:
        # Not O_APPEND: the kernel does not splice into such a file.
        name = f"{self._settings.folder}/{self._stem}{self._number}"
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._size = os.lseek(file, 0, os.SEEK_END)
        return file

    def _list_file_numbers(self) -> list[int]:
        """Return the numbers of the existing log files. Creates the folder if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._settings.folder)
            suffixes = [name.removeprefix(self._stem) for name in names if name.startswith(self._stem)]
            return [int(suffix) for suffix in suffixes if suffix.isdecimal()]
        os.makedirs(self._settings.folder, exist_ok=True)
        return []

    def close(self) -> None:
        os.close(self.descriptor)
        if self._file is not None:
            os.close(self._file)
            self._file = None
