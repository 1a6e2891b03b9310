"""All counters of one process: refunds, results of repeated calls, limits on the number of keys, sweeps and renewals."""

import pytest
from msgspec.structs import replace

from tests.limits.builders import MINUTE_MS, NOON_MS, InMemoryLimiter, a_user, anonymous, build_rules_text
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.counting import counters as counters_module
from wharf.limits.core.counting import recent_results
from wharf.limits.core.counting.counters import MAX_RUNNING_MS, Counters, KeyCounts
from wharf.limits.core.counting.leases import LEASE_TTL_MS
from wharf.limits.core.plans import Charge
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.rules import read_rules

RULES = """
profile = "none"
[[rule]]
name = "core"
resource = "core"
window = "10s"
ceiling = 30
[[rule]]
name = "points"
counts = "points"
per_endpoint = true
keys_most = 2
window = "10s"
slices = 10
ceiling = 9
[[rule]]
name = "slots"
counts = "connections"
ceiling = 3
[[rule]]
name = "cpu"
counts = "cpu_ms"
ceiling = 1000
[[endpoint]]
match = ["GET /free"]
free = true
"""
WINDOW_MS = 10_000


class Table:
    """Counters with these rules; requests are charged at `now_ms`."""

    def __init__(self, rules: str = RULES, *, max_keys: int = 1_000) -> None:
        self.limiter = InMemoryLimiter(rules)
        self.counters = Counters(self.limiter.rules.rules, max_keys=max_keys)
        self.now_ms = NOON_MS
        self._number = 0

    def call(self, caller: Caller | None = None, path: str = "/x", *, name: str = "", method: str = "GET") -> StoreCall:
        self._number += 1
        request = RequestFacts(name or f"r{self._number}", method, path, caller or a_user())
        return self.limiter.core.build_call(request, self.now_ms)

    def take(
        self, caller: Caller | None = None, path: str = "/x", *, name: str = "", method: str = "GET"
    ) -> TakeResult:
        """Charge a request and release it."""
        call = self.call(caller, path, name=name, method=method)
        result = self.counters.take(call, self.now_ms)
        self.counters.release(call.id, self.now_ms)
        return result

    def count(self, rule: str, key: str = "user:ada") -> int:
        return self.counters.tables[rule].count_used(key, self.now_ms)

    def charge(self, rule: str, caller: Caller | None = None, path: str = "/x") -> Charge:
        return next(charge for charge in self.call(caller, path).charges if charge.name == rule)


# -- results -------------------------------------------------------------------------------------------------------


def test_an_admitted_request_reports_its_counts_and_the_end_of_its_bucket() -> None:
    table = Table()
    table.take()
    result = table.take()

    assert (result.is_admitted, result.counts_before, result.bucket_count_before) == (True, (1, 1, 0, 0), 1)
    assert (result.hit_indexes, result.free_at_ms, result.keys) == ((), (), ())
    assert (result.now_ms, result.bucket_end_ms, result.banned_until_ms) == (NOON_MS, NOON_MS + WINDOW_MS, 0)


def test_a_free_request_reports_its_bucket_without_a_charge() -> None:
    table = Table()
    table.take()
    table.now_ms += 4_000
    result = table.take(path="/free")

    assert (result.bucket_count_before, result.bucket_end_ms, table.count("core")) == (1, NOON_MS + WINDOW_MS, 1)


def test_a_refused_request_reports_every_limit_that_it_exceeds() -> None:
    table = Table(RULES.replace("ceiling = 30", "ceiling = 9"))
    for _ in range(9):
        table.take()
    table.now_ms += 1_000
    result = table.take()

    assert (result.is_admitted, result.counts_before, result.hit_indexes) == (False, (9, 9, 0, 0), (0, 1))
    assert result.free_at_ms == (NOON_MS + WINDOW_MS, NOON_MS + 11_000)
    assert (result.bucket_count_before, result.bucket_end_ms) == (9, NOON_MS + WINDOW_MS)
    assert (table.count("core"), table.count("points", "user:ada GET /x")) == (9, 9)


def test_a_request_that_exceeds_only_a_secondary_limit_reports_its_index() -> None:
    table = Table()
    for _ in range(9):
        table.take()

    assert table.take().hit_indexes == (1,)


