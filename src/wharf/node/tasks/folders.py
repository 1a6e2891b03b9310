"""The folders of allocations: one that all tasks of an allocation share, and one for each task."""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError, make_open_folder
from wharf.node.core.garbage_collection import DiskUsage
from wharf.node.deletion import delete_tree
from wharf.node.kept_files import move_other_entries
from wharf.node.mounts import list_mounts_below, unmount_all_below
from wharf.node.tasks.outputs import create_outputs_file, read_outputs

log = logging.getLogger(__name__)

TRASH_FOLDER: Final = ".removed"
"""Holds folders that are being deleted."""
INCOMING_FOLDER: Final = ".arriving"
"""Holds folders with data from another node until they are complete."""


REDUCED_MARKER: Final = ".reduced"
"""An empty file in the folder of an allocation of which only kept files are left."""
SHARED_FOLDER_MODES: Final = {"data": 0o777, "logs": 0o777, "tmp": 0o777}
TASK_FOLDER_MODES: Final = {"local": 0o777, "secrets": 0o777, "private": 0o700, "tmp": 0o1777}
"""The folders in the shared folder and in that of a task, with their modes."""


class TaskFolders(msgspec.Struct, frozen=True):
    """The folders of one task."""

    task: Path
    shared: Path
    """Shared by all tasks of the allocation: `alloc/`, with `data`, `logs` and `tmp`."""

    @property
    def local(self) -> Path:
        """The folder for the task's own data."""
        return self.task / "local"

    @property
    def secrets(self) -> Path:
        """The folder for the task's secrets, in memory if possible."""
        return self.task / "secrets"

    @property
    def logs(self) -> Path:
        """The folder for the logs of all tasks."""
        return self.shared / "logs"


class AllocationFolders:
    """The folders of all allocations of the node: creates, moves, measures and removes them."""

    def __init__(self, root: Path, *, max_parallel_removals: int = 1) -> None:
        """Create the root folder, and begin to delete what an earlier process left in trash and incoming folders."""
        self._root = root
        self._removal_threads = ThreadPoolExecutor(max_parallel_removals, thread_name_prefix="removing")
        self._removals: set[Future[None]] = set()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o711)
        for name in (TRASH_FOLDER, INCOMING_FOLDER):
            (root / name).mkdir(mode=0o700, exist_ok=True)
        for folder in list((root / TRASH_FOLDER).iterdir()):
            self._delete_in_background(folder)
        # Incoming folders are moved first, because a new download may use the same name at once.
        for folder in list((root / INCOMING_FOLDER).iterdir()):
            self._delete_in_background(self._move_to_trash(folder))

    def get_allocation_folder(self, allocation_id: str) -> Path:
        """Return the folder of an allocation; it may not exist."""
        return self._root / allocation_id

    def get_task_folders(self, allocation_id: str, task: str) -> TaskFolders:
        """Return the folders of a task; they may not exist."""
        folder = self.get_allocation_folder(allocation_id)
        return TaskFolders(folder / task, folder / "alloc")

    def create_task_folders(self, allocation_id: str, task: str) -> TaskFolders:
        """Create all folders of a task and return them. Raises `OSError`."""
        return _create_folders(self.get_allocation_folder(allocation_id), task)

    def create_incoming(self, allocation_id: str, tasks: Sequence[str]) -> Path:
        """Create empty folders for an allocation whose data will be downloaded. Return the new folder. Raises
        `OSError`.

        What an earlier attempt left is deleted.
        """
        incoming_folder = self._root / INCOMING_FOLDER / allocation_id
        delete_tree(incoming_folder)
        for task in tasks:
            _create_folders(incoming_folder, task)
        return incoming_folder

    def commit_incoming(self, allocation_id: str) -> None:
        """Move the downloaded folder of an allocation to its final place, unless a folder is there.

        Raises `OSError`.
        """
        if not self.get_allocation_folder(allocation_id).exists():
            (self._root / INCOMING_FOLDER / allocation_id).rename(self.get_allocation_folder(allocation_id))

    def get_incoming_archive(self, allocation_id: str) -> Path:
        """Return the path at which the downloaded archive of an allocation is stored."""
        return self._root / INCOMING_FOLDER / f"{allocation_id}.tar"

    def discard_incoming(self, allocation_id: str) -> None:
        """Remove the archive and the folder of an incomplete download, if they exist.

        The folder is renamed before it is removed. If an archive is still being unpacked into it, that can therefore not
        end with a folder that looks complete and lacks files.
        """
        self.get_incoming_archive(allocation_id).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._delete_in_background(self._move_to_trash(self._root / INCOMING_FOLDER / allocation_id))

    def measure_free_bytes(self) -> int:
        """Return the number of free bytes on the disk that holds the folders."""
        disk = os.statvfs(self._root)
        return disk.f_bavail * disk.f_frsize

    def move_predecessor_data(self, predecessor_id: str, allocation_id: str, task: str) -> None:
        """Move data of the replaced allocation here: the shared `data` folder and the task's own `local`.

        Data are only moved into folders that are empty, so the call may be repeated. Raises `OSError`.
        """
        predecessor_folders, own_folders = (
            self.get_task_folders(predecessor_id, task),
            self.get_task_folders(allocation_id, task),
        )
        for source, target, name in (
            (predecessor_folders.shared, own_folders.shared, "data"),
            (predecessor_folders.task, own_folders.task, "local"),
        ):
            _move_folder(source, target, name)

    def create_outputs_file(self, allocation_id: str) -> None:
        """Create the empty file for the texts that the programs of an allocation leave for later steps. Raises `OSError`."""
        create_outputs_file(self.get_allocation_folder(allocation_id))

    def read_outputs(self, allocation_id: str, names: Collection[str], max_bytes: int) -> ReportedOutputs:
        """Return the declared texts that the programs of an allocation left for later steps, and why others are missing."""
        return read_outputs(self.get_allocation_folder(allocation_id) / "alloc", names, max_bytes)

    def list_allocations(self) -> list[str]:
        """Return the ids of all allocations that have a folder."""
        internal_folders = (TRASH_FOLDER, INCOMING_FOLDER)
        with os.scandir(
            self._root
        ) as entries:  # Not `iterdir`, which needs ten times as long for thousands of folders.
            return sorted(entry.name for entry in entries if entry.is_dir() and entry.name not in internal_folders)

    def measure_disk_usage(self) -> DiskUsage:
        """Return the used bytes and inodes of the disk that holds the folders, in percent."""
        disk = os.statvfs(self._root)
        return DiskUsage(
            _get_used_percent(disk.f_blocks, disk.f_bavail), _get_used_percent(disk.f_files, disk.f_favail)
        )

    def remove_folder(self, allocation_id: str) -> None:
        """Move the folder of an allocation to the trash, and begin to delete it in another thread.

        Does nothing if it does not exist.
        """
        try:
            removed = self._move_to_trash(self.get_allocation_folder(allocation_id))
        except FileNotFoundError:
            return
        except OSError:  # Something is mounted in it, or an earlier removal was incomplete.
            removed = self.get_allocation_folder(allocation_id)
        self._delete_in_background(removed)

    def reduce_folder(self, allocation_id: str, kept_paths: Sequence[str]) -> bool:
        """Begin to delete the files of an ended allocation in another thread, except these paths below `alloc/`.

        Return whether that was not done before.
        """
        marker = self.get_allocation_folder(allocation_id) / REDUCED_MARKER
        if marker.exists() or not self.get_allocation_folder(allocation_id).is_dir():
            return False
        removal = self._removal_threads.submit(self._reduce, allocation_id, tuple(kept_paths))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        return True

    def _reduce(self, allocation_id: str, kept_paths: Sequence[str]) -> None:
        """Delete the files of an allocation except the kept ones. Errors are logged; the next pass tries again."""
        folder = self.get_allocation_folder(allocation_id)
        trash = self._root / TRASH_FOLDER / f"{allocation_id}.reduced"
        try:
            trash.mkdir(mode=0o700, exist_ok=True)
            with ConfinedFolder(trash).open_folder() as target, ConfinedFolder(folder).open_folder() as source:
                move_other_entries(source, target, [f"alloc/{path}" for path in kept_paths])
                os.close(os.open(REDUCED_MARKER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=source))
        except OSError as error:
            log.warning("failed to remove files of an ended allocation allocation=%s error=%s", allocation_id, error)
        _delete(trash)

    def _move_to_trash(self, path: Path) -> Path:
        """Move a folder to the trash and return its new path. Raises `OSError`.

        A folder of the same name may still be in the trash, so a number is added if necessary.
        """
        for number in count():
            try:
                return path.rename(self._root / TRASH_FOLDER / (f"{path.name}.{number}" if number else path.name))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        raise AssertionError("unreachable: the numbers do not end")

    def _delete_in_background(self, path: Path) -> None:
        """Begin to delete a folder in another thread."""
        removal = self._removal_threads.submit(_delete, path)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def wait_until_removed(self) -> None:
        """Wait until every deletion that has begun before this call is complete."""
        # A copy, because other threads remove finished removals from the set. Later removals are not waited for.
        await asyncio.gather(*map(asyncio.wrap_future, tuple(self._removals)))


