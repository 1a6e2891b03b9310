"""The log files `<task>.<stream>.<n>` of one output stream, limited in size and number; the newest are retained.

Reading logs for remote callers is in `wharf.node.files`.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class LogFilePosition(NamedTuple):
    """How far a stream was written: the number of its newest log file and that file's size."""

    number: int = 0
    size: int = 0


class RotatedFiles:
    """The log files of one stream, of which at most one is open. Writes are not buffered."""

    def __init__(
        self, folder: Path, task: str, stream: str, *, max_files: int, max_file_bytes: int, open_flags: int = 0
    ) -> None:
        """`stream`: `stdout` or `stderr`. `open_flags`: added to the flags of open(2)."""
        self._folder = str(folder)
        self._stem = f"{task}.{stream}."
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._open_flags = open_flags
        self._descriptor: int | None = None
        self._number = 0
        self._size = 0

    @property
    def free_bytes(self) -> int:
        """How many bytes the open file can still take."""
        return self._max_file_bytes - self._size

    def open_newest(self) -> LogFilePosition:
        """Open the newest file if none is open, and return the position of the next byte. Raises OSError."""
        if self._descriptor is None:
            self._open(max(self._list_numbers(), default=0))
        return LogFilePosition(self._number, self._size)

    def open_writable(self) -> int:
        """Return the descriptor of the newest file; if it is full, open the next and delete the oldest.

        The caller reports written bytes with `count_written`. Raises OSError.
        """
        self.open_newest()
        if self._size >= self._max_file_bytes:
            self.close()
            self._open(self._number + 1)
            self._delete_oldest()
        assert self._descriptor is not None, "opened above"
        return self._descriptor

    def count_written(self, count: int) -> None:
        """Add bytes that were written to the open file."""
        self._size += count

    def write(self, data: bytes) -> None:
        """Write data and start new files at the size limit.

        Raises OSError; bytes written before the error are included in the position.
        """
        remaining = memoryview(data)
        while remaining:
            descriptor = self.open_writable()
            written = os.write(descriptor, remaining[: self.free_bytes])
            self.count_written(written)
            remaining = remaining[written:]

    def count_bytes_after(self, position: LogFilePosition) -> int:
        """Return how many bytes the files hold after this position. Raises OSError."""
        sizes = {number: os.path.getsize(self._get_path(number)) for number in self._list_numbers()}
        return max(0, sum(size for number, size in sizes.items() if number >= position.number) - position.size)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | self._open_flags
        self._descriptor = os.open(self._get_path(number), flags, 0o644)
        self._number, self._size = number, os.lseek(self._descriptor, 0, os.SEEK_END)

    def _delete_oldest(self) -> None:
        for number in self._list_numbers():
            if number <= self._number - self._max_files:
                Path(self._get_path(number)).unlink(missing_ok=True)

    def _get_path(self, number: int) -> str:
        return f"{self._folder}/{self._stem}{number}"

    def _list_numbers(self) -> list[int]:
        """Return the numbers of the existing files; empty if the folder does not exist. Raises OSError."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._folder)
        suffixes = [name.removeprefix(self._stem) for name in names if name.startswith(self._stem)]
        return [int(suffix) for suffix in suffixes if suffix.isdecimal()]
