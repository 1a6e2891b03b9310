"""The data folder: its lock, so that only one agent uses it, its owner check, and the names of files in it."""

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError
from wharf.agent.folder_access import check_access, check_writers, find_agent_user
from wharf.cluster.engines.settings import EngineKind
from wharf.config.settings import AgentSettings

LOCK_FILE: Final = "agent.lock"
CONTROL_SOCKET: Final = "agent.sock"
STORE_FOLDER: Final = "state"
STORE_SOCKET: Final = "store.sock"
VOLATILE_FOLDER: Final = "volatile"
"""The folder of the log of engine `memory` while the agent runs."""
SNAPSHOT_FOLDER: Final = "snapshots"
TRANSFER_FOLDER_PREFIX: Final = "passing-"
"""Prefix of temporary folders for snapshots that are sent or received over HTTP."""
RESTORE_LOCK_FILE: Final = "restore.lock"
"""Locked by the api process that restores an uploaded snapshot."""
KEYRING_FILE: Final = "keyring.key"

LOCK_TIMEOUT_S: Final = 2.0
"""How long to wait for the lock. The children of a killed agent hold it until they end, usually within a second."""
_LOCK_RETRY_INTERVAL_S: Final = 0.05


def get_state_folder(settings: AgentSettings) -> Path:
    """Return the state folder of the node."""
    return Path(settings.client.state_dir) if settings.client.state_dir else Path(settings.data_dir) / "node"


def get_allocation_folder(settings: AgentSettings) -> Path:
    """Return the folder with the allocations of the node."""
    return Path(settings.client.alloc_dir) if settings.client.alloc_dir else Path(settings.data_dir) / "alloc"


def get_store_folder(settings: AgentSettings) -> Path:
    """Return the folder of the log file. Engine `memory` has a folder of its own, which is deleted when the agent ends."""
    is_volatile = settings.state.engine is EngineKind.MEMORY
    return Path(settings.data_dir) / (VOLATILE_FOLDER if is_volatile else STORE_FOLDER)


def get_keyring_file(settings: AgentSettings) -> Path:
    """Return the file with the wrapping keys of the keyring."""
    return Path(settings.keyring.file) if settings.keyring.file else Path(settings.data_dir) / KEYRING_FILE


def check_program_folders(settings: AgentSettings, *, user_id: int) -> None:
    """Raise `CommandError` if other users can write to a folder whose programs the node runs or is configured by."""
    client = settings.client
    if not client.enabled:
        return
    checked = [(folder, "client.cni_path") for folder in client.cni_path.split(":")]
    checked += [
        (client.cni_config_dir, "client.cni_config_dir"),
        (client.host_volume_plugin_dir, "client.host_volume_plugin_dir"),
    ]
    for folder, setting in checked:
        if folder:
            check_writers(Path(folder), noun="folder", setting=setting, user_id=user_id)


def check_folder_access(settings: AgentSettings) -> None:
    """Check the existing folders of the settings as their agent will do. Raises `CommandError`."""
    data_folder = Path(settings.data_dir)
    user_id = find_agent_user(data_folder)
    checked = [(data_folder, "data folder", "data_dir")]
    if settings.client.enabled:
        checked.append((get_state_folder(settings), "folder", "client.state_dir"))
        checked.append((get_allocation_folder(settings), "folder", "client.alloc_dir"))
    for path, noun, setting in checked:
        check_access(path, noun=noun, setting=setting, user_id=user_id, accepts_root=path != data_folder)
    check_program_folders(settings, user_id=user_id)


FOLDERS: Final = ("state", "node", "node/runs", "node/drivers", "node/read-only", "alloc", "logs", "sinks", "snapshots")
"""The names in a data folder that must be folders if they exist."""
FILES: Final = (
    "agent.lock",
    "audit.log",
    "cluster",
    "keyring.key",
    "nodes.json",
    "restore.lock",
    "server-id",
    "state/log.db",
    "state/log.lock",
    "node/clusters.json",
    "node/host_volumes.json",
    "node/journal",
    "node/journal.end",
    "node/left",
    "node/metadata.json",
    "node/node.json",
    "node/supervisor.lock",
    "node/supervisor.log",
)
"""The names in a data folder that must not be folders."""


