"""Links host volumes into the folders of tasks that see the host's filesystem.

A read-only volume is linked through a second, read-only mount of its folder. Nothing is mounted in the folders of
allocations.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.drivers.port import GivenVolume
from wharf.node.mounts import (
    MS_BIND,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    list_mounts_below,
    mount,
    unmount,
)
from wharf.node.tasks.context import TaskSetupError
from wharf.node.tasks.folders import TaskFolders


class ReadOnlyMounts:
    """Read-only mounts of host paths, all below one folder. Tasks that use the same volume share its mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mount_read_only(self, path: str) -> Path:
        """Mount the host path read-only, unless that is done, and return the mount point.

        Raises OSError, for example if the node has no permission to mount.
        """
        mount_point = self._get_mount_point(path)
        if self._is_mounted(mount_point):
            return mount_point
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        mount_point.mkdir(exist_ok=True)
        mount(path, mount_point, flags=MS_BIND | MS_REC)
        try:
            # The kernel ignores MS_RDONLY at the first mount of a bind mount.
            mount("none", mount_point, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
        except OSError:
            unmount(mount_point)
            raise
        return mount_point

    def unmount(self, path: str) -> None:
        """Remove the read-only mount of a host path, if it exists."""
        self._remove(self._get_mount_point(path))

    def unmount_all(self) -> None:
        """Remove all read-only mounts below the folder."""
        if self._folder.is_dir():
            for mount_point in list(self._folder.iterdir()):
                self._remove(mount_point)

    def _remove(self, mount_point: Path) -> None:
        """Unmount and delete a mount point. Errors are ignored."""
        if self._is_mounted(mount_point):
            unmount(mount_point)
        with suppress(OSError):
            mount_point.rmdir()

    def _is_mounted(self, mount_point: Path) -> bool:
        """Return whether the kernel lists the mount. `os.path.ismount` does not detect bind mounts of the same disk."""
        return mount_point in list_mounts_below(self._folder)

    def _get_mount_point(self, path: str) -> Path:
        """Return the mount point for a host path: a folder named by a hash of the path."""
        return self._folder / hashlib.sha256(path.encode()).hexdigest()[:16]


def link_volumes(volumes: Sequence[GivenVolume], folders: TaskFolders, read_only_mounts: ReadOnlyMounts) -> None:
    """Create links to the volumes at their destinations in the task's folder. Raises TaskSetupError.

    A read-only volume is mounted read-only first, and the link leads to that mount.
    """
    for volume in volumes:
        try:
            source = str(read_only_mounts.mount_read_only(volume.path)) if volume.is_read_only else volume.path
        except OSError as error:
            raise TaskSetupError(
                f"the volume at {volume.target} cannot be mounted read-only: {error.strerror}", is_final=True
            ) from error
        link = folders.task / volume.target.lstrip("/")
        if os.path.islink(link) and os.readlink(link) == source:
            continue
        if os.path.isdir(link) and not os.path.islink(link):
            raise TaskSetupError(
                f"the volume cannot be linked at {volume.target}: a folder exists there", is_final=True
            )
        try:
            ConfinedFolder(folders.task).create_link(volume.target.lstrip("/"), source, may_lead_out=True)
        except (ConfinedPathError, OSError) as error:
            raise TaskSetupError(f"the volume cannot be linked at {volume.target}: {error}", is_final=True) from error
