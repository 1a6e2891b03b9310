"""The log of one folder without an event loop: reads in slices, trimming, compaction, leases, recovery and restores."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from tests.cluster.engines.contract import a_write, drop, in_order, put, unchanged
from tests.cluster.engines.faulty_disks import FailingDisk
from tests.waiting import wait_until
from wharf.cluster.engines.port import (
    LEASE_ENDED_KIND,
    Batch,
    Committed,
    EncodedChange,
    EncodedWrite,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteConflict,
    WriteLimits,
    WriteOutcome,
    WriteRejected,
)
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES, FolderLock, LogDatabase
from wharf.cluster.engines.sqlite.line_index import LogLineIndex
from wharf.cluster.engines.sqlite.lines import INSERT_LINE, build_lines
from wharf.cluster.engines.sqlite.restore import MAX_RECORDS_PER_INDEX, SqliteRestore
from wharf.cluster.engines.sqlite.store import MAX_TRIM_LINES, RECOVERY_INTERVAL_S, SqliteStore
from wharf.cluster.engines.sqlite.trim import TrimPlan, plan_trim, write_trim
from wharf.contract.model.log import Cause, CauseKind
from wharf.world.disk_space import measure_disk_space

CAUSE = Cause(CauseKind.REQUEST, "r1")
StartStore = Callable[..., SqliteStore]


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[StartStore]:
    """A function that opens a store on one folder. All stores are closed when the test ends."""
    opened: list[SqliteStore] = []

    def start(**options: object) -> SqliteStore:
        store = SqliteStore(tmp_path / "log", clock=clock, **options)  # type: ignore[arg-type]
        store.open()
        opened.append(store)
        return store

    yield start
    for store in opened:
        store.close()


@pytest.fixture
def store(start: StartStore) -> SqliteStore:
    return start()


def commit(store: SqliteStore, *writes: EncodedWrite) -> list[WriteOutcome]:
    return list(store.commit_group(writes).outcomes)


def read_rows(store: SqliteStore, *, max_lines: int = 1_000, max_bytes: int = 1_000_000) -> list[list[str]]:
    """Return the keys of the records, in the slices in which they are read."""
    position, dead_lines = store.begin_load()
    slices: list[list[str]] = []
    place: int | None = 0
    while place is not None:
        rows, place = store.reader.read_records(
            place, last_index=position.index, dead_lines=dead_lines, max_lines=max_lines, max_bytes=max_bytes
        )
        slices.append([key for _, key, _, _ in rows])
    store.end_load()
    return slices


# --- reading ---


@pytest.mark.parametrize(
    ("max_lines", "slices"),
    [(3, [["a", "b", "c"], ["d", "e", "f"], []]), (4, [["a", "b", "c", "d"], ["e", "f"]]), (7, [list("abcdef")])],
)
def test_records_are_read_in_slices_of_a_number_of_lines(
    store: SqliteStore, max_lines: int, slices: list[list[str]]
) -> None:
    commit(store, a_write(put("a"), put("b")), a_write(*map(put, "cdef")))

    assert read_rows(store, max_lines=max_lines) == slices


@pytest.mark.parametrize(
    ("max_bytes", "slices"),
    [(20, [["a", "b"], ["c", "d"], []]), (21, [["a", "b", "c"], ["d"]]), (10, [["a"], ["b"], ["c"], ["d"], []])],
)
def test_records_are_read_in_slices_of_a_number_of_bytes(
    store: SqliteStore, max_bytes: int, slices: list[list[str]]
) -> None:
    commit(store, a_write(*(put(key, bytes(10)) for key in "abcd")))

    assert read_rows(store, max_bytes=max_bytes) == slices


def test_dead_lines_are_skipped_but_count_as_lines(store: SqliteStore) -> None:
    commit(store, a_write(*map(put, "abc")), a_write(drop("b"), put("a", b"2")))

    assert read_rows(store, max_lines=2) == [[], ["c"], ["a"]]


def test_a_load_does_not_return_records_of_later_batches(store: SqliteStore) -> None:
    commit(store, a_write(put("a")))
    position, dead_lines = store.begin_load()
    commit(store, a_write(put("a", b"2"), put("b")))

    assert store.reader.read_records(0, last_index=position.index, dead_lines=dead_lines) == (
        [("jobs", "a", 1, b"data")],
        None,
    )


def test_batches_are_read_up_to_an_index_and_a_number_of_bytes(store: SqliteStore) -> None:
    writes = [a_write(put("a", bytes(50)), drop("bb")) for _ in range(5)]  # 153 bytes each: 100 for the head.
    commit(store, *writes)

    def read(after: int, last_index: int, max_bytes: int = 1_000_000) -> list[int]:
        return [batch.index for batch in store.reader.read_batches(after, last_index=last_index, max_bytes=max_bytes)]

    assert read(0, 5) == [1, 2, 3, 4, 5]
    assert read(2, 4) == [3, 4]
    assert read(4, 4) == []
    assert read(0, 5, 306) == [1, 2]
    assert read(0, 5, 307) == [1, 2, 3]
    assert read(0, 5, 1) == [1]
    batch = store.reader.read_batches(4, last_index=5)[0]
    assert batch == Batch(5, writes[4].id, "test", CAUSE, [put("a", bytes(50)), drop("bb")])


def test_a_write_is_found_from_its_own_index_back(store: SqliteStore) -> None:
    writes = [a_write(put("a")) for _ in range(3)]
    commit(store, *writes)

    assert [store.reader.find_write(writes[1].id, since=since) for since in (0, 1, 2, 3)] == [2, 2, 2, None]


@pytest.mark.parametrize("column", ["key", "data", "table_name", "checksum"])
def test_a_changed_line_is_reported_by_every_read_that_meets_it(store: SqliteStore, column: str) -> None:
    commit(store, a_write(put("a"), put("b")))
    other = apsw.Connection(str(store.database.path))
    value = 7 if column == "checksum" else "other" if column == "table_name" else b"other"
    other.execute(f"UPDATE log SET {column} = ? WHERE place = ?", (value, MAX_BATCH_LINES + 2))
    other.close()

    with pytest.raises(LogUnavailable, match="the line at 1/2 has a wrong checksum"):
        read_rows(store)
    with pytest.raises(LogUnavailable, match="the line at 1/2 has a wrong checksum"):
        store.reader.read_batches(0, last_index=1)


def test_a_batch_that_lost_a_line_is_reported_as_damaged(store: SqliteStore) -> None:
    commit(store, a_write(put("a"), put("b")))
    other = apsw.Connection(str(store.database.path))
    other.execute("DELETE FROM log WHERE place = ?", (MAX_BATCH_LINES + 2,))
    other.close()

    with pytest.raises(LogUnavailable, match="is damaged"):
        store.reader.read_batches(0, last_index=1)


def test_a_log_that_lost_a_batch_is_not_opened(start: StartStore) -> None:
    store = start()
    commit(store, *(a_write(put("a")) for _ in range(3)))
    store.close()
    other = apsw.Connection(str(store.database.path))
    other.execute("DELETE FROM log WHERE place >= ? AND place < ?", (2 * MAX_BATCH_LINES, 3 * MAX_BATCH_LINES))
    other.close()

    with pytest.raises(LogUnavailable, match="2 batches found between 0 and 3"):
        start()


# --- trimming ---


def make_log(*batches: Sequence[EncodedChange]) -> tuple[apsw.Connection, LogLineIndex]:
    """Return a log of these batches, from index 1 on, and the index of its lines."""
    connection = apsw.Connection(":memory:")
    connection.execute(
        "CREATE TABLE log (place INTEGER PRIMARY KEY, table_name TEXT, key BLOB, checksum INTEGER, lease INTEGER, "
        "data BLOB); CREATE TABLE last_changes (table_name TEXT PRIMARY KEY, changed_at INTEGER);"
        "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER)"
    )
    line_index = LogLineIndex(epoch=0, epoch_since=0, tail_from=0, last_changes={})
    for index, changes in enumerate(batches, start=1):
        batch = Batch(index, f"w{index}", "test", CAUSE, list(changes))
        connection.executemany(INSERT_LINE, build_lines(batch, 0))
        line_index.add_head(index * MAX_BATCH_LINES)
        for position, change in enumerate(changes, start=1):
            place = index * MAX_BATCH_LINES + position
            line_index.add_line(place, change.table, change.key, is_drop=change.data is None, lease=None, size=0)
    return connection, line_index


FOUR_BATCHES = (
    [put("a"), put("n", table="nodes")],
    [put("a"), put("b")],
    [put("a"), drop("b")],
    [put("a"), put("c")],
)


def at(index: int, position: int = 0) -> int:
    return index * MAX_BATCH_LINES + position


@pytest.mark.parametrize(
    ("surplus", "last_index", "tail_from"),
    [(1, 9, 0), (2, 9, 1), (3, 9, 1), (4, 9, 2), (5, 9, 2), (6, 9, 3), (99, 9, 3), (99, 2, 2), (99, 1, 1), (99, 0, 0)],
)
def test_whole_batches_leave_the_tail_within_the_surplus_and_up_to_an_index(
    surplus: int, last_index: int, tail_from: int
) -> None:
    connection, line_index = make_log(*FOUR_BATCHES)

    plan = plan_trim(connection, line_index, surplus=surplus, last_index=last_index, max_lines=100)

    assert (plan.tail_from, plan.change_count, plan.stale_count) == (tail_from, 2 * tail_from, 0)


def test_trimming_deletes_heads_and_dead_lines_and_keeps_the_last_changes() -> None:
    connection, line_index = make_log(*FOUR_BATCHES)

    plan = plan_trim(connection, line_index, surplus=4, last_index=9, max_lines=100)
    write_trim(connection, plan)

    assert plan == TrimPlan(2, 4, 0, [at(1), at(1, 1), at(2), at(2, 1), at(2, 2)], {"jobs": 2, "nodes": 1})
    assert [place for (place,) in connection.execute("SELECT place FROM log ORDER BY place")] == [
        at(1, 2), at(3), at(3, 1), at(3, 2), at(4), at(4, 1), at(4, 2)
    ]  # fmt: skip
    assert dict(connection.execute("SELECT table_name, changed_at FROM last_changes")) == {"jobs": 2, "nodes": 1}
    assert dict(connection.execute("SELECT name, value FROM facts")) == {"tail_from": 2}


@pytest.mark.parametrize(("max_lines", "tail_from", "stale_count"), [(1, 2, 1), (2, 3, 2), (3, 3, 2)])
def test_stale_lines_are_deleted_before_any_batch_leaves_the_tail(
    max_lines: int, tail_from: int, stale_count: int
) -> None:
    connection, line_index = make_log(*FOUR_BATCHES)
    line_index.trim_tail(tail_from=2, changes=4, stale=0, deleted=[])
    line_index.stale_lines += [at(1, 1), at(2, 1)]

    plan = plan_trim(connection, line_index, surplus=9, last_index=9, max_lines=max_lines)

    assert (plan.tail_from, plan.stale_count) == (tail_from, stale_count)
    assert list(plan.deleted_lines[:stale_count]) == [at(1, 1), at(2, 1)][:stale_count]


def test_a_compaction_trims_to_the_requested_index_and_never_the_newest_batch(start: StartStore) -> None:
    store = start(min_tail_changes=0)
    commit(store, *(a_write(put("a")) for _ in range(6)))
    tails = []
    for before in (3, 1, 5, 7, 9):
        store.compact(before)
        while store.should_maintain():
            store.run_maintenance_step()
        tails.append(store.tail_from)

    assert tails == [2, 2, 4, 5, 5]
    assert [batch.index for batch in store.reader.read_batches(5, last_index=6)] == [6]
    assert store.reader.read_batches(4, last_index=6) == []


def trim(store: SqliteStore) -> int:
    """Do all maintenance that is due, and return the index from which on the feed remains."""
    while store.should_maintain():
        store.run_maintenance_step()
    return store.tail_from


def put_large(key: str) -> EncodedChange:
    return EncodedChange("jobs", key, b"x" * 1_100_000)


def test_a_tail_that_is_too_large_is_trimmed_by_itself_whatever_its_number_of_changes(start: StartStore) -> None:
    store = start(max_tail_bytes=3_500_000)
    commit(store, *(a_write(put_large("a")) for _ in range(3)))
    tails = [trim(store)]
    for _ in range(5):
        commit(store, a_write(put_large("a")))
        tails.append(trim(store))

    assert tails == [0, 1, 2, 3, 4, 5]
    assert store.reader.read_batches(5, last_index=8)[0].index == 6


def test_the_size_of_the_tail_is_known_after_the_log_is_opened_again(start: StartStore) -> None:
    store = start()
    commit(store, *(a_write(put_large("a")) for _ in range(8)))
    store.close()

    assert trim(start(max_tail_bytes=3_500_000)) == 5


def test_the_records_of_a_trimmed_tail_stay(start: StartStore) -> None:
    store = start(max_tail_bytes=3_500_000)
    commit(store, a_write(put("first")), *(a_write(put_large(f"large-{number}")) for number in range(6)))
    trim(store)

    assert store.tail_from > 1
    assert "first" in [key for keys in read_rows(store, max_bytes=100_000_000) for key in keys]


def test_nothing_is_trimmed_during_a_load_or_a_restore(start: StartStore) -> None:
    store = start(min_tail_changes=0)
    commit(store, *(a_write(put("a")) for _ in range(3)))
    store.compact(3)
    states = [store.should_trim()]
    for _ in range(2):
        store.begin_load()
    states.append(store.should_trim())
    store.end_load()
    states.append(store.should_trim())
    store.end_load()
    states.append(store.should_trim())
    restore = SqliteRestore(store)
    restore.begin(LogPosition(0, {}))
    states.append(store.should_trim())
    restore.abandon()
    states.append(store.should_trim())

    assert states == [True, False, False, True, False, True]


@pytest.mark.parametrize(("changes", "is_trimmed"), [(MAX_TRIM_LINES - 1, False), (MAX_TRIM_LINES, True)])
def test_a_tail_is_trimmed_by_itself_when_it_has_a_whole_step_too_many(
    start: StartStore, changes: int, is_trimmed: bool
) -> None:
    store = start(min_tail_changes=500)
    sizes = [1_000] * ((changes + 500) // 1_000) + [(changes + 500) % 1_000]
    for number, size in enumerate(sizes):
        commit(store, a_write(*(put(f"{number}-{key}") for key in range(size))))

    assert store.should_maintain() is is_trimmed
    while store.should_maintain():
        store.run_maintenance_step()
    assert (store.tail_from > 0) is is_trimmed


def test_stale_lines_alone_are_trimmed_when_they_fill_a_step(start: StartStore) -> None:
    store = start(min_tail_changes=0)
    for number in range(MAX_TRIM_LINES // 1_000):
        commit(store, a_write(*(put(f"{number}-{key}") for key in range(1_000))))
    commit(store, a_write(put("last")))
    store.compact(99)
    while store.should_maintain():
        store.run_maintenance_step()
    assert store.tail_from == 4
    store.close()
    store = start()
    for number in range(MAX_TRIM_LINES // 1_000):  # Each replaces a record that has left the tail.
        assert not store.should_maintain()
        commit(store, a_write(*(put(f"{number}-{key}") for key in range(1_000))))

    assert store.should_maintain()
    store.run_maintenance_step()
    assert not store.should_maintain()
    assert len([key for keys in read_rows(store) for key in keys]) == MAX_TRIM_LINES + 1


def test_a_closed_log_needs_no_maintenance(start: StartStore) -> None:
    store = start(min_tail_changes=0)
    commit(store, *(a_write(put("a")) for _ in range(3)))
    store.compact(3)
    store.close()

    assert not store.should_maintain()


def test_the_write_ahead_log_begins_again_at_its_start_when_all_of_it_is_copied(start: StartStore) -> None:
    store = start(checkpoint_pages=20)
    wal = store.database.folder / "log.db-wal"

    def commit_without_growth() -> bool:
        size = wal.stat().st_size
        commit(store, a_write(put("a", bytes(100_000))))  # 25 pages.
        if store.should_maintain():
            store.run_maintenance_step()
        return wal.stat().st_size == size

    wait_until(commit_without_growth, what="a commit overwrites the write-ahead log")
    assert store.database.path.stat().st_size > 100_000
    assert read_rows(store) == [["a"]]


# --- leases ---


def test_a_lease_ends_in_one_batch_that_deletes_its_records(store: SqliteStore) -> None:
    lease, other = store.grant_lease(ttl_ms=1_000, owner="o"), store.grant_lease(ttl_ms=2_000, owner="p")
    assert (lease.id, other.id, other.ttl_ms, other.owner) == (1, 2, 2_000, "p")
    commit(store, a_write(put("b"), put("a"), lease=1), a_write(put("c"), lease=2))

    (batch,) = store.end_lease(1).batches

    assert batch == Batch(3, "", LEASE_ENDED_KIND, Cause(CauseKind.LEASE, "1"), [drop("a"), drop("b")])
    assert read_rows(store) == [["c"]]
    assert list(store.leases) == [2]
    assert store.end_lease(1).batches == ()
    assert store.index == 3


def test_leases_and_their_records_survive_a_restart_of_the_store(start: StartStore) -> None:
    store = start()
    lease = store.grant_lease(ttl_ms=1_000, owner="o")
    ended = store.grant_lease(ttl_ms=1_000, owner="o")
    commit(store, a_write(put("a"), lease=lease.id))
    store.end_lease(ended.id)
    store.close()
    store.open()

    assert store.leases == {lease.id: lease}
    assert [in_order(batch.changes) for batch in store.end_lease(lease.id).batches] == [[drop("a")]]
    assert store.grant_lease(ttl_ms=1, owner="o").id == 3


def test_a_lease_holds_at_most_as_many_records_as_a_batch_deletes(start: StartStore) -> None:
    store = start(limits=WriteLimits(changes=3))
    lease = store.grant_lease(ttl_ms=1_000, owner="o").id

    outcomes = [commit(store, a_write(*map(put, keys), lease=lease))[0] for keys in ("a", "bc", "d")]

    assert [type(outcome) for outcome in outcomes] == [Committed, Committed, WriteRejected]
    assert isinstance(commit(store, a_write(put("d")))[0], Committed)


def test_a_write_of_a_group_that_fails_does_not_affect_the_others(store: SqliteStore) -> None:
    outcomes = commit(
        store,
        a_write(put("a")),
        a_write(put("x"), lease=9),
        a_write(put("x"), conditions=[unchanged("a", 0), unchanged("b", 0)]),
        a_write(),
        a_write(put("b"), conditions=[unchanged("a", 1), unchanged("c", 0)]),
    )

    assert outcomes == [
        Committed(1),
        WriteRejected("the lease 9 has ended"),
        WriteConflict([("jobs", "a")]),
        WriteRejected("a write without changes: there is nothing to commit"),
        Committed(2),
    ]
    assert [batch.index for batch in store.reader.read_batches(0, last_index=9)] == [1, 2]


def test_a_group_without_a_valid_write_writes_nothing(store: SqliteStore) -> None:
    result = store.commit_group([a_write(), a_write()])

    assert [type(outcome) for outcome in result.outcomes] == [WriteRejected, WriteRejected]
    assert (list(result.batches), store.index) == ([], 0)


# --- recovery ---


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk("failing-store")
    yield disk
    disk.unregister()


def test_a_log_that_accepts_no_writes_is_reopened_after_the_recovery_interval(
    start: StartStore, disk: FailingDisk, clock: Clock
) -> None:
    store = start(vfs=disk.vfs_name)
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
    commit(store, a_write(put("a")))
    disk.fail = lambda _operation, _path: None

    clock.now_s = RECOVERY_INTERVAL_S - 0.01
    early = commit(store, a_write(put("b")))[0]
    with pytest.raises(LogUnavailable, match="the disk is full"):
        store.grant_lease(ttl_ms=1, owner="o")
    clock.now_s = RECOVERY_INTERVAL_S
    later = commit(store, a_write(put("c")))[0]

    assert (type(early), type(later)) == (WriteRejected, Committed)
    assert store.read_health().writable


def test_a_log_that_accepts_no_writes_is_not_maintained(start: StartStore, disk: FailingDisk) -> None:
    store = start(vfs=disk.vfs_name, min_tail_changes=0)
    commit(store, *(a_write(put("a")) for _ in range(3)))
    store.compact(3)
    assert store.should_maintain()
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
    commit(store, a_write(put("a")))

    assert not store.should_maintain()
    assert not store.should_trim()
    disk.fail = lambda _operation, _path: None


def test_damage_suspends_writes_for_good_and_keeps_the_known_records_readable(store: SqliteStore, clock: Clock) -> None:
    commit(store, a_write(put("a")))
    store.suspend_writes(apsw.CorruptError("a page"))
    clock.now_s += 10 * RECOVERY_INTERVAL_S

    (outcome,) = commit(store, a_write(put("b")))

    assert isinstance(outcome, WriteRejected)
    assert "is damaged (a page)" in outcome.why
    assert read_rows(store) == [["a"]]


def test_a_trimming_step_that_fails_is_repeated_after_the_recovery(
    start: StartStore, disk: FailingDisk, clock: Clock
) -> None:
    store = start(vfs=disk.vfs_name, min_tail_changes=0)
    commit(store, *(a_write(put("a", b"%d" % number)) for number in range(6)))
    store.compact(5)
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
    store.run_maintenance_step()
    assert (store.tail_from, "the disk is full" in store.read_health().why) == (0, True)
    disk.fail = lambda _operation, _path: None
    clock.now_s += RECOVERY_INTERVAL_S

    assert commit(store, a_write(put("b"))) == [Committed(7)]
    while store.should_maintain():
        store.run_maintenance_step()
    assert store.tail_from == 4
    assert sorted(key for keys in read_rows(store) for key in keys) == ["a", "b"]


def test_a_failed_checkpoint_is_reported_until_one_succeeds_and_loses_nothing(
    start: StartStore, disk: FailingDisk
) -> None:
    store = start(vfs=disk.vfs_name, checkpoint_pages=4)
    disk.fail = lambda operation, path: (
        apsw.IOError("the disk") if operation == "write" and path.endswith("log.db") else None
    )
    commit(store, a_write(put("a", bytes(20_000))))
    wait_until(lambda: store.read_health().why, what="the failed checkpoint is reported")
    health = store.read_health()
    assert (health.writable, "the disk reports an error" in health.why) == (True, True)
    assert not store.should_maintain()

    disk.fail = lambda _operation, _path: None
    assert commit(store, a_write(put("b", bytes(20_000)))) == [Committed(2)]
    wait_until(lambda: not store.read_health().why, what="a checkpoint succeeded")
    assert read_rows(store) == [["a", "b"]]


# --- epochs and restores ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "wharf-test", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.needs("namespaces")
def test_a_nearly_full_disk_is_reported_while_writes_are_accepted(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "log", clock=Clock())
    store.open()
    try:
        enough_space = store.read_health()
        free_bytes = measure_disk_space(small_disk).available_bytes
        (small_disk / "filler").write_bytes(bytes(free_bytes - 500_000))
        nearly_full = store.read_health()
        outcomes = commit(store, a_write(put("a")))
    finally:
        store.close()

    assert (enough_space.writable, enough_space.why) == (True, "")
    assert (nearly_full.writable, nearly_full.why) == (
        True,
        f"the disk of the log in {small_disk}/log is nearly full (0 MB free, 1 MB recommended): free some space before "
        "writes are refused",
    )
    assert outcomes == [Committed(1)]


def test_a_new_epoch_begins_above_an_index_and_keeps_the_records(store: SqliteStore) -> None:
    commit(store, a_write(put("a"), put("n", table="nodes")), a_write(put("a")))

    store.begin_epoch(above=70)

    assert store.get_position() == LogPosition(71, {"jobs": 71, "nodes": 71}, 1, 71)
    assert (store.tail_from, store.replacement_count) == (71, 1)
    assert sorted(key for keys in read_rows(store) for key in keys) == ["a", "n"]
    assert commit(store, a_write(put("b"))) == [Committed(72)]
    store.close()
    store.open()
    assert store.get_position() == LogPosition(72, {"jobs": 72, "nodes": 71}, 1, 71)


def restore(store: SqliteStore, position: LogPosition, *slices: Sequence[StoredRecord]) -> int:
    restore = SqliteRestore(store)
    restore.begin(position)
    for records in slices:
        restore.add_records(records)
    return restore.finish()


@pytest.mark.parametrize(
    ("position", "index", "epoch"), [(LogPosition(9, {}, 7), 10, 8), (LogPosition(1, {}, 0), 3, 1)]
)
def test_a_restored_log_continues_above_both_indexes_and_epochs(
    store: SqliteStore, position: LogPosition, index: int, epoch: int
) -> None:
    commit(store, a_write(put("old")), a_write(put("n", table="nodes")))
    lease = store.grant_lease(ttl_ms=1_000, owner="o")

    assert restore(store, position, [StoredRecord("evaluations", "e", 1, b"new")]) == index
    assert store.get_position() == LogPosition(
        index, {"jobs": index, "nodes": index, "evaluations": index}, epoch, index
    )
    assert (store.tail_from, store.leases, store.replacement_count) == (index, {}, 1)
    assert read_rows(store) == [["e"]]
    assert store.grant_lease(ttl_ms=1, owner="o").id == lease.id + 1


@pytest.mark.parametrize(
    ("count", "index"), [(MAX_RECORDS_PER_INDEX, 1), (MAX_RECORDS_PER_INDEX + 1, 2), (2 * MAX_RECORDS_PER_INDEX + 1, 3)]
)
def test_a_restore_uses_an_index_for_each_thousand_records(store: SqliteStore, count: int, index: int) -> None:
    records = [StoredRecord("jobs", f"k{number:05}", 1, b"") for number in range(count)]

    assert restore(store, LogPosition(0, {}), records[:7], records[7:]) == index
    rows, _ = store.reader.read_records(0, last_index=index, dead_lines=frozenset(), max_lines=9_999)
    assert [key for _, key, _, _ in rows] == [record.key for record in records]
    assert [version for _, _, version, _ in rows] == [1 + n // MAX_RECORDS_PER_INDEX for n in range(count)]
    assert commit(store, a_write(put("k00000"), conditions=[unchanged("k00000", 1)])) == [Committed(index + 1)]


def test_writes_are_rejected_while_a_restore_runs_and_a_second_restore_is_refused(store: SqliteStore) -> None:
    commit(store, a_write(put("a")))
    restore = SqliteRestore(store)
    restore.begin(LogPosition(0, {}))

    (outcome,) = commit(store, a_write(put("b")))
    assert isinstance(outcome, WriteRejected)
    assert "is being restored from a snapshot" in outcome.why
    with pytest.raises(LogUnavailable, match="is being restored already"):
        SqliteRestore(store).begin(LogPosition(0, {}))
    restore.abandon()

    assert not store.database.restoring_path.exists()
    assert commit(store, a_write(put("b"))) == [Committed(2)]
    for call in (lambda: restore.add_records([StoredRecord("jobs", "x", 1, b"")]), restore.finish):
        with pytest.raises(LogUnavailable, match="was abandoned"):
            call()


def test_abandoning_a_finished_restore_changes_nothing(store: SqliteStore) -> None:
    restore = SqliteRestore(store)
    restore.begin(LogPosition(5, {}))
    restore.add_records([StoredRecord("jobs", "a", 1, b"")])
    index = restore.finish()

    restore.abandon()

    assert (store.index, read_rows(store)) == (index, [["a"]])


def test_a_replacement_that_fails_leaves_the_log_as_it_was(store: SqliteStore, tmp_path: Path) -> None:
    commit(store, a_write(put("a")))

    with pytest.raises(OSError, match="No such file"):
        store.replace_file(tmp_path / "missing.db")

    assert read_rows(store) == [["a"]]
    assert commit(store, a_write(put("b"))) == [Committed(2)]


# --- the files ---


def test_a_write_ahead_log_with_content_prevents_the_replacement(tmp_path: Path) -> None:
    database = LogDatabase(tmp_path)
    (tmp_path / "new.db").write_bytes(b"new")
    database.path.write_bytes(b"old")
    (tmp_path / "log.db-wal").write_bytes(b"frames")

    with pytest.raises(LogUnavailable, match=r"log\.db-wal is still in use: nothing was replaced"):
        database.replace_with(tmp_path / "new.db")
    assert database.path.read_bytes() == b"old"

    (tmp_path / "log.db-wal").write_bytes(b"")
    (tmp_path / "log.db-shm").write_bytes(b"shared memory")
    database.replace_with(tmp_path / "new.db")
    assert database.path.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.db"]


def test_the_size_of_a_log_includes_its_write_ahead_log(tmp_path: Path) -> None:
    database = LogDatabase(tmp_path)
    sizes = [(database.exists(), database.compute_size_bytes())]
    database.path.write_bytes(b"")
    sizes.append((database.exists(), database.compute_size_bytes()))
    database.path.write_bytes(b"12345")
    (tmp_path / "log.db-wal").write_bytes(b"123")
    sizes.append((database.exists(), database.compute_size_bytes()))

    assert sizes == [(False, 0), (False, 0), (True, 8)]


def test_a_file_whose_creation_was_interrupted_is_opened(tmp_path: Path) -> None:
    database = LogDatabase(tmp_path)
    database.path.write_bytes(b"S")
    with pytest.raises(apsw.NotADBError):
        database.open_or_create(database.path)

    (tmp_path / "log.db-journal").write_bytes(b"")
    connection = database.open_or_create(database.path)

    assert connection.pragma("user_version") == 1
    connection.close()


def test_a_reader_cannot_write_and_every_connection_waits_for_others(tmp_path: Path) -> None:
    database = LogDatabase(tmp_path)
    writer, reader, checkpointer = database.open_writer(), database.open_reader(), database.open_checkpointer()

    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("INSERT INTO facts VALUES ('x', 1)")
    for connection in (writer, checkpointer):
        assert (connection.pragma("synchronous"), connection.pragma("wal_autocheckpoint")) == (2, 0)
    assert (writer.pragma("journal_mode"), writer.pragma("cache_size")) == ("wal", -16_384)
    for connection in (writer, reader, checkpointer):
        assert connection.pragma("busy_timeout") == 10_000
        connection.close()


def test_the_lock_of_a_folder_is_released_for_the_next_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    lock = FolderLock(folder)
    with pytest.raises(LogUnavailable, match=r"in use by process \d+: stop that process"):
        FolderLock(folder)
    lock.release()

    FolderLock(folder).release()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "log.lock").stat().st_mode & 0o777 == 0o600


FULL, DENIED = OSError(28, "No space left on device"), OSError(13, "Permission denied")
DATABASE_ERRORS = [
    (apsw.FullError(), "accepts no writes: the disk is full; free some space and writes resume automatically"),
    (apsw.CorruptError("x"), "is damaged (x): stop the server, move log.db away"),
    (apsw.NotADBError("x"), "is damaged (x): stop the server, move log.db away"),
    (apsw.ReadOnlyError("x"), "accepts no writes: its files or the folder are read-only for this process (x)"),
    (apsw.PermissionsError("x"), "accepts no writes: its files or the folder are read-only for this process (x)"),
    (apsw.CantOpenError("x"), "cannot be opened (x): check that the folder exists and may be written"),
    (apsw.IOError("x"), "cannot be read or written: the disk reports an error (x)"),
    (apsw.BusyError("x"), ": x"),
]


@pytest.mark.parametrize(
    ("error", "reason"), DATABASE_ERRORS, ids=[type(error).__name__ for error, _ in DATABASE_ERRORS]
)
def test_an_error_of_the_database_says_what_to_do(tmp_path: Path, error: Exception, reason: str) -> None:
    text = LogDatabase(tmp_path).describe_error(error)

    assert text.startswith(f"the log in {tmp_path}{'' if reason.startswith(':') else ' '}{reason}")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, "is on a full disk: free some space"),
        (OSError(122, "Quota exceeded"), "is on a full disk: free some space"),
        (DENIED, "cannot be written: make it writable for this user, or choose another data folder"),
        (OSError(30, "Read-only"), "cannot be written: make it writable for this user, or choose another data folder"),
        (
            OSError(1, "Not permitted"),
            "cannot be written: make it writable for this user, or choose another data folder",
        ),
        (OSError(5, "Input/output error"), "cannot be used for the log: Input/output error"),
        (OSError("odd"), "cannot be used for the log: odd"),
    ],
    ids=str,
)
def test_an_error_of_the_folder_says_what_to_do(tmp_path: Path, error: OSError, reason: str) -> None:
    assert LogDatabase(tmp_path).describe_error(error) == f"the folder {tmp_path} {reason}"


@pytest.mark.parametrize(
    ("error", "is_full"),
    [(apsw.FullError(), True), (FULL, True), (OSError(122, "quota"), True), (DENIED, False)],
    ids=str,
)
def test_only_a_full_disk_is_described_as_one_when_the_log_is_opened(
    tmp_path: Path, error: Exception, is_full: bool
) -> None:
    text = LogDatabase(tmp_path).describe_open_error(error)

    assert ("cannot be opened: the disk is full; free some space and start again" in text) is is_full