def test_a_limit_in_shadow_mode_is_hit_and_refuses_nothing() -> None:
    table = Table(RULES.replace("per_endpoint = true", "per_endpoint = true\nshadow = true"))
    for _ in range(9):
        table.take()
    result = table.take()

    assert (result.is_admitted, result.hit_indexes, result.free_at_ms) == (True, (1,), (NOON_MS + 11_000,))


def test_a_refused_free_request_reports_its_bucket() -> None:
    table = Table()
    for _ in range(9):
        table.take(path="/free")
    result = table.take(path="/free")

    assert (result.is_admitted, result.bucket_count_before, result.bucket_end_ms) == (False, 0, NOON_MS + WINDOW_MS)


def test_a_repeated_call_returns_the_first_result() -> None:
    table = Table()
    first = table.counters.take(table.call(name="same"), NOON_MS)
    repeated = [table.counters.take(table.call(name="same"), NOON_MS + 1)]
    table.counters.release("same", NOON_MS)
    repeated.append(table.counters.take(table.call(name="same"), NOON_MS + 1))

    assert [(result.now_ms, result.is_repeated) for result in (first, *repeated)] == [
        (NOON_MS, False),
        (NOON_MS, True),
        (NOON_MS, True),
    ]
    assert table.count("core") == 1


def test_a_repeated_refusal_is_remembered_too() -> None:
    table = Table()
    for _ in range(9):
        table.take()
    results = [table.counters.take(table.call(name="same"), NOON_MS) for _ in range(2)]

    assert [(result.is_admitted, result.is_repeated) for result in results] == [(False, False), (False, True)]
    assert not table.counters.is_running("same")


def test_a_request_runs_until_it_is_released() -> None:
    table = Table()
    table.counters.take(table.call(name="a"), NOON_MS + 7)

    assert (table.counters.is_running("a"), table.counters.get_start_ms("a"), table.count("slots")) == (
        True,
        NOON_MS + 7,
        1,
    )
    assert [table.counters.release(name, NOON_MS) for name in ("a", "a", "unknown")] == [True, False, False]
    assert (table.counters.is_running("a"), table.counters.get_start_ms("a"), table.count("slots")) == (False, None, 0)


def test_a_request_that_is_not_remembered_is_charged_again() -> None:
    table = Table()
    for _ in range(2):
        table.counters.take(table.call(name="a"), NOON_MS)
        table.counters.release("a", NOON_MS, should_remember=False)

    assert table.count("core") == 2


def test_a_call_without_memory_is_charged_each_time_and_does_not_run() -> None:
    table = Table()
    for _ in range(2):
        table.counters.take_once(table.call(name="a"), NOON_MS)

    assert (table.count("core"), table.counters.is_running("a")) == (2, False)


# -- results of ended requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended_ms", "is_known"),
    [((60_000, 60_000), True), ((60_000, 120_000), True), ((60_001, 120_001), True), ((60_001, 120_002), False)],
)
def test_the_result_of_an_ended_request_is_known_for_a_minute_at_least(
    ended_ms: tuple[int, ...], is_known: bool
) -> None:
    results, table = recent_results.RecentResults(), Table()
    for number, offset_ms in enumerate((0, *ended_ms)):
        call = table.call(name=f"r{number}")
        entry = recent_results.RecentCall(call, table.counters.take(call, NOON_MS))
        results.remember_ended(entry, NOON_MS + offset_ms)

    assert (results.find("r0") is not None) is is_known


