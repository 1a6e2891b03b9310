"""The change log: changes survive any end of the process, a full disk and a torn write."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.limits.builders import NOON_MS, a_user, anonymous
from tests.limits.stores.contract import Clock, Counter
from tests.waiting import wait_on_loop_until
from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.stores import MemoryStore, RefundReason, memory
from wharf.limits.stores.change_log import TrackedCounters
from wharf.world import RealWorld

RULES = read_rules('[[rule]]\nname = "core"\nceiling = 50\n')


def create_store(path: Path, rules: RuleSet = RULES) -> MemoryStore:
    return MemoryStore(RealWorld(), rules, path=path, clock=lambda: NOON_MS, has_change_log=True)


def list_change_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("counters.changes.*"))


def read_used_counts(path: Path, *logins: str, rules: RuleSet = RULES) -> list[int]:
    """Return the used counts in a new store that loads only what was written."""

    async def read_counts() -> list[int]:
        store = create_store(path, rules)
        await store.load()
        counter = Counter(store, rules, Clock())
        return [await counter.used(a_user(login), "core") for login in logins]

    return asyncio.run(read_counts())


@contextmanager
def limit_file_size(bytes_more: int, file: Path) -> Iterator[None]:
    """Limit the size of files of this process, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + bytes_more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("bytes_more", [0, 20])
def test_changes_rejected_by_a_full_disk_are_written_later(tmp_path: Path, bytes_more: int) -> None:
    async def run_process() -> None:
        store = create_store(tmp_path / "counters")
        await store.open()
        counter = Counter(store, RULES, Clock())
        await counter.send(a_user("ada"))
        store.write_changes()
        await counter.send(a_user("bob"))
        with limit_file_size(bytes_more, list_change_files(tmp_path)[0]):
            store.write_changes()
        await counter.send(a_user("eve"))
        store.write_changes()

    asyncio.run(run_process())

    assert read_used_counts(tmp_path / "counters", "ada", "bob", "eve") == [1, 1, 1]


def test_a_process_killed_while_it_started_a_change_file_can_start_again(tmp_path: Path) -> None:
    async def run_process() -> None:
        store = create_store(tmp_path / "counters")
        await store.open()
        await Counter(store, RULES, Clock()).send(a_user("ada"))
        store.write_changes()

    asyncio.run(run_process())
    (tmp_path / "counters.changes.2").touch()

    assert read_used_counts(tmp_path / "counters", "ada") == [1]


def test_a_failed_save_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SAVE_INTERVAL_S", 0.01)
    obstacle = tmp_path / "counters.new"
    obstacle.mkdir()

    async def run_process() -> bool:
        store = create_store(tmp_path / "counters")
        await store.open()
        await wait_on_loop_until(lambda: len(list_change_files(tmp_path)) > 1, what="a save was tried")
        obstacle.rmdir()
        await wait_on_loop_until((tmp_path / "counters").exists, what="the counters are saved")
        await store.close()
        return True

    assert asyncio.run(run_process())


def test_charges_of_a_network_counter_survive_a_kill(tmp_path: Path) -> None:
    rules = read_rules('keys_most = 1\n[[rule]]\nname = "core"\nceiling = 50\n')

    async def run_process() -> None:
        store = create_store(tmp_path / "counters", rules)
        await store.open()
        counter = Counter(store, rules, Clock())
        await store.add_usage([counter.charge(anonymous("a1"), "core")], 3)
        await store.add_usage([counter.charge(anonymous("a2"), "core")], 4)
        store.write_changes()

    asyncio.run(run_process())

    async def read_counts() -> list[int]:
        store = create_store(tmp_path / "counters", rules)
        await store.load()
        table = store.counters.tables["core"]
        return sorted(table.count_used(key, NOON_MS) for key in table.keys())  # noqa: SIM118 - A table is not a mapping.

    assert asyncio.run(read_counts()) == [3, 4]  # The order in which they were loaded does not matter.


def test_a_reset_counter_counts_once_among_the_counters_of_its_owner(tmp_path: Path) -> None:
    rules = read_rules(
        '[[rule]]\nname = "core"\nceiling = 50\n'
        '[[rule]]\nname = "mine"\ncounts = "points"\nper_endpoint = true\nkeys_most = 2\nceiling = 50\n'
    )

    async def run_process() -> None:
        store = create_store(tmp_path / "counters", rules)
        await store.open()
        counter = Counter(store, rules, Clock())
        await counter.send(a_user(), "/meta")
        store.write_changes()
        await store.reset([counter.charge(a_user(), "mine", "/meta")])
        store.write_changes()

    asyncio.run(run_process())

    async def read_counts() -> list[int]:
        store = create_store(tmp_path / "counters", rules)
        await store.load()
        counter = Counter(store, rules, Clock())
        for path in ("/meta", "/user"):
            await counter.send(a_user(), path)
        return [await counter.used(a_user(), "mine", path) for path in ("/meta", "/user")]

    assert asyncio.run(read_counts()) == [1, 1]


CHANGE_RULES = read_rules(
    'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 2\n'
    '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nceiling = 50\n'
)


def list_rows(store: MemoryStore) -> dict[str, list[tuple[int, ...] | None]]:
    keys = ("user:ada", "user:eve")
    return {name: [table.dump_row(key) for key in keys] for name, table in store.counters.tables.items()}


@pytest.mark.parametrize("change", ["take", "refund", "repeated refund", "usage", "reset", "ban", "refusal"])
def test_every_kind_of_change_is_written(tmp_path: Path, change: str) -> None:
    notified: list[str] = []

    async def run_process() -> MemoryStore:
        store = create_store(tmp_path / "counters", CHANGE_RULES)
        assert isinstance(store.counters, TrackedCounters)
        await store.open()
        counter = Counter(store, CHANGE_RULES, Clock())
        for name in ("first", "second"):
            await counter.send(a_user("ada"), request_id=name)
        store.write_changes()
        store.counters.on_change = lambda: notified.append("change")
        match change:
            case "take":
                await counter.send(a_user("eve"))
            case "refund":
                await store.refund("first", RefundReason.UNCHANGED)
            case "repeated refund":
                await store.refund("first", RefundReason.UNCHANGED)
                store.write_changes()
                assert not await store.refund("first", RefundReason.UNCHANGED)
            case "usage":
                await store.add_usage([counter.charge(a_user("ada"), "cpu")], 7)
            case "reset":
                await store.reset(iter([counter.charge(a_user("ada"), "core")]))
            case "ban":
                await store.ban("app:7", NOON_MS + 5)
            case _:
                await counter.send(a_user("ada"))
        store.write_changes()
        return store

    store = asyncio.run(run_process())
    again = create_store(tmp_path / "counters", CHANGE_RULES)
    asyncio.run(again.load())

    assert (list_rows(again), set(again.counters.bans)) == (list_rows(store), set(store.counters.bans))
    assert (bool(again.counters.bans), notified) == (change in ("ban", "refusal"), ["change"])


def test_a_new_snapshot_deletes_the_files_before_it(tmp_path: Path) -> None:
    async def run_process() -> list[list[str]]:
        store = create_store(tmp_path / "counters", CHANGE_RULES)
        await store.open()
        names = []
        for _ in range(3):
            names.append([file.name for file in list_change_files(tmp_path)])
            await store.save()
        await store.close()
        return names

    assert asyncio.run(run_process()) == [[f"counters.changes.{number}"] for number in (1, 2, 3)]
