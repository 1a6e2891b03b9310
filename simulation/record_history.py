"""Records every version of every record, directly from the log.

`RecordHistory` has its own replica, and returns the content of a record at any index. It calls the checks of each batch
with the old and the new records.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from simulation.process import Process
from simulation.timeline import Timeline
from wharf.cluster.engines.port import Batch, EncodedWrite, LogPosition, StoredRecord
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import ALL_TABLES

NO_LATER_INDEX: Final = 1 << 62


class ObservedChange(msgspec.Struct, frozen=True):
    """One record before and after a batch."""

    table: str
    key: str
    old: Any
    new: Any


class ObservedBatch(msgspec.Struct, frozen=True):
    """A committed batch with its write (`None` if a lease ended), its writer, and the changed records."""

    batch: Batch
    write: EncodedWrite | None
    process: Process | None
    changes: Sequence[ObservedChange]


class RecordHistory:
    """All versions of all records, and the checks that run on each batch. A check that raises fails the run."""

    def __init__(self, timeline: Timeline, fail: Callable[[Exception], None]) -> None:
        self.replica = Replica(ALL_TABLES)
        self.batch_checks: list[Callable[[ObservedBatch], None]] = []
        self.write_checks: list[Callable[[EncodedWrite, Process | None], None]] = []
        self.on_new_epoch: list[Callable[[], None]] = []
        """Called after each restore."""
        self.table_changes: dict[str, list[int]] = {table.name: [1] for table in ALL_TABLES}
        self._versions: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self._keys: dict[str, dict[str, None]] = {table.name: {} for table in ALL_TABLES}
        self._timeline = timeline
        self._fail = fail

    # -- recording -------------------------------------------------------------------------------------------------

    def on_write_requested(self, write: EncodedWrite, process: Process | None) -> None:
        for check in self.write_checks:
            self._run_check(check, write, process)

    def on_batch(self, batch: Batch, write: EncodedWrite | None, process: Process | None) -> None:
        """Apply a batch to the replica, record its changes, and run all checks of batches."""
        replica = self.replica
        old_records = [replica.get(replica.tables[change.table], change.key) for change in batch.changes]
        replica.apply_batch(batch)
        changes = []
        for change, old in zip(batch.changes, old_records, strict=True):
            new = replica.get(replica.tables[change.table], change.key)
            changes.append(ObservedChange(change.table, change.key, old, new))
            self._versions.setdefault((change.table, change.key), []).append((batch.index, new))
            self._keys[change.table][change.key] = None
            table_changes = self.table_changes[change.table]
            if table_changes[-1] != batch.index:
                table_changes.append(batch.index)
        writer = process.name if process is not None else "the log"
        keys = [_shorten_key(change.key) for change in changes]
        subjects = [part for change in changes for part in change.key.split("\0")]
        self._timeline.add_event(f"[{batch.index}] {writer}: {batch.kind} {' '.join(keys[:6])}", *subjects, writer)
        observed = ObservedBatch(batch, write, process, changes)
        for check in self.batch_checks:
            self._run_check(check, observed)

    def on_restored(self, rows: list[StoredRecord], position: LogPosition, since: int) -> None:
        """Record that an older state replaced all records, from the index `since` on."""
        replica = self.replica
        replica.load_state(rows, position)
        for table in replica.tables.values():
            records = replica.get_table_records(table).records
            keys = self._keys[table.name]
            keys |= dict.fromkeys(records)
            for key in keys:
                self._versions.setdefault((table.name, key), []).append((since, records.get(key)))
            self.table_changes[table.name].append(replica.get_last_change(table))
        self._timeline.add_event(f"the log was restored to index {position.index}, epoch {position.epoch}")
        for callback in self.on_new_epoch:
            callback()

    def _run_check(self, check: Callable[..., None], *arguments: object) -> None:
        """Run a check. If it fails, the run ends at its next step, and not in the middle of the commit."""
        try:
            check(*arguments)
        except AssertionError as violation:
            self._fail(violation)

    # -- reading ---------------------------------------------------------------------------------------------------

    def list_versions(self, table: Table[Any], key: str) -> list[tuple[int, Any]]:
        """Return all versions of a record as (index, record or `None`), in order."""
        return self._versions.get((table.name, key), [])

    def get_record(self, table: Table[Any], key: str, index: int) -> Any:
        """Return the record at this index, or `None` if it did not exist."""
        versions = self.list_versions(table, key)
        position = bisect_right(versions, index, key=lambda version: version[0])
        return versions[position - 1][1] if position else None

    def find_next_change(self, table: Table[Any], key: str, after: int) -> int:
        """Return the first index above `after` at which the record changed, or `NO_LATER_INDEX`."""
        versions = self.list_versions(table, key)
        position = bisect_right(versions, after, key=lambda version: version[0])
        return versions[position][0] if position < len(versions) else NO_LATER_INDEX

    def find_next_table_change(self, table: Table[Any], after: int) -> int:
        changes = self.table_changes[table.name]
        position = bisect_right(changes, after)
        return changes[position] if position < len(changes) else NO_LATER_INDEX

    def find_last_table_change(self, table: Table[Any], index: int) -> int:
        changes = self.table_changes[table.name]
        return changes[bisect_right(changes, index) - 1]

    def list_keys(self, table: Table[Any]) -> Iterator[str]:
        """Return every key that the table has ever had."""
        return iter(self._keys[table.name])


def _shorten_key(key: str) -> str:
    return "/".join(part[:8] if len(part) == 36 else part for part in key.split("\0"))
