"""Faults of the SQLite store: failing disks, read-only folders, damaged files, a second process. No data is lost."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from tests.cluster.engines.contract import a_write, drop, put, unchanged
from tests.cluster.engines.faulty_disks import FailingDisk
from tests.cluster.engines.store_process import StoreProcess
from wharf.cluster.engines.port import (
    Committed,
    EncodedWrite,
    LogUnavailable,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
)
from wharf.cluster.engines.sqlite.database import describe_free_space
from wharf.cluster.engines.sqlite.store import SqliteStore
from wharf.world.disk_space import DiskSpace


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk("failing")
    yield disk
    disk.unregister()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, disk: FailingDisk, clock: Clock) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "log", clock=clock, vfs=disk.vfs_name)
    store.open()
    yield store
    disk.fail = lambda _operation, _path: None
    store.close()


def commit(store: SqliteStore, *writes: EncodedWrite) -> list[WriteOutcome]:
    return list(store.commit_group(writes).outcomes)


def rows(store: SqliteStore) -> dict[tuple[str, str], bytes]:
    position, dead_lines = store.begin_load()
    found, _ = store.reader.read_records(0, last_index=position.index, dead_lines=dead_lines)
    store.end_load()
    return {(table, key): data for table, key, _, data in found}


def fail_with(make: Callable[[], Exception], *, on: str, part: str = "-wal") -> Callable[[str, str], Exception | None]:
    return lambda operation, path: make() if operation == on and path.endswith(part) else None


# --- groups ---


def test_each_write_of_a_group_is_checked_against_the_earlier_ones(store: SqliteStore) -> None:
    outcomes = commit(
        store,
        a_write(put("a"), conditions=[unchanged("a", 0)]),
        a_write(put("a"), conditions=[unchanged("a", 0)]),
        a_write(put("a", b"2"), conditions=[unchanged("a", 1)]),
        a_write(drop("a"), conditions=[unchanged("a", 2)]),
        a_write(put("a", b"3"), conditions=[unchanged("a", 0)]),
    )

    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Committed",
        "WriteConflict",
        "Committed",
        "Committed",
        "Committed",
    ]
    assert rows(store) == {("jobs", "a"): b"3"}


def test_the_log_tail_keeps_the_promised_batches_and_trimming_keeps_the_state(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(tmp_path / "log", clock=clock, min_tail_changes=1_000)
    store.open()
    for number in range(120):
        commit(store, a_write(*(put(f"k{(number * 37 + n) % 900}", b"%d" % number) for n in range(90)), drop("k7")))
        while store.should_maintain():
            store.run_maintenance_step()
    before, index, tail_from = rows(store), store.index, store.tail_from
    tail = store.reader.read_batches(tail_from, last_index=index, max_bytes=10**9)
    store.close()
    store.open()

    assert index - len(tail) == tail_from > 0
    assert sum(len(batch.changes) for batch in tail) >= 1_000
    assert (before, index) == (rows(store), store.index)
    store.close()


def test_a_compaction_deletes_whole_batches_and_keeps_the_promised_tail(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(tmp_path / "log", clock=clock, min_tail_changes=5)
    store.open()
    for _ in range(4):
        commit(store, a_write(put("a"), put("b"), put("c")))
    store.compact(4)
    steps = 0
    while store.should_maintain():
        store.run_maintenance_step()
        steps += 1

    assert (store.tail_from, steps) == (2, 2)
    store.close()


# --- the disk ---


def test_a_full_disk_refuses_writes_with_an_error_and_reads_continue(store: SqliteStore, disk: FailingDisk) -> None:
    commit(store, a_write(put("a")))
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None

    (unknown,) = commit(store, a_write(put("b")))
    (rejection,) = commit(store, a_write(put("c")))

    assert isinstance(unknown, WriteOutcomeUnknown)
    assert isinstance(rejection, WriteRejected)
    assert "the disk is full; free some space" in rejection.why
    assert (False, rejection.why) == (store.read_health().writable, store.read_health().why)
    assert rows(store) == {("jobs", "a"): b"data"}


def test_writes_resume_when_the_disk_has_space_again(store: SqliteStore, disk: FailingDisk, clock: Clock) -> None:
    commit(store, a_write(put("a")))
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
    commit(store, a_write(put("b")))
    disk.fail = lambda _operation, _path: None
    clock.now_s += 2.0

    (outcome,) = commit(store, a_write(put("c")))

    assert isinstance(outcome, Committed)
    assert store.read_health().writable
    assert {("jobs", "a"), ("jobs", "c")} <= rows(store).keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.grant_lease(ttl_ms=2_000, owner="b"),
        lambda store: store.end_lease(1),
        lambda store: store.begin_epoch(above=50),
    ],
    ids=["grant a lease", "end a lease", "begin an epoch"],
)
def test_a_change_of_leases_or_epochs_on_a_full_disk_has_no_effect_and_can_be_repeated(
    store: SqliteStore, disk: FailingDisk, clock: Clock, change: Callable[[SqliteStore], object]
) -> None:
    assert store.grant_lease(ttl_ms=1_000, owner="a").id == 1
    commit(store, a_write(put("a")))
    before = (dict(store.leases), store.epoch, store.index, rows(store))
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None

    with pytest.raises(LogUnavailable, match="disk is full"):
        change(store)
    assert (dict(store.leases), store.epoch, store.index, rows(store)) == before
    assert not store.read_health().writable

    disk.fail = lambda _operation, _path: None
    clock.now_s += 2.0
    change(store)
    assert (dict(store.leases), store.epoch) != before[:2]
    assert isinstance(commit(store, a_write(put("b")))[0], Committed)


def test_a_log_on_a_full_disk_is_opened_for_reading_until_there_is_space(
    store: SqliteStore, disk: FailingDisk, clock: Clock
) -> None:
    commit(store, a_write(put("a")))
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
    store.close()

    store.open()

    assert {("jobs", "a"): b"data"} == rows(store)
    (rejection,) = commit(store, a_write(put("b")))
    assert isinstance(rejection, WriteRejected)
    assert "the disk is full; free some space and writes resume automatically" in rejection.why

    disk.fail = lambda _operation, _path: None
    clock.now_s += 2.0
    (outcome,) = commit(store, a_write(put("b")))
    assert isinstance(outcome, Committed)
    assert store.read_health().writable


def test_what_a_log_on_a_full_disk_shows_is_synced_and_no_file_stays_open(
    store: SqliteStore, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, a_write(put("a")))
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    open_counts = []

    for _ in range(3):
        store.close()
        store.open()
        open_counts.append(len(os.listdir("/proc/self/fd")))

    synced_files = [Path(path).name for path in synced if Path(path).is_file()]
    assert synced_files == ["log.db", "log.db-wal"] * 3
    assert len(set(open_counts)) == 1


def test_a_new_log_cannot_be_created_on_a_full_disk(tmp_path: Path, disk: FailingDisk, clock: Clock) -> None:
    disk.fail = lambda operation, _path: apsw.FullError() if operation == "write" else None

    with pytest.raises(LogUnavailable) as refused:
        SqliteStore(tmp_path / "new", clock=clock, vfs=disk.vfs_name).open()

    assert str(refused.value).endswith("cannot be opened: the disk is full; free some space and start again")


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        (100 << 20, "the disk of the log in {folder} is nearly full (100 MB free, 256 MB recommended)"),
        (256 << 20, ""),
    ],
)
def test_a_nearly_full_disk_is_reported_before_a_write_fails(tmp_path: Path, free_bytes: int, expected: str) -> None:
    warning = describe_free_space(tmp_path, DiskSpace(100 << 30, free_bytes, free_bytes))

    assert expected.format(folder=tmp_path) == warning.partition(": free some space before writes are refused")[0]


def test_a_small_disk_counts_as_nearly_full_below_5_percent(tmp_path: Path) -> None:
    results = [describe_free_space(tmp_path, DiskSpace(1_000 << 20, free, free)) for free in (49 << 20, 51 << 20)]

    assert [True, False] == [bool(result) for result in results]


def test_a_commit_whose_sync_fails_is_unknown_until_the_file_is_read_again(
    store: SqliteStore, disk: FailingDisk
) -> None:
    commit(store, a_write(put("a")))
    failures = iter([apsw.IOError("the disk is gone for a moment")])
    disk.fail = lambda operation, path: next(failures, None) if (operation, path[-4:]) == ("sync", "-wal") else None
    first, second = a_write(put("b")), a_write(put("c"))

    outcomes = commit(store, first, second)

    assert [WriteOutcomeUnknown, WriteOutcomeUnknown] == [type(outcome) for outcome in outcomes]
    found = [store.reader.find_write(write.id, since=0) for write in (first, second)]
    assert found in ([None, None], [2, 3])
    expected = {"a", "b", "c"} if found[0] else {"a"}
    assert expected == {key for _, key in rows(store)}
    # The store has reopened the file, so it accepts writes again. Conditions use the versions in the file.
    (outcome,) = commit(store, a_write(put("b", b"2"), conditions=[unchanged("b", 2 if found[0] else 0)]))
    assert isinstance(outcome, Committed)


def test_a_write_that_was_not_found_is_never_committed_later(store: SqliteStore, disk: FailingDisk) -> None:
    failures = iter([apsw.IOError("once")])
    disk.fail = lambda operation, path: next(failures, None) if (operation, path[-4:]) == ("sync", "-wal") else None
    write = a_write(put("b"))
    commit(store, write)
    found = store.reader.find_write(write.id, since=0)
    store.close()
    store.open()

    assert found == store.reader.find_write(write.id, since=0)


def test_a_read_only_folder_refuses_writes_and_reads_continue(store: SqliteStore, disk: FailingDisk) -> None:
    commit(store, a_write(put("a")))
    disk.fail = lambda operation, _path: apsw.ReadOnlyError() if operation != "sync" else None
    commit(store, a_write(put("b")))

    (rejection,) = commit(store, a_write(put("c")))

    assert isinstance(rejection, WriteRejected)
    assert "read-only for this process" in rejection.why
    assert rows(store) == {("jobs", "a"): b"data"}


def test_a_folder_without_write_permission_is_rejected_with_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    # Root may write anywhere, so run as the user `nobody`.
    program = (
        "import os, sys, pathlib; from wharf.cluster.engines.sqlite.store import SqliteStore\n"
        "store = SqliteStore(pathlib.Path(sys.argv[1]), clock=lambda: 0.0)\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: store.open()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    for parent in tmp_path.parents:
        if not parent.stat().st_mode & 0o005:
            parent.chmod(parent.stat().st_mode | 0o005)
    process = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)

    assert f"LogUnavailable the folder {folder} cannot be written: make it writable" in process.stdout


# --- damage ---


def damage(path: Path, *, at: float, bytes: int = 64) -> None:
    data = bytearray(path.read_bytes())
    start = int(len(data) * at)
    data[start : start + bytes] = bytearray(b ^ 0x5A for b in data[start : start + bytes])
    path.write_bytes(data)


def make_filled_store(folder: Path, clock: Clock) -> Path:
    store = SqliteStore(folder, clock=clock)
    store.open()
    for batch in range(20):
        commit(store, a_write(*(put(f"k{batch}-{n}", os.urandom(400)) for n in range(50))))
    store.close()
    return folder / "log.db"


def test_damage_is_reported_at_open_or_on_read_and_never_returned_as_data(tmp_path: Path, clock: Clock) -> None:
    pristine = make_filled_store(tmp_path / "log", clock).read_bytes()
    store = SqliteStore(tmp_path / "log", clock=clock)
    store.open()
    expected = rows(store)
    store.close()
    messages: list[str] = []
    returned_rows: list[dict[tuple[str, str], bytes]] = []
    for percent in range(1, 100, 3):
        store.database.path.write_bytes(pristine)
        damage(store.database.path, at=percent / 100)
        try:
            store.open()
            returned_rows.append(rows(store))
        except LogUnavailable as error:
            messages.append(str(error))
        finally:
            store.close()

    # Damage of an unused page may stay undetected. All returned data is correct.
    assert all(expected == found for found in returned_rows)
    assert len(messages) > 25
    assert all("is damaged" in message and "restore the newest snapshot" in message for message in messages)


def test_a_file_of_another_format_is_rejected_and_not_changed(tmp_path: Path, clock: Clock) -> None:
    for content in (b"not a database at all, " * 400, b"x"):
        folder = tmp_path / f"log{len(content)}"
        folder.mkdir()
        (folder / "log.db").write_bytes(content)
        with pytest.raises(LogUnavailable, match="is damaged"):
            SqliteStore(folder, clock=clock).open()

        assert content == (folder / "log.db").read_bytes()


def test_a_database_of_another_program_is_refused(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "log").mkdir()
    other_database = apsw.Connection(str(tmp_path / "log" / "log.db"))
    other_database.execute("CREATE TABLE theirs (a)")
    other_database.close()

    with pytest.raises(LogUnavailable, match="is not a log of this program"):
        SqliteStore(tmp_path / "log", clock=clock).open()


def test_a_newer_database_format_is_rejected_with_an_error(tmp_path: Path, clock: Clock) -> None:
    path = make_filled_store(tmp_path / "log", clock)
    newer = apsw.Connection(str(path))
    newer.execute("PRAGMA user_version = 2")
    newer.close()

    with pytest.raises(LogUnavailable, match="has format 2, this program reads up to 1: start the newer program"):
        SqliteStore(tmp_path / "log", clock=clock).open()


# --- one process ---


def test_a_second_process_on_the_same_folder_is_refused_by_the_name_of_the_first(tmp_path: Path, clock: Clock) -> None:
    first = StoreProcess(tmp_path / "log")
    first.wait_until_listening()
    try:
        with pytest.raises(LogUnavailable, match=f"in use by process {first.pid}: stop that process"):
            SqliteStore(tmp_path / "log", clock=clock).open()
        code, errors = StoreProcess(tmp_path / "log").wait()
        assert (code, f"in use by process {first.pid}" in errors) == (1, True)
    finally:
        first.end()


def test_an_interrupted_restore_leaves_no_trace(tmp_path: Path, clock: Clock) -> None:
    make_filled_store(tmp_path / "log", clock)
    leftover = tmp_path / "log" / "restoring.db"
    leftover.write_bytes(b"half")
    store = SqliteStore(tmp_path / "log", clock=clock)
    store.open()

    assert not leftover.exists()
    assert len(rows(store)) == 1_000
    store.close()
