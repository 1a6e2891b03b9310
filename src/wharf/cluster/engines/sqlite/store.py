"""The log of one folder, synchronous: groups of writes in, outcomes and batches out.

It keeps the promises of the port that concern one file: a group is one transaction, each write of it is checked against
the earlier ones, what was told to be committed is durable, and after an error at COMMIT nothing is served for writing
until the file itself has said what happened. It decides nothing about who waits for what, and knows no event loop.

All methods are called from one thread at a time. Reads of rows and batches go through `reader`.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import apsw
import msgspec

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
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES, FolderLock, LogDatabase
from wharf.cluster.engines.sqlite.line_index import LineIndex
from wharf.cluster.engines.sqlite.lines import INSERT_LINE, Line, build_lines
from wharf.cluster.engines.sqlite.reader import DamagedLog, LineReader
from wharf.cluster.engines.sqlite.trim import plan_trim, write_facts, write_last_changes, write_trim
from wharf.contract.model.log import Cause, CauseKind

MIN_TAIL_CHANGES: Final = 100_000
"""How many changes the feed reaches back, at least."""

MAX_TRIM_LINES: Final = 4_000
"""So many lines are looked at in one step of trimming: a few milliseconds."""

RECOVERY_INTERVAL_S: Final = 1.0
"""How often a log that takes no writes is tried again."""

MAX_WAL_PAGES: Final = 65_536
"""256 MB: when nobody could move the write-ahead log so far, commits wait until it is moved."""

_SCAN: Final = """
SELECT place, table_name, CAST(key AS TEXT), lease, data IS NULL FROM log ORDER BY place
"""
_NEXT_LEASE: Final = "UPDATE facts SET value = value + 1 WHERE name = 'next_lease' RETURNING value - 1"

T = TypeVar("T")

_log = logging.getLogger(__name__)


class WriteGroupResult(msgspec.Struct, frozen=True):
    """What became of a group of writes: an outcome each, in their order, and the batches of those that were committed."""

    outcomes: Sequence[WriteOutcome]
    batches: Sequence[Batch]


class GrantedLease(msgspec.Struct, frozen=True):
    id: int
    ttl_ms: int
    owner: str


class SqliteStore:
    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float],
        limits: WriteLimits = WriteLimits(),  # noqa: B008 - a frozen value
        min_tail_changes: int = MIN_TAIL_CHANGES,
        checkpoint_pages: int = MIN_CHECKPOINT_PAGES,
        vfs: str = "",
    ) -> None:
        """`clock`: monotonic seconds. Nothing is touched before `open`."""
        self.limits = limits
        self.database = LogDatabase(folder, vfs=vfs)
        self.reader = LineReader(self.database)
        self.failure_reason = ""  # Why no writes are taken just now, in a sentence.
        self.is_restoring = False
        self.replacement_count = (
            0  # How often the log was replaced since it was opened. Reads that span a change are void.
        )
        self.leases: dict[int, GrantedLease] = {}
        self._clock = clock
        self._retry_at = 0.0
        self._damaged = False  # Then trying again is of no use.
        self._tail_changes = min_tail_changes
        self._holds = 0
        self._compacted_to = 0
        self._wal_pages = 0
        self._checkpoint_pages = self._checkpoint_at = checkpoint_pages
        self._checkpointer = Checkpointer(self.database, min_pages=self._checkpoint_pages)
        self._lock: FolderLock | None = None
        self._writer: apsw.Connection | None = None
        self._ledger = LineIndex(epoch=0, epoch_since=0, tail_from=0, last_changes={})

    # -- the life of the file

    def open(self) -> None:
        """Raises `Unavailable` with a sentence; the folder is untouched then, but for its lock file."""
        self._lock = FolderLock(self.database.folder)
        try:
            self.database.remove_leftovers()
            self._attach()
        except (apsw.Error, OSError) as error:
            self.close()
            raise LogUnavailable(self.database.describe_error(error)) from error
        except LogUnavailable:
            self.close()
            raise

    def close(self) -> None:
        self._detach()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def index(self) -> int:
        return self._ledger.index

    @property
    def epoch(self) -> int:
        return self._ledger.epoch

    @property
    def tail_from(self) -> int:
        """The feed reaches back to the batches after this index."""
        return self._ledger.tail_from

    def get_position(self) -> LogPosition:
        return self._ledger.get_position()

    def read_health(self) -> LogHealth:
        why = self.failure_reason or self._checkpointer.failure_reason
        return LogHealth(writable=not self.failure_reason, why=why, size_bytes=self.database.compute_size_bytes())

    # -- writing

    def commit_group(self, writes: Sequence[EncodedWrite]) -> WriteGroupResult:
        """One transaction for all of them. Never raises: what went wrong is in the outcomes."""
        refusal = self._refusal()
        if refusal:
            return WriteGroupResult([WriteRejected(refusal)] * len(writes), ())
        staged: dict[tuple[str, str], int] = {}
        outcomes: list[WriteOutcome] = []
        batches: list[tuple[Batch, int]] = []
        index = self._ledger.index
        for write in writes:
            verdict = self._verdict(write, staged)
            if verdict is None:
                index += 1
                for change in write.changes:
                    staged[change.table, change.key] = 0 if change.data is None else index
                batches.append((Batch(index, write.id, write.kind, write.cause, write.changes), write.lease))
                verdict = Committed(index)
            outcomes.append(verdict)
        if not batches:
            return WriteGroupResult(outcomes, ())
        failure = self._append([line for batch, lease in batches for line in build_lines(batch, lease)])
        if failure is not None:
            return WriteGroupResult([failure if isinstance(o, Committed) else o for o in outcomes], ())
        for batch, lease in batches:
            self._take(batch, lease)
        return WriteGroupResult(outcomes, [batch for batch, _ in batches])

    def grant_lease(self, *, ttl_ms: int, owner: str) -> GrantedLease:
        """Raises `Unavailable`."""

        def write(connection: apsw.Connection) -> GrantedLease:
            ((lease,),) = connection.execute(_NEXT_LEASE)
            connection.execute("INSERT INTO leases VALUES (?, ?, ?)", (lease, ttl_ms, owner))
            return GrantedLease(lease, ttl_ms, owner)

        granted = self._transact(write)
        self.leases[granted.id] = granted
        return granted

    def end_lease(self, lease: int) -> WriteGroupResult:
        """What hangs on the lease goes, in one batch. Ending one that has ended changes nothing. Raises `Unavailable`."""
        if lease not in self.leases:
            return WriteGroupResult((), ())
        keys = sorted(self._ledger.lease_keys.get(lease, ()))
        cause = Cause(CauseKind.LEASE, str(lease))
        batch = Batch(
            self.index + 1, "", LEASE_ENDED_KIND, cause, [EncodedChange(table, key, None) for table, key in keys]
        )

        def write(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
            if keys:
                connection.executemany(INSERT_LINE, build_lines(batch, 0))

        self._transact(write)
        del self.leases[lease]
        if not keys:
            return WriteGroupResult((), ())
        self._take(batch, 0)
        return WriteGroupResult((), [batch])

    def begin_epoch(self, *, above: int) -> None:
        """A follower has seen `above`, and the log never came so far: it is an older copy of itself. Index goes past it."""
        epoch, index = self.epoch + 1, above + 1

        def write(connection: apsw.Connection) -> None:
            write_last_changes(connection, dict.fromkeys(self._ledger.last_changes, index))
            write_facts(connection, epoch=epoch, epoch_since=index, tail_from=index)

        _log.warning("the log stands at %d and a follower at %d: a new epoch begins", self.index, above)
        self._transact(write)
        self.replacement_count += 1
        self._reload()

    # -- reading

    def begin_load(self) -> tuple[LogPosition, frozenset[int]]:
        """Where a load stands, and the lines that it must skip. Nothing is trimmed until `end_load`."""
        self._holds += 1
        return self._ledger.get_position(), frozenset(self._ledger.dead_lines)

    def end_load(self) -> None:
        self._holds -= 1

    # -- between two groups

    def compact(self, before: int) -> None:
        """The tail may begin at `before`, as far as the tail that is promised allows; `tidy` does it."""
        self._compacted_to = max(self._compacted_to, before - 1)

    def should_maintain(self) -> bool:
        return (
            self._writer is not None
            and not self.failure_reason
            and (self.should_trim() or self._checkpointer.is_nearly_done)
        )

    def run_maintenance_step(self) -> None:
        """One bounded step of what must not be done while somebody waits for a commit."""
        if self._checkpointer.is_nearly_done:
            self._move_rest()
        elif self.should_trim():
            self._trim()

    def should_trim(self) -> bool:
        if self._holds or self.is_restoring or self.failure_reason:
            return False
        surplus = self._ledger.tail_changes - self._tail_changes
        return (
            surplus >= MAX_TRIM_LINES
            or len(self._ledger.stale_lines) >= MAX_TRIM_LINES
            or (surplus > 0 and self.tail_from < min(self._compacted_to, self.index - 1))
        )

    # -- replacing all

    def replace_file(self, path: Path) -> None:
        """The file at `path` becomes the log, in one step. Raises `Unavailable`; the old log stays in force then."""
        self.replacement_count += 1
        self._detach()
        try:
            self.database.replace_with(path)
        finally:
            try:
                self._attach()
            except (apsw.Error, OSError) as error:
                self.suspend_writes(error)
        if self.failure_reason:
            raise LogUnavailable(self.failure_reason)

    def read_next_lease_id(self) -> int:
        """The id of the next lease: no lease of a log gets the id of an earlier one, restored or not."""
        ((lease,),) = self._attached().execute("SELECT value FROM facts WHERE name = 'next_lease'")
        return int(lease)

    # -- inside

    def _verdict(self, write: EncodedWrite, staged: dict[tuple[str, str], int]) -> WriteOutcome | None:
        """Why the write cannot be committed after those that are staged; None: it can."""
        refusal = check_write_limits(write, self.limits)
        if refusal is not None:
            return WriteRejected(refusal)
        if write.lease:
            if write.lease not in self.leases:
                return WriteRejected(f"the lease {write.lease} has ended")
            if len(self._ledger.lease_keys.get(write.lease, ())) + len(write.changes) > self.limits.changes:
                return WriteRejected(
                    f"the lease {write.lease} would hold more records than the {self.limits.changes} of a batch"
                )
        version = self._ledger.get_version
        moved = [
            (condition.table, condition.key)
            for condition in write.conditions
            if condition.version
            != (
                staged[condition.table, condition.key]
                if (condition.table, condition.key) in staged
                else version(condition.table, condition.key)
            )
        ]
        return WriteConflict(moved) if moved else None

    def _refusal(self) -> str:
        if self.is_restoring:
            return f"the log in {self.database.folder} is being restored from a snapshot: try again when that is done"
        if self.failure_reason and not self._damaged and self._clock() >= self._retry_at:
            self._recover()
        return self.failure_reason

    def _append(self, lines: Sequence[Line]) -> WriteRejected | WriteOutcomeUnknown | None:
        """None: the lines are durable."""
        writer = self._attached()
        try:
            writer.execute("BEGIN IMMEDIATE")
            writer.executemany(INSERT_LINE, lines)
        except (apsw.Error, OSError) as error:
            self._give_up(error)
            return WriteRejected(self.database.describe_error(error))
        try:
            writer.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            # Whether the group is in the file, only the file can say, after it has been opened anew.
            self._give_up(error)
            return WriteOutcomeUnknown(self.database.describe_error(error))
        if self._wal_pages >= MAX_WAL_PAGES:
            self._move_rest()
        return None

    def _transact(self, write: Callable[[apsw.Connection], T]) -> T:
        """A transaction of our own making, durable when this returns. Raises `Unavailable`."""
        refusal = self._refusal()
        if refusal:
            raise LogUnavailable(refusal)
        writer = self._attached()
        try:
            writer.execute("BEGIN IMMEDIATE")
            answer = write(writer)
            writer.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            self._give_up(error)
            raise LogUnavailable(self.database.describe_error(error)) from error
        return answer

    def _take(self, batch: Batch, lease: int) -> None:
        place = batch.index * MAX_BATCH_LINES
        self._ledger.add_head(place)
        for change in batch.changes:
            place += 1
            self._ledger.add_line(place, change.table, change.key, is_drop=change.data is None, lease=lease)

    def _give_up(self, error: Exception) -> None:
        """The open transaction failed: nothing of it may stay, and what stayed all the same must come to light."""
        self.suspend_writes(error)
        with suppress(apsw.Error, OSError):
            if self._writer is not None and self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        self._recover()

    def suspend_writes(self, error: Exception) -> None:
        self.failure_reason = str(error) if isinstance(error, LogUnavailable) else self.database.describe_error(error)
        self._damaged = isinstance(error, (apsw.CorruptError, apsw.NotADBError, DamagedLog))
        self._retry_at = self._clock() + RECOVERY_INTERVAL_S
        _log.error("%s", self.failure_reason)

    def _recover(self) -> None:
        """Open the file anew and believe what it says. A damaged one is left as it is: what is known can be read on."""
        if self._damaged:
            return
        self._detach()
        try:
            self._attach()
        except (apsw.Error, OSError, LogUnavailable) as error:
            self.suspend_writes(error)

    def _attach(self) -> None:
        self._writer = writer = self.database.open_writer()
        self._settle(writer)
        self._reload()
        self._checkpointer = Checkpointer(self.database, min_pages=self._checkpoint_pages)
        self._checkpointer.start()
        writer.set_wal_hook(self._on_commit)
        self.failure_reason = ""
        self._damaged = False

    def _detach(self) -> None:
        self._checkpointer.stop()
        self.reader.close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with suppress(apsw.Error, OSError):
                writer.close()

    def _attached(self) -> apsw.Connection:
        assert self._writer is not None, "the log is not open"
        return self._writer

    def _settle(self, writer: apsw.Connection) -> None:
        """Make what was found durable, and what was not found impossible.

        A process that died, or a sync that failed, may have left commits in the write-ahead log that no sync covers:
        they can be read now and would be gone after a power cut. And it may have left frames of a commit that was
        given up: they must not come back. Moving everything into the file and beginning the write-ahead log anew,
        with a commit that is synced, settles both.
        """
        busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise LogUnavailable(f"another program reads {self.database.path}: close it, so that the log can be opened")
        writer.execute("UPDATE facts SET value = value + 1 WHERE name = 'openings'")

    def _reload(self) -> None:
        """Raises `Damaged`, also for what SQLite does not see: keys that are no text, facts that are missing."""
        try:
            self._ledger, self.leases = self._read_ledger(self._attached())
        except (KeyError, TypeError, UnicodeDecodeError) as error:
            raise self._damage(repr(error)) from error

    def _read_ledger(self, writer: apsw.Connection) -> tuple[LineIndex, dict[int, GrantedLease]]:
        facts = dict(writer.execute("SELECT name, value FROM facts"))
        last_changes = dict(writer.execute("SELECT table_name, changed_at FROM last_changes"))
        ledger = LineIndex(
            epoch=facts["epoch"],
            epoch_since=facts.get("epoch_since", 0),
            tail_from=facts["tail_from"],
            last_changes=last_changes,
        )
        heads = 0
        for place, table, key, lease, is_drop in writer.execute(_SCAN):
            if table is not None:
                ledger.add_line(place, table, key, is_drop=bool(is_drop), lease=lease)
            elif ledger.add_head(place):
                heads += 1
        if heads != ledger.index - ledger.tail_from:
            raise self._damage(f"{heads} batches lie between {ledger.tail_from} and {ledger.index}")
        leases = {row[0]: GrantedLease(*row) for row in writer.execute("SELECT id, ttl_ms, owner FROM leases")}
        return ledger, leases

    def _damage(self, how: str) -> DamagedLog:
        return DamagedLog(self.database.describe_error(apsw.CorruptError(how)))

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:
            self._checkpoint_at = self._checkpoint_pages
        self._wal_pages = pages
        if pages >= self._checkpoint_at:
            self._checkpoint_at = pages + min(MAX_FINAL_PAGES, self._checkpoint_pages)
            self._checkpointer.request_checkpoint()
        return apsw.SQLITE_OK

    def _move_rest(self) -> None:
        self._checkpointer.is_nearly_done = False
        try:
            self._attached().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return  # The thread is at it again: its turn.
        except apsw.Error as error:
            # Nothing is lost, all of it still is in the write-ahead log.
            _log.error("checkpoint: %s", self.database.describe_error(error))
            if isinstance(error, apsw.CorruptError):
                self.suspend_writes(error)

    def _trim(self) -> None:
        writer = self._attached()
        surplus = self._ledger.tail_changes - self._tail_changes
        upto = self.index if surplus >= MAX_TRIM_LINES else self._compacted_to
        cut = plan_trim(writer, self._ledger, surplus=surplus, last_index=upto, max_lines=MAX_TRIM_LINES)
        if not cut.change_count and not cut.stale_count:
            self._compacted_to = self.tail_from  # The next batch is larger than what the promised tail can spare.
            return
        try:
            # Need not be durable by itself: the next commit's sync covers it, and if it is lost, it is done again.
            writer.execute("PRAGMA synchronous = NORMAL")
            writer.execute("BEGIN IMMEDIATE")
            write_trim(writer, cut)
            writer.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            self._give_up(error)
            return
        finally:
            with suppress(apsw.Error):
                if self._writer is not None:
                    self._writer.execute("PRAGMA synchronous = FULL")
        self._ledger.trim_tail(
            tail_from=cut.tail_from, changes=cut.change_count, stale=cut.stale_count, deleted=cut.deleted_lines
        )
