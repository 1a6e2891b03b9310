"""What a program writes, moved from its pipe into files that are kept to a size and a count.

The kernel moves the bytes itself (splice), so that a supervisor killed in the middle loses none: what has left the pipe
is in the file.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from wharf.node.supervisor.messages import RunLogSettings

PIPE_BYTES: Final = 256 * 1024
MAX_MOVE_BYTES: Final = 1 << 20
F_SETPIPE_SZ: Final = 1031


class OutputBlocked(Exception):
    """The files cannot be written for now; what was not moved is still in the pipe."""


class LogPipe:
    """One pipe and the files behind it: `<task>.<stream>.<n>`, of which the newest are kept."""

    def __init__(self, pipe: Path, order: RunLogSettings, stream: str) -> None:
        # For writing too: a pipe that has a writer never ends, so nothing is told again and again when the others go.
        self.descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # Beyond what this user may have it stays as small as it is.
            fcntl.fcntl(self.descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self._order = order
        self._stem = f"{order.task}.{stream}."
        self._file: int | None = None
        self._number = 0
        self._size = 0

    def drain(self, *, is_complete: bool) -> None:
        """Move what is there; `wholly`: until there is nothing. Raises Stuck."""
        while True:
            moved = self._move()
            if not moved or (not is_complete and moved < MAX_MOVE_BYTES):
                return

    def _move(self) -> int:
        try:
            if self._order.is_off:
                return len(os.read(self.descriptor, MAX_MOVE_BYTES))
            file = self._open()
            room = max(1, self._order.max_file_bytes - self._size)
            moved = os.splice(
                self.descriptor, file, min(room, MAX_MOVE_BYTES), flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
            )
        except BlockingIOError:
            return 0
        except OSError as error:
            raise OutputBlocked(error.strerror or errno.errorcode.get(error.errno or 0, "?")) from error
        self._size += moved
        return moved

    def _open(self) -> int:
        """The file to write to; the next one where the newest is full."""
        if self._file is None:
            self._number = max(self._numbers(), default=0)
            self._file = self._open_number()
        if self._size >= self._order.max_file_bytes:
            os.close(self._file)
            self._number += 1
            self._file = self._open_number()
            for number in self._numbers():
                if number <= self._number - self._order.max_files:
                    (Path(self._order.folder) / f"{self._stem}{number}").unlink(missing_ok=True)
        return self._file

    def _open_number(self) -> int:
        # Not for appending: the kernel does not splice into such a file.
        name = f"{self._order.folder}/{self._stem}{self._number}"
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._size = os.lseek(file, 0, os.SEEK_END)
        return file

    def _numbers(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._order.folder)
            ends = [name.removeprefix(self._stem) for name in names if name.startswith(self._stem)]
            return [int(end) for end in ends if end.isdecimal()]
        os.makedirs(self._order.folder, exist_ok=True)
        return []

    def close(self) -> None:
        os.close(self.descriptor)
        if self._file is not None:
            os.close(self._file)
            self._file = None
