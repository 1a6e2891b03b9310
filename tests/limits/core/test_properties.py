"""Properties of counters for any history: no limit is exceeded, all charges or none, no window is reset."""

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import NOON_MS, InMemoryLimiter, a_user, anonymous
from wharf.limits.core.counting.leases import LEASE_TTL_MS, ConcurrencyLeases
from wharf.limits.core.counting.sliding_windows import SlidingWindows
from wharf.limits.core.counting.windows import FixedWindows
from wharf.limits.core.decision import LimitDecision

steps = st.lists(st.tuples(st.integers(0, 4_000), st.integers(1, 5)), max_size=60)
jumps = st.lists(st.tuples(st.integers(-200_000, 30_000), st.integers(1, 5)), max_size=60)


def admit(
    used: Callable[[str, int], int],
    add: Callable[[str, int, int, str], int],
    moments: list[tuple[int, int]],
    ceiling: int,
) -> list[tuple[int, int]]:
    """Charge the costs that fit, like a limiter. Return the admitted costs with their times."""
    now_ms, admitted = NOON_MS, []
    for wait_ms, cost in moments:
        now_ms += wait_ms
        if used("k", now_ms) + cost <= ceiling:
            add("k", cost, now_ms, "")
            admitted.append((now_ms, cost))
    return admitted


@given(steps, st.integers(1, 20), st.integers(1, 12), st.integers(1_000, 20_000))
def test_no_sliding_window_exceeds_the_ceiling_at_any_start(
    moments: list[tuple[int, int]], ceiling: int, slices: int, length_ms: int
) -> None:
    table = SlidingWindows(length_ms, slices, is_meter=False)
    admitted = admit(table.count_used, table.add, moments, ceiling)

    assert [
        begin
        for begin, _ in admitted
        if sum(cost for at, cost in admitted if begin <= at < begin + length_ms) > ceiling
    ] == []


@given(steps, st.integers(1, 20), st.integers(1, 12), st.integers(1_000, 20_000))
def test_a_sliding_window_drops_counts_after_its_slices_and_one_more(
    moments: list[tuple[int, int]], ceiling: int, slices: int, length_ms: int
) -> None:
    table = SlidingWindows(length_ms, slices, is_meter=False)
    admitted = admit(table.count_used, table.add, moments, ceiling)
    last_ms = admitted[-1][0] if admitted else NOON_MS

    assert table.count_used("k", last_ms + (slices + 1) * table.width_ms) == 0


@given(steps, st.integers(1, 20), st.integers(1, 12), st.integers(1_000, 20_000), st.integers(1, 5))
def test_the_time_at_which_a_charge_fits_again_is_exact(
    moments: list[tuple[int, int]], ceiling: int, slices: int, length_ms: int, needs: int
) -> None:
    table = SlidingWindows(length_ms, slices, is_meter=False)
    admitted = admit(table.count_used, table.add, moments, ceiling)
    now_ms = admitted[-1][0] if admitted else NOON_MS
    needs = min(needs, ceiling)
    if table.count_used("k", now_ms) + needs <= ceiling:
        return
    free_ms = table.get_free_at_ms("k", needs, ceiling, now_ms)

    assert [table.count_used("k", at) + needs <= ceiling for at in (free_ms - 1, free_ms)] == [False, True]


@given(steps, st.integers(1, 20), st.integers(1_000, 20_000))
def test_a_fixed_window_never_holds_more_than_the_ceiling(
    moments: list[tuple[int, int]], ceiling: int, length_ms: int
) -> None:
    table = FixedWindows(length_ms)
    sums: dict[int, int] = {}
    now_ms = NOON_MS
    for wait_ms, cost in moments:
        now_ms += wait_ms
        if table.count_used("k", now_ms) + cost <= ceiling:
            table.add("k", cost, now_ms, "")
            end_ms = table.get_end_ms("k", now_ms)
            assert now_ms < end_ms <= now_ms + length_ms
            sums[end_ms] = sums.get(end_ms, 0) + cost

    assert [total for total in sums.values() if total > ceiling] == []


@given(steps, st.integers(1_000, 20_000))
def test_windows_of_one_key_never_overlap(moments: list[tuple[int, int]], length_ms: int) -> None:
    table = FixedWindows(length_ms)
    now_ms, ends = NOON_MS, []
    for wait_ms, cost in moments:
        now_ms += wait_ms
        table.add("k", cost, now_ms, "")
        ends.append(table.get_end_ms("k", now_ms))

    distinct = sorted(set(ends))
    assert [b for a, b in pairwise(distinct) if b - length_ms < a] == []


@given(jumps, st.integers(1, 12), st.integers(1_000, 20_000))
def test_a_backward_clock_step_resets_no_window(moments: list[tuple[int, int]], slices: int, length_ms: int) -> None:
    for table in (FixedWindows(length_ms), SlidingWindows(length_ms, slices, is_meter=False)):
        now_ms = NOON_MS
        for wait_ms, cost in moments:
            before = table.count_used("k", now_ms)
            now_ms += wait_ms
            after = table.count_used("k", now_ms)
            assert after >= before or wait_ms > 0
            table.add("k", cost, now_ms, "")