def _create_folders(folder: Path, task: str) -> TaskFolders:
    """Create the folders of a task below the folder of its allocation, and return them. Raises `OSError`.

    Existing folders and their modes stay unchanged.
    """
    folders = TaskFolders(folder / task, folder / "alloc")
    folder.mkdir(mode=0o755, exist_ok=True)
    with ConfinedFolder(folder).open_folder() as allocation:
        for name, modes in (("alloc", SHARED_FOLDER_MODES), (task, TASK_FOLDER_MODES)):
            make_open_folder(name, 0o777, allocation)
            # Tasks can write here, so nothing below is reached by its path.
            with ConfinedFolder(folder).open_folder(name) as descriptor:
                for inner, mode in modes.items():
                    make_open_folder(inner, mode, descriptor)
    return folders


def _move_folder(source: Path, target: Path, name: str) -> None:
    """Move the folder `name` from one folder to another, unless it is missing there or not empty here.

    Links are not followed. Raises `OSError`.
    """
    with (
        suppress(FileNotFoundError, ConfinedPathError),
        ConfinedFolder(source).open_folder() as old,
        ConfinedFolder(target).open_folder() as new,
    ):
        with ConfinedFolder(target).open_folder(name) as existing:
            is_movable = not os.listdir(existing)
        if is_movable and stat.S_ISDIR(os.stat(name, dir_fd=old, follow_symlinks=False).st_mode):
            os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)


def _delete(path: Path) -> None:
    """Delete a file or folder; errors are ignored.

    File systems that are mounted below are unmounted first. If one remains mounted, nothing is deleted: its content may
    be a folder of the machine.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    unmount_all_below(path)
    if mount_points := list_mounts_below(path):
        log.error("failed to remove folder: a file system is mounted in it folder=%s mount=%s", path, mount_points[0])
        return
    delete_tree(path)


def _get_used_percent(total: int, free: int) -> float:
    """Return the used part in percent; 0 if `total` is 0, because the file system does not report it."""
    return 100.0 * (total - free) / total if total else 0.0
