"""The decision log and the records that processes share: what is kept, dropped, written and found."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.limits.builders import MINUTE_MS, NOON_MS, InMemoryLimiter, a_user, an_installation, build_rules_text
from wharf.limits.config import DecisionLogSettings
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.limiter import Grant
from wharf.limits.decisions import decision_log as log_module
from wharf.limits.decisions import shared_records as records_module
from wharf.limits.decisions.activity import ActivityCounts
from wharf.limits.decisions.decision_log import DecisionLog, LoggedDecision, append_private
from wharf.limits.decisions.shared_records import SharedRecords
from wharf.limits.stores.port import StoreUnavailable
from wharf.world import RealWorld

SETTINGS = DecisionLogSettings(one_in=1, bytes_most=1 << 20, kept_ms=1_000)


def decide(limiter: InMemoryLimiter | None = None, name: str = "r1") -> LimitDecision:
    return (limiter or InMemoryLimiter(build_rules_text())).send(a_user(), request_id=name)


def admit(log: DecisionLog, name: str = "r1", path: str = "/x", decision: LimitDecision | None = None) -> None:
    log.record_admission(name, NOON_MS, "GET", path, decision or decide(), a_user())


def write(log: DecisionLog, now_ms: int = NOON_MS) -> None:
    asyncio.run(log.write(now_ms))


def read_ids(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line)["request_id"] for line in path.read_bytes().splitlines()]


# -- the decision log ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one_in", "expected"), [(1, ["r1", "r2", "r3", "r4", "r5"]), (2, ["r2", "r4"]), (5, ["r5"])])
def test_one_of_a_number_of_admissions_is_written(tmp_path: Path, one_in: int, expected: list[str]) -> None:
    log = DecisionLog(tmp_path, replace(SETTINGS, one_in=one_in))
    for number in range(1, 6):
        admit(log, f"r{number}")
    write(log)

    assert read_ids(tmp_path / "decisions.jsonl") == expected
    assert [entry.id for entry in log.list_recent()] == ["r5", "r4", "r3", "r2", "r1"]


def test_complete_and_compact_admissions_are_sampled_together(tmp_path: Path) -> None:
    log, decision = DecisionLog(tmp_path, replace(SETTINGS, one_in=2)), decide()
    for number in range(1, 5):
        if number % 2:
            admit(log, f"r{number}", decision=decision)
        else:
            log.record(LoggedDecision(f"r{number}", NOON_MS, "GET", "/x", decision, a_user()))
    write(log)

    assert read_ids(tmp_path / "decisions.jsonl") == ["r2", "r4"]


def test_every_refusal_is_written(tmp_path: Path) -> None:
    limiter = InMemoryLimiter(build_rules_text().replace("1000000", "1"))
    log = DecisionLog(tmp_path, replace(SETTINGS, one_in=9))
    for number in range(3):
        log.record(LoggedDecision(f"r{number}", NOON_MS, "GET", "/x", decide(limiter, f"r{number}"), a_user()))
    write(log)

    assert read_ids(tmp_path / "decisions.jsonl") == ["r1", "r2"]


@pytest.mark.parametrize("mode", ["limit", "ban"])
def test_every_admission_that_shadow_mode_lets_pass_is_written(tmp_path: Path, mode: str) -> None:
    rule = '[[rule]]\nname = "core"\nceiling = 1\nshadow = true\n' if mode == "limit" else "[ban]\nshadow = true\n"
    limiter = InMemoryLimiter(rule)
    log = DecisionLog(tmp_path, replace(SETTINGS, one_in=9))
    for number in range(3):
        admit(log, f"r{number}", decision=decide(limiter, f"r{number}"))
        if mode == "ban":
            limiter.counters.ban(a_user().ban_subject, NOON_MS + 5)
    write(log)

    assert read_ids(tmp_path / "decisions.jsonl") == ["r1", "r2"]


@pytest.mark.parametrize("kind", ["plain", "shadow", "overflow", "ban", "grant"])
def test_an_admission_is_found_with_all_of_its_limits(kind: str) -> None:
    rules = build_rules_text(
        '[[rule]]\nname = "points"\ncounts = "points"\nper_endpoint = true\nkeys_most = 1\nceiling = 1\nshadow = true'
    )
    grants = [Grant(owner="user:ada", resource="core", amount=7, until_ms=NOON_MS + 9, by="", reason="")]
    limiter = InMemoryLimiter(rules + "[ban]\nshadow = true\n", grants=grants if kind == "grant" else ())
    if kind == "shadow":
        decide(limiter, "first")
    if kind == "overflow":
        limiter.send(a_user(), "/other")
    if kind == "ban":
        limiter.counters.ban(a_user().ban_subject, NOON_MS + 5)
    decision, log = decide(limiter), DecisionLog(None, SETTINGS)

    admit(log, decision=decision)

    complete = LoggedDecision("r1", NOON_MS, "GET", "/x", decision, a_user())
    assert log.find("r1") == log.render_entry(complete)
    assert log.find("r2") is None


@pytest.mark.parametrize("is_compact", [True, False])
@pytest.mark.parametrize(("length", "kept"), [(1_024, 1_024), (1_025, 1_024)])
def test_long_paths_are_cut(is_compact: bool, length: int, kept: int) -> None:
    log = DecisionLog(None, SETTINGS)
    if is_compact:
        admit(log, path="/" * length)
    else:
        log.record(LoggedDecision("r1", NOON_MS, "GET", "/" * length, decide(), a_user()))

    assert [len(entry.path) for entry in log.list_recent()] == [kept]


def test_decisions_beyond_the_maximum_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_UNWRITTEN_DECISIONS", 2)
    log = DecisionLog(tmp_path, SETTINGS)
    for number in range(4):
        admit(log, f"r{number}")
    write(log)

    assert (read_ids(tmp_path / "decisions.jsonl"), log.dropped_decisions) == (["r2", "r3"], 2)


def test_decisions_are_written_in_batches_and_reported_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "WRITE_BATCH_DECISIONS", 2)
    entries: list[tuple[str, bytes]] = []
    log = DecisionLog(tmp_path, SETTINGS, lambda request_id, line: entries.append((request_id, line)))
    for number in range(5):
        admit(log, f"r{number}")
    write(log)

    lines = (tmp_path / "decisions.jsonl").read_bytes().splitlines()
    assert entries == [(f"r{number}", line) for number, line in enumerate(lines)]


def test_a_failed_batch_is_counted_and_the_next_ones_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "WRITE_BATCH_DECISIONS", 2)
    log = DecisionLog(tmp_path / "missing", SETTINGS)
    for number in range(3):
        admit(log, f"r{number}")
    with pytest.raises(FileNotFoundError):
        write(log)
    (tmp_path / "missing").mkdir()
    write(log)

    assert (read_ids(tmp_path / "missing" / "decisions.jsonl"), log.dropped_decisions) == (["r2"], 2)


@pytest.mark.parametrize(
    ("kept_ms", "bytes_most", "now_ms", "is_rotated"),
    [
        (1_000, 1 << 20, NOON_MS + 499, False),
        (1_000, 1 << 20, NOON_MS + 500, True),
        (1 << 40, 2, NOON_MS, True),
        (1 << 40, 1 << 20, NOON_MS + 1_000_000, False),
    ],
)
def test_the_file_is_replaced_at_half_of_its_age_or_size(
    tmp_path: Path, kept_ms: int, bytes_most: int, now_ms: int, is_rotated: bool
) -> None:
    log = DecisionLog(tmp_path, replace(SETTINGS, kept_ms=kept_ms))
    admit(log, "r0")
    write(log)
    log._settings = replace(SETTINGS, kept_ms=kept_ms, bytes_most=bytes_most)
    write(log, now_ms)

    ids = [read_ids(tmp_path / name) for name in ("decisions.jsonl", "decisions.1.jsonl")]
    assert ids == ([[], ["r0"]] if is_rotated else [["r0"], []])


def test_exactly_half_of_the_size_replaces_the_file(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, SETTINGS)
    admit(log, "r0")
    write(log)
    size = (tmp_path / "decisions.jsonl").stat().st_size
    results = []
    for bytes_most in (2 * size + 2, 2 * size):
        other = DecisionLog(tmp_path, replace(SETTINGS, bytes_most=bytes_most))
        write(other)
        results.append((tmp_path / "decisions.1.jsonl").exists())

    assert results == [False, True]


def test_the_age_of_a_new_file_begins_when_it_is_replaced(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, SETTINGS)
    seen = []
    for number, offset_ms in enumerate((0, 500, 999, 1_000)):
        admit(log, f"r{number}")
        write(log, NOON_MS + offset_ms)
        seen.append((read_ids(tmp_path / "decisions.jsonl"), read_ids(tmp_path / "decisions.1.jsonl")))

    assert seen == [(["r0"], []), ([], ["r0", "r1"]), (["r2"], ["r0", "r1"]), ([], ["r2", "r3"])]


def test_a_log_without_decisions_has_no_file(tmp_path: Path) -> None:
    write(DecisionLog(tmp_path, SETTINGS))

    assert list(tmp_path.iterdir()) == []


def test_decisions_in_both_files_are_found(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, SETTINGS)
    for number, offset_ms in enumerate((500, 501)):
        admit(log, f"r{number}")
        write(log, NOON_MS + offset_ms * number)
    fresh = DecisionLog(tmp_path, SETTINGS)

    found = [fresh.find(name) for name in ("r0", "r1", "r2")]
    assert [None if entry is None else entry["request_id"] for entry in found] == ["r0", "r1", None]


@pytest.mark.parametrize("settings", [None, replace(SETTINGS, is_kept=False)])
def test_a_log_that_is_not_kept_writes_nothing(tmp_path: Path, settings: DecisionLogSettings | None) -> None:
    log = DecisionLog(tmp_path if settings else None, settings or SETTINGS)
    admit(log)
    write(log)

    assert (list(tmp_path.iterdir()), log.find("r1") is not None) == ([], True)


@pytest.mark.parametrize(
    ("cuts", "address", "expected"),
    [
        (False, "address:192.0.2.7", "192.0.2.7"),
        (True, "address:192.0.2.7", "192.0.2.0"),
        (True, "address:2001:db8::/64", "2001:db8::/64"),
    ],
)
def test_addresses_are_cut_if_the_settings_say_so(cuts: bool, address: str, expected: str) -> None:
    log = DecisionLog(None, replace(SETTINGS, cuts_addresses=cuts))
    caller = replace(a_user(), address=address)

    assert log.render_entry(LoggedDecision("r1", NOON_MS, "GET", "/x", decide(), caller))["address"] == expected


def test_an_entry_describes_request_caller_and_decision() -> None:
    limiter = InMemoryLimiter(build_rules_text().replace("1000000", "1"))
    decide(limiter)
    caller = replace(an_installation(), address="address:192.0.2.7")
    entry = DecisionLog(None, SETTINGS).render_entry(
        LoggedDecision("r2", NOON_MS + 7, "PUT", "/x?", decide(limiter, "r2"), caller)
    )

    limits = entry.pop("limits")
    assert entry == {
        "request_id": "r2",
        "at_ms": NOON_MS + 7,
        "verdict": "primary",
        "method": "PUT",
        "path": "/x?",
        "endpoint": "GET /meta",
        "caller": "installation:71",
        "credential": "installation_token",
        "app": "app:7",
        "address": "192.0.2.7",
        "resource": "core",
        "retry_after_s": 3_600,
        "told_by": "core",
        "banned_until_ms": None,
        "problem": None,
        "fallback_processes": None,
    }
    assert [limit["rule"] for limit in limits] == ["core"]


def test_an_entry_names_the_ban_and_the_problem_of_a_request() -> None:
    decision = decide()
    decision = replace(decision, problem="Bad.", result=replace(decision.result, banned_until_ms=7))
    entry = DecisionLog(None, SETTINGS).render_entry(LoggedDecision("r1", NOON_MS, "GET", "/x", decision, a_user()))

    assert (entry["problem"], entry["banned_until_ms"], entry["told_by"]) == ("Bad.", 7, None)


def test_only_the_owner_can_read_appended_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = os.umask(0)
    try:
        for text in (b"a", b"b"):
            append_private(path, text)
    finally:
        os.umask(before)

    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"ab", 0o600)


# -- shared records ------------------------------------------------------------------------------------------------


class MemoryRecords:
    """A record store in memory that can be unavailable."""

    def __init__(self) -> None:
        self.is_available = True
        self.batches: list[list[str]] = []
        self.activity: dict[tuple[int, str], bytes] = {}
        self.reads: list[tuple[str, int] | list[int]] = []

    def _check(self) -> None:
        if not self.is_available:
            raise StoreUnavailable

    async def write_decisions(self, entries: Sequence[tuple[str, bytes]]) -> None:
        self._check()
        self.batches.append([request_id for request_id, _ in entries])

    async def find_decision(self, request_id: str, since_ms: int) -> bytes | None:
        self._check()
        self.reads.append((request_id, since_ms))
        return b'{"found": 1}' if request_id.startswith("A") else None

    async def write_activity(self, minute: int, process: str, rows: bytes) -> None:
        self._check()
        self.activity[minute, process] = rows

    async def read_activity(self, minutes: Iterable[int]) -> Mapping[str, Sequence[bytes]]:
        self._check()
        wanted = list(minutes)
        self.reads.append(wanted)
        found: dict[str, list[bytes]] = {}
        for (minute, process), rows in self.activity.items():
            if minute in wanted:
                found.setdefault(process, []).append(rows)
        return found


class Process:
    """One process with its activity and shared records."""

    def __init__(self, name: str, store: MemoryRecords | None) -> None:
        self.counts = ActivityCounts()
        self.records = SharedRecords(self.counts, name, RealWorld(), kept_ms=10 * MINUTE_MS)
        self.records.record_store = store

    def admit(self, caller: Caller, count: int = 1, *, minute: int = 0) -> None:
        limiter = InMemoryLimiter(build_rules_text())
        for _ in range(count):
            self.counts.record_admission(limiter.send(caller), caller)
        self.counts.add_admissions_to_rows(NOON_MS + minute * MINUTE_MS)

    def write(self, offset_ms: int = 0, *, is_last: bool = False) -> None:
        asyncio.run(self.records.write(NOON_MS + offset_ms, is_last=is_last))

    def read(
        self, *, now_ms: int = NOON_MS, since_ms: int = NOON_MS, until_ms: int | None = None
    ) -> dict[str, list[Any]]:
        rows = asyncio.run(self.records.read_activity(now_ms=now_ms, since_ms=since_ms, until_ms=until_ms))
        return {
            name: [(row.minute - NOON_MS // MINUTE_MS, row.caller.owner, row.total) for row in of]
            for name, of in rows.items()
        }


def test_queued_decisions_are_written_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "WRITE_BATCH_DECISIONS", 2)
    process = Process("p", store := MemoryRecords())
    for number in range(5):
        process.records.record_decision(f"r{number}", b"")
    process.write()
    process.write()

    assert store.batches == [["r0", "r1"], ["r2", "r3"], ["r4"]]


def test_the_oldest_queued_decisions_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_PENDING_DECISIONS", 2)
    process = Process("p", store := MemoryRecords())
    for number in range(4):
        process.records.record_decision(f"r{number}", b"")
    process.write()

    assert (store.batches, process.records.dropped_decisions) == ([["r2", "r3"]], 2)


def test_decisions_that_the_store_does_not_accept_are_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "WRITE_BATCH_DECISIONS", 2)
    process = Process("p", store := MemoryRecords())
    for number in range(3):
        process.records.record_decision(f"r{number}", b"")
    store.is_available = False
    with pytest.raises(StoreUnavailable):
        process.write()
    store.is_available = True
    process.write()

    assert (store.batches, process.records.dropped_decisions) == ([["r0", "r1"], ["r2"]], 0)


def test_a_process_alone_shares_nothing() -> None:
    process = Process("p", None)
    process.records.record_decision("r0", b"")
    process.write(is_last=True)
    process.admit(a_user())

    assert process.read() == {"p": [(0, "user:ada", 1)]}
    assert asyncio.run(process.records.find_decision("A:1")) is None


@pytest.mark.parametrize(("offset_ms", "is_last", "total"), [(4_999, False, 1), (4_999, True, 2), (5_000, False, 2)])
def test_activity_is_written_every_five_seconds_and_at_the_end(offset_ms: int, is_last: bool, total: int) -> None:
    store = MemoryRecords()
    process, other = Process("p", store), Process("q", store)
    for moment_ms in (0, offset_ms):
        process.admit(a_user())
        process.write(moment_ms, is_last=is_last and bool(moment_ms))

    assert other.read() == {"q": [], "p": [(0, "user:ada", total)]}


def test_the_last_and_the_current_minute_are_written() -> None:
    store = MemoryRecords()
    process = Process("p", store)
    for minute in (-3, -2, -1, 0):
        process.admit(a_user(), minute=minute)
    process.write(-MINUTE_MS - 1)
    process.write()

    assert sorted(minute - NOON_MS // MINUTE_MS for minute, _ in store.activity) == [-3, -2, -1, 0]


def test_minutes_before_the_last_one_are_not_written_again() -> None:
    store = MemoryRecords()
    process = Process("p", store)
    for minute in (-3, -2, -1, 0):
        process.admit(a_user(), minute=minute)
    process.write()
    store.activity.clear()
    process.write(20_000)

    assert sorted(minute - NOON_MS // MINUTE_MS for minute, _ in store.activity) == [0]


def test_of_too_many_rows_those_with_most_requests_and_the_sum_of_the_others_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records_module, "MAX_ROWS_PER_MINUTE", 3)
    store = MemoryRecords()
    process = Process("p", store)
    for login, count in (("ada", 1), ("bob", 4), ("eve", 2), ("lea", 3)):
        process.admit(a_user(login), count)
    process.write()

    assert Process("q", store).read()["p"] == [(0, "user:bob", 4), (0, "user:lea", 3), (0, "others:others", 3)]


def test_only_rows_of_the_requested_organization_are_read() -> None:
    store = MemoryRecords()
    process = Process("p", store)
    for resource in ("", "acme/site", "acme", "other/site"):
        decision = InMemoryLimiter(build_rules_text()).send(a_user())
        process.counts.record_admission(decision, a_user(), resource)
    process.counts.add_admissions_to_rows(NOON_MS)
    process.write()

    read = Process("q", store).records.read_activity(now_ms=NOON_MS, since_ms=NOON_MS, organization="acme")
    assert [row.resource for row in asyncio.run(read)["p"]] == ["acme/site", "acme"]


def test_all_values_of_a_row_are_shared() -> None:
    store = MemoryRecords()
    process, other = Process("p", store), Process("q", store)
    caller = an_installation()
    process.admit(caller)
    (row,) = process.counts.list_rows()
    row.primary, row.secondary, row.last_limited_ms = 3, 4, 5
    process.write()

    rows = asyncio.run(other.records.read_activity(now_ms=NOON_MS, since_ms=NOON_MS))["p"]
    fields = ("minute", "endpoint", "total", "primary", "secondary", "last_ms", "last_limited_ms")
    assert [getattr(rows[0], name) for name in fields] == [getattr(row, name) for name in fields]
    members = ("kind", "owner", "user", "app", "installation", "repository", "token")
    assert [getattr(rows[0].caller, name) for name in members] == [getattr(caller, name) for name in members]


@pytest.mark.parametrize(
    ("since_ms", "until_ms", "minutes"),
    [
        (-2 * MINUTE_MS, None, [-2, -1, 0]),
        (-2 * MINUTE_MS, -MINUTE_MS, [-2, -1]),
        (-2 * MINUTE_MS, 5 * MINUTE_MS, [-2, -1, 0]),
        (-99 * MINUTE_MS, -9 * MINUTE_MS, [-10, -9]),
    ],
)
def test_only_minutes_that_can_be_stored_are_read(since_ms: int, until_ms: int | None, minutes: list[int]) -> None:
    process = Process("p", store := MemoryRecords())

    process.read(since_ms=NOON_MS + since_ms, until_ms=None if until_ms is None else NOON_MS + until_ms)

    (read,) = store.reads
    assert [int(minute) - NOON_MS // MINUTE_MS for minute in read] == minutes


def test_while_the_store_is_unavailable_a_process_shows_its_own_rows() -> None:
    process = Process("p", store := MemoryRecords())
    process.admit(a_user())
    process.write()
    store.is_available = False

    assert process.read() == {"p": [(0, "user:ada", 1)]}


@pytest.mark.parametrize(
    ("request_id", "read", "is_found"),
    [
        ("A:0001:1234", [("A:0001:1234", 0x1234 * 1_000 - 60_000)], True),
        ("B:0001:1234", [("B:0001:1234", 0x1234 * 1_000 - 60_000)], False),
        ("what", [], False),
        ("A:x", [], False),
    ],
)
def test_a_decision_is_searched_from_the_time_in_its_request_id(
    request_id: str, read: list[tuple[str, int]], is_found: bool
) -> None:
    process = Process("p", store := MemoryRecords())

    found = asyncio.run(process.records.find_decision(request_id))

    assert (store.reads, found) == (read, {"found": 1} if is_found else None)