class DataFolder:
    """A folder of one agent. Children inherit the lock, so it is free only when all of them have ended."""

    def __init__(self, path: Path, *, setting: str = "--data-dir", has_lock_file: bool = True) -> None:
        """`setting` selects the folder, for error texts. Without a lock file, only the folder itself is locked."""
        self.path = path
        self._noun = "data folder" if setting == "--data-dir" else "folder"
        self._setting = setting
        self._has_lock_file = has_lock_file
        self.lock_descriptor = -1
        self._folder_descriptor = -1

    @property
    def inherited_descriptors(self) -> tuple[int, ...]:
        """The descriptors that children inherit, so that they hold the locks too."""
        return tuple(each for each in (self.lock_descriptor, self._folder_descriptor) if each >= 0)

    def acquire(self, *, owner: str) -> None:
        """Create the folder if it is missing, check that only this user can write to it, and lock it.

        `owner` is a text that describes this agent. Another agent that finds the folder locked shows it in its error.
        Raises `CommandError` if the folder cannot be used or is still locked after `LOCK_TIMEOUT_S`.
        """
        self._create()
        self._check_access()
        try:
            if self._has_lock_file:
                self.lock_descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._folder_descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._close_descriptors()
            raise CommandError(self._describe_error(error)) from error
        waited_s = 0.0
        while not (self._try_lock_file() and self._try_lock_folder()):
            if waited_s >= LOCK_TIMEOUT_S:
                owner = self._read_owner()
                self._close_descriptors()
                raise CommandError(
                    f"the {self._noun} {self.path} is in use by {owner}: stop that one, or choose another folder with "
                    f"{self._setting}"
                )
            threading.Event().wait(_LOCK_RETRY_INTERVAL_S)
            waited_s += _LOCK_RETRY_INTERVAL_S
        if not self._has_lock_file:
            return
        with contextlib.suppress(OSError):  # On a full disk the lock works, but does not name its owner.
            os.ftruncate(self.lock_descriptor, 0)
            os.pwrite(self.lock_descriptor, owner.encode(), 0)

    def check_names(self) -> None:
        """Raise `CommandError` if a file of the data folder is a folder, or the other way round."""
        for name in FOLDERS:
            if (path := self.path / name).exists() and not path.is_dir():
                raise CommandError(f"{path} is not a folder: move it away; it must be a folder of this agent")
        for name in FILES:
            if (path := self.path / name).is_dir():
                raise CommandError(
                    f"{path} is a folder: move it away, and restore the file from a copy if you have one"
                )

    def _read_owner(self) -> str:
        """Return how the owner of the lock describes itself."""
        text = os.pread(self.lock_descriptor, 200, 0).decode("utf-8", "replace").strip() if self._has_lock_file else ""
        return text or "another process"

    def _try_lock_file(self) -> bool:
        """Lock the lock file, if there is one, without waiting. Return `False` if another process holds the lock."""
        return not self._has_lock_file or _try_lock(self.lock_descriptor)

    def empty(self) -> None:
        """Delete everything in the folder except the lock file."""
        for entry in self.path.iterdir():
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove_leftovers(self) -> None:
        """Delete temporary folders of killed processes. Call before any process of this agent runs."""
        for entry in self.path.glob(f"{TRANSFER_FOLDER_PREFIX}*"):
            shutil.rmtree(entry, ignore_errors=True)

    def release(self) -> None:
        """Unlock the folder."""
        if self.lock_descriptor >= 0:
            os.ftruncate(self.lock_descriptor, 0)
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        """Close the descriptors of the locks, which releases them unless a child still has them open."""
        for descriptor in self.inherited_descriptors:
            os.close(descriptor)
        self.lock_descriptor = self._folder_descriptor = -1

    def _try_lock_folder(self) -> bool:
        """Lock the folder itself without waiting. Return `False` if another process holds the lock.

        If an operator deletes the lock file of a running agent, another agent could lock a new one; it cannot lock the
        folder. File systems that cannot lock folders have the lock file alone.
        """
        try:
            return _try_lock(self._folder_descriptor)
        except OSError:
            return True

    def _create(self) -> None:
        """Create the folder, which only its owner can open, if it does not exist. Raises `CommandError`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise CommandError(f"{self.path} is a file: choose a folder with {self._setting}") from error
        except OSError as error:
            raise CommandError(self._describe_error(error)) from error

    def _check_access(self) -> None:
        """Raise `CommandError` if the folder belongs to another user or others can write to it."""
        is_data_folder = self._setting == "--data-dir"
        check_access(
            self.path, noun=self._noun, setting=self._setting, user_id=os.geteuid(), accepts_root=not is_data_folder
        )

    def _describe_error(self, error: OSError) -> str:
        """Return why the folder cannot be used and what to do."""
        path, setting = self.path, self._setting
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"not allowed to write in {path}: change its owner or mode, or choose another folder with {setting}"
        if error.errno == errno.EROFS:
            return f"{path} is on a file system for reading only: choose another folder with {setting}"
        if error.errno == errno.ENOSPC:
            return f"the disk of {path} is full: make room, or choose another folder with {setting}"
        return f"the {self._noun} {path} cannot be used ({error.strerror}): choose another with {setting}"


def _try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting. Return `False` if another process holds the lock. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
