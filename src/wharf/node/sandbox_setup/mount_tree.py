"""The mounts of a sandbox. Every mount point is opened step by step without following links, and mounted by descriptor.

A bind mount gets its flags at a place that no task can reach, and is then copied to its target, because the kernel
cannot bind and restrict in one step, and a task could exchange the folders between two steps.
"""

import os
import stat

from wharf.node.sandbox_setup.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    SetupError,
    mount,
)

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
KEPT_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
"""Restrictions of a mount that a bind mount of it keeps."""
MAX_ATTEMPTS = 100
"""How often a mount point is created again if something else is in the way; a task can change its folders meanwhile."""
MAX_LINKS = 40
"""Links on the way to one file, as in the kernel."""


class MountTree:
    """The root of a sandbox, on which file systems are mounted."""

    def __init__(self, folder: str) -> None:
        """Copy the mounts at and below the task's folder, and hide its parent behind a place for bind mounts.

        Raises OSError.
        """
        source = os.open(folder, PATH_FLAGS | os.O_DIRECTORY)
        place = os.open(os.path.dirname(folder), PATH_FLAGS | os.O_DIRECTORY)
        mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k,mode=0700")
        os.close(place)
        self._staging = os.open(os.path.dirname(folder), PATH_FLAGS | os.O_DIRECTORY)
        self._staged = 0
        self._mounted: set[str] = set()
        self.root = self._stage(source, MS_NOSUID | MS_NODEV, MS_REC)

    def mount(self, file_system: str, path: str, flags: int, options: str = "") -> None:
        """Mount a new file system at `path`. Raises SetupError and OSError."""
        target = self.reach(path, is_folder=True)
        mount(file_system, target, file_system, flags, options)
        self._on_mounted(target, path)

    def bind(self, source: int, path: str, flags: int) -> None:
        """Mount the open folder or file `source` of the host at `path`. Raises SetupError and OSError."""
        self._bind_open(source, self.reach(path, is_folder=_is_folder(source)), path, flags)

    def bind_over_file(self, source: int, path: str) -> None:
        """Mount the open file `source` of the host read-only over the file that `path` leads to, if there is one.

        Links are followed inside of the sandbox only. Raises OSError.
        """
        target = self._find_file(path)
        if target is not None:
            self._bind_open(source, target, path, MS_RDONLY | MS_NOSUID | MS_NODEV)

    def protect(self, path: str) -> None:
        """Make a file or folder read-only, if it exists. Raises OSError."""
        try:
            target = self._walk(path)
        except FileNotFoundError:
            return
        self._bind_open(target, target, path, MS_RDONLY)

    def make_link(self, path: str, text: str) -> None:
        """Create a symbolic link in place of a file, a link or an empty folder. Raises SetupError and OSError."""
        parent_path, name = os.path.split(path)
        parent = self.reach(parent_path, is_folder=True)
        for _ in range(MAX_ATTEMPTS):
            try:
                os.symlink(text, name, dir_fd=parent)
            except FileExistsError:
                if _is_link(name, parent) and os.readlink(name, dir_fd=parent) == text:
                    break
                _remove(name, parent)
            else:
                break
        os.close(parent)

    def make_device(self, source: str, path: str, mode: int, uid: int) -> None:
        """Create a device file like the host's `source`, for this user. Raises SetupError and OSError."""
        status = os.stat(source)
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise SetupError(f"{source} is not a device file")
        parent_path, name = os.path.split(path)
        parent = self.reach(parent_path, is_folder=True)
        os.mknod(name, stat.S_IFMT(status.st_mode) | mode, status.st_rdev, dir_fd=parent)
        os.chown(name, uid, -1, dir_fd=parent, follow_symlinks=False)
        os.close(parent)

    def reach(self, path: str, *, is_folder: bool) -> int:
        """Return a descriptor of the mount point at `path`; what is missing is created.

        In the task's own folder, a file or link in the way is replaced. In what is mounted there, it is an error.
        Raises SetupError and OSError.
        """
        current, walked = os.dup(self.root), ""
        names = [name for name in path.split("/") if name]
        may_replace = True
        for position, name in enumerate(names):
            walked += f"/{name}"
            wants_folder = is_folder or position + 1 < len(names)
            following = _enter_or_create(current, name, walked, is_folder=wants_folder, may_replace=may_replace)
            os.close(current)
            current = following
            may_replace = may_replace and walked not in self._mounted
        return current

    def _bind_open(self, source: int, target: int, path: str, flags: int) -> None:
        """Mount the open `source` on the open `target`, and close the target. Raises OSError."""
        staged = self._stage(source, flags)
        mount(f"/proc/self/fd/{staged}", target, "", MS_BIND)
        os.close(staged)
        self._on_mounted(target, path)

    def _stage(self, source: int, flags: int, bind_flags: int = 0) -> int:
        """Bind the open `source` to a place that no task can reach, set the flags, and return it. Raises OSError."""
        name = str(self._staged)
        self._staged += 1
        if _is_folder(source):
            os.mkdir(name, 0o700, dir_fd=self._staging)
        else:
            os.mknod(name, stat.S_IFREG | 0o600, dir_fd=self._staging)
        place = os.open(name, PATH_FLAGS, dir_fd=self._staging)
        mount(f"/proc/self/fd/{source}", place, "", MS_BIND | bind_flags)
        os.close(place)
        staged = os.open(name, PATH_FLAGS, dir_fd=self._staging)
        retained = os.fstatvfs(staged).f_flag & KEPT_FLAGS
        mount("none", staged, "", MS_REMOUNT | MS_BIND | retained | flags)
        return staged

    def _on_mounted(self, target: int, path: str) -> None:
        """Close the mount point, and note its path."""
        os.close(target)
        self._mounted.add(path)

    def _find_file(self, path: str) -> int | None:
        """Return a descriptor of the file that `path` leads to in the sandbox; None if there is none."""
        pending = path
        for _ in range(MAX_LINKS):
            names: list[str] = []
            parts = [name for name in pending.split("/") if name not in ("", ".")]
            for position, name in enumerate(parts):
                if name == "..":
                    names = names[:-1]
                    continue
                try:
                    found = self._walk("/".join([*names, name]))
                except OSError:
                    return None
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    text = os.readlink("", dir_fd=found)
                    os.close(found)
                    start = [] if text.startswith("/") else names
                    pending = "/".join([*start, text, *parts[position + 1 :]])
                    break
                if position + 1 == len(parts):
                    return found if stat.S_ISREG(os.fstat(found).st_mode) else None
                os.close(found)
                names = [*names, name]
            else:
                return None
        return None

    def _walk(self, path: str) -> int:
        """Return a descriptor of the existing `path`; only its last part may be a link. Raises OSError."""
        current = os.dup(self.root)
        for name in path.split("/"):
            if name:
                try:
                    following = os.open(name, PATH_FLAGS, dir_fd=current)
                finally:
                    os.close(current)
                current = following
        return current


def _enter_or_create(parent: int, name: str, walked: str, *, is_folder: bool, may_replace: bool) -> int:
    """Open the folder or file `name` in `parent`, which is created if it is missing. Raises SetupError and OSError.

    `walked` is its path in the sandbox. `may_replace`: something of another type in the way is removed.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            found = os.open(name, PATH_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            try:
                if is_folder:
                    os.mkdir(name, 0o755, dir_fd=parent)
                else:
                    os.mknod(name, stat.S_IFREG | 0o644, dir_fd=parent)
            except FileExistsError:
                pass
            continue
        mode = os.fstat(found).st_mode
        if stat.S_ISDIR(mode) if is_folder else not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            return found
        os.close(found)
        if not may_replace:
            kind = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a file"
            raise SetupError(f"nothing can be mounted at {walked}: {kind} is in the way")
        _remove(name, parent)
    raise SetupError(f"nothing can be mounted at {walked}: it changes all the time")


def _remove(name: str, parent: int) -> None:
    """Remove a file, a link or an empty folder, if it exists. Raises OSError."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _is_folder(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def _is_link(name: str, parent: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
