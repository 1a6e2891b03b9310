"""The log files `<task>.<stream>.<n>` of one output stream, limited in size and number; the newest are retained.

Tasks can write to the folder. A name that belongs to anything but a log file of this stream, such as a pipe or a folder,
is skipped, and the next number is used. Reading logs for remote callers is in `wharf.node.files`.
"""

import contextlib
import errno
import os
from typing import Final, NamedTuple

from wharf.node.log_folder import LogFolder, NotRegularFile, open_regular_file

MAX_SKIPPED_NUMBERS: Final = 100
"""Numbers that are skipped at a time because their names do not belong to log files. Protects the writer of all logs of
a node from a task that takes many names."""
_OBSTACLE_ERRORS: Final = frozenset({
    errno.EAGAIN,  # A task holds a lease on its own file.
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,  # It was deleted meanwhile.
    errno.ETXTBSY,  # A task executes it.
})  # fmt: skip
"""Errors for which an existing file is skipped. Other errors, such as a full disk, are temporary."""


class LogFilePosition(NamedTuple):
    """The position up to which a stream was written: the number of its newest log file and that file's size."""

    number: int = 0
    size: int = 0  # in bytes


class RotatedFiles:
    """The log files of one output stream, of which at most one is open. Writes are not buffered."""

    def __init__(
        self, folder: LogFolder, task: str, stream: str, *, max_files: int, max_file_bytes: int, open_flags: int = 0
    ) -> None:
        """Create the writer for the files `<task>.<stream>.<n>`. `stream` is `stdout` or `stderr`.

        `open_flags` are added to the flags of open(2). The caller closes `folder`.
        """
        self.folder = folder
        self._stem = f"{task}.{stream}."
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._flags = os.O_WRONLY | open_flags
        self._descriptor: int | None = None
        self._number = 0
        self._size = 0
        self._min_number = 0
        """Smaller numbers are not used any more: they were skipped."""

    @property
    def free_bytes(self) -> int:
        """The number of bytes that the open file can take before it reaches the size limit."""
        return self._max_file_bytes - self._size

    def open_newest(self) -> LogFilePosition:
        """Open the newest file, if none is open. Return the position of the next byte. Raises OSError."""
        if self._descriptor is None:
            newest_numbers = self.folder.list_numbers(self._stem)[-1:]
            self._open(max([self._min_number, *newest_numbers]))
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
        total = 0
        for number in self.folder.list_numbers(self._stem):
            if number >= position.number:
                with contextlib.suppress(FileNotFoundError):  # The task has deleted it.
                    total += self.folder.measure_file(f"{self._stem}{number}")
        return max(0, total - position.size)

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, first_number: int) -> None:
        """Open the file with this number, or with the next number that can be used. Store its number and size.

        The next attempt continues after the numbers that were skipped. Raises OSError.
        """
        for number in range(first_number, first_number + MAX_SKIPPED_NUMBERS):
            descriptor = self._open_number(number)
            if descriptor is not None:
                self._descriptor = descriptor
                self._number, self._size = number, os.lseek(descriptor, 0, os.SEEK_END)
                return
        self._min_number = first_number + MAX_SKIPPED_NUMBERS
        raise FileExistsError(errno.EEXIST, "files that are no log files have the names of the next log files")

    def _open_number(self, number: int) -> int | None:
        """Create or open the file with this number and return its descriptor. Raises OSError.

        `None` if something else has its name. A file with several names is refused: the others may be in another folder.
        """
        name, folder = f"{self._stem}{number}", self.folder.open()
        flags = self._flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileExistsError):
            return os.open(name, flags, 0o644, dir_fd=folder)
        try:
            return open_regular_file(name, self._flags, folder=folder, has_one_name=True)
        except NotRegularFile:
            return None
        except OSError as error:
            if error.errno not in _OBSTACLE_ERRORS:
                raise
            return None

    def _delete_oldest(self) -> None:
        """Delete the files that are older than the newest `max_files` files. What cannot be deleted is left."""
        folder = self.folder.open()
        for number in self.folder.list_numbers(self._stem):
            if number <= self._number - self._max_files:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._stem}{number}", dir_fd=folder)
