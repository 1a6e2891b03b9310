"""Links host volumes into the folders of tasks that see the host's filesystem.

A read-only volume is linked through a second, read-only mount of its folder. Nothing is mounted in the folders of
allocations.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.artifacts import ArtifactError
from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.drivers.port import GivenVolume
from wharf.node.mounts import MS_BIND, list_mounts_below, mount, unmount
from wharf.node.tasks.context import TaskSetupError
from wharf.node.tasks.folders import TaskFolders

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_REMOUNT: Final = 32
MS_REC: Final = 16384


class ReadOnlyMounts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mount_read_only(self, path: str) -> Path:
        """Return a read-only mount of the path. Raises OSError if the node may not mount."""
        place = self._place(path)
        if self._is_mounted(place):
            return place
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        place.mkdir(exist_ok=True)
        mount(path, place, flags=MS_BIND | MS_REC)
        try:
            mount("none", place, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
        except OSError:
            unmount(place)
            raise
        return place

    def unmount(self, path: str) -> None:
        self._end(self._place(path))

    def unmount_all(self) -> None:
        if self._folder.is_dir():
            for place in list(self._folder.iterdir()):
                self._end(place)

    def _end(self, place: Path) -> None:
        """Unmount and delete a mount point, as far as permitted."""
        if self._is_mounted(place):
            unmount(place)
        with suppress(OSError):
            place.rmdir()

    def _is_mounted(self, place: Path) -> bool:
        """Asked of the kernel: within one file system a mounted folder looks like any other."""
        return place in list_mounts_below(self._folder)

    def _place(self, path: str) -> Path:
        return self._folder / hashlib.sha256(path.encode()).hexdigest()[:16]


def link_volumes(volumes: Sequence[GivenVolume], folders: TaskFolders, views: ReadOnlyMounts) -> None:
    """Link the volumes at their destinations in the task's folder. Raises TaskSetupError."""
    for volume in volumes:
        try:
            target = str(views.mount_read_only(volume.path)) if volume.is_read_only else volume.path
        except OSError as error:
            why = (
                f"the volume at {volume.target} is only to be read, and this node may not mount it so: {error.strerror}"
            )
            raise _not_linked(why) from error
        place = folders.task / volume.target.lstrip("/")
        if os.path.islink(place) and os.readlink(place) == target:
            continue
        if os.path.isdir(place) and not os.path.islink(place):
            raise _not_linked(f"there is a folder at {volume.target} already, where a volume should be")
        try:
            ConfinedFolder(folders.task).create_link(volume.target.lstrip("/"), target, may_lead_out=True)
        except (ArtifactError, OSError) as error:
            raise _not_linked(f"the volume cannot be linked at {volume.target}: {error}") from error


def _not_linked(why: str) -> TaskSetupError:
    return TaskSetupError(why, TaskEventType.SETUP_FAILURE, "setup_error", is_final=True)
