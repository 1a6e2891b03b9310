"""Making files below one folder, and nowhere else.

Every folder on the way is opened by its name and never through a link, so neither a path in an archive nor a link that
an earlier entry or a task left there leads outside.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from wharf.node.artifacts.errors import ArtifactError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_PATH_CHARS: Final = 4_096


class ConfinedFolder:
    """Creates files below one folder only. Everything created belongs to `owner` (uid and gid)."""

    def __init__(self, root: Path, owner: tuple[int, int] | None = None) -> None:
        self._root = root
        self._owner = owner

    def make_folder(self, path: str) -> None:
        with self._folder(_steps(path)):
            pass

    @contextlib.contextmanager
    def open_new_file(self, path: str, mode: int) -> Iterator[BinaryIO]:
        """Open a new file; it replaces an existing one."""
        *folders, name = _steps(path)
        with self._folder(folders) as folder:
            self._clear(name, folder)
            handle = os.open(name, _FILE, 0o600, dir_fd=folder)
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fchmod(handle, mode)
                if self._owner:
                    os.fchown(handle, *self._owner)

    def replace_file(self, path: str, data: bytes, mode: int) -> None:
        """Replace a file atomically: readers see the old or the new content."""
        *folders, name = _steps(path)
        with self._folder(folders) as folder:
            draft = f".{name}.new"
            self._clear(draft, folder)
            handle = os.open(draft, _FILE, 0o600, dir_fd=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(handle, mode)
                if self._owner:
                    os.fchown(handle, *self._owner)
            try:
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except IsADirectoryError:
                os.unlink(draft, dir_fd=folder)
                raise ArtifactError(
                    f"{name[:200]} is a folder already, where a file should be", is_permanent=True
                ) from None

    def create_link(self, path: str, target: str, *, may_lead_out: bool = False) -> None:
        """Create a symbolic link. A target outside of the folder is rejected, unless `may_lead_out`."""
        *folders, name = _steps(path)
        if not may_lead_out and (target.startswith("/") or _leads_out(folders, target)):
            raise ArtifactError(
                f"{path[:200]} is a link to {target[:200]}, outside of the task's folder", is_permanent=True
            )
        with self._folder(folders) as folder:
            self._clear(name, folder)
            os.symlink(target, name, dir_fd=folder)
            if self._owner:
                os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)

    def create_hard_link(self, path: str, other: str) -> None:
        """Create a second name for a file below the folder."""
        *folders, name = _steps(path)
        *other_folders, other_name = _steps(other)
        with self._folder(folders) as folder, self._folder(other_folders) as other_folder:
            found = os.stat(other_name, dir_fd=other_folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise ArtifactError(
                    f"{path[:200]} is another name of {other[:200]}, which is no file", is_permanent=True
                )
            self._clear(name, folder)
            os.link(other_name, name, src_dir_fd=other_folder, dst_dir_fd=folder, follow_symlinks=False)

    @contextlib.contextmanager
    def _folder(self, steps: list[str]) -> Iterator[int]:
        handle = os.open(self._root, _FOLDER)
        try:
            for step in steps:
                handle = self._enter(handle, step)
            yield handle
        finally:
            os.close(handle)

    def _enter(self, parent: int, name: str) -> int:
        """The folder below, made where there is none. The parent is closed."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
                if self._owner:
                    os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)
            entered = os.open(name, _FOLDER, dir_fd=parent)
        except (NotADirectoryError, OSError) as error:
            if isinstance(error, NotADirectoryError) or error.errno == 40:  # ELOOP: a link
                raise ArtifactError(
                    f"{name[:200]} is no folder: something else has that name", is_permanent=True
                ) from None
            raise
        os.close(parent)
        return entered

    @staticmethod
    def _clear(name: str, folder: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise ArtifactError(f"{name[:200]} is a folder already, where a file should be", is_permanent=True)
            os.unlink(name, dir_fd=folder)


def _steps(path: str) -> list[str]:
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if ".." in steps or path.startswith("/") or "\0" in path:
        raise ArtifactError(f"{path[:200]!r} leads out of the task's folder", is_permanent=True)
    if len(path) > MAX_PATH_CHARS:
        raise ArtifactError(f"a path of {len(path)} characters is too long", is_permanent=True)
    if not steps:
        raise ArtifactError("an entry without a name", is_permanent=True)
    return steps


def _leads_out(folders: list[str], target: str) -> bool:
    depth = len(folders)
    for step in target.split("/"):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return True
    return False
