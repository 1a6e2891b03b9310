"""The log files `<task>.<stream>.<n>` of one output stream, limited in size and number; the newest are retained.

Reading logs for remote callers is in `wharf.node.files`.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class LogFilePosition(NamedTuple):
    """The position up to which a stream was written: the number of its newest log file and that file's size."""

    number: int = 0
    size: int = 0  # in bytes


class RotatedFiles:
    """The log files of one output stream, of which at most one is open. Writes are not buffered."""

    def __init__(
        self, folder: Path, task: str, stream: str, *, max_files: int, max_file_bytes: int, open_flags: int = 0
    ) -> None:
        """Create the writer for the files `<task>.<stream>.<n>`. `stream` is `stdout` or `stderr`.

        `open_flags` are added to the flags of open(2).
        """
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
        """The number of bytes that the open file can take before it reaches the size limit."""
        return self._max_file_bytes - self._size

    def open_newest(self) -> LogFilePosition:
        """Open the newest file, if none is open. Return the position of the next byte. Raises OSError."""
        if self._descriptor is None:
            self._open(max(self._list_numbers(), default=0))
        return LogFilePosition(self._number, self._size)

    def open_writable(self) -> int:
        """Return the descriptor of a file that is not full: the newest, or a new one. Raises OSError.

        When a new file is opened, files beyond `max_files` are deleted. The caller reports written bytes with
        `count_written`.
        """
        self.open_newest()
        if self._size >= self._max_file_bytes:
            self.close()
            self._open(self._number + 1)
            self._delete_oldest()
        assert self._descriptor is not None, "opened above"
        return self._descriptor

    def count_written(self, byte_count: int) -> None:
        """Add to the size of the open file the bytes that the caller has written to it."""
        self._size += byte_count

    def write(self, data: bytes) -> None:
        """Write all of `data`, starting a new file whenever the size limit is reached.

        Raises OSError; bytes written before the error are included in the position.
        """
        remaining = memoryview(data)
        while remaining:
            descriptor = self.open_writable()
            written = os.write(descriptor, remaining[: self.free_bytes])
            self.count_written(written)
            remaining = remaining[written:]

    def count_bytes_after(self, position: LogFilePosition) -> int:
        """Return the number of bytes that the files hold after this position. Raises OSError."""
        sizes = {number: os.path.getsize(self._get_path(number)) for number in self._list_numbers()}
        return max(0, sum(size for number, size in sizes.items() if number >= position.number) - position.size)

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, file_number: int) -> None:
        """Open the file with this number for appending, and store its number and size. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | self._open_flags
        self._descriptor = os.open(self._get_path(file_number), flags, 0o644)
        self._number, self._size = file_number, os.lseek(self._descriptor, 0, os.SEEK_END)

    def _delete_oldest(self) -> None:
        """Delete the files that are older than the newest `max_files` files."""
        for number in self._list_numbers():
            if number <= self._number - self._max_files:
                Path(self._get_path(number)).unlink(missing_ok=True)

    def _get_path(self, file_number: int) -> str:
        return f"{self._folder}/{self._stem}{file_number}"

    def _list_numbers(self) -> list[int]:
        """Return the numbers of the existing files; empty if the folder does not exist. Raises OSError."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._folder)
        suffixes = [name.removeprefix(self._stem) for name in names if name.startswith(self._stem)]
        return [int(suffix) for suffix in suffixes if suffix.isdecimal()]
