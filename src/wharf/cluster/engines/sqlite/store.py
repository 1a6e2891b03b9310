"""The log of one folder, synchronous: takes groups of writes and returns outcomes and batches.

It implements the guarantees of the port for one file. A group is one transaction; each write is checked against the
earlier ones of the group; a committed write is durable. After a failed COMMIT no write is accepted until the file was
reopened and shows what was committed. It does not schedule callers and knows no event loop.

All methods must be called from one thread at a time. `reader` reads records and batches.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import apsw
import msgspec

from wharf.cluster.engines.batch_sizes import MAX_RETAINED_BYTES
from wharf.cluster.engines.port import (
    LEASE_ENDED_KIND,
    Batch,
    Committed,
    EncodedChange,
    EncodedWrite,
    LogHealth,
    LogPosition,
    LogUnavailable,
    WriteConflict,
    WriteLimits,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
    check_write_limits,
)
from wharf.cluster.engines.sqlite.checkpoint import MAX_FINAL_PAGES, MIN_CHECKPOINT_PAGES, Checkpointer
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES, FolderLock, LogDatabase, is_disk_full
from wharf.cluster.engines.sqlite.line_index import LogLineIndex
from wharf.cluster.engines.sqlite.lines import INSERT_LINE, Line, build_lines
from wharf.cluster.engines.sqlite.reader import DamagedLog, LineReader
from wharf.cluster.engines.sqlite.trim import plan_trim, write_facts, write_last_changes, write_trim
from wharf.contract.model.log import Cause, CauseKind, Condition

MIN_TAIL_CHANGES: Final = 100_000
"""The feed always reaches back at least this many changes, unless their data is larger than `MAX_RETAINED_BYTES`."""

MAX_TRIM_LINES: Final = 4_000
"""Limits the duration of a trimming step to a few milliseconds: it examines at most this many lines."""

RECOVERY_INTERVAL_S: Final = 1.0
"""How often a log that accepts no writes is reopened."""

MAX_WAL_PAGES: Final = 65_536
"""256 MB. Limits the disk space of the write-ahead log: when it is longer, commits wait for a checkpoint."""

_SCAN: Final = """
SELECT place, table_name, CAST(key AS TEXT), lease, data IS NULL, IFNULL(LENGTH(data), 0) FROM log ORDER BY place
"""
_NEXT_LEASE: Final = "UPDATE facts SET value = value + 1 WHERE name = 'next_lease' RETURNING value - 1"

T = TypeVar("T")

_log = logging.getLogger(__name__)


class WriteGroupResult(msgspec.Struct, frozen=True):
    """The result of a group of writes: one outcome for each write, in order, and the batches that were committed."""

    outcomes: Sequence[WriteOutcome]
    batches: Sequence[Batch]


class GrantedLease(msgspec.Struct, frozen=True):
    """A lease as the file stores it."""

    id: int
    ttl_ms: int
    owner: str


class SqliteStore:
    """Writes, leases and trimming of the log of one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float],
        limits: WriteLimits = WriteLimits(),  # noqa: B008 - a frozen value
        min_tail_changes: int = MIN_TAIL_CHANGES,
        max_tail_bytes: int = MAX_RETAINED_BYTES,
        checkpoint_pages: int = MIN_CHECKPOINT_PAGES,
        vfs: str = "",
    ) -> None:
        """`clock` returns monotonic seconds. Files are not touched before `open`."""
        self.limits = limits
        self.database = LogDatabase(folder, vfs=vfs)
        self.reader = LineReader(self.database)
        self.failure_reason = ""  # Why the log accepts no writes, in a sentence; empty when it does.
        self.is_restoring = False
        self.replacement_count = 0
        """How often the log was replaced since it was opened. A read that spans a replacement is invalid."""
        self.leases: dict[int, GrantedLease] = {}
        self._clock = clock
        self._retry_at = 0.0
        self._is_damaged = False  # If true, reopening the file does not help.
        self._min_tail_changes = min_tail_changes
        self._max_tail_bytes = max_tail_bytes
        self._active_loads = 0
        self._compact_before = 0
        self._wal_pages = 0
        self._checkpoint_pages = self._checkpoint_at = checkpoint_pages
        self._checkpointer = Checkpointer(self.database, min_pages=self._checkpoint_pages)
        self._lock: FolderLock | None = None
        self._writer: apsw.Connection | None = None
        self._line_index = LogLineIndex(epoch=0, epoch_since=0, tail_from=0, last_changes={})

    # -- the life of the file

    def open(self) -> None:
        """Lock the folder and open the file. Raises `LogUnavailable` with a sentence; only the lock file has changed
        then.

        On a full disk an existing log is opened too: it accepts no writes until there is free space.
        """
        self._lock = FolderLock(self.database.folder)
        try:
            self.database.remove_leftovers()
            try:
                self._open_file()
            except (apsw.FullError, OSError) as error:
                if not is_disk_full(error) or not self.database.exists():
                    raise
                self._open_without_writing(error)
        except (apsw.Error, OSError) as error:
            self.close()
            raise LogUnavailable(self.database.describe_open_error(error)) from error
        except LogUnavailable:
            self.close()
            raise

    def close(self) -> None:
        self._close_file()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def index(self) -> int:
        return self._line_index.index

    @property
    def epoch(self) -> int:
        return self._line_index.epoch

    @property
    def tail_from(self) -> int:
        """The feed reaches back to the batches after this index."""
        return self._line_index.tail_from

    def get_position(self) -> LogPosition:
        return self._line_index.get_position()

    def read_health(self) -> LogHealth:
        reason = self.failure_reason or self._checkpointer.failure_reason or self.database.find_space_warning()
        return LogHealth(writable=not self.failure_reason, why=reason, size_bytes=self.database.compute_size_bytes())

    # -- writing

    def commit_group(self, writes: Sequence[EncodedWrite]) -> WriteGroupResult:
        """Commit a group in one transaction. Never raises: failures are in the outcomes."""
        rejection_reason = self._find_rejection_reason()
        if rejection_reason:
            return WriteGroupResult([WriteRejected(rejection_reason)] * len(writes), ())
        staged: dict[tuple[str, str], int] = {}
        outcomes: list[WriteOutcome] = []
        batches: list[tuple[Batch, int]] = []
        index = self._line_index.index
        for write in writes:
            outcome = self._check_write(write, staged)
            if outcome is None:
                index += 1
                for change in write.changes:
                    staged[change.table, change.key] = 0 if change.data is None else index
                batches.append((Batch(index, write.id, write.kind, write.cause, write.changes), write.lease))
                outcome = Committed(index)
            outcomes.append(outcome)
        if not batches:
            return WriteGroupResult(outcomes, ())
        failure = self._write_lines([line for batch, lease in batches for line in build_lines(batch, lease)])
        if failure is not None:
            return WriteGroupResult([failure if isinstance(o, Committed) else o for o in outcomes], ())
        for batch, lease in batches:
            self._index_batch(batch, lease)
        return WriteGroupResult(outcomes, [batch for batch, _ in batches])

    def grant_lease(self, *, ttl_ms: int, owner: str) -> GrantedLease:
        """Grant a lease, durably. Raises `LogUnavailable`."""

        def write(connection: apsw.Connection) -> GrantedLease:
            ((lease,),) = connection.execute(_NEXT_LEASE)
            connection.execute("INSERT INTO leases VALUES (?, ?, ?)", (lease, ttl_ms, owner))
            return GrantedLease(lease, ttl_ms, owner)

        granted = self._run_transaction(write)
        self.leases[granted.id] = granted
        return granted

    def end_lease(self, lease: int) -> WriteGroupResult:
        """End a lease and delete its records in one batch. Does nothing if it has ended already. Raises
        `LogUnavailable`."""
        if lease not in self.leases:
            return WriteGroupResult((), ())
        keys = sorted(self._line_index.lease_keys.get(lease, ()))
        cause = Cause(CauseKind.LEASE, str(lease))
        batch = Batch(
            self.index + 1, "", LEASE_ENDED_KIND, cause, [EncodedChange(table, key, None) for table, key in keys]
        )

        def write(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
            if keys:
                connection.executemany(INSERT_LINE, build_lines(batch, 0))

        self._run_transaction(write)
        del self.leases[lease]
        if not keys:
            return WriteGroupResult((), ())
        self._index_batch(batch, 0)
        return WriteGroupResult((), [batch])

    def begin_epoch(self, *, above: int) -> None:
        """Begin a new epoch with indexes above `above`: a follower has seen that index, so this log is an older copy of
        itself."""
        epoch, index = self.epoch + 1, above + 1

        def write(connection: apsw.Connection) -> None:
            write_last_changes(connection, dict.fromkeys(self._line_index.last_changes, index))
            write_facts(connection, epoch=epoch, epoch_since=index, tail_from=index)

        _log.warning("log is an older copy, new epoch begins index=%d follower_index=%d", self.index, above)
        self._run_transaction(write)
        self.replacement_count += 1
        self._reload_index()

    # -- reading

    def begin_load(self) -> tuple[LogPosition, frozenset[int]]:
        """Return the position of a load and the lines that it must skip. Nothing is trimmed until `end_load`."""
        self._active_loads += 1
        return self._line_index.get_position(), frozenset(self._line_index.dead_lines)

    def end_load(self) -> None:
        self._active_loads -= 1

    # -- between two groups

    def compact(self, before: int) -> None:
        """Allow maintenance to delete batches with an index below `before`. Deletes nothing itself.

        The newest batches that the store always retains (the guaranteed tail) stay.
        """
        self._compact_before = max(self._compact_before, before - 1)

    def should_maintain(self) -> bool:
        return (
            self._writer is not None
            and not self.failure_reason
            and (self.should_trim() or self._checkpointer.is_nearly_done)
        )

    def run_maintenance_step(self) -> None:
        """Do one short step of maintenance: finish a checkpoint, or trim."""
        if self._checkpointer.is_nearly_done:
            self._finish_checkpoint()
        elif self.should_trim():
            self._trim()

    def should_trim(self) -> bool:
        """Return whether lines can be trimmed: no load is active, and enough lines are stale or beyond the guaranteed tail."""
        if self._active_loads or self.is_restoring or self.failure_reason:
            return False
        surplus = self._line_index.tail_changes - self._min_tail_changes
        return (
            surplus >= MAX_TRIM_LINES
            or len(self._line_index.stale_lines) >= MAX_TRIM_LINES
            or (surplus > 0 and self.tail_from < min(self._compact_before, self.index - 1))
            or self._find_oversized_index() > self.tail_from
        )

    # -- replacing all

    def replace_file(self, path: Path) -> None:
        """Replace the log by the file at `path` in one step. Raises `LogUnavailable`; the old log then stays active."""
        self.replacement_count += 1
        self._close_file()
        try:
            self.database.replace_with(path)
        finally:
            try:
                self._open_file()
            except (apsw.Error, OSError) as error:
                self.suspend_writes(error)
        if self.failure_reason:
            raise LogUnavailable(self.failure_reason)

    def read_next_lease_id(self) -> int:
        """Return the id of the next lease. Ids are never reused, even after a restore."""
        ((lease,),) = self._require_writer().execute("SELECT value FROM facts WHERE name = 'next_lease'")
        return int(lease)

    # -- inside

    def _check_write(self, write: EncodedWrite, staged: dict[tuple[str, str], int]) -> WriteOutcome | None:
        """Return why the write cannot be committed after the staged ones; None if it can."""
        limit_problem = check_write_limits(write, self.limits)
        if limit_problem is not None:
            return WriteRejected(limit_problem)
        if write.lease:
            if write.lease not in self.leases:
                return WriteRejected(f"the lease {write.lease} has ended")
            if len(self._line_index.lease_keys.get(write.lease, ())) + len(write.changes) > self.limits.changes:
                return WriteRejected(
                    f"the lease {write.lease} would hold more records than the {self.limits.changes} of a batch"
                )
        conflicts = [
            (condition.table, condition.key) for condition in write.conditions if not self._is_met(condition, staged)
        ]
        return WriteConflict(conflicts) if conflicts else None

    def _is_met(self, condition: Condition, staged: dict[tuple[str, str], int]) -> bool:
        """Return whether the condition holds after the staged writes."""
        if not condition.is_prefix:
            record_key = (condition.table, condition.key)
            version = staged.get(record_key)
            return condition.version == (self._line_index.get_version(*record_key) if version is None else version)
        if self._line_index.has_change_after(condition.version, condition.table, condition.key):
            return False
        return not any(
            version > condition.version
            for (table, key), version in staged.items()
            if table == condition.table and key.startswith(condition.key)
        )

    def _find_rejection_reason(self) -> str:
        """Return why the log accepts no writes; empty when it does. Tries to reopen a failed log from time to time."""
        if self.is_restoring:
            return f"the log in {self.database.folder} is being restored from a snapshot: try again when that is done"
        if self.failure_reason and not self._is_damaged and self._clock() >= self._retry_at:
            self._recover()
        return self.failure_reason

    def _write_lines(self, lines: Sequence[Line]) -> WriteRejected | WriteOutcomeUnknown | None:
        """Commit the lines of a group. Return None if they are durable, else the outcome of its writes."""
        writer = self._require_writer()
        try:
            writer.execute("BEGIN IMMEDIATE")
            writer.executemany(INSERT_LINE, lines)
        except (apsw.Error, OSError) as error:
            self._roll_back_and_recover(error)
            return WriteRejected(self.database.describe_error(error))
        try:
            writer.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            # Only the reopened file shows whether the group was committed.
            self._roll_back_and_recover(error)
            return WriteOutcomeUnknown(self.database.describe_error(error))
        if self._wal_pages >= MAX_WAL_PAGES:
            self._finish_checkpoint()
        return None

    def _run_transaction(self, write: Callable[[apsw.Connection], T]) -> T:
        """Run `write` in a transaction that is durable when this returns. Raises `LogUnavailable`."""
        rejection_reason = self._find_rejection_reason()
        if rejection_reason:
            raise LogUnavailable(rejection_reason)
        writer = self._require_writer()
        try:
            writer.execute("BEGIN IMMEDIATE")
            result = write(writer)
            writer.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            self._roll_back_and_recover(error)
            raise LogUnavailable(self.database.describe_error(error)) from error
        return result

    def _index_batch(self, batch: Batch, lease: int) -> None:
        """Add a committed batch to the index of lines."""
        place = batch.index * MAX_BATCH_LINES
        self._line_index.add_head(place)
        for change in batch.changes:
            place += 1
            self._line_index.add_line(
                place,
                change.table,
                change.key,
                is_drop=change.data is None,
                lease=lease,
                size=len(change.data or b""),
            )

    def _roll_back_and_recover(self, error: Exception) -> None:
        """Roll back a failed transaction and reopen the file, which shows what was committed in spite of the error."""
        self.suspend_writes(error)
        with suppress(apsw.Error, OSError):
            if self._writer is not None:  # Without an open transaction, this is one of the errors.
                self._writer.execute("ROLLBACK")
        self._recover()

    def suspend_writes(self, error: Exception) -> None:
        """Record why the log accepts no writes, and when to try again."""
        self.failure_reason = str(error) if isinstance(error, LogUnavailable) else self.database.describe_error(error)
        self._is_damaged = isinstance(error, (apsw.CorruptError, apsw.NotADBError, DamagedLog))
        self._retry_at = self._clock() + RECOVERY_INTERVAL_S
        _log.error("log accepts no writes reason=%s", self.failure_reason)

    def _recover(self) -> None:
        """Reopen the file and read its state. A damaged file is not reopened, so that its known records can still be
        read."""
        if self._is_damaged:
            return
        self._close_file()
        try:
            self._open_file()
        except (apsw.Error, OSError, LogUnavailable) as error:
            self.suspend_writes(error)

    def _open_file(self) -> None:
        """Open the writer connection, read the index of lines and start the checkpointer."""
        self._writer = writer = self.database.open_writer()
        self._make_state_definite(writer)
        self._reload_index()
        self._checkpointer = Checkpointer(self.database, min_pages=self._checkpoint_pages)
        self._checkpointer.start()
        writer.set_wal_hook(self._on_commit)
        self.failure_reason = ""
        self._is_damaged = False

    def _open_without_writing(self, error: Exception) -> None:
        """Open the file on a full disk: read its state and suspend writes, with `error` as the reason.

        What the write-ahead log shows is synced, so that no reader sees a commit that a power failure could remove.
        The state is made definite by the next recovery, before the first write.
        """
        self._close_file()
        self.database.sync_files()
        self._writer = self.database.open_writer()
        self._reload_index()
        self.suspend_writes(error)

    def _close_file(self) -> None:
        """Stop the checkpointer and close all connections."""
        self._checkpointer.stop()
        self.reader.close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with suppress(apsw.Error, OSError):
                writer.close()

    def _require_writer(self) -> apsw.Connection:
        assert self._writer is not None, "the log is not open"
        return self._writer

    def _make_state_definite(self, writer: apsw.Connection) -> None:
        """Make durable what the file shows, and prevent anything else from appearing later.

        After a crash or a failed sync, the write-ahead log may contain commits that were never synced: they are
        readable now, but a power failure would remove them. It may also contain frames of a rolled back commit, which
        must not reappear. A full checkpoint that restarts the write-ahead log, followed by a synced commit, resolves
        both.
        """
        busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise LogUnavailable(f"another program reads {self.database.path}: close it, so that the log can be opened")
        writer.execute("UPDATE facts SET value = value + 1 WHERE name = 'openings'")

    def _reload_index(self) -> None:
        """Read leases and the index of lines. Raises `DamagedLog`, also for errors that SQLite does not detect, such as
        missing facts."""
        try:
            self._line_index, self.leases = self._read_line_index(self._require_writer())
        except (KeyError, TypeError, UnicodeDecodeError) as error:
            raise self._build_damage_error(repr(error)) from error

    def _read_line_index(self, writer: apsw.Connection) -> tuple[LogLineIndex, dict[int, GrantedLease]]:
        """Scan the file; return the index of lines and the leases."""
        facts = dict(writer.execute("SELECT name, value FROM facts"))
        last_changes = dict(writer.execute("SELECT table_name, changed_at FROM last_changes"))
        line_index = LogLineIndex(
            epoch=facts["epoch"],
            epoch_since=facts.get("epoch_since", 0),
            tail_from=facts["tail_from"],
            last_changes=last_changes,
        )
        heads = 0
        for place, table, key, lease, is_drop, size in writer.execute(_SCAN):
            if table is not None:
                line_index.add_line(place, table, key, is_drop=bool(is_drop), lease=lease, size=size)
            elif line_index.add_head(place):
                heads += 1
        if heads != line_index.index - line_index.tail_from:
            raise self._build_damage_error(
                f"{heads} batches found between {line_index.tail_from} and {line_index.index}"
            )
        leases = {row[0]: GrantedLease(*row) for row in writer.execute("SELECT id, ttl_ms, owner FROM leases")}
        return line_index, leases

    def _build_damage_error(self, reason: str) -> DamagedLog:
        return DamagedLog(self.database.describe_error(apsw.CorruptError(reason)))

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """Track the length of the write-ahead log and request checkpoints. SQLite calls this after every commit."""
        if pages < self._wal_pages:
            self._checkpoint_at = self._checkpoint_pages
        self._wal_pages = pages
        if pages >= self._checkpoint_at:
            self._checkpoint_at = pages + min(MAX_FINAL_PAGES, self._checkpoint_pages)
            self._checkpointer.request_checkpoint()
        return apsw.SQLITE_OK

    def _finish_checkpoint(self) -> None:
        """Copy the rest of the write-ahead log into the file."""
        self._checkpointer.is_nearly_done = False
        try:
            self._require_writer().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return  # The checkpointer's thread is copying again.
        except apsw.Error as error:
            # Nothing is lost: the data is still in the write-ahead log.
            _log.error("checkpoint failed error=%s", self.database.describe_error(error))
            if isinstance(error, apsw.CorruptError):
                self.suspend_writes(error)

    def _find_oversized_index(self) -> int:
        """Return the index up to which batches are discarded because the tail is too large; 0 if it is not."""
        return min(self._line_index.tail_sizes.find_surplus_index(self._max_tail_bytes), self.index - 1)

    def _trim(self) -> None:
        """Delete the next lines that no follower needs: at most `MAX_TRIM_LINES`, in one transaction."""
        writer = self._require_writer()
        surplus = self._line_index.tail_changes - self._min_tail_changes
        last_index = self.index if surplus >= MAX_TRIM_LINES else self._compact_before
        oversized_index = self._find_oversized_index()
        if oversized_index > self.tail_from:
            surplus, last_index = self._line_index.tail_changes, oversized_index
        plan = plan_trim(writer, self._line_index, surplus=surplus, last_index=last_index, max_lines=MAX_TRIM_LINES)
        if plan.tail_from == self.tail_from and not plan.stale_count:
            self._compact_before = self.tail_from  # Deleting the next batch would make the tail too short.
            return
        try:
            # Need not be durable by itself: the next commit syncs it, and if it is lost, it is done again.
            writer.execute("PRAGMA synchronous = NORMAL")
            writer.execute("BEGIN IMMEDIATE")
            write_trim(writer, plan)
            writer.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            self._roll_back_and_recover(error)
            return
        finally:
            with suppress(apsw.Error):
                if self._writer is not None:
                    self._writer.execute("PRAGMA synchronous = FULL")
        self._line_index.trim_tail(
            tail_from=plan.tail_from, changes=plan.change_count, stale=plan.stale_count, deleted=plan.deleted_lines
        )
