"""The root filesystem of a sandbox: the task's folder, with read-only host folders mounted below it.

Mount points are created in the task's folder. The task owns that folder and may have placed symbolic links in it, so
every path is opened step by step without following links. The mounts are made later, by the launch script in its own
namespace.
"""

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_FOLDERS: Final[Mapping[str, str]] = {
    path: path
    for path in (
        *("/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/run/systemd/resolve", "/sbin", "/usr"),
    )
}
RESERVED_TARGETS: Final = ("/alloc", "/dev", "/local", "/proc", "/secrets", "/tmp")
"""Paths of the sandbox that a job cannot cover with a mount."""
READ_ONLY_PROC_ENTRIES: Final = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "acpi",
    "scsi",
    "timer_list",
    "latency_stats",
)
"""Entries of `/proc` by which root in the sandbox could change settings of the host."""
SHARED_MEMORY_SIZE: Final = "64m"
READ_ONLY_OPTIONS: Final = "bind,ro,nosuid,nodev"
WRITABLE_OPTIONS: Final = "bind,nosuid,nodev"


class RootFilesystemError(Exception):
    """The error of a root file system that cannot be created. Its message is a sentence for the task's owner."""


class BindMount(NamedTuple):
    """A host folder or file that is mounted at a path in the sandbox."""

    source: str  # on the host
    target: str  # in the sandbox
    is_read_only: bool = True


class RootFilesystem:
    """The root file system of one task's sandbox: its folder, and the mounts in it."""

    def __init__(
        self,
        folder: Path,
        shared: Path,
        bindings: Iterable[BindMount],
        *,
        files: Iterable[BindMount] = (),
        has_own_ipc: bool = True,
    ) -> None:
        """Create the description; `build_fstab` creates the mount points.

        `folder` is the task's folder, `shared` the allocation's folder, `bindings` are host folders, and `files` are
        mounted over files of the host folders.
        """
        self._files = tuple(files)
        self.folder = folder
        self._bindings = sorted(bindings, key=lambda each: each.target)
        self._shared = shared
        self._has_own_ipc = has_own_ipc

    def build_fstab(self) -> str:
        """Create the mount points in the task's folder, and return all mounts as a text like /etc/fstab.

        Raises RootFilesystemError.
        """
        root = str(self.folder)
        lines = [
            _format_line(root, root, "none", "rbind,nosuid,nodev"),
            _format_line("proc", f"{root}/proc", "proc", "nosuid,nodev,noexec"),
        ]
        lines += [
            _format_line(f"{root}/proc/{name}", f"{root}/proc/{name}", "none", "bind,ro")
            for name in READ_ONLY_PROC_ENTRIES
            if os.path.exists(f"/proc/{name}")
        ]
        lines += [
            _format_line("tmpfs", f"{root}/dev", "tmpfs", "nosuid,noexec,size=64k,mode=0755"),
            _format_line(
                "devpts", f"{root}/dev/pts", "devpts", "X-mount.mkdir,newinstance,ptmxmode=0666,mode=0620,nosuid,noexec"
            ),
        ]
        memory_options = f"X-mount.mkdir,nosuid,nodev,noexec,mode=1777,size={SHARED_MEMORY_SIZE}"
        shared_memory = (
            ("tmpfs", "tmpfs", memory_options)
            if self._has_own_ipc
            else ("/dev/shm", "none", f"X-mount.mkdir,{WRITABLE_OPTIONS}")
        )
        lines.append(_format_line(shared_memory[0], f"{root}/dev/shm", shared_memory[1], shared_memory[2]))
        lines.append(_format_line(str(self._shared), f"{root}/alloc", "none", WRITABLE_OPTIONS))
        handle = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for path in ("/alloc", "/dev", "/proc"):
                _make_mount_point(handle, path, is_folder=True)
            for binding in self._bindings:
                if (line := self._build_bind_line(handle, binding)) is not None:
                    lines.append(line)
            for file in self._files:
                if target := self._resolve_mount_point(file.target):
                    lines.append(_format_line(file.source, f"{root}{target}", "none", READ_ONLY_OPTIONS))
        except OSError as error:
            raise RootFilesystemError(
                f"the task's root filesystem cannot be created: {error.filename}: {error.strerror}"
            ) from error
        finally:
            os.close(handle)
        return "\n".join(lines) + "\n"

    def _build_bind_line(self, folder_descriptor: int, binding: BindMount) -> str | None:
        """Create the mount point of a bind mount and return its fstab line; None if no mount is needed.

        `folder_descriptor` is the open folder of the task. A link on the host is created as a link in the sandbox if its target is
        mounted at the same path. Raises RootFilesystemError and OSError.
        """
        source, target = binding.source, os.path.normpath(binding.target)
        if not target.startswith("/") or target == "/" or target in RESERVED_TARGETS:
            raise RootFilesystemError(f"nothing can be mounted at {binding.target}")
        if not os.path.exists(source):
            if not binding.is_read_only or source not in DEFAULT_FOLDERS:
                raise RootFilesystemError(f"{source} does not exist on this machine")
            return None
        if source == target and os.path.islink(source) and self._is_mounted_unchanged(os.path.realpath(source)):
            _make_link(folder_descriptor, target, os.readlink(source))
            return None
        if not any(target.startswith(f"{parent.target.rstrip('/')}/") for parent in self._bindings):
            _make_mount_point(folder_descriptor, target, is_folder=os.path.isdir(source))
        options = READ_ONLY_OPTIONS if binding.is_read_only else WRITABLE_OPTIONS
        return _format_line(source, f"{self.folder}{target}", "none", options)

    def _resolve_mount_point(self, target: str) -> str:
        """Return the path in the sandbox, without links, at which a file must be mounted to appear at `target`.

        Empty if no such file exists there. Links are resolved on the host, because mount would follow them there.
        """
        host_path = self.resolve_host_path(target)
        real = os.path.realpath(host_path)
        if not os.path.exists(real):
            return ""
        if real == host_path:
            return target
        return real if self._is_mounted_unchanged(real) else ""

    def _is_mounted_unchanged(self, path: str) -> bool:
        """Return whether the host path has the same path in the sandbox, because its folder is mounted there."""
        return any(
            each.source == each.target and path.startswith(f"{each.target}/") and not os.path.islink(each.source)
            for each in self._bindings
        )

    def resolve_host_path(self, path: str) -> str:
        """Return the host path of a path in the sandbox, according to the mounts. Links are not resolved."""
        path = os.path.normpath(path)
        for binding in reversed(self._bindings):
            if path == binding.target or path.startswith(f"{binding.target.rstrip('/')}/"):
                return binding.source + path.removeprefix(binding.target)
        if path == "/alloc" or path.startswith("/alloc/"):
            return str(self._shared) + path.removeprefix("/alloc")
        return f"{self.folder}{path}"

    def find_program(self, command: str, work_folder: str, search_path: str) -> str:
        """Return the program's path in the sandbox. Raises RootFilesystemError if it does not exist.

        `command` is searched in `search_path`, a list of folders such as PATH, unless it contains a slash. Relative
        paths start at `work_folder`.
        """
        if "/" in command:
            path = os.path.normpath(os.path.join(work_folder, command))
            if not os.path.lexists(self.resolve_host_path(path)):
                raise RootFilesystemError(f"program {path} does not exist in the task's root filesystem")
            return path
        for folder in search_path.split(":"):
            path = os.path.normpath(os.path.join(work_folder, folder, command))
            if os.path.lexists(self.resolve_host_path(path)):
                return path
        raise RootFilesystemError(f"program {command} not found in PATH ({search_path}) in the task's root filesystem")


