"""The folder with the logs of one allocation, for its writers and its readers.

Every task of the allocation can rename, replace and fill this folder. It is therefore opened without links from a folder
that no task can change, and stays open: a link that a task puts in its place changes nothing. Which files belong to a log
is decided by `wharf.node.rotated_files` and `wharf.node.files`.
"""

import contextlib
import errno
import os
import stat
from itertools import islice
from pathlib import Path
from typing import Final

MAX_LOG_FOLDER_ENTRIES: Final = 20_000
"""Entries of a log folder that are listed; the others are ignored. Protects the processes of a node from a task that
fills its log folder."""
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS: Final = 3
"""How often a missing folder is created; limits a race against a task that deletes it again."""


class NotRegularFile(OSError):
    """The error of a name that belongs to a link, a folder, a pipe or a device, or to a file with too many names."""

    def __init__(self, name: str, *, is_folder: bool) -> None:
        super().__init__(errno.EINVAL, "not a regular file with one name", name)
        self.is_folder = is_folder


def open_regular_file(name: str, flags: int, *, folder: int, has_one_name: bool = False) -> int:
    """Open an existing regular file in the open folder `folder`, without links. Return its descriptor.

    Its type is checked before it is opened, because opening a pipe can block and opening a device can have an effect. With
    `has_one_name`, a file with several hard links is refused too. Raises NotRegularFile and other OSError.
    """
    handle = os.open(name, _PATH_FLAGS, dir_fd=folder)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or (has_one_name and status.st_nlink > 1):
            raise NotRegularFile(name, is_folder=stat.S_ISDIR(status.st_mode))
        # O_NONBLOCK, because a task can hold a lease on its own file, for which an open would wait.
        return os.open(f"/proc/self/fd/{handle}", flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(handle)


class LogFolder:
    """The open folder with the logs of an allocation. It is opened at the first use."""

    def __init__(self, path: Path, *, should_create: bool = False) -> None:
        """Create the object for the folder `path`. Links are refused in the last two names, such as `alloc/logs`.

        No task can change the folder before these. With `should_create`, missing folders are created.
        """
        self._trusted_folder = path.parent.parent
        self._steps = (path.parent.name, path.name)
        self.should_create = should_create
        self._descriptor: int | None = None

    def open(self) -> int:
        """Return the descriptor of the folder, which stays open until `close`. Raises OSError.

        If the folder was deleted, the one that has its name now is opened.
        """
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_nlink:
                return self._descriptor
            self.close()
        self._descriptor = self._open_from_trusted_folder()
        return self._descriptor

    def has_trusted_folder(self) -> bool:
        """Return whether the folder before the last two names exists, such as that of the allocation."""
        return self._trusted_folder.is_dir()

    def close(self) -> None:
        """Close the folder. The next use opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def list_numbers(self, stem: str) -> list[int]:
        """Return the numbers N of the names `<stem>N`, in ascending order; empty if the folder does not exist.

        At most `MAX_LOG_FOLDER_ENTRIES` entries are read. Raises OSError.
        """
        return self.scan(stem)[0]

    def scan(self, stem: str) -> tuple[list[int], int]:
        """Return the same as `list_numbers`, and the number of entries that were read. Raises OSError."""
        try:
            descriptor = self.open()
        except (FileNotFoundError, NotADirectoryError):
            return [], 0
        length, numbers, entry_count = len(stem), [], 0
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, MAX_LOG_FOLDER_ENTRIES):
                entry_count += 1
                if entry.name.startswith(stem) and _is_number(suffix := entry.name[length:]):
                    numbers.append(int(suffix))
        return sorted(numbers), entry_count

    def measure_file(self, name: str) -> int:
        """Return the size of a regular file in bytes; 0 for anything else. Raises OSError, also if it does not exist."""
        status = os.stat(name, dir_fd=self.open(), follow_symlinks=False)
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def _open_from_trusted_folder(self) -> int:
        """Open the folder and return its descriptor. Raises OSError."""
        if self.should_create:
            os.makedirs(self._trusted_folder, exist_ok=True)
        descriptor = os.open(self._trusted_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for step in self._steps:
            try:
                inner_descriptor = self._open_step(step, descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner_descriptor
        return descriptor

    def _open_step(self, name: str, parent: int) -> int:
        """Open the folder `name` in the open folder `parent`. Raises OSError.

        With `should_create`, a missing folder is created, and anything else of this name is removed first.
        """
        for _ in range(_ATTEMPTS if self.should_create else 0):
            try:
                return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=parent)
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)


def _is_number(suffix: str) -> bool:
    """Return whether the end of a name is a number that is used for log files: up to 15 digits, no leading zero."""
    return suffix.isascii() and suffix.isdecimal() and len(suffix) <= 15 and (suffix[0] != "0" or suffix == "0")