def test_a_full_generation_of_results_is_dropped_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_results, "MAX_REMEMBERED_RESULTS", 2)
    results = recent_results.RecentResults()
    table = Table()
    entries = [
        recent_results.RecentCall(call := table.call(name=f"r{number}"), table.counters.take(call, NOON_MS))
        for number in range(6)
    ]
    for entry in entries[:5]:
        results.remember_ended(entry)

    assert [results.find(f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    assert results.find("unknown") is None
    results.remember_ended(entries[5])
    assert results.find("r5") is entries[5]


def test_dropped_results_are_freed_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_results, "MAX_REMEMBERED_RESULTS", 3)
    monkeypatch.setattr(recent_results, "DROPPED_PER_RESULT", 0)
    results, table = recent_results.RecentResults(), Table()
    for number in range(10):
        call = table.call(name=f"r{number}")
        results.remember_ended(recent_results.RecentCall(call, table.counters.take(call, NOON_MS)))

    assert [results.free_dropped(2) for _ in range(4)] == [True, True, True, False]


# -- refunds -------------------------------------------------------------------------------------------------------


def test_a_primary_charge_is_refunded_once() -> None:
    table = Table()
    table.take(name="a")
    table.take()

    assert [table.counters.refund("a", NOON_MS, is_fault=False) for _ in range(2)] == [True, False]
    assert (table.count("core"), table.count("points", "user:ada GET /x")) == (1, 2)


@pytest.mark.parametrize(("offset_ms", "is_done"), [(WINDOW_MS - 1, True), (WINDOW_MS, False)])
def test_a_charge_is_refunded_only_while_its_window_is_open(offset_ms: int, is_done: bool) -> None:
    table = Table()
    table.take(name="a")

    assert table.counters.refund("a", NOON_MS + offset_ms, is_fault=False) is is_done


def test_nothing_is_refunded_for_refused_free_and_unknown_requests() -> None:
    table = Table()
    table.take(path="/free", name="free")
    for _ in range(9):
        table.take()
    table.take(name="refused")

    assert [table.counters.refund(name, NOON_MS, is_fault=False) for name in ("free", "refused", "unknown")] == [
        False
    ] * 3
    assert table.count("core") == 9


def test_refunds_of_faults_are_limited_to_a_tenth_of_the_ceiling_in_each_window() -> None:
    table = Table(RULES.replace("ceiling = 9", "ceiling = 99"))

    def send_faults() -> list[bool]:
        names = [f"f{table.now_ms}-{number}" for number in range(5)]
        for name in names:
            table.take(name=name)
        return [table.counters.refund(name, table.now_ms, is_fault=True) for name in names]

    assert send_faults() == [True] * 3 + [False] * 2
    assert table.count("core") == 2
    assert table.counters.refund("r1", NOON_MS, is_fault=False) is False
    table.now_ms += WINDOW_MS
    assert send_faults() == [True] * 3 + [False] * 2


def test_other_refunds_are_not_limited() -> None:
    table = Table()
    for number in range(5):
        table.take(name=f"a{number}")

    assert [table.counters.refund(f"a{number}", NOON_MS, is_fault=False) for number in range(5)] == [True] * 5


def test_each_caller_has_its_own_refunds_of_faults() -> None:
    table = Table()
    for login in ("ada", "eve"):
        for number in range(4):
            table.take(a_user(login), name=f"{login}{number}")

    done = [table.counters.refund(f"{login}{n}", NOON_MS, is_fault=True) for login in ("ada", "eve") for n in range(4)]

    assert done == [True, True, True, False] * 2


def test_the_oldest_counts_of_refunded_faults_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters_module, "MAX_REMEMBERED_RESULTS", 2)
    table = Table()

    def send_faults(login: str, count: int) -> list[bool]:
        names = [f"{login}{table.now_ms}{number}{count}" for number in range(count)]
        for name in names:
            table.take(a_user(login), name=name)
        return [table.counters.refund(name, NOON_MS, is_fault=True) for name in names]

    for login in ("ada", "bob", "ada", "eve"):
        send_faults(login, 2)

    # The count of ada was deleted for that of eve; the others are known.
    assert [send_faults(login, 3) for login in ("eve", "bob")] == [[True, False, False]] * 2
    assert send_faults("ada", 4) == [True] * 3 + [False]


# -- usage, readings, resets -----------------------------------------------------------------------------------------


def test_usage_is_added_beyond_the_ceiling() -> None:
    table = Table()
    charge = table.charge("cpu")

    assert table.counters.add_usage(iter([charge]), 1_500, NOON_MS) == (charge,)
    assert (table.count("cpu"), table.take().is_admitted) == (1_500, False)


def test_readings_open_no_counter() -> None:
    table = Table()
    table.take()
    charges = [table.charge("core"), table.charge("core", a_user("eve"))]

    readings = table.counters.peek(iter(charges), NOON_MS + 4_000)

    assert [(reading.used, reading.end_ms) for reading in readings] == [
        (1, NOON_MS + WINDOW_MS),
        (0, NOON_MS + 4_000 + WINDOW_MS),
    ]
    assert len(table.counters.tables["core"]) == 1


def test_reset_counters_start_again() -> None:
    table = Table()
    table.take()
    charges = [table.charge(name) for name in ("core", "points")]

    for _ in range(2):
        table.counters.reset(charges)

    assert (table.count("core"), table.count("points", "user:ada GET /x")) == (0, 0)
    table.take(path="/a")
    assert table.take(path="/b").keys == ()


