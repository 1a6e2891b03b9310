"""The data folder: its lock, so that only one agent uses it, its owner check, and the names of files in it."""

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import threading
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError

LOCK_FILE: Final = "agent.lock"
CONTROL_SOCKET: Final = "agent.sock"
STORE_FOLDER: Final = "state"
STORE_SOCKET: Final = "store.sock"
SNAPSHOT_FOLDER: Final = "snapshots"
TRANSFER_FOLDER_PREFIX: Final = "passing-"
"""Prefix of temporary folders for snapshots that are sent or received over HTTP."""
KEYRING_FILE: Final = "keyring.key"

LOCK_TIMEOUT_S: Final = 2.0
"""How long to wait for the lock. The children of a killed agent hold it until they end, usually within a second."""
_LOCK_RETRY_INTERVAL_S: Final = 0.05


class DataFolder:
    """The data folder of one agent. Children inherit the lock, so it is free only when all of them have ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_descriptor = -1
        self._folder_descriptor = -1

    @property
    def inherited_descriptors(self) -> tuple[int, ...]:
        """The descriptors that children inherit, so that they hold the locks too."""
        return tuple(each for each in (self.lock_descriptor, self._folder_descriptor) if each >= 0)

    def acquire(self, *, owner: str) -> None:
        """Create the folder if it is missing, check that it belongs to this user, and lock it.

        `owner` is a text that describes this agent. Another agent that finds the folder locked shows it in its error.
        Raises `CommandError` if the folder cannot be used or is still locked after `LOCK_TIMEOUT_S`.
        """
        self._create()
        self._check_owner()
        try:
            self.lock_descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CommandError(_describe_error(self.path, error)) from error
        self._folder_descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        waited_s = 0.0
        while not (_try_lock(self.lock_descriptor) and self._try_lock_folder()):
            if waited_s >= LOCK_TIMEOUT_S:
                owner = os.pread(self.lock_descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
                self._close_descriptors()
                raise CommandError(
                    f"the data folder {self.path} is in use by {owner}: stop that one, or choose another folder with "
                    "--data-dir"
                )
            threading.Event().wait(_LOCK_RETRY_INTERVAL_S)
            waited_s += _LOCK_RETRY_INTERVAL_S
        with contextlib.suppress(OSError):  # On a full disk the lock works, but does not name its owner.
            os.ftruncate(self.lock_descriptor, 0)
            os.pwrite(self.lock_descriptor, owner.encode(), 0)

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
            raise CommandError(f"{self.path} is a file: choose a folder with --data-dir") from error
        except OSError as error:
            raise CommandError(_describe_error(self.path, error)) from error

    def _check_owner(self) -> None:
        """Raise `CommandError` if the folder belongs to another user."""
        owner = self.path.stat().st_uid
        if owner == os.geteuid():
            return
        name = str(owner)
        with contextlib.suppress(KeyError):
            name = pwd.getpwuid(owner).pw_name
        raise CommandError(
            f"the data folder {self.path} belongs to the user {name}: run as {name}, or choose another folder with "
            "--data-dir"
        )


def _try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting. Return `False` if another process holds the lock. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _describe_error(path: Path, error: OSError) -> str:
    """Return why the folder cannot be used and what to do."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"not allowed to write in {path}: change its owner or mode, or choose another folder with --data-dir"
    if error.errno == errno.EROFS:
        return f"{path} is on a file system for reading only: choose another folder with --data-dir"
    if error.errno == errno.ENOSPC:
        return f"the disk of {path} is full: make room, or choose another folder with --data-dir"
    return f"the data folder {path} cannot be used ({error.strerror}): choose another with --data-dir"
