"""Writes files below one folder and nowhere else, for paths that come from a job, an archive or another node.

Each folder of a path is opened by its name in its parent, never through a link. So neither a path in an archive nor a
link that an earlier entry or a task has left there leads outside. Reading for remote callers is in `wharf.node.files`.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, Final

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK, because opening a pipe must not block."""
MAX_PATH_CHARS: Final = 4_096
"""Limit of a path; protects error messages and the events of a task from paths of any length."""


class ConfinedPathError(Exception):
    """The error of a path that leads out of the folder, is invalid, or meets a file of another type."""


class ConfinedFolder:
    """A folder below which files are created, never outside of it.

    Everything created belongs to `owner` (uid and gid), if given.
    """

    def __init__(self, root: Path, owner: tuple[int, int] | None = None) -> None:
        self._root = root
        self._owner = owner

    @contextlib.contextmanager
    def open_folder(self, path: str = "") -> Iterator[int]:
        """Open an existing folder; empty: the root. Yield its descriptor. Raises ConfinedPathError and OSError."""
        with self._open_folder(_split_path(path) if path else [], create_missing=False) as folder:
            yield folder

    def exists(self, path: str) -> bool:
        """Return whether something has this path, also a link. Raises ConfinedPathError and OSError."""
        *folders, name = _split_path(path)
        try:
            with self._open_folder(folders, create_missing=False) as folder:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read_file(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a regular file. Raises ConfinedPathError, also for a longer file, and OSError."""
        with self.open_existing_file(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfinedPathError(f"{path[:200]} is not a regular file")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ConfinedPathError(f"{path[:200]} has more than {max_bytes:,} bytes")
        return data

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents; existing folders stay unchanged. Raises ConfinedPathError and OSError."""
        with self._open_folder(_split_path(path)):
            pass

    @contextlib.contextmanager
    def open_new_file(self, path: str, mode: int) -> Iterator[BinaryIO]:
        """Open a new file for writing; an existing file or link of that name is removed first.

        Raises ConfinedPathError and OSError.
        """
        *folders, name = _split_path(path)
        with self._open_folder(folders) as folder:
            self._remove_existing(name, folder)
            with self._create_file(name, mode, folder) as file:
                yield file

    def replace_file(self, path: str, data: bytes, mode: int) -> None:
        """Replace a file atomically: readers see the old or the new content. Raises ConfinedPathError and OSError."""
        *folders, name = _split_path(path)
        with self._open_folder(folders) as folder:
            draft = f".{name}.new"
            self._remove_existing(draft, folder)
            with self._create_file(draft, mode, folder) as file:
                file.write(data)
            try:
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except IsADirectoryError:
                os.unlink(draft, dir_fd=folder)
                raise _build_folder_exists_error(name) from None

    def create_link(self, path: str, target: str, *, may_lead_out: bool = False) -> None:
        """Create a symbolic link, in place of an existing file or link.

        A target outside of the folder is rejected, unless `may_lead_out`. Raises ConfinedPathError and OSError.
        """
        *folders, name = _split_path(path)
        if not may_lead_out and (target.startswith("/") or _leads_out(folders, target)):
            raise ConfinedPathError(f"{path[:200]} is a link to {target[:200]}, which is outside of the task's folder")
        with self._open_folder(folders) as folder:
            self._remove_existing(name, folder)
            os.symlink(target, name, dir_fd=folder)
            if self._owner:
                with open_entry(name, folder, stat.S_IFLNK) as link:
                    os.chown(get_descriptor_path(link), *self._owner)

    def create_hard_link(self, path: str, existing_path: str) -> None:
        """Create a second name `path` for the regular file `existing_path`; both are relative to the folder.

        An existing file or link at `path` is replaced. Raises ConfinedPathError and OSError.
        """
        *folders, name = _split_path(path)
        *existing_folders, existing_name = _split_path(existing_path)
        with self._open_folder(folders) as folder, self._open_folder(existing_folders) as existing_folder:
            status = os.stat(existing_name, dir_fd=existing_folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise ConfinedPathError(
                    f"{path[:200]} is a hard link to {existing_path[:200]}, which is not a regular file"
                )
            self._remove_existing(name, folder)
            os.link(existing_name, name, src_dir_fd=existing_folder, dst_dir_fd=folder, follow_symlinks=False)

    def open_existing_file(self, path: str) -> BinaryIO:
        """Open a file for reading. Links are not followed. Raises ConfinedPathError and OSError."""
        *folders, name = _split_path(path)
        with self._open_folder(folders, create_missing=False) as folder:
            return os.fdopen(os.open(name, _READ_FLAGS, dir_fd=folder), "rb")

    def has_content(self, path: str, data: bytes) -> bool:
        """Return whether the path is a regular file with exactly this content. Never reads more than that.

        Raises ConfinedPathError and OSError.
        """
        *folders, name = _split_path(path)
        try:
            with self._open_folder(folders, create_missing=False) as folder:
                descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # Missing, a link, or a socket.
                return False
            raise
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != len(data):
                return False
            return _read_at_most(file, len(data)) == data

    @contextlib.contextmanager
    def _create_file(self, name: str, mode: int, folder: int) -> Iterator[BinaryIO]:
        """Create a file for writing; its mode and owner are set after the content is written.

        Until then only the node's user can read it. `folder` is an open descriptor.
        """
        descriptor = os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(descriptor, mode)
            if self._owner:
                os.fchown(descriptor, *self._owner)

    @contextlib.contextmanager
    def _open_folder(self, steps: list[str], *, create_missing: bool = True) -> Iterator[int]:
        """Open the folder that the names `steps` lead to, and yield its descriptor, which is closed afterwards.

        `create_missing`: missing folders are created. Links are not followed. Raises ConfinedPathError and OSError.
        """
        descriptor = os.open(self._root, _FOLDER_FLAGS)
        try:
            for step in steps:
                descriptor = self._enter(descriptor, step, create_missing=create_missing)
            yield descriptor
        finally:
            os.close(descriptor)

    def _enter(self, parent: int, name: str, *, create_missing: bool) -> int:
        """Open the folder `name` in the folder `parent`, close `parent`, and return the new descriptor.

        `create_missing`: a missing folder is created. Raises ConfinedPathError if the name is a file or link, and OSError.
        """
        is_new = False
        try:
            if create_missing:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=parent)
                    is_new = True
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise ConfinedPathError(f"{name[:200]} is not a folder: a file or link has that name") from None
            raise
        if is_new and self._owner:
            try:
                os.fchown(descriptor, *self._owner)
            except OSError:
                os.close(descriptor)
                raise
        os.close(parent)  # Last: the caller closes it after an error.
        return descriptor

    @staticmethod
    def _remove_existing(name: str, folder: int) -> None:
        """Remove a file or link of this name, if it exists. Raises ConfinedPathError for a folder."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise _build_folder_exists_error(name)
            os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def open_entry(name: str, folder: int, file_type: int) -> Iterator[int]:
    """Open an entry of the open folder, of a type such as `stat.S_IFSOCK`, only to change its owner or mode.

    Links are not followed. Yield its descriptor. Raises ConfinedPathError if it has another type, and OSError.
    """
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if stat.S_IFMT(os.fstat(descriptor).st_mode) != file_type:
            raise ConfinedPathError(f"{name[:200]} was replaced by another file")
        yield descriptor
    finally:
        os.close(descriptor)


def get_descriptor_path(descriptor: int) -> str:
    """Return the path of an open file for calls that take no descriptor; it leads to this file, whatever its name is."""
    return f"/proc/self/fd/{descriptor}"


def make_open_folder(name: str, mode: int, folder: int) -> None:
    """Create a folder with exactly this mode in the open folder, unless something has that name. Raises OSError."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return
    descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _read_at_most(file: RawIOBase, count: int) -> bytes:
    """Return the next bytes of a file, fewer than `count` if it ends before."""
    data = bytearray()
    while len(data) < count and (part := file.read(count - len(data))):
        data += part
    return bytes(data)


def _build_folder_exists_error(name: str) -> ConfinedPathError:
    return ConfinedPathError(f"{name[:200]} is a folder already, where a file should be")


def _split_path(path: str) -> list[str]:
    """Return the names in a relative path.

    Raises ConfinedPathError if the path is empty, absolute, too long, or contains `..` or a null character.
    """
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if ".." in steps or path.startswith("/") or "\0" in path:
        raise ConfinedPathError(f"{path[:200]!r} leads out of the task's folder")
    if len(path) > MAX_PATH_CHARS:
        raise ConfinedPathError(f"a path of {len(path)} characters is too long; the limit is {MAX_PATH_CHARS}")
    if not steps:
        raise ConfinedPathError("an entry has no name")
    return steps


def _leads_out(folders: list[str], target: str) -> bool:
    """Return whether a symbolic link with the relative `target`, placed in `folders`, leads above the root folder."""
    depth = len(folders)
    for step in target.split("/"):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return True
    return False
