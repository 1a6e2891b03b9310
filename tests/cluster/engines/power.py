"""Runs of a log on a disk that loses power: write, cut the power, open again and check the content."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.cluster.engines.lying_disk import PowerCutDisk, write_files
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
CUT_WITHIN = 250  # Operations of the disk in one life.
CUT_WITHIN_OPENING = 20


@dataclass
class Tally:
    acknowledged: int = 0
    unknown_that_happened: int = 0
    unknown_that_did_not: int = 0
    cut_while_opening: int = 0
    trimmed: int = 0
    restored: int = 0
    unknown_restores_that_happened: int = 0
    unknown_restores_that_did_not: int = 0


State = dict[tuple[str, str], tuple[int, bytes]]


@dataclass
class Restored:
    """A state that was put in place of all, and where the log stood then."""

    epoch: int = 0
    index: int = 0
    state: State = field(default_factory=dict)


@dataclass
class Expected:
    """What the log must hold, as far as anybody was told: the last restore, and the batches after it."""

    base: Restored = field(default_factory=Restored)
    batches: list[Batch] = field(default_factory=list)
    unknown: list[EncodedWrite] = field(default_factory=list)
    unknown_restore: Restored | None = None

    def adopt(self, restored: Restored) -> None:
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


class WatchedFolder(LogDatabase):
    """Reports renames and folder syncs to the disk."""

    def __init__(self, folder: Path, disk: PowerCutDisk) -> None:
        super().__init__(folder, vfs=disk.vfs_name)
        self._disk = disk

    def rename_into_place(self, path: Path) -> None:
        super().rename_into_place(path)
        self._disk.was_renamed(str(path), str(self.path))

    def sync_folder(self) -> None:
        super().sync_folder()
        self._disk.was_folder_synced()


class BlindDisk(PowerCutDisk):
    """Ignores syncs."""

    def was_synced(self, path: str) -> None:
        pass

    def was_folder_synced(self) -> None:
        pass


def run_lives(folder: Path, *, seed: int, lives: int, syncs_count: bool = True) -> Tally:
    random = Random(seed)
    disk = (PowerCutDisk if syncs_count else BlindDisk)(f"power-{seed}-{syncs_count}", random)
    expected, tally = Expected(), Tally()
    files: dict[str, bytes] = {}
    numbers = iter(range(1_000_000))
    try:
        for _ in range(lives):
            write_files(files, folder)
            disk.begin(files, cut_at=random.randrange(1, random.choice((CUT_WITHIN_OPENING, CUT_WITHIN, CUT_WITHIN))))
            live(folder, disk, random, numbers, expected, tally)
            disk.cut()
            survivors = disk.survivors or {}
            # The index of the write-ahead log is in memory, not on the disk.
            files = {path: data for path, data in survivors.items() if not path.endswith("-shm")}
        write_files(files, folder)
        disk.begin(files, cut_at=-1)
        store = open_store(folder, disk)
        settle(store, expected, tally)
        store.close()
    finally:
        disk.unregister()
    return tally


def live(
    folder: Path, disk: PowerCutDisk, random: Random, numbers: Iterator[int], expected: Expected, tally: Tally
) -> None:
    """Write until the power is cut, or until enough is written."""
    store = open_store(folder, disk)
    if disk.is_off():
        tally.cut_while_opening += 1
        store.close()
        return
    settle(store, expected, tally)
    while not disk.is_off():
        if random.random() < 0.1:
            restore(store, disk, random, next(numbers), expected, tally)
            continue
        writes = [a_write(random, next(numbers)) for _ in range(random.choice((1, 1, 2, 8)))]
        group = store.commit_group(writes)
        if disk.is_off():
            # The outcome is unknown.
            expected.unknown += writes
            break
        was_told(expected, tally, writes, group.outcomes)
        if random.random() < 0.3:
            store.compact(store.index)
        while store.should_maintain() and not disk.is_off():
            store.run_maintenance_step()
    store.close()


def restore(
    store: SqliteStore, disk: PowerCutDisk, random: Random, number: int, expected: Expected, tally: Tally
) -> None:
    """Restore other records in place of all; either all are replaced or none."""
    keys = random.sample(range(KEYS), random.choice((0, 3, KEYS)))
    rows = [StoredRecord("t", f"k{key}", 1, b"%d-" % number * random.choice((10, 2_000))) for key in keys]
    index = store.index + 1
    restored = Restored(
        store.get_position().epoch + 1, index, {(row.table, row.key): (index, row.data) for row in rows}
    )
    restoring = SqliteRestore(store)
    restoring.begin(LogPosition(0, {}))
    restoring.add_records(rows)
    restored_index = restoring.finish()
    if disk.is_off():
        expected.unknown_restore = restored  # Nobody heard of it.
        return
    assert restored_index == index
    expected.adopt(restored)
    tally.restored += 1


def open_store(folder: Path, disk: PowerCutDisk) -> SqliteStore:
    # Checkpoints and trims all the time: they must not lose anything either.
    store = SqliteStore(folder, clock=lambda: 0.0, min_tail_changes=20, checkpoint_pages=8, vfs=disk.vfs_name)
    store.database = WatchedFolder(folder, disk)
    store.open()
    return store


def was_told(
    expected: Expected, tally: Tally, writes: Sequence[EncodedWrite], outcomes: Sequence[WriteOutcome]
) -> None:
    for write, outcome in zip(writes, outcomes, strict=True):
        assert isinstance(outcome, Committed), outcome
        expected.batches.append(Batch(outcome.index, write.id, write.kind, write.cause, write.changes))
        tally.acknowledged += 1


def settle(store: SqliteStore, expected: Expected, tally: Tally) -> None:
    """Resolve writes with unknown outcome, then check that the log contains exactly the expected batches."""
    unknown, expected.unknown = expected.unknown, []
    for write in unknown:
        index = store.reader.find_write(write.id, since=0)
        if index is None:
            tally.unknown_that_did_not += 1
        else:
            tally.unknown_that_happened += 1
            expected.batches.append(Batch(index, write.id, write.kind, write.cause, write.changes))
    position, dead = store.begin_load()
    restored, expected.unknown_restore = expected.unknown_restore, None
    if restored is not None and position.epoch == restored.epoch:
        expected.adopt(restored)
        tally.unknown_restores_that_happened += 1
    elif restored is not None:
        tally.unknown_restores_that_did_not += 1
    rows, _ = store.reader.read_records(0, last_index=position.index, dead_lines=dead)
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
