"""The database file of a folder: its lock, format and connections, and SQLite's errors as sentences for operators.

It never reads or writes a batch. The file holds one table of lines. A batch is a head line (its id, kind and cause) and
one line for each change, next to each other: `place` is the batch's index times 1,024, plus the position. So a commit
always appends to the file, a record is stored once (as its line in the log), and memory holds which line of a key is
current.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

import apsw

from wharf.cluster.engines.port import LogUnavailable
from wharf.world.disk_space import DiskSpace, measure_disk_space
from wharf.world.durable_file import sync_folder

LOG_FILE_FORMAT: Final = 1
"""The format that this program writes and reads."""

MAX_BATCH_LINES: Final = 1_024
"""Places that an index owns; position 0 is the head line. More than the changes of any batch."""

_SQLITE_MARK: Final = b"SQLite format 3\0"
_APPLICATION_ID: Final = 0x57484C47  # "WHLG": marks this kind of file for `file` and for this program.

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
    """Lock of the process that may open the log of a folder. The kernel releases it when that process ends."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises `LogUnavailable` when another process holds it, or when the folder cannot be written."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(folder / "log.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LogUnavailable(_describe_folder_error(folder, error)) from error
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
            pass  # On a full disk the lock works, but does not name its owner.

    def release(self) -> None:
        os.close(self._descriptor)


class LogDatabase:
    """Opens connections to `log.db` of a folder. `vfs`: a registered SQLite file system; empty for the default."""

    def __init__(self, folder: Path, *, vfs: str = "") -> None:
        self.folder = folder
        self.path = folder / "log.db"
        self.restoring_path = folder / "restoring.db"
        self._vfs = vfs

    def open_writer(self) -> apsw.Connection:
        """Open the only connection that writes; creates the file if it does not exist. Raises `apsw.Error` and
        `LogUnavailable`."""
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
        """Open a connection to a log file at `path`; create the file if it does not exist."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file_start = os.pread(descriptor, len(_SQLITE_MARK), 0)
        os.close(descriptor)
        # SQLite treats a very short file as empty. A file whose creation was interrupted has a journal beside it.
        if file_start not in (b"", _SQLITE_MARK) and not path.with_name(f"{path.name}-journal").exists():
            raise apsw.NotADBError("file is not a database")
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, path)
        try:
            self._create_or_check_schema(connection)
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
        """Delete the files of an interrupted restore."""
        for leftover in self.folder.glob(f"{self.restoring_path.name}*"):
            leftover.unlink()

    def replace_with(self, path: Path) -> None:
        """Replace the log by the file at `path`. All connections must be closed. Raises `OSError` and `LogUnavailable`."""
        for part in ("log.db-wal", "log.db-shm"):
            leftover = self.folder / part
            if leftover.exists() and leftover.stat().st_size > 0 and part.endswith("wal"):
                # SQLite would apply its frames to the new file.
                raise LogUnavailable(
                    f"{leftover} is still in use: nothing was replaced; stop what reads it and try again"
                )
            leftover.unlink(missing_ok=True)
        # Sync first: if the old write-ahead log came back after a power failure, SQLite would apply it to the new
        # file.
        self.sync_folder()
        self.rename_into_place(path)
        self.sync_folder()

    def rename_into_place(self, path: Path) -> None:
        """Rename the new file. A power failure may undo this until the folder is synced."""
        os.replace(path, self.path)

    def exists(self) -> bool:
        """Return whether the log file has content."""
        return self.path.exists() and self.path.stat().st_size > 0

    def sync_files(self) -> None:
        """Sync the log file and its write-ahead log. Raises `OSError`."""
        for path in (self.path, self.folder / "log.db-wal"):
            if path.exists():
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def find_space_warning(self) -> str:
        """Return a warning while the disk of the log is nearly full; empty otherwise."""
        try:
            return describe_free_space(self.folder, measure_disk_space(self.folder))
        except OSError:
            return ""

    def compute_size_bytes(self) -> int:
        parts = (self.path, self.folder / "log.db-wal")
        return sum(part.stat().st_size for part in parts if part.exists())

    def sync_folder(self) -> None:
        """Sync the folder, so that new and renamed files survive a power failure."""
        sync_folder(self.folder)

    def describe_open_error(self, error: Exception) -> str:
        """Return why the log cannot be opened, and what to do, as a sentence."""
        if is_disk_full(error):
            return f"the log in {self.folder} cannot be opened: the disk is full; free some space and start again"
        return self.describe_error(error)

    def describe_error(self, error: Exception) -> str:
        """Return what an error of SQLite or the system means for the log, and what to do, as a sentence."""
        where = f"the log in {self.folder}"
        match error:
            case apsw.FullError():
                return f"{where} accepts no writes: the disk is full; free some space and writes resume automatically"
            case apsw.CorruptError() | apsw.NotADBError():
                return (
                    f"{where} is damaged ({error}): stop the server, move log.db away "
                    "and restore the newest snapshot into a new log"
                )
            case apsw.ReadOnlyError() | apsw.PermissionsError():
                return f"{where} accepts no writes: its files or the folder are read-only for this process ({error})"
            case apsw.CantOpenError():
                return f"{where} cannot be opened ({error}): check that the folder exists and may be written"
            case apsw.IOError():
                return f"{where} cannot be read or written: the disk reports an error ({error})"
            case OSError():
                return _describe_folder_error(self.folder, error)
        return f"{where}: {error}"

    def _connect(self, flags: int, path: Path | None = None) -> apsw.Connection:
        connection = apsw.Connection(str(path or self.path), flags=flags, vfs=self._vfs or None)
        connection.set_busy_timeout(10_000)
        return connection

    def _create_or_check_schema(self, connection: apsw.Connection) -> None:
        """Create the schema in a new file; check mark and format of an existing one. Raises `LogUnavailable`."""
        mark = connection.pragma("application_id")
        version = connection.pragma("user_version")
        if mark == 0 and connection.pragma("schema_version") == 0:
            with connection:  # One transaction: a crash here leaves an empty file.
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


def describe_free_space(folder: Path, space: DiskSpace) -> str:
    """Return a warning if the disk of the log in `folder` is nearly full; empty otherwise."""
    if not space.is_nearly_full:
        return ""
    return f"the disk of the log in {folder} {space.describe_shortage()}: free some space before writes are refused"


def is_disk_full(error: Exception) -> bool:
    """Return whether an error of SQLite or the system means that the disk has no free space."""
    return isinstance(error, apsw.FullError) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )


def _describe_folder_error(folder: Path, error: OSError) -> str:
    """Return why the folder cannot be used, and what to do, as a sentence."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"the folder {folder} cannot be written: make it writable for this user, or choose another data folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the folder {folder} is on a full disk: free some space"
    return f"the folder {folder} cannot be used for the log: {error.strerror or error}"
