"""Records that wait for a sink: in a file, so that they survive a restart of this process, or in memory.

Both have a maximum size. Records that no longer fit are dropped and counted, so that a receiver that is away cannot fill
the disk.
"""

import contextlib
import fcntl
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import apsw

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS: Final = 2_000
"""How long a statement waits while another process reads the file."""
RECORD_OVERHEAD_BYTES: Final = 32
"""What a record takes besides its line. Also limits the number of very short records."""
MAX_BATCH_RECORDS: Final = 500
"""Limits how long the encoding of one batch takes."""
MAX_BATCH_BYTES: Final = 1 << 20
"""Limits memory, and the size of requests: receivers usually accept a few megabytes."""
MAX_SPOOLS: Final = 64
"""Processes of one data folder; each has a spool of its own for a sink."""


class SpoolError(Exception):
    """The file of a spool cannot be used. The text gives the reason."""


class SpoolBatch(NamedTuple):
    """The oldest records of a spool."""

    name: str
    """The same for the same records, such as `4f1c…-17`: spool and number of the first record."""
    lines: Sequence[bytes]
    last: int
    """The number of the last record."""


class Spool(Protocol):
    """A queue of records with a maximum size. Its methods may wait for the disk, so they are called on a thread."""

    @property
    def waiting_records(self) -> int: ...
    @property
    def waiting_bytes(self) -> int: ...
    def append(self, lines: Sequence[bytes]) -> int:
        """Add records. Return how many of them fit; the others are dropped. Raises `SpoolError`; then nothing is added."""
        ...

    def read(self) -> SpoolBatch | None:
        """Return the oldest records, at most one batch; `None` if there are none. Raises `SpoolError`."""
        ...

    def delete_through(self, last: int) -> None:
        """Delete the records up to this number, which are delivered. Raises `SpoolError`."""
        ...

    def close(self) -> None: ...


class MemorySpool:
    """A spool for sinks that need no file, such as files themselves. Its records are lost when the process is killed."""

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name = name
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._first = 1
        self._bytes = 0

    @property
    def waiting_records(self) -> int:
        return len(self._lines)

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def append(self, lines: Sequence[bytes]) -> int:
        """Add records. Return how many of them fit."""
        for number, line in enumerate(lines):
            if self._bytes + len(line) + RECORD_OVERHEAD_BYTES > self._max_bytes:
                return number
            self._bytes += len(line) + RECORD_OVERHEAD_BYTES
            self._lines.append(line)
        return len(lines)

    def read(self) -> SpoolBatch | None:
        """Return the oldest records, at most one batch."""
        lines: list[bytes] = []
        size = 0
        for line in islice(self._lines, MAX_BATCH_RECORDS):
            size += len(line)
            if lines and size > MAX_BATCH_BYTES:
                break
            lines.append(line)
        return SpoolBatch(f"{self._name}-{self._first}", lines, self._first + len(lines) - 1) if lines else None

    def delete_through(self, last: int) -> None:
        """Delete the records up to this number."""
        while self._first <= last and self._lines:
            self._bytes -= len(self._lines.popleft()) + RECORD_OVERHEAD_BYTES
            self._first += 1

    def close(self) -> None:
        """Do nothing: there is no file."""


class SpoolInUse(SpoolError):
    """Another process uses the file."""