@given(jumps, st.integers(1, 12), st.integers(1_000, 20_000))
def test_after_clock_steps_counts_expire_after_their_slices_and_one_more(
    moments: list[tuple[int, int]], slices: int, length_ms: int
) -> None:
    for table in (FixedWindows(length_ms), SlidingWindows(length_ms, slices, is_meter=False)):
        now_ms = NOON_MS
        for wait_ms, cost in moments:
            now_ms += wait_ms
            table.count_used("k", now_ms)
            table.add("k", cost, now_ms, "")
        table.count_used("k", now_ms)

        assert table.count_used("k", now_ms + (slices + 1) * -(-length_ms // slices)) == 0


@given(steps, st.integers(1, 12))
def test_a_meter_waits_at_most_one_window_for_any_debt(moments: list[tuple[int, int]], ceiling: int) -> None:
    table = SlidingWindows(12_000, 12, is_meter=True)
    now_ms = NOON_MS
    for wait_ms, cost in moments:
        now_ms += wait_ms
        table.count_used("k", now_ms)
        table.add("k", cost * 1_000, now_ms, "")

    assert table.get_free_at_ms("k", 1, ceiling, now_ms) <= now_ms + 12_000


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "release", "renew", "wait"]), st.integers(0, 9), st.integers(0, 20_000)),
        max_size=60,
    )
)
def test_a_lease_is_active_until_it_expires_or_is_released(
    steps: list[tuple[str, int, int]],
) -> None:
    table, model, now_ms = ConcurrencyLeases(), dict[str, int](), NOON_MS
    for action, number, wait_ms in steps:
        name = f"r{number}"
        match action:
            case "take":
                table.add("k", 1, now_ms, name)
                model[name] = now_ms + LEASE_TTL_MS
            case "release":
                table.release("k", name)
                model.pop(name, None)
            case "renew" if name in model:
                table.renew("k", name, now_ms)
                model[name] = now_ms + LEASE_TTL_MS
            case _:
                now_ms += wait_ms
        running = {name for name, until_ms in model.items() if until_ms > now_ms}
        assert table.count_used("k", now_ms) == len(running)


# -- of whole decisions --------------------------------------------------------------------------------------------

SMALL = """
profile = "none"
[[rule]]
name = "core"
resource = "core"
window = "10s"
ceiling = { any = 12, none = 5 }
[[rule]]
name = "points"
counts = "points"
per_endpoint = true
window = "3s"
slices = 3
ceiling = 9
[[rule]]
name = "content"
counts = "content"
window = "5s"
slices = 5
ceiling = 2
[[rule]]
name = "cpu"
counts = "cpu_ms"
window = "4s"
slices = 4
ceiling = 100
[[endpoint]]
match = ["POST /issues"]
content = true
"""
CALLERS = (a_user("ada"), a_user("eve"), anonymous())

sent = st.lists(
    st.tuples(
        st.integers(0, 2_000),
        st.sampled_from(CALLERS),
        st.sampled_from([("GET", "/issues"), ("POST", "/issues"), ("GET", "/other")]),
        st.integers(0, 60),
    ),
    max_size=80,
)


def counts(limiter: InMemoryLimiter) -> dict[tuple[str, str], int]:
    return {
        (name, key): table.count_used(key, limiter.now_ms)
        for name, table in limiter.counters.tables.items()
        for key in list(table.keys())
    }


@given(sent)
def test_a_decision_charges_every_limit_or_none(requests: list[tuple[int, object, tuple[str, str], int]]) -> None:
    limiter = InMemoryLimiter(SMALL)
    for wait_ms, caller, (method, path), cpu_ms in requests:
        limiter.wait(wait_ms)
        before = counts(limiter)
        decision = limiter.send(caller, path, method=method)  # type: ignore[arg-type]  # Of CALLERS.
        expected = dict(before)
        for charge in decision.charges if decision.is_admitted else ():
            if charge.cost:
                expected[charge.name, charge.key] = before.get((charge.name, charge.key), 0) + charge.cost
        assert {k: v for k, v in counts(limiter).items() if v} == {k: v for k, v in expected.items() if v}
        limiter.counters.add_usage(decision.plan.meter_charges, cpu_ms, limiter.now_ms)


@given(sent)
def test_remaining_never_rises_within_a_window(requests: list[tuple[int, object, tuple[str, str], int]]) -> None:
    limiter = InMemoryLimiter(SMALL)
    last_remaining: dict[tuple[str, int], int] = {}
    for wait_ms, caller, (method, path), _ in requests:
        limiter.wait(wait_ms)
        decision = limiter.send(caller, path, method=method)  # type: ignore[arg-type]  # Of CALLERS.
        if not decision.is_admitted:
            continue  # A refusal opens no window, so the end that it reports may be that of a window that does not exist.
        window = (decision.bucket_charge.key, decision.result.bucket_end_ms)
        assert decision.remaining < last_remaining.get(window, decision.limit + 1)
        last_remaining[window] = decision.remaining


@given(sent)
def test_reported_numbers_add_up_and_the_reported_wait_is_sufficient(
    requests: list[tuple[int, object, tuple[str, str], int]],
) -> None:
    limiter = InMemoryLimiter(SMALL)
    for wait_ms, caller, (method, path), cpu_ms in requests:
        limiter.wait(wait_ms)
        decision: LimitDecision = limiter.send(caller, path, method=method)  # type: ignore[arg-type]  # Of CALLERS.
        if decision.is_admitted:
            limiter.counters.add_usage(decision.plan.meter_charges, cpu_ms, limiter.now_ms)
        assert decision.limit == decision.used + decision.remaining
        assert decision.remaining >= 0
        assert decision.reset_s * 1_000 > limiter.now_ms
        if decision.retry_after_s is not None:
            limiter.wait(decision.retry_after_s * 1_000)
            assert limiter.send(caller, path, method=method).is_admitted  # type: ignore[arg-type]  # Of CALLERS.


@given(st.lists(st.integers(0, 4), max_size=60))
def test_the_same_id_never_charges_twice_whatever_the_order(numbers: list[int]) -> None:
    limiter = InMemoryLimiter(SMALL)
    for number in numbers:
        limiter.send(CALLERS[0], "/other", request_id=f"r{number}")

    assert limiter.count("core", "user:ada") == len(set(numbers))
