"""Runs of a log on a disk that loses power: write, cut the power, reopen the log and check its content."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.cluster.engines.faulty_disks import PowerCutDisk, write_files
from wharf.cluster.engines.port import (
    Batch,
    Committed,
    EncodedChange,
    EncodedWrite,
    LogPosition,
    StoredRecord,
    WriteOutcome,
)
from wharf.cluster.engines.sqlite.database import LogDatabase
from wharf.cluster.engines.sqlite.restore import SqliteRestore
from wharf.cluster.engines.sqlite.store import SqliteStore
from wharf.contract.model.log import Cause, CauseKind

KEYS = 40
CUT_WITHIN = 250  # The maximum number of disk operations in one life.
CUT_WITHIN_OPENING = 20


@dataclass
class Tally:
    """How often each situation occurred, so that tests can assert that it did."""

    acknowledged: int = 0
    unknown_committed: int = 0
    unknown_not_committed: int = 0
    cut_while_opening: int = 0
    trimmed: int = 0
    restored: int = 0
    unknown_restores_committed: int = 0
    unknown_restores_not_committed: int = 0


State = dict[tuple[str, str], tuple[int, bytes]]


@dataclass
class RestoredState:
    """A state that replaced all records, with the epoch and the index of the restore."""

    epoch: int = 0
    index: int = 0
    state: State = field(default_factory=dict)


@dataclass
class ExpectedLog:
    """The content that the log must have by its replies so far: the last restore, and the batches after it."""

    base: RestoredState = field(default_factory=RestoredState)
    batches: list[Batch] = field(default_factory=list)
    unknown: list[EncodedWrite] = field(default_factory=list)
    unknown_restore: RestoredState | None = None

    def adopt(self, restored: RestoredState) -> None:
        self.base, self.batches = restored, []

    def state(self) -> State:
        state = dict(self.base.state)
        for batch in self.batches:
            for change in batch.changes:
                if change.data is None:
                    state.pop((change.table, change.key), None)
                else:
                    state[change.table, change.key] = (batch.index, change.data)
        return state


class ObservedDatabase(LogDatabase):
    """A database that reports renames and folder syncs to the disk."""

    def __init__(self, folder: Path, disk: PowerCutDisk) -> None:
        super().__init__(folder, vfs=disk.vfs_name)
        self._disk = disk

    def rename_into_place(self, path: Path) -> None:
        super().rename_into_place(path)
        self._disk.on_rename(str(path), str(self.path))

    def sync_folder(self) -> None:
        super().sync_folder()
        self._disk.on_folder_sync()


class NoSyncDisk(PowerCutDisk):
    """A disk that ignores syncs."""

    def on_sync(self, path: str) -> None:
        pass

    def on_folder_sync(self) -> None:
        pass


def run_lives(folder: Path, *, seed: int, lives: int, has_syncs: bool = True) -> Tally:
    """Run this number of lives of a log, each until a power cut. Check the log at each start."""
    random = Random(seed)
    disk = (PowerCutDisk if has_syncs else NoSyncDisk)(f"power-{seed}-{has_syncs}", random)
    expected, tally = ExpectedLog(), Tally()
    files: dict[str, bytes] = {}
    numbers = iter(range(1_000_000))
    try:
        for _ in range(lives):
            write_files(files, folder)
            disk.power_on(
                files, cut_at=random.randrange(1, random.choice((CUT_WITHIN_OPENING, CUT_WITHIN, CUT_WITHIN)))
            )
            run_life(folder, disk, random, numbers, expected, tally)
            disk.cut()
            survivors = disk.survivors or {}
            # The index of the write-ahead log is in memory, not on the disk.
            files = {path: data for path, data in survivors.items() if not path.endswith("-shm")}
        write_files(files, folder)
        disk.power_on(files, cut_at=-1)
        store = open_store(folder, disk)
        resolve_and_check(store, expected, tally)
        store.close()
    finally:
        disk.unregister()
    return tally


def run_life(
    folder: Path, disk: PowerCutDisk, random: Random, numbers: Iterator[int], expected: ExpectedLog, tally: Tally
) -> None:
    """Check the log, then write until the power is cut."""
    store = open_store(folder, disk)
    if disk.is_power_off():
        tally.cut_while_opening += 1
        store.close()
        return
    resolve_and_check(store, expected, tally)
    while not disk.is_power_off():
        if random.random() < 0.1:
            restore(store, disk, random, next(numbers), expected, tally)
            continue
        writes = [a_write(random, next(numbers)) for _ in range(random.choice((1, 1, 2, 8)))]
        group = store.commit_group(writes)
        if disk.is_power_off():
            # The outcome is unknown.
            expected.unknown += writes
            break
        record_acknowledged(expected, tally, writes, group.outcomes)
        if random.random() < 0.3:
            store.compact(store.index)
        while store.should_maintain() and not disk.is_power_off():
            store.run_maintenance_step()
    store.close()


def restore(
    store: SqliteStore, disk: PowerCutDisk, random: Random, number: int, expected: ExpectedLog, tally: Tally
) -> None:
    """Replace all records by a restore. If the power is cut, either all are replaced or none."""
    keys = random.sample(range(KEYS), random.choice((0, 3, KEYS)))
    rows = [StoredRecord("t", f"k{key}", 1, b"%d-" % number * random.choice((10, 2_000))) for key in keys]
    index = store.index + 1
    restored = RestoredState(
        store.get_position().epoch + 1, index, {(row.table, row.key): (index, row.data) for row in rows}
    )
    restoring = SqliteRestore(store)
    restoring.begin(LogPosition(0, {}))
    restoring.add_records(rows)
    restored_index = restoring.finish()
    if disk.is_power_off():
        expected.unknown_restore = restored  # The outcome is unknown.
        return
    assert restored_index == index
    expected.adopt(restored)
    tally.restored += 1


def open_store(folder: Path, disk: PowerCutDisk) -> SqliteStore:
    # These settings cause frequent checkpoints and trims, which must not lose data either.
    store = SqliteStore(folder, clock=lambda: 0.0, min_tail_changes=20, checkpoint_pages=8, vfs=disk.vfs_name)
    store.database = ObservedDatabase(folder, disk)
    store.open()
    return store


def record_acknowledged(
    expected: ExpectedLog, tally: Tally, writes: Sequence[EncodedWrite], outcomes: Sequence[WriteOutcome]
) -> None:
    for write, outcome in zip(writes, outcomes, strict=True):
        assert isinstance(outcome, Committed), outcome
        expected.batches.append(Batch(outcome.index, write.id, write.kind, write.cause, write.changes))
        tally.acknowledged += 1


def resolve_and_check(store: SqliteStore, expected: ExpectedLog, tally: Tally) -> None:
    """Resolve writes with unknown outcome, then check that the log contains exactly the expected batches."""
    unknown, expected.unknown = expected.unknown, []
    for write in unknown:
        index = store.reader.find_write(write.id, since=0)
        if index is None:
            tally.unknown_not_committed += 1
        else:
            tally.unknown_committed += 1
            expected.batches.append(Batch(index, write.id, write.kind, write.cause, write.changes))
    position, dead_lines = store.begin_load()
    restored, expected.unknown_restore = expected.unknown_restore, None
    if restored is not None and position.epoch == restored.epoch:
        expected.adopt(restored)
        tally.unknown_restores_committed += 1
    elif restored is not None:
        tally.unknown_restores_not_committed += 1
    rows, _ = store.reader.read_records(0, last_index=position.index, dead_lines=dead_lines)
    store.end_load()
    found = {(table, key): (version, data) for table, key, version, data in rows}
    assert len(found) == len(rows)
    assert expected.state() == found
    tail = [batch for batch in expected.batches if batch.index > store.tail_from]
    assert tail == store.reader.read_batches(store.tail_from, last_index=position.index, max_bytes=10**9)
    assert (position.epoch, position.index) == (expected.base.epoch, expected.base.index + len(expected.batches))
    tally.trimmed += store.tail_from > 0


def a_write(random: Random, number: int) -> EncodedWrite:
    keys = random.sample(range(KEYS), random.choice((1, 2, 5)))
    changes = [
        EncodedChange(
            "t", f"k{key}", None if random.random() < 0.2 else b"%d-" % number * random.choice((10, 500, 2_000))
        )
        for key in keys
    ]
    return EncodedWrite(f"w{number}", "test", Cause(CauseKind.REQUEST, str(number)), (), changes)