class FileSpool:
    """A spool in a SQLite file that only its owner can read. One process uses it at a time.

    Appended records survive a crash of the process. A crash of the machine may lose those of the last moments.
    """

    def __init__(self, path: Path, max_bytes: int, name: str) -> None:
        """Open the file, or create it; `name` begins the names of batches of a new file.

        A file that is damaged is moved aside, so that new records can be stored. Raises `SpoolInUse` or `SpoolError`.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._lock = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _lock_file(path.with_name(f"{path.name}.lock"))
        except BlockingIOError:
            raise SpoolInUse(f"the spool {path} is in use by another process") from None
        except OSError as error:
            raise SpoolError(f"the spool {path} cannot be opened: {error}") from error
        try:
            try:
                self._connection = self._open(name)
            except (apsw.CorruptError, apsw.NotADBError) as error:
                damaged = path.with_name(f"{path.name}.damaged")
                path.replace(damaged)
                for ending in ("-wal", "-shm"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
                log.error("spool is damaged; its records are not delivered error=%s file=%s", error, damaged)
                self._connection = self._open(name)
        except (apsw.Error, OSError) as error:
            os.close(self._lock)
            raise SpoolError(f"the spool {path} cannot be opened: {error}") from error

    def _open(self, name: str) -> apsw.Connection:
        """Open the file and read its sizes. Raises `apsw.Error` and `OSError`."""
        # Created first, so that it never has the mode of the process.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            for statement in (
                "PRAGMA auto_vacuum = INCREMENTAL",
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = NORMAL",
                "CREATE TABLE IF NOT EXISTS spool (name TEXT NOT NULL)",
                # AUTOINCREMENT: numbers are not used again, so names of batches are not either.
                "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT, line BLOB NOT NULL)",
            ):
                connection.execute(statement)
            row = connection.execute("SELECT name FROM spool").fetchone()
            if row is None:
                connection.execute("INSERT INTO spool VALUES (?)", (name,))
            self._name = name if row is None else str(row[0])
            sizes: Any = connection.execute("SELECT count(*), ifnull(sum(length(line)), 0) FROM records").fetchone()
        except BaseException:
            connection.close()
            raise
        self._records = int(sizes[0])
        self._bytes = int(sizes[1]) + self._records * RECORD_OVERHEAD_BYTES
        return connection

    @property
    def waiting_records(self) -> int:
        return self._records

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def append(self, lines: Sequence[bytes]) -> int:
        """Add records in one transaction. Return how many of them fit. Raises `SpoolError`; then nothing is added."""
        size = self._bytes
        fitting: list[tuple[bytes]] = []
        for line in lines:
            if size + len(line) + RECORD_OVERHEAD_BYTES > self._max_bytes:
                break
            size += len(line) + RECORD_OVERHEAD_BYTES
            fitting.append((line,))
        try:
            with self._connection:
                self._connection.executemany("INSERT INTO records (line) VALUES (?)", fitting)
        except apsw.Error as error:
            raise SpoolError(f"the spool {self._path} cannot be written: {error}") from error
        self._records += len(fitting)
        self._bytes = size
        return len(fitting)

    def read(self) -> SpoolBatch | None:
        """Return the oldest records, at most one batch. Raises `SpoolError`."""
        lines: list[bytes] = []
        first = last = size = 0
        try:
            rows = self._connection.execute(
                "SELECT number, line FROM records ORDER BY number LIMIT ?", (MAX_BATCH_RECORDS,)
            )
            for number, line in rows:
                size += len(line)
                if lines and size > MAX_BATCH_BYTES:
                    break
                first = first or int(number)
                last = int(number)
                lines.append(bytes(line))
        except apsw.Error as error:
            raise SpoolError(f"the spool {self._path} cannot be read: {error}") from error
        return SpoolBatch(f"{self._name}-{first}", lines, last) if lines else None

    def delete_through(self, last: int) -> None:
        """Delete the records up to this number, and give freed space back to the file system. Raises `SpoolError`."""
        try:
            with self._connection:
                sizes: Any = self._connection.execute(
                    "SELECT count(*), ifnull(sum(length(line)), 0) FROM records WHERE number <= ?", (last,)
                ).fetchone()
                self._connection.execute("DELETE FROM records WHERE number <= ?", (last,))
            self._records -= int(sizes[0])
            self._bytes -= int(sizes[1]) + int(sizes[0]) * RECORD_OVERHEAD_BYTES
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        except apsw.Error as error:
            raise SpoolError(f"the spool {self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file. Its records are delivered when it is opened again."""
        with contextlib.suppress(apsw.Error):
            self._connection.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock_file(path: Path) -> int:
    """Return a descriptor that holds the lock of a file. Raises `BlockingIOError` if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_spool(folder: Path, sink: str, max_bytes: int, make_name: Callable[[], str]) -> FileSpool:
    """Return a spool for a sink that no other process uses: `out.spool`, else `out-2.spool` and so on.

    Records in the spools of processes that no longer run are added to it, as far as they fit. Raises `SpoolError`.
    """
    spool: FileSpool | None = None
    for number in range(1, MAX_SPOOLS + 1):
        path = folder / (f"{sink}.spool" if number == 1 else f"{sink}-{number}.spool")
        if spool is not None and not path.exists():
            continue
        try:
            found = FileSpool(path, max_bytes, make_name())
        except SpoolInUse:
            continue
        if spool is None:
            spool = found
            continue
        _move_records(found, spool)
        found.close()
    if spool is None:
        raise SpoolError(
            f"the spools {folder}/{sink}*.spool are in use by {MAX_SPOOLS} processes: use another data folder"
        )
    return spool


def _move_records(source: FileSpool, target: FileSpool) -> None:
    """Move the records of a spool to another, as far as they fit. Raises `SpoolError`; then some are in both."""
    while (batch := source.read()) is not None:
        if target.append(batch.lines) < len(batch.lines):
            return  # The rest stays for the next process. What was added already is delivered twice.
        source.delete_through(batch.last)