# -- the number of keys ----------------------------------------------------------------------------------------------


def test_an_owner_with_too_many_counters_shares_one() -> None:
    table = Table()
    keys = [table.take(path=f"/{name}").keys for name in "abcd"]

    shared = ("user:ada", "user:ada other", "user:ada", "user:ada")
    assert keys == [(), (), shared, shared]
    assert table.count("points", "user:ada other") == 2
    assert table.take(path="/a").keys == ()
    assert table.take(a_user("eve"), path="/c").keys == ()


def test_the_shared_counter_limits_its_requests() -> None:
    table = Table()
    for name in "ab":
        table.take(path=f"/{name}")
    results = [table.take(path=f"/c{number}") for number in range(10)]

    assert [result.is_admitted for result in results] == [True] * 9 + [False]
    assert (results[-1].counts_before[1], results[-1].hit_indexes) == (9, (1,))


def test_a_refused_request_opens_no_counter() -> None:
    table = Table(RULES.replace("ceiling = 30", "ceiling = 1"))
    table.take(path="/a")
    for name in "bcd":
        assert not table.take(path=f"/{name}").is_admitted

    table.now_ms += WINDOW_MS
    assert table.take(path="/b").keys == ()


def test_counters_that_were_evicted_make_room_for_others() -> None:
    table = Table()
    for name in "ab":
        table.take(path=f"/{name}")
    table.now_ms += 20_000
    for _ in table.counters.sweep(table.now_ms):
        pass

    assert [table.take(path=f"/{name}").keys for name in "cd"] == [(), ()]
    assert table.take(path="/e").keys != ()


def test_loaded_counters_are_counted_for_their_owner() -> None:
    table = Table()
    row = (1_000, 11_000, NOON_MS, 1)
    for _ in range(2):
        table.counters.load_row("points", "user:ada GET /a", row)
    table.counters.load_row("points", "user:ada other", row)

    assert table.take(path="/b").keys == ()
    assert table.take(path="/c").keys != ()


def test_usage_of_an_owner_with_too_many_counters_is_shared() -> None:
    rules = build_rules_text(
        '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nper_endpoint = true\nkeys_most = 1\nceiling = 1000'
    )
    table = Table(rules)
    keys = [table.counters.add_usage([table.charge("cpu", path=f"/{name}")], 5, NOON_MS)[0].key for name in "aba"]

    assert keys == ["user:ada GET /a", "user:ada other", "user:ada GET /a"]
    assert table.count("cpu", "user:ada GET /a") == 10


def test_addresses_beyond_the_maximum_share_the_counter_of_their_network() -> None:
    table = Table(max_keys=2)
    callers = [anonymous(f"192.0.2.{number}") for number in range(4)]

    keys = [table.take(caller).keys for caller in callers]

    assert [bool(key) for key in keys] == [False, False, True, True]
    assert keys[3][0] == "address:192.0.2.0/24"
    assert table.count("core", "address:192.0.2.0/24") == 2
    assert table.take(callers[0]).keys == ()
    readings = table.counters.peek([table.charge("core", caller) for caller in callers], NOON_MS)
    assert [reading.used for reading in readings] == [2, 1, 2, 2]


def test_a_full_table_evicts_idle_addresses_first() -> None:
    table = Table(max_keys=2)
    for number in range(2):
        table.take(anonymous(f"192.0.2.{number}"))
    table.now_ms += 20_000

    assert table.take(anonymous("192.0.2.9")).keys == ()


def test_a_full_table_is_not_scanned_again_for_a_tenth_of_a_second() -> None:
    rules = 'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nwindow = "10s"\nceiling = 30\n'
    table = Table(rules, max_keys=1)
    table.take(anonymous("192.0.2.0"))
    table.now_ms += WINDOW_MS - 50

    results = []
    for number, wait_ms in enumerate((0, 50, 49, 1)):
        table.now_ms += wait_ms
        results.append(table.take(anonymous(f"192.0.2.{number + 1}")).keys == ())

    # The window of the first address ended 50 ms after the failed eviction.
    assert results == [False, False, False, True]


def make_charge(owner: str, key: str = "") -> Charge:
    charge = Table().charge("points")
    return replace(charge, owner=owner, key=key or f"{owner} x")


