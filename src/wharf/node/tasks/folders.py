"""The folders of allocations: one for all tasks of an allocation, and one for each task."""

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.core.garbage_collection import DiskUsage
from wharf.node.mounts import list_mounts_below, unmount_all_below

log = logging.getLogger(__name__)

TRASH_FOLDER: Final = ".removed"
"""Holds what is being deleted."""
INCOMING_FOLDER: Final = ".arriving"
"""Holds folders whose data come from another node, until they are whole."""


class TaskFolders(msgspec.Struct, frozen=True):
    task: Path
    shared: Path
    """Of all tasks of the allocation: `alloc/`, with `data`, `logs` and `tmp`."""

    @property
    def local(self) -> Path:
        return self.task / "local"

    @property
    def secrets(self) -> Path:
        return self.task / "secrets"

    @property
    def logs(self) -> Path:
        return self.shared / "logs"


class AllocationFolders:
    def __init__(self, root: Path, *, max_parallel_removals: int = 1) -> None:
        self._root = root
        self._removing = ThreadPoolExecutor(max_parallel_removals, thread_name_prefix="removing")
        self._leaving: set[Future[None]] = set()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o711)
        for place in (TRASH_FOLDER, INCOMING_FOLDER):
            (root / place).mkdir(mode=0o700, exist_ok=True)
        for left in list((root / TRASH_FOLDER).iterdir()):
            self._leave(left)
        for left in list((root / INCOMING_FOLDER).iterdir()):  # It may be fetched again at once.
            self._leave(self._put_aside(left))

    def get_allocation_folder(self, allocation_id: str) -> Path:
        return self._root / allocation_id

    def get_task_folders(self, allocation_id: str, task: str) -> TaskFolders:
        folder = self.get_allocation_folder(allocation_id)
        return TaskFolders(folder / task, folder / "alloc")

    def create_task_folders(self, allocation_id: str, task: str) -> TaskFolders:
        """All that a task needs. Raises OSError."""
        return _lay_out(self.get_allocation_folder(allocation_id), task)

    def create_incoming(self, allocation_id: str, tasks: Sequence[str]) -> Path:
        """A new folder as the allocation's will be, at a place where nobody looks. Raises OSError."""
        place = self._root / INCOMING_FOLDER / allocation_id
        shutil.rmtree(place, ignore_errors=True)
        for task in tasks:
            _lay_out(place, task)
        return place

    def commit_incoming(self, allocation_id: str) -> None:
        """It becomes the allocation's folder, in one moment, unless that is there. Raises OSError."""
        if not self.get_allocation_folder(allocation_id).exists():
            (self._root / INCOMING_FOLDER / allocation_id).rename(self.get_allocation_folder(allocation_id))

    def get_incoming_archive(self, allocation_id: str) -> Path:
        return self._root / INCOMING_FOLDER / f"{allocation_id}.tar"

    def discard_incoming(self, allocation_id: str) -> None:
        """What is left of it, if anything is: in one moment, for who still unpacks it must not end with a part of it."""
        self.get_incoming_archive(allocation_id).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._leave(self._put_aside(self._root / INCOMING_FOLDER / allocation_id))

    def measure_free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def move_predecessor_data(self, predecessor_id: str, allocation_id: str, task: str) -> None:
        """What the former allocation left behind becomes this one's: what tasks share, and the task's own `local`.

        Only into folders in which there is nothing yet, so it may be said again. Raises OSError.
        """
        theirs, ours = self.get_task_folders(predecessor_id, task), self.get_task_folders(allocation_id, task)
        for source, target in ((theirs.shared / "data", ours.shared / "data"), (theirs.local, ours.local)):
            if source.is_dir() and not any(target.iterdir()):
                source.rename(target)

    def list_allocations(self) -> list[str]:
        ours = (TRASH_FOLDER, INCOMING_FOLDER)
        return sorted(entry.name for entry in self._root.iterdir() if entry.is_dir() and entry.name not in ours)

    def measure_disk_usage(self) -> DiskUsage:
        found = os.statvfs(self._root)
        return DiskUsage(_used_percent(found.f_blocks, found.f_bavail), _used_percent(found.f_files, found.f_favail))

    def remove_folder(self, allocation_id: str) -> None:
        """At once out of the way; what it takes to delete it is left to another thread."""
        try:
            removed = self._put_aside(self.get_allocation_folder(allocation_id))
        except FileNotFoundError:
            return
        except OSError:  # Something is mounted in it, or it was removed in part before.
            removed = self.get_allocation_folder(allocation_id)
        self._leave(removed)

    def _put_aside(self, place: Path) -> Path:
        """Where it is now, under a name of its own: another of that name may still be being deleted. Raises OSError."""
        for number in count():
            try:
                return place.rename(self._root / TRASH_FOLDER / (f"{place.name}.{number}" if number else place.name))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        raise AssertionError("there is always another number")

    def _leave(self, place: Path) -> None:
        leaving = self._removing.submit(_delete, place)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def wait_until_removed(self) -> None:
        """Until all that was to be removed has gone."""
        # Copied first: another thread takes out what is done, and what is added meanwhile is not waited for.
        await asyncio.gather(*map(asyncio.wrap_future, tuple(self._leaving)))


def _lay_out(folder: Path, task: str) -> TaskFolders:
    """All that a task needs. Raises OSError."""
    folders = TaskFolders(folder / task, folder / "alloc")
    folder.mkdir(mode=0o755, exist_ok=True)
    shared, own = str(folders.shared), str(folders.task)
    for path, mode in (
        *((shared, 0o777), (f"{shared}/data", 0o777), (f"{shared}/logs", 0o777), (f"{shared}/tmp", 0o777)),
        *((own, 0o777), (f"{own}/local", 0o777), (f"{own}/secrets", 0o777), (f"{own}/private", 0o700)),
        (f"{own}/tmp", 0o1777),
    ):
        try:
            os.mkdir(path)
        except FileExistsError:
            continue
        os.chmod(path, mode)
    return folders


def _delete(place: Path) -> None:
    """Never what is mounted below: that may be a folder of the machine."""
    if not place.is_dir() or place.is_symlink():
        place.unlink(missing_ok=True)
        return
    unmount_all_below(place)
    if mounted := list_mounts_below(place):
        log.error("%s is not removed: %s is mounted in it", place, mounted[0])
        return
    shutil.rmtree(place, ignore_errors=True)


def _used_percent(all_: int, free: int) -> float:
    """A file system that does not count says 0 of 0."""
    return 100.0 * (all_ - free) / all_ if all_ else 0.0
