"""The data folder: whose it is, that one agent at a time uses it, and which names in it are whose."""

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
"""How folders begin whose contents only pass through."""
KEYRING_FILE: Final = "keyring.key"

LOCK_TIMEOUT_S: Final = 2.0
"""An agent that was killed leaves children that end within moments; only then is the folder free."""
_PAUSE_S: Final = 0.05


class DataFolder:
    """Held by one agent. The lock goes to its children too, so that it is free only when all of them are gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_descriptor = -1

    def acquire(self, *, owner: str) -> None:
        """Make it where it is missing and hold it. `about` is told to the next who wants it. Raises Refused."""
        self._make()
        self._check_owner()
        try:
            self.lock_descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CommandError(_trouble(self.path, error)) from error
        waited_s = 0.0
        while not self._try_lock():
            if waited_s >= LOCK_TIMEOUT_S:
                owner = os.pread(self.lock_descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
                os.close(self.lock_descriptor)
                self.lock_descriptor = -1
                raise CommandError(
                    f"the data folder {self.path} is in use by {owner}: stop that one, or choose another folder with "
                    "--data-dir"
                )
            threading.Event().wait(_PAUSE_S)
            waited_s += _PAUSE_S
        os.ftruncate(self.lock_descriptor, 0)
        os.pwrite(self.lock_descriptor, owner.encode(), 0)

    def empty(self) -> None:
        """Remove all that is in it, but the lock that is held."""
        for entry in self.path.iterdir():
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove_leftovers(self) -> None:
        """What a process that was killed left behind. Call before any process of this agent runs."""
        for entry in self.path.glob(f"{TRANSFER_FOLDER_PREFIX}*"):
            shutil.rmtree(entry, ignore_errors=True)

    def release(self) -> None:
        if self.lock_descriptor >= 0:
            os.ftruncate(self.lock_descriptor, 0)
            os.close(self.lock_descriptor)
            self.lock_descriptor = -1

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise CommandError(f"{self.path} is a file: choose a folder with --data-dir") from error
        except OSError as error:
            raise CommandError(_trouble(self.path, error)) from error

    def _check_owner(self) -> None:
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


def _trouble(path: Path, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"not allowed to write in {path}: change its owner or mode, or choose another folder with --data-dir"
    if error.errno == errno.EROFS:
        return f"{path} is on a file system for reading only: choose another folder with --data-dir"
    if error.errno == errno.ENOSPC:
        return f"the disk of {path} is full: make room, or choose another folder with --data-dir"
    return f"the data folder {path} cannot be used ({error.strerror}): choose another with --data-dir"
