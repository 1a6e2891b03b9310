"""Counters with compiled functions do the same as those in Python, for any history of calls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import NOON_MS, InMemoryLimiter, a_user, anonymous
from tests.limits.compiled_counters import build_usual_calls
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.counting.compiled import UsualCalls
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.counting.leases import LEASE_TTL_MS, ConcurrencyLeases
from wharf.limits.core.counting.recent_results import RecentCall, RecentResults
from wharf.limits.core.counting.segmented_dict import MAX_UNSPLIT_KEYS
from wharf.limits.core.counting.sliding_windows import SlidingWindows
from wharf.limits.core.counting.windows import FixedWindows
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall

CALLERS = (a_user("ada"), a_user("bob"), anonymous("192.0.2.1"), anonymous("192.0.2.2"))
PATHS = ("/x", "/y", "/free")
RULES = """
profile = "none"
[[rule]]
name = "core"
resource = "core"
window = "10s"
ceiling = 12
[[rule]]
name = "points"
counts = "points"
window = "4s"
slices = 4
ceiling = 9
[[rule]]
name = "paths"
counts = "requests"
per_endpoint = true
keys_most = 2
window = "6s"
slices = 3
ceiling = 7
[[rule]]
name = "slots"
counts = "connections"
ceiling = 3
[[rule]]
name = "cpu"
counts = "cpu_ms"
window = "5s"
ceiling = 40
[[rule]]
name = "watched"
counts = "requests"
window = "5s"
ceiling = 3
shadow = true
[[endpoint]]
match = ["GET /free"]
free = true
"""


@pytest.fixture(scope="module")
def usual_calls() -> UsualCalls:
    return build_usual_calls()


class _Unfit:
    """A class with an attribute that is no slot."""

    id = ""


class CountedCalls:
    """Compiled functions, with the number of calls that they charged."""

    def __init__(self, usual_calls: UsualCalls) -> None:
        self._usual_calls = usual_calls
        self.charged = 0

    def take_usual(self, *arguments: Any) -> Any:
        result = self._usual_calls.take_usual(*arguments)
        self.charged += result is not None
        return result

    def release_usual(self, *arguments: Any) -> bool:
        return self._usual_calls.release_usual(*arguments)


class Pair:
    """Counters with compiled functions and counters without, which receive the same calls."""

    def __init__(self, usual_calls: UsualCalls, *, max_keys: int = 1_000) -> None:
        self.limiter = InMemoryLimiter(RULES)
        self.counted = CountedCalls(usual_calls)
        rules = self.limiter.rules.rules
        self.compiled = Counters(rules, max_keys=max_keys, usual_calls=self.counted)
        self.plain = Counters(rules, max_keys=max_keys, usual_calls=None)
        self.now_ms = NOON_MS

    def call(self, name: str, caller: Caller = CALLERS[0], path: str = "/x") -> StoreCall:
        return self.limiter.core.build_call(RequestFacts(name, "GET", path, caller), self.now_ms)

    def take(self, call: StoreCall) -> tuple[Any, Any]:
        return tuple(_get_fields(counters.take(call, self.now_ms)) for counters in (self.compiled, self.plain))  # type: ignore[return-value]

    def dump(self) -> list[Any]:
        """Return the whole state of both counters."""
        return [_dump(counters) for counters in (self.compiled, self.plain)]


def _get_fields(result: Any) -> tuple[Any, ...]:
    return tuple(getattr(result, name) for name in result.__struct_fields__)


def _dump(counters: Counters) -> Any:
    tables = {
        name: {key: dict(leases) for key, leases in table.leases_by_key.items()}
        if isinstance(table, ConcurrencyLeases)
        else {key: table.dump_row(key) for key in table.keys()}  # noqa: SIM118 - a table is no mapping.
        for name, table in counters.tables.items()
    }
    bans = {subject: counters.bans[subject] for subject in counters.bans}
    return tables, bans, {name: _get_fields(entry.result) for name, entry in counters._results.running.items()}


moves = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("take"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("release"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("repeat"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("usage"), st.integers(0, 3), st.integers(-20, 30)),
    st.tuples(st.just("wait"), st.integers(0, 3_000), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from((-4_000, 12_000, LEASE_TTL_MS + 1)), st.just(0)),
    st.tuples(st.just("ban"), st.integers(0, 3), st.integers(0, 5_000)),
    st.tuples(st.just("refund"), st.integers(0, 5), st.booleans()),
)


@pytest.mark.needs_program("gcc")
@given(history=st.lists(moves, max_size=60), max_keys=st.sampled_from((2, 1_000)))
def test_compiled_counters_equal_those_in_python_after_any_history(
    usual_calls: UsualCalls, history: list[tuple[str, int, Any]], max_keys: int
) -> None:
    pair = Pair(usual_calls, max_keys=max_keys)
    both = (pair.compiled, pair.plain)
    calls: list[StoreCall] = []
    outcomes: list[tuple[Any, Any]] = []
    for number, (kind, first, second) in enumerate(history):
        chosen = calls[-1 - first % len(calls)] if calls else None
        if kind == "take":
            calls.append(pair.call(f"r{number}", CALLERS[first], PATHS[second]))
            outcomes.append(pair.take(calls[-1]))
        elif kind == "wait":
            pair.now_ms += first
        elif kind == "usage":
            meters = pair.call("m", CALLERS[first]).plan.meter_charges
            for counters in both:
                counters.add_usage(meters, second, pair.now_ms)
        elif kind == "ban":
            for counters in both:
                counters.ban(pair.call("b", CALLERS[first]).plan.ban_subject, pair.now_ms + second)
        elif chosen is not None and kind == "release":
            found = [counters.release(chosen.id, pair.now_ms, should_remember=second) for counters in both]
            outcomes.append((found[0], found[1]))
        elif chosen is not None and kind == "repeat":
            outcomes.append(pair.take(chosen))
        elif chosen is not None:
            refunds = [counters.refund(chosen.id, pair.now_ms, is_fault=second) for counters in both]
            outcomes.append((refunds[0], refunds[1]))

    assert [one for one, _ in outcomes] == [other for _, other in outcomes]
    with_compiled, plain = pair.dump()
    assert with_compiled == plain


@pytest.mark.needs_program("gcc")
def test_compiled_functions_charge_the_requests_of_a_known_caller(usual_calls: UsualCalls) -> None:
    pair = Pair(usual_calls)
    for number in range(3):
        pair.take(pair.call(f"r{number}"))
        for counters in (pair.compiled, pair.plain):
            counters.release(f"r{number}", pair.now_ms, should_remember=False)
        pair.now_ms += 1

    assert pair.counted.charged == 2
    with_compiled, plain = pair.dump()
    assert with_compiled == plain


@pytest.mark.needs_program("gcc")
def test_compiled_functions_find_the_counters_of_many_callers(usual_calls: UsualCalls) -> None:
    pair = Pair(usual_calls, max_keys=1_000_000)
    callers = [a_user(f"u{number}") for number in range(MAX_UNSPLIT_KEYS + 100)]
    for number in range(2):
        for caller in callers:
            pair.take(pair.call(f"{number}{caller.owner}", caller))
            for counters in (pair.compiled, pair.plain):
                counters.release(f"{number}{caller.owner}", pair.now_ms, should_remember=False)

    assert pair.counted.charged == len(callers)
    with_compiled, plain = pair.dump()
    assert with_compiled == plain


@pytest.mark.needs_program("gcc")
@pytest.mark.parametrize("attribute", ["count", "end_ms", "length_ms"])
def test_compiled_functions_leave_a_counter_without_an_attribute_to_python(
    usual_calls: UsualCalls, attribute: str
) -> None:
    pair = Pair(usual_calls)
    pair.take(pair.call("r0"))
    table: Any = pair.compiled.tables["core"]
    for window in table.windows.iterate_values():
        delattr(window, attribute)

    with pytest.raises(AttributeError):
        pair.compiled.take(pair.call("r1"), pair.now_ms)


@pytest.mark.needs_program("gcc")
@pytest.mark.parametrize("table", [FixedWindows, SlidingWindows, ConcurrencyLeases])
def test_compiled_functions_leave_tables_without_counters_to_python(usual_calls: UsualCalls, table: type) -> None:
    pair = Pair(usual_calls)
    pair.take(pair.call("r0"))
    replaced = {FixedWindows: "core", SlidingWindows: "points", ConcurrencyLeases: "slots"}[table]
    tables = {**pair.compiled.tables, replaced: object.__new__(table)}

    call = pair.call("r1")
    assert usual_calls.take_usual(tables, pair.compiled.bans, RecentResults(), call, pair.now_ms) is None


@pytest.mark.needs_program("gcc")
def test_compiled_functions_reject_running_requests_that_are_no_calls(usual_calls: UsualCalls) -> None:
    pair = Pair(usual_calls)
    results, tables = RecentResults(), pair.compiled.tables
    call: Any = pair.call("r0")
    for entry in (object(), RecentCall(call, call), RecentCall(call.plan, call)):
        results.running["r0"] = entry  # type: ignore[assignment]
        with pytest.raises(TypeError, match="is no RecentCall"):
            usual_calls.release_usual(tables, results, "r0")
    with pytest.raises(TypeError, match="needs a dict"):
        usual_calls.release_usual(tables, RecentResults.__new__(RecentResults), "r0")
    assert "r0" in results.running


@pytest.mark.needs_program("gcc")
def test_compiled_functions_leave_numbers_that_could_overflow_to_python(usual_calls: UsualCalls) -> None:
    pair = Pair(usual_calls)
    pair.take(pair.call("r0"))
    for number in (2**62, 2**63 - 1, 2**70, -(2**63)):
        call = pair.call("r1")
        assert usual_calls.take_usual(pair.compiled.tables, pair.compiled.bans, RecentResults(), call, number) is None


@pytest.mark.needs_program("gcc")
def test_a_compiled_module_rejects_classes_of_another_version(usual_calls: UsualCalls) -> None:
    module: Any = usual_calls
    with pytest.raises(TypeError, match="12 classes"):
        module.configure((StoreCall,), LEASE_TTL_MS)
    with pytest.raises(AttributeError):
        module.configure((Counters,) * 12, LEASE_TTL_MS)
    with pytest.raises(TypeError, match="id is not a slot"):
        module.configure((_Unfit,) * 12, LEASE_TTL_MS)

    pair = Pair(usual_calls)
    for number in range(2):
        pair.take(pair.call(f"r{number}"))
    assert pair.counted.charged == 1  # Nothing has changed.


def test_counters_without_compiled_functions_charge_usual_calls_too() -> None:
    limiter = InMemoryLimiter(RULES)
    counters = Counters(limiter.rules.rules, usual_calls=None)
    results = [
        counters.take(limiter.core.build_call(RequestFacts(f"r{n}", "GET", "/x", CALLERS[0]), NOON_MS), NOON_MS)
        for n in range(2)
    ]

    assert [result.counts_before[0] for result in results] == [0, 1]
