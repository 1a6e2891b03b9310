"""One who sees every batch the moment it is in, and remembers every version of every record.

It holds a replica of its own, fed straight from the log, and can tell what stood where at any index. Checks of what a
batch changed are called with the old and the new records.
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
    """One batch, as the witness took it in."""

    batch: Batch
    write: EncodedWrite | None
    process: Process | None
    changes: Sequence[ObservedChange]


class RecordHistory:
    def __init__(self, timeline: Timeline, fail: Callable[[Exception], None]) -> None:
        self.replica = Replica(ALL_TABLES)
        self.batch_checks: list[Callable[[ObservedBatch], None]] = []
        self.write_checks: list[Callable[[EncodedWrite, Process | None], None]] = []
        self.on_new_epoch: list[Callable[[], None]] = []
        """The first index of the epoch that the log is in."""
        self.table_changes: dict[str, list[int]] = {table.name: [1] for table in ALL_TABLES}
        self._versions: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self._keys: dict[str, dict[str, None]] = {table.name: {} for table in ALL_TABLES}
        self._story = timeline
        self._fail = fail

    # -- taking in -------------------------------------------------------------------------------------------------

    def on_write_requested(self, write: EncodedWrite, process: Process | None) -> None:
        for check in self.write_checks:
            self._guard(check, write, process)

    def on_batch(self, batch: Batch, write: EncodedWrite | None, process: Process | None) -> None:
        replica = self.replica
        olds = [replica.get(replica.tables[change.table], change.key) for change in batch.changes]
        replica.apply_batch(batch)
        changes = []
        for change, old in zip(batch.changes, olds, strict=True):
            new = replica.get(replica.tables[change.table], change.key)
            changes.append(ObservedChange(change.table, change.key, old, new))
            self._versions.setdefault((change.table, change.key), []).append((batch.index, new))
            self._keys[change.table][change.key] = None
            table_changes = self.table_changes[change.table]
            if table_changes[-1] != batch.index:
                table_changes.append(batch.index)
        who = process.name if process is not None else "the log"
        keys = [_readable(change.key) for change in changes]
        about = [part for change in changes for part in change.key.split("\0")]
        self._story.add_event(f"[{batch.index}] {who}: {batch.kind} {' '.join(keys[:6])}", *about, who)
        taken = ObservedBatch(batch, write, process, changes)
        for check in self.batch_checks:
            self._guard(check, taken)

    def on_restored(self, rows: list[StoredRecord], standing: LogPosition, since: int) -> None:
        """An older state stands in place of all: every record is as it is there, from the index `since` on."""
        replica = self.replica
        replica.load_state(rows, standing)
        for table in replica.tables.values():
            records = replica.get_table_records(table).records
            keys = self._keys[table.name]
            keys |= dict.fromkeys(records)
            for key in keys:
                self._versions.setdefault((table.name, key), []).append((since, records.get(key)))
            self.table_changes[table.name].append(replica.get_last_change(table))
        self._story.add_event(f"the log was restored: it stands at {standing.index}, in epoch {standing.epoch}")
        for heard in self.on_new_epoch:
            heard()

    def _guard(self, check: Callable[..., None], *given: object) -> None:
        """A check that fails must not fail what it watches: the run ends at the next step."""
        try:
            check(*given)
        except AssertionError as broken:
            self._fail(broken)

    # -- looking back ----------------------------------------------------------------------------------------------

    def list_versions(self, table: Table[Any], key: str) -> list[tuple[int, Any]]:
        """(index, record or None), in order."""
        return self._versions.get((table.name, key), [])

    def get_record(self, table: Table[Any], key: str, index: int) -> Any:
        """The record that stood there at this index."""
        versions = self.list_versions(table, key)
        position = bisect_right(versions, index, key=lambda version: version[0])
        return versions[position - 1][1] if position else None

    def find_next_change(self, table: Table[Any], key: str, after: int) -> int:
        """The first index above `after` at which the record changed; NEVER: it did not."""
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
        """Every key that was ever used."""
        return iter(self._keys[table.name])


def _readable(key: str) -> str:
    return "/".join(part[:8] if len(part) == 36 else part for part in key.split("\0"))
