"""The log's file in one folder: who may open it, in which format it is, and what SQLite's errors mean to people.

It opens connections and says what is wrong in sentences. It never reads or writes a batch.

The file holds one table of lines. A batch is a head line (its id, kind and cause) and one line for each change, side by
side: `place` is the batch's index times 1,024, plus the position. So a commit appends to the end of the file whatever
its keys are, a record is stored once (it is its line in the log), and which line of a key counts is known in memory.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

import apsw

from wharf.cluster.engines.port import LogUnavailable

LOG_FILE_FORMAT: Final = 1
"""The format that this program writes. It reads this one and, once there are any, those before it."""

MAX_BATCH_LINES: Final = 1_024
"""Places that an index owns: position 0 is the head line. More than any batch has changes."""

_SQLITE_MARK: Final = b"SQLite format 3\0"
_APPLICATION_ID: Final = 0x57484C47  # "WHLG", the mark of this kind of file for `file` and for us.

_SCHEMA: Final = f"""
CREATE TABLE log (place INTEGER PRIMARY KEY, table_name TEXT, key BLOB, checksum INTEGER, lease INTEGER, data BLOB);
CREATE TABLE last_changes (table_name TEXT PRIMARY KEY, changed_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL, owner TEXT NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO facts VALUES ('epoch', 0), ('tail_from', 0), ('next_lease', 1), ('openings', 0);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {LOG_FILE_FORMAT};
"""


class FolderLock:
    """Held by the one process that may open the log of a folder; the kernel drops it when that process ends."""

    def __init__(self, folder: Path) -> None:
        """Raises `Unavailable` when another process holds it, or when the folder cannot be written."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder / "log.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LogUnavailable(_folder_trouble(folder, error)) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise LogUnavailable(
                f"the log in {folder} is in use by process {owner}: stop that process, or choose another data folder"
            ) from error
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # A full disk: the lock holds all the same, only its owner's name is missing.

    def release(self) -> None:
        os.close(self._descriptor)


class LogDatabase:
    """Opens connections to `log.db` of a folder. `vfs` names a registered file system of SQLite; empty: the machine's."""

    def __init__(self, folder: Path, *, vfs: str = "") -> None:
        self.folder = folder
        self.path = folder / "log.db"
        self.restoring_path = folder / "restoring.db"
        self._vfs = vfs

    def open_writer(self) -> apsw.Connection:
        """The one connection that writes. Makes the file if there is none. Raises `apsw.Error` and `Unavailable`."""
        connection = self.open_or_create(self.path)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA cache_size = -16384")
            self.sync_folder()
        except BaseException:
            connection.close()
            raise
        return connection

    def open_or_create(self, path: Path) -> apsw.Connection:
        """A connection to a log's file at `path`, which is made if it is not there."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        beginning = os.pread(descriptor, len(_SQLITE_MARK), 0)
        os.close(descriptor)
        # SQLite takes a very short file for an empty one. A file whose making was cut off has a journal beside it.
        if beginning not in (b"", _SQLITE_MARK) and not path.with_name(f"{path.name}-journal").exists():
            raise apsw.NotADBError("file is not a database")
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, path)
        try:
            self._found_or_check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def open_reader(self) -> apsw.Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READONLY)
        connection.execute("PRAGMA query_only = ON")
        return connection

    def open_checkpointer(self) -> apsw.Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def remove_leftovers(self) -> None:
        """A restore that was cut off before its file took the log's place never happened."""
        for leftover in self.folder.glob(f"{self.restoring_path.name}*"):
            leftover.unlink()

    def replace_with(self, path: Path) -> None:
        """The file at `path` takes the log's place. Every connection is closed. Raises `OSError` and `Unavailable`."""
        for part in ("log.db-wal", "log.db-shm"):
            left = self.folder / part
            if left.exists() and left.stat().st_size > 0 and part.endswith("wal"):
                # Its frames would be applied to the new file.
                raise LogUnavailable(f"{left} is still in use: nothing was replaced; stop what reads it and try again")
            left.unlink(missing_ok=True)
        # The old write-ahead log must be gone from the disk before: beside the new file its frames would count again.
        self.sync_folder()
        self.rename_into_place(path)
        self.sync_folder()

    def rename_into_place(self, path: Path) -> None:
        """The step itself; a power cut may still undo it until the folder is synced."""
        os.replace(path, self.path)

    def compute_size_bytes(self) -> int:
        parts = (self.path, self.folder / "log.db-wal")
        return sum(part.stat().st_size for part in parts if part.exists())

    def sync_folder(self) -> None:
        """Make the names of new or renamed files durable."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def describe_error(self, error: Exception) -> str:
        """What an error of SQLite or of the system means for the log, and how to mend it."""
        where = f"the log in {self.folder}"
        match error:
            case apsw.FullError():
                return f"{where} takes no writes: the disk is full; free some space and writes go on by themselves"
            case apsw.CorruptError() | apsw.NotADBError():
                return (
                    f"{where} is damaged ({error}): stop the server, move log.db away "
                    "and restore the newest snapshot into a new log"
                )
            case apsw.ReadOnlyError() | apsw.PermissionsError():
                return f"{where} takes no writes: its files or the folder are read-only for this process ({error})"
            case apsw.CantOpenError():
                return f"{where} cannot be opened ({error}): check that the folder exists and may be written"
            case apsw.IOError():
                return f"{where} cannot be read or written: the disk reports an error ({error})"
            case OSError():
                return _folder_trouble(self.folder, error)
        return f"{where}: {error}"

    def _connect(self, flags: int, path: Path | None = None) -> apsw.Connection:
        connection = apsw.Connection(str(path or self.path), flags=flags, vfs=self._vfs or None)
        connection.set_busy_timeout(10_000)
        return connection

    def _found_or_check(self, connection: apsw.Connection) -> None:
        mark = connection.pragma("application_id")
        version = connection.pragma("user_version")
        if mark == 0 and connection.pragma("schema_version") == 0:
            with connection:  # All of it or nothing: a process that dies here leaves an empty file.
                connection.execute(_SCHEMA)
            return
        if mark != _APPLICATION_ID:
            raise LogUnavailable(
                f"{self.path} is not a log of this program: choose another data folder, or move it away"
            )
        if version > LOG_FILE_FORMAT:
            raise LogUnavailable(
                f"the log in {self.folder} has format {version}, this program reads up to {LOG_FILE_FORMAT}: "
                "start the newer program that wrote it"
            )


def _folder_trouble(folder: Path, error: OSError) -> str:
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"the folder {folder} cannot be written: make it writable for this user, or choose another data folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the folder {folder} is on a full disk: free some space"
    return f"the folder {folder} cannot be used for the log: {error.strerror or error}"