def test_the_number_of_counters_follows_additions_removals_and_renames() -> None:
    counts = KeyCounts()
    counts.remove("points", ["a x"])
    counts.add([make_charge("a"), make_charge("a"), make_charge("b")])
    counts.add_key("points", "a y")
    counts.add_key("points", "a other")
    assert [counts.count("points", owner) for owner in "abc"] == [3, 1, 0]
    counts.remove("points", ["a x", "a other", "b x", "c x"])
    assert [counts.count("points", owner) for owner in "abc"] == [2, 0, 0]
    counts.keep_rules({"new": "points"})
    assert [counts.count(rule, "a") for rule in ("points", "new")] == [0, 2]

    left = []
    for _ in range(3):
        counts.remove("new", ["a x"])
        left.append(counts.count("new", "a"))
    assert left == [1, 0, 0]


# -- leases ----------------------------------------------------------------------------------------------------------


def test_renewals_extend_the_slots_of_running_requests() -> None:
    table = Table()
    for name in "ab":
        table.counters.take(table.call(name=name), NOON_MS)
    table.counters.release("b", NOON_MS)

    assert table.counters.renew(["a", "b", "unknown"], NOON_MS + LEASE_TTL_MS - 1) == 0
    assert table.counters.renew(["a"], NOON_MS + 2 * LEASE_TTL_MS) == 1
    table.now_ms += 2 * LEASE_TTL_MS
    assert table.count("slots") == 1


def test_a_sweep_removes_idle_counters_and_lost_requests() -> None:
    table = Table()
    for name in ("lost", "renewed"):
        table.counters.take(table.call(name=name), NOON_MS)
    later_ms = NOON_MS + MAX_RUNNING_MS + 1
    table.counters.renew(["renewed"], later_ms - 5)
    table.counters.take(table.call(name="new"), later_ms - 1)

    removed = sum(table.counters.sweep(later_ms))

    # Of the first requests, the windows of core and cpu ended; that of an endpoint was charged again.
    assert [table.counters.is_running(name) for name in ("lost", "renewed", "new")] == [False, True, True]
    assert removed == 0
    assert sum(table.counters.sweep(later_ms + 2 * MINUTE_MS)) == 3


@pytest.mark.parametrize(("age_ms", "is_running"), [(MAX_RUNNING_MS, True), (MAX_RUNNING_MS + 1, False)])
def test_a_request_without_a_lease_is_lost_after_an_hour(age_ms: int, is_running: bool) -> None:
    table = Table()
    table.counters.take(table.call(name="a"), NOON_MS)
    for _ in table.counters.sweep(NOON_MS + age_ms):
        pass

    assert table.counters.is_running("a") is is_running


def test_a_sweep_scans_a_large_table_in_batches() -> None:
    table = Table()
    for number in range(2_500):
        table.counters.load_row("points", f"u{number} GET /x", (1_000, 11_000, NOON_MS, 1))

    removed = [count for count in table.counters.sweep(NOON_MS + 20_000) if count]

    assert removed == [1_000, 1_000, 500]


# -- rules -----------------------------------------------------------------------------------------------------------


def test_new_rules_keep_the_counters_of_rules_with_the_same_algorithm() -> None:
    table = Table()
    table.take()
    version = table.counters.rules_version

    def set_rules(text: str) -> None:
        table.counters.set_rules(read_rules(text).rules)

    set_rules(RULES.replace('counts = "points"', 'counts = "points"\nalgorithm = "window"'))
    assert (table.count("core"), table.count("points", "user:ada GET /x")) == (1, 0)
    set_rules(RULES.replace('"core"\nresource', '"rest"\nwas = "core"\nresource'))
    assert (table.count("rest"), "core" in table.counters.tables) == (1, False)
    assert table.counters.rules_version == version + 2
    assert (table.counters.get_rule("rest") is not None, table.counters.get_rule("core")) == (True, None)


WITH_FIXED_WINDOW = RULES.replace('counts = "points"', 'counts = "points"\nalgorithm = "window"')


@pytest.mark.parametrize("rules_between", [WITH_FIXED_WINDOW, RULES.replace('name = "points"', 'name = "other"')])
def test_an_owner_whose_counters_start_again_has_all_of_them_again(rules_between: str) -> None:
    table = Table()
    for name in "ab":
        table.take(path=f"/{name}")
    for text in (rules_between, RULES):
        table.counters.set_rules(read_rules(text).rules)

    assert [table.take(path=f"/{name}").keys != () for name in "cde"] == [False, False, True]