def _format_line(source: str, mount_point: str, file_system: str, options: str) -> str:
    """Return a line of /etc/fstab: source, target, file system type and mount options."""
    return f"{_escape(source)} {_escape(mount_point)} {file_system} {options} 0 0"


def _escape(path: str) -> str:
    r"""Return a path as fstab requires it: spaces and other special characters as octal escapes, such as `\040`."""
    return "".join(f"\\{ord(character):03o}" if character in " \t\n\\#" else character for character in path)


def _make_mount_point(root: int, path: str, *, is_folder: bool) -> None:
    """Create a file or folder, and its parents, below the open folder `root`. Raises OSError.

    Files or links of the task that are in the way are replaced.
    """
    *parents, last = path.strip("/").split("/")
    with _FolderCursor(root) as cursor:
        for name in parents:
            cursor.step_into(name)
        if is_folder:
            cursor.step_into(last)
        else:
            cursor.make_file(last)


def _make_link(root: int, path: str, target: str) -> None:
    """Create a symbolic link to `target`, and its parent folders, below the open folder `root`. Raises OSError."""
    *parents, last = path.strip("/").split("/")
    with _FolderCursor(root) as cursor:
        for name in parents:
            cursor.step_into(name)
        cursor.make_link(last, target)


class _FolderCursor:
    """An open folder from which one can step into subfolders, without following links."""

    def __init__(self, folder_descriptor: int) -> None:
        self._folder = os.dup(folder_descriptor)

    def __enter__(self) -> "_FolderCursor":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def step_into(self, name: str) -> None:
        """Move to the subfolder `name`. It is created if it is missing, and replaces a file or link. Raises OSError."""
        try:
            os.mkdir(name, 0o755, dir_fd=self._folder)
        except FileExistsError:
            if not stat.S_ISDIR(self._read_mode(name)):
                os.unlink(name, dir_fd=self._folder)
                os.mkdir(name, 0o755, dir_fd=self._folder)
        inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        os.close(self._folder)
        self._folder = inner

    def make_file(self, name: str) -> None:
        """Create an empty file, unless it exists; a link or an empty folder of that name is replaced.

        Raises OSError.
        """
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=self._folder))
        except FileExistsError:
            if stat.S_ISREG(self._read_mode(name)):
                return
            self._remove(name)
            self.make_file(name)

    def make_link(self, name: str, target: str) -> None:
        """Create a symbolic link, unless it exists; a file or an empty folder of that name is replaced.

        Raises OSError.
        """
        try:
            os.symlink(target, name, dir_fd=self._folder)
        except FileExistsError:
            if stat.S_ISLNK(self._read_mode(name)) and os.readlink(name, dir_fd=self._folder) == target:
                return
            self._remove(name)
            os.symlink(target, name, dir_fd=self._folder)

    def _remove(self, name: str) -> None:
        """Remove a file, a link or an empty folder. Raises OSError."""
        try:
            os.unlink(name, dir_fd=self._folder)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
            os.rmdir(name, dir_fd=self._folder)

    def _read_mode(self, name: str) -> int:
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode
