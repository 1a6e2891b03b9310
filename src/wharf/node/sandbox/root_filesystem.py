"""The root filesystem of a sandbox: the task's folder, with read-only host folders mounted below it.

Here is only the plan. The program `wharf.node.sandbox_setup.launch` creates the mount points and mounts, in its own
namespace: the task owns the folder and may have placed links in it.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.missing_programs import describe_missing_program

DEFAULT_FOLDERS: Final[Mapping[str, str]] = {
    path: path
    for path in (
        *("/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/run/systemd/resolve", "/sbin", "/usr"),
    )
}
_PLACE: Final = " in the task's root filesystem"
RESERVED_TARGETS: Final = ("/alloc", "/dev", "/local", "/proc", "/secrets", "/tmp")
"""Paths of the sandbox that a job cannot cover with a mount."""
RESERVED_PREFIXES: Final = ("/proc/",)
"""A job cannot cover anything below these folders."""
HOST_SHARED_MEMORY: Final = "/dev/shm"


class RootFilesystemError(Exception):
    """The error of a root file system that cannot be created. Its message is a sentence for the task's owner."""


class BindMount(NamedTuple):
    """A host folder or file that is mounted at a path in the sandbox."""

    source: str  # on the host
    target: str  # in the sandbox
    is_read_only: bool = True


class DeviceFile(NamedTuple):
    """A device file in the sandbox."""

    source: str  # on the host
    target: str  # in the sandbox
    mode: int  # permission bits
    uid: int  # of its owner


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
        """Create the description; `build_plan` returns it for the program that mounts.

        `folder` is the task's folder, `shared` the allocation's folder, `bindings` are host folders, and `files` are
        mounted over files of the host folders.
        """
        self._files = tuple(files)
        self.folder = folder
        self._bindings = sorted(bindings, key=lambda each: each.target)
        self._shared = shared
        self._has_own_ipc = has_own_ipc

    def build_plan(self, devices: Iterable[DeviceFile] = ()) -> str:
        """Return the plan of all mounts and allocated devices, for `wharf.node.sandbox_setup.launch`.

        Each step has four words, and each word ends with a null character. Raises RootFilesystemError.
        """
        steps = [("root", str(self.folder), str(self._shared), "" if self._has_own_ipc else HOST_SHARED_MEMORY)]
        steps += [("device", each.source, each.target, f"{each.mode}:{each.uid}") for each in devices]
        for binding in self._bindings:
            if (step := self._build_step(binding)) is not None:
                steps.append(step)
        steps += [("file", each.source, each.target, "") for each in self._files]
        words = [word for step in steps for word in step]
        if any("\0" in word for word in words):
            raise RootFilesystemError("a path of a mount contains a null character")
        return "".join(f"{word}\0" for word in words)

    def _build_step(self, binding: BindMount) -> tuple[str, str, str, str] | None:
        """Return the step of the plan for a bind mount; None if no mount is needed. Raises RootFilesystemError.

        A link on the host is created as a link in the sandbox if its target is mounted at the same path.
        """
        source, target = binding.source, os.path.normpath(binding.target)
        is_reserved = target in RESERVED_TARGETS or target.startswith(RESERVED_PREFIXES)
        if not target.startswith("/") or target.strip("/") == "" or is_reserved:
            raise RootFilesystemError(f"nothing can be mounted at {binding.target}")
        if not os.path.exists(source):
            if not binding.is_read_only or source not in DEFAULT_FOLDERS:
                raise RootFilesystemError(f"{source} does not exist on this machine")
            return None
        if source == target and os.path.islink(source) and self._is_mounted_unchanged(os.path.realpath(source)):
            return ("link", os.readlink(source), target, "")
        return ("read-only" if binding.is_read_only else "writable", source, target, "")

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

    def may_exist(self, path: str) -> bool:
        """Return whether something has this path in the sandbox; True if a link decides that, which only a task follows.

        Otherwise a task could find out which files exist on the machine.
        """
        for binding in reversed(self._bindings):
            if path == binding.target or path.startswith(f"{binding.target.rstrip('/')}/"):
                if binding.is_read_only:
                    return os.path.lexists(self.resolve_host_path(path))
                return _may_contain(Path(binding.source), path.removeprefix(binding.target).lstrip("/"))
        if path.startswith("/alloc/"):
            return _may_contain(self._shared, path.removeprefix("/alloc/"))
        return _may_contain(self.folder, path.lstrip("/"))

    def find_program(self, command: str, work_folder: str, search_path: str) -> str:
        """Return the program's path in the sandbox. Raises RootFilesystemError if it does not exist.

        `command` is searched in `search_path`, a list of folders such as PATH, unless it contains a slash. Relative
        paths start at `work_folder`.
        """
        if "/" in command:
            path = os.path.normpath(os.path.join(work_folder, command))
            if not self.may_exist(path):
                raise RootFilesystemError(describe_missing_program(path, _PLACE))
            return path
        for folder in search_path.split(":"):
            path = os.path.normpath(os.path.join(work_folder, folder, command))
            if self.may_exist(path):
                return path
        raise RootFilesystemError(describe_missing_program(command, _PLACE))


def _may_contain(folder: Path, path: str) -> bool:
    """Return whether a folder contains this relative path; True if that depends on a link."""
    try:
        return ConfinedFolder(folder).exists(path)
    except (ConfinedPathError, OSError):
        return True