def test_a_renamed_rule_has_the_number_of_counters_of_its_old_name_only() -> None:
    names = ("points", "more")
    more = '[[rule]]\nname = "more"\ncounts = "points"\nper_endpoint = true\nkeys_most = 2\nslices = 10\nceiling = 9\n'
    table = Table(RULES + more)
    for number in range(3):
        for name in names:
            charge = table.charge(name, path=f"/{number}")
            if name == "points" or number == 0:
                table.counters.add_usage([charge], 1, NOON_MS)
    table.counters.set_rules(read_rules(RULES.replace('name = "points"', 'name = "points"\nwas = "more"')).rules)

    keys = [table.counters.add_usage([table.charge("points", path=f"/{name}")], 1, NOON_MS)[0].key for name in "cd"]
    assert keys == ["user:ada GET /c", "user:ada other"]


def test_a_changed_sliding_window_applies_to_new_keys() -> None:
    table = Table()
    table.counters.set_rules(
        read_rules(RULES.replace('window = "10s"\nslices = 10', 'window = "20s"\nslices = 5')).rules
    )
    table.take()

    assert table.counters.tables["points"].dump_row("user:ada GET /x") == (4_000, 24_000, NOON_MS, 1)


def test_a_meter_keeps_its_retention_after_a_change() -> None:
    table = Table()
    table.counters.set_rules(read_rules(RULES.replace('"cpu_ms"', '"cpu_ms"\nwindow = "20s"\nslices = 5')).rules)
    table.counters.add_usage([table.charge("cpu")], 7, NOON_MS)

    assert table.counters.tables["cpu"].dump_row("user:ada") == (4_000, 20_000, NOON_MS, 7)


def test_only_the_counts_of_running_requests_are_not_saved() -> None:
    assert Table().counters.unsaved_rules == {"slots"}


def test_the_maximum_number_of_keys_can_be_changed() -> None:
    table = Table(max_keys=1)
    table.counters.set_rules(table.limiter.rules.rules)
    table.take(anonymous("192.0.2.1"))
    assert table.take(anonymous("192.0.2.2")).keys != ()
    table.counters.set_rules(table.limiter.rules.rules, max_keys=9)

    assert table.take(anonymous("192.0.2.3")).keys == ()


# -- bans ------------------------------------------------------------------------------------------------------------


def test_a_banned_caller_is_refused_without_a_further_refusal_in_its_record() -> None:
    table = Table(RULES + "[ban]\naddresses_shadow = false\n")
    subject = a_user().ban_subject
    table.counters.ban(subject, NOON_MS + 5)
    result = table.take()

    assert (result.is_admitted, result.banned_until_ms, result.hit_indexes, table.count("core")) == (
        False,
        NOON_MS + 5,
        (),
        0,
    )
    assert table.counters.bans[subject].told_ms == 0
    table.now_ms += 5
    assert table.take().is_admitted


def test_a_refused_caller_is_recorded_for_a_ban() -> None:
    table = Table()
    for _ in range(10):
        table.take()

    assert table.counters.bans[a_user().ban_subject].told_ms == NOON_MS


def test_a_ban_in_shadow_mode_is_reported_and_refuses_nothing() -> None:
    table = Table(RULES + "[ban]\nshadow = true\n")
    table.counters.ban(a_user().ban_subject, NOON_MS + 5)
    result = table.take()

    assert (result.is_admitted, result.banned_until_ms) == (True, NOON_MS + 5)


def test_usage_is_charged_to_its_own_counter_although_the_table_is_full() -> None:
    table = Table()
    charge = replace(table.charge("points"), overflow_key="")
    counters = Counters([charge.rule], max_keys=1)
    charges = [replace(charge, key=key, owner=key) for key in ("a", "b")]

    assert [counters.add_usage([charge], 3, NOON_MS) for charge in charges] == [(charge,) for charge in charges]
    assert [reading.used for reading in counters.peek(charges, NOON_MS)] == [3, 3]


def test_a_counter_that_is_open_does_not_free_the_other_counters_of_a_request_from_their_limit() -> None:
    table = Table(
        RULES
        + RULES[RULES.index('[[rule]]\nname = "points"') : RULES.index('[[rule]]\nname = "slots"')]
        .replace('"points"\ncounts', '"few"\ncounts')
        .replace("keys_most = 2", "keys_most = 1")
    )
    for path in ("/x", "/y", "/y"):
        table.take(path=path)

    assert [table.count("points", "user:ada GET /y"), table.count("few", "user:ada GET /y")] == [2, 0]
