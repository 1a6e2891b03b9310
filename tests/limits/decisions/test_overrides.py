"""Overrides by operators: grants and the time without limits, in one process and shared by several."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.limits.builders import NOON_MS
from wharf.limits.core.counting.bans import OperatorBan
from wharf.limits.core.limiter import Grant
from wharf.limits.decisions.overrides import InvalidOverrideFile, OperatorOverrides, OverridesNotSaved, TooManyBans
from wharf.limits.stores.port import StoreUnavailable


class MemoryOverrideStore:
    """An override store in memory."""

    def __init__(self) -> None:
        self.version = 0
        self.entries: dict[str, bytes] = {}
        self.is_available = True

    async def read_overrides(self, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        return None if known_version == self.version else (self.version, dict(self.entries))

    async def write_override(self, name: str, value: bytes | None) -> None:
        if not self.is_available:
            raise StoreUnavailable
        self.version += 1
        if value is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = value


class Process:
    """The overrides of one process, with a clock and the grants that its limiter has."""

    def __init__(self, folder: Path | None = None, store: MemoryOverrideStore | None = None) -> None:
        self.now_ms = NOON_MS
        self.applied: list[Grant] = []
        self.overrides = OperatorOverrides(folder, lambda: self.now_ms, self._apply)
        self.overrides.shared_overrides = store

    def _apply(self, grants: Iterable[Grant]) -> None:
        self.applied = list(grants)

    def add(self, *grants: Grant) -> None:
        asyncio.run(self.overrides.add_grants(grants))

    def sync(self) -> None:
        asyncio.run(self.overrides.sync_shared())


def make_grant(owner: str = "user:ada", resource: str = "core", *, lasts_ms: int = 1_000) -> Grant:
    return Grant(owner=owner, resource=resource, amount=5, until_ms=NOON_MS + lasts_ms, by="ops", reason="a move")


CORE, SEARCH, EVE = make_grant(), make_grant(resource="search"), make_grant("user:eve")


def test_grants_survive_a_restart_until_they_expire(tmp_path: Path) -> None:
    long = make_grant("user:bob", lasts_ms=1_001)
    Process(tmp_path).add(CORE, long)

    processes = [Process(tmp_path) for _ in range(2)]
    processes[1].now_ms = NOON_MS + 1_000
    for process in processes:
        process.overrides.open()

    assert [process.applied for process in processes] == [[CORE, long], [long]]


def test_without_a_folder_grants_are_in_memory_only() -> None:
    process = Process()
    process.overrides.open()
    process.add(CORE)

    assert process.applied == [CORE]


def test_an_invalid_grants_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "grants.json").write_text("[{}]")

    with pytest.raises(InvalidOverrideFile, match=r"grants\.json is not a valid grants file"):
        Process(tmp_path).overrides.open()


def test_the_same_grant_is_added_once() -> None:
    process = Process(store=(store := MemoryOverrideStore()))
    process.add(CORE)
    version = store.version
    process.add(CORE, EVE)

    assert (process.applied, store.version - version, len(store.entries)) == ([CORE, EVE], 1, 2)


@pytest.mark.parametrize(
    ("owner", "resource", "revoked"),
    [
        ("user:ada", None, [CORE, SEARCH]),
        ("user:ada", "core", [CORE]),
        ("user:ada", "other", []),
        ("user:eve", "core", [EVE]),
        ("user:bob", None, []),
    ],
)
def test_grants_of_one_owner_and_resource_are_revoked(owner: str, resource: str | None, revoked: list[Grant]) -> None:
    store = MemoryOverrideStore()
    first, second = Process(store=store), Process(store=store)
    first.add(CORE, SEARCH, EVE)
    second.sync()

    assert asyncio.run(first.overrides.revoke_grants(owner, resource)) == revoked
    second.sync()

    left = [grant for grant in (CORE, SEARCH, EVE) if grant not in revoked]
    assert (first.applied, sorted(second.applied, key=left.index)) == (left, left)


def test_revoked_grants_do_not_come_back_after_a_restart(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.add(CORE, EVE)
    asyncio.run(process.overrides.revoke_grants("user:ada", None))

    again = Process(tmp_path)
    again.overrides.open()

    assert again.applied == [EVE]


def test_expired_grants_are_dropped_and_deleted_for_all_processes(tmp_path: Path) -> None:
    process, long = Process(tmp_path, store := MemoryOverrideStore()), make_grant(lasts_ms=1_001)
    process.add(CORE, long)

    assert process.overrides.drop_expired_grants(NOON_MS + 999) == []
    ended = process.overrides.drop_expired_grants(NOON_MS + 1_000)
    assert (ended, process.applied, len(store.entries)) == ([CORE], [long], 2)
    asyncio.run(process.overrides.remove_shared_grants(ended))
    assert len(store.entries) == 1
    assert len((tmp_path / "grants.json").read_bytes().split(b"until_ms")) == 2


@pytest.fixture
def full_folder(tmp_path: Path) -> Path:
    """Return a folder in which the grants file cannot be written: a folder has the name of its temporary file."""
    (tmp_path / "grants.json.new").mkdir()
    return tmp_path


def test_a_grant_that_cannot_be_saved_changes_nothing(full_folder: Path) -> None:
    process = Process(full_folder)

    with pytest.raises(OverridesNotSaved, match=r"^the file .*grants\.json cannot be written: Is a directory$"):
        process.add(CORE)
    assert (process.overrides.grant_file.entries, process.applied) == ([], [])


def test_a_revocation_that_cannot_be_saved_changes_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.add(CORE, EVE)
    (tmp_path / "grants.json.new").mkdir()
    with pytest.raises(OverridesNotSaved):
        asyncio.run(process.overrides.revoke_grants("user:ada", None))
    kept = (process.overrides.grant_file.entries, process.applied)
    (tmp_path / "grants.json.new").rmdir()

    ended = asyncio.run(process.overrides.revoke_grants("user:ada", None))

    assert (kept, ended, process.applied) == (([CORE, EVE], [CORE, EVE]), [CORE], [EVE])


def test_shared_grants_are_in_force_while_their_file_cannot_be_written_and_are_written_later(full_folder: Path) -> None:
    process = Process(full_folder, MemoryOverrideStore())
    process.add(CORE)
    applied = list(process.applied)
    (full_folder / "grants.json.new").rmdir()
    process.overrides.drop_expired_grants(NOON_MS)

    again = Process(full_folder)
    again.overrides.open()

    assert (applied, again.applied) == ([CORE], [CORE])


def test_a_grant_expires_although_its_file_cannot_be_written(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.add(CORE)
    (tmp_path / "grants.json.new").mkdir()

    ended = process.overrides.drop_expired_grants(NOON_MS + 1_000)

    assert (ended, process.applied) == ([CORE], [])


def test_expired_grants_that_cannot_be_deleted_are_left() -> None:
    process = Process(store=(store := MemoryOverrideStore()))
    process.add(CORE)
    store.is_available = False

    asyncio.run(process.overrides.remove_shared_grants([CORE]))

    assert len(store.entries) == 1


def test_a_grant_that_cannot_be_shared_is_not_added() -> None:
    process = Process(store=(store := MemoryOverrideStore()))
    store.is_available = False

    with pytest.raises(StoreUnavailable):
        process.add(CORE)

    assert (process.applied, process.overrides.grant_file.entries) == ([], [])


def test_expired_grants_of_other_processes_are_not_applied() -> None:
    store = MemoryOverrideStore()
    Process(store=store).add(CORE, make_grant("user:bob", lasts_ms=1_001))
    process = Process(store=store)
    process.now_ms = NOON_MS + 1_000

    process.sync()

    assert [grant.owner for grant in process.applied] == ["user:bob"]


def test_shared_grants_are_saved_in_every_process(tmp_path: Path) -> None:
    store = MemoryOverrideStore()
    Process(store=store).add(CORE)
    Process(tmp_path, store).sync()

    again = Process(tmp_path)
    again.overrides.open()

    assert again.applied == [CORE]


def test_overrides_are_written_again_if_the_store_has_lost_them() -> None:
    store = MemoryOverrideStore()
    process = Process(store=store)
    process.add(CORE)
    asyncio.run(process.overrides.set_off_until(NOON_MS + 7))
    process.sync()
    store.version, store.entries = 0, {}

    process.sync()
    other = Process(store=store)
    other.sync()

    assert (process.applied, other.applied, process.overrides.off_until_ms, other.overrides.off_until_ms) == (
        [CORE],
        [CORE],
        NOON_MS + 7,
        NOON_MS + 7,
    )


def test_a_version_older_than_the_known_one_means_that_the_store_lost_its_data() -> None:
    store = MemoryOverrideStore()
    process = Process(store=store)
    process.add(CORE, EVE)
    process.sync()
    store.version, store.entries = 1, {}

    process.sync()

    assert (process.applied, len(store.entries)) == ([CORE, EVE], 3)


def test_overrides_of_an_unchanged_store_are_not_read_again() -> None:
    store = MemoryOverrideStore()
    process = Process(store=store)
    process.add(CORE)
    process.sync()
    store.entries.clear()

    process.sync()

    assert process.applied == [CORE]


def test_without_a_store_nothing_is_shared() -> None:
    process = Process()
    process.add(CORE)
    process.sync()
    asyncio.run(process.overrides.remove_shared_grants([CORE]))
    asyncio.run(process.overrides.set_off_until(NOON_MS + 1))

    assert (process.applied, process.overrides.is_off) == ([CORE], True)


def test_limits_are_off_until_a_time_in_all_processes() -> None:
    store = MemoryOverrideStore()
    first, second = Process(store=store), Process(store=store)
    asyncio.run(first.overrides.set_off_until(NOON_MS + 10))
    second.sync()

    for process in (first, second):
        states = []
        for process.now_ms in (NOON_MS, NOON_MS + 9, NOON_MS + 10):
            states.append(process.overrides.is_off)
        assert states == [True, True, False]


def test_a_time_without_limits_that_is_over_is_not_applied() -> None:
    store = MemoryOverrideStore()
    asyncio.run(Process(store=store).overrides.set_off_until(NOON_MS))
    process = Process(store=store)
    process.sync()

    assert process.overrides.off_until_ms == 0


def test_the_end_of_the_time_without_limits_is_reported_once() -> None:
    process = Process()
    assert not process.overrides.end_expired_off(NOON_MS)
    asyncio.run(process.overrides.set_off_until(NOON_MS + 10))

    assert [process.overrides.end_expired_off(NOON_MS + offset_ms) for offset_ms in (9, 10, 11)] == [False, True, False]


def make_ban(subject: str = "user:ada", *, lasts_ms: int = 1_000) -> OperatorBan:
    return OperatorBan(subject=subject, until_ms=NOON_MS + lasts_ms, by="ops")


def test_processes_share_bans_and_their_ends() -> None:
    store = MemoryOverrideStore()
    first, second = Process(store=store), Process(store=store)
    asyncio.run(first.overrides.add_ban(make_ban()))
    asyncio.run(first.overrides.add_ban(make_ban("app:7")))
    asyncio.run(first.overrides.end_ban("app:7"))
    second.sync()
    shared = dict(second.overrides.bans)
    asyncio.run(second.overrides.end_ban("user:ada"))
    first.sync()

    assert (shared, first.overrides.bans, first.overrides.has_user_bans) == ({"user:ada": make_ban()}, {}, False)


def test_a_store_that_lost_its_data_gets_the_bans_again() -> None:
    store = MemoryOverrideStore()
    process = Process(store=store)
    asyncio.run(process.overrides.add_ban(make_ban()))
    process.sync()
    store.version, store.entries = 0, {}
    process.sync()

    assert "ban user:ada" in store.entries
    assert process.overrides.bans == {"user:ada": make_ban()}


def test_expired_bans_are_deleted_everywhere(tmp_path: Path) -> None:
    store = MemoryOverrideStore()
    process = Process(tmp_path, store)
    asyncio.run(process.overrides.add_ban(make_ban()))
    process.now_ms = NOON_MS + 1_000
    asyncio.run(process.overrides.drop_expired_bans(process.now_ms))

    assert (process.overrides.bans, store.entries, (tmp_path / "operator-bans.json").read_text()) == ({}, {}, "[]")


def test_more_bans_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.limits.decisions.overrides.MAX_BANS", 1)
    process = Process()
    asyncio.run(process.overrides.add_ban(make_ban()))
    asyncio.run(process.overrides.add_ban(make_ban(lasts_ms=5)))

    with pytest.raises(TooManyBans, match="have banned 1 callers already"):
        asyncio.run(process.overrides.add_ban(make_ban("app:7")))
