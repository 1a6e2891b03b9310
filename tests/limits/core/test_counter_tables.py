"""The counters of one rule: fixed windows, sliding windows and leases, at the edges of their times."""

import pytest

from wharf.limits.core.counting.leases import LEASE_TTL_MS, RETRY_DELAY_MS, ConcurrencyLeases
from wharf.limits.core.counting.sliding_windows import SlidingWindow, SlidingWindows
from wharf.limits.core.counting.windows import FixedWindows

START_MS = 1_000_000
LENGTH_MS = 1_000


def make_windows(*keys: str) -> FixedWindows:
    """Return fixed windows whose keys were charged once, at one millisecond after the other."""
    table = FixedWindows(LENGTH_MS)
    for offset_ms, key in enumerate(keys):
        table.add(key, 1, START_MS + offset_ms, "")
    return table


# -- fixed windows -------------------------------------------------------------------------------------------------


def test_a_fixed_window_is_open_until_its_end() -> None:
    table = FixedWindows(LENGTH_MS)
    ends_ms = [table.add("k", 2, START_MS + offset_ms, "") for offset_ms in (0, LENGTH_MS - 1)]

    assert ends_ms == [START_MS + LENGTH_MS] * 2
    assert [table.count_used("k", START_MS + offset_ms) for offset_ms in (0, LENGTH_MS - 1, LENGTH_MS)] == [4, 4, 0]
    assert table.add("k", 3, START_MS + LENGTH_MS, "") == START_MS + 2 * LENGTH_MS
    assert (table.count_used("k", START_MS + LENGTH_MS), len(table)) == (3, 1)


@pytest.mark.parametrize(
    ("offset_ms", "end_offset_ms"),
    [(-5_000, -4_000), (0, LENGTH_MS), (500, LENGTH_MS), (LENGTH_MS - 1, LENGTH_MS), (LENGTH_MS, 2 * LENGTH_MS)],
)
def test_the_end_of_a_fixed_window_is_at_most_its_length_away(offset_ms: int, end_offset_ms: int) -> None:
    table = make_windows("k")

    assert table.get_end_ms("k", START_MS + offset_ms) == START_MS + end_offset_ms
    assert table.get_free_at_ms("k", 1, 1, START_MS + offset_ms) == START_MS + end_offset_ms


def test_an_unknown_key_has_the_end_of_a_window_that_opens_now() -> None:
    assert FixedWindows(LENGTH_MS).get_end_ms("k", START_MS) == START_MS + LENGTH_MS


def test_a_window_that_was_opened_with_another_length_keeps_it() -> None:
    table = make_windows("k")
    table.length_ms = 10 * LENGTH_MS

    assert table.dump_row("k") == (1, START_MS + LENGTH_MS, LENGTH_MS)
    assert table.get_end_ms("k", START_MS - 5) == START_MS - 5 + LENGTH_MS
    assert table.count_used("k", START_MS - 5) == 1
    assert table.dump_row("k") == (1, START_MS - 5 + LENGTH_MS, LENGTH_MS)


@pytest.mark.parametrize(
    ("key", "cost", "end_ms", "is_done", "count"),
    [
        ("k", 2, START_MS + LENGTH_MS, True, 3),
        ("k", 9, START_MS + LENGTH_MS, True, 0),
        ("k", 2, START_MS + LENGTH_MS + 1, False, 5),
        ("other", 2, START_MS + LENGTH_MS, False, 5),
    ],
)
def test_a_refund_applies_only_to_the_window_that_was_charged(
    key: str, cost: int, end_ms: int, is_done: bool, count: int
) -> None:
    table = FixedWindows(LENGTH_MS)
    table.add("k", 5, START_MS, "")

    assert table.refund(key, cost, end_ms) is is_done
    assert table.count_used("k", START_MS) == count


def test_a_fixed_window_is_saved_and_restored() -> None:
    table = make_windows("k", "gone")
    table.reset("gone")
    table.reset("unknown")
    restored = FixedWindows(LENGTH_MS)
    restored.load_row("k", (7, START_MS + 5, 300))

    assert (table.dump_row("k"), table.dump_row("gone"), "gone" in table, "k" in table) == (
        (1, START_MS + LENGTH_MS, LENGTH_MS),
        None,
        False,
        True,
    )
    assert (restored.dump_row("k"), restored.dump_row("x"), [*restored.keys()]) == ((7, START_MS + 5, 300), None, ["k"])


def test_an_eviction_removes_the_windows_that_have_ended() -> None:
    table = make_windows("a", "b", "c")

    assert table.evict_idle(START_MS + LENGTH_MS - 1, max_scanned=9) == []
    assert table.evict_idle(START_MS + LENGTH_MS + 1, max_scanned=9) == ["a", "b"]
    assert ([*table.keys()], len(table)) == (["c"], 1)


def test_an_eviction_removes_no_more_windows_than_asked() -> None:
    table = make_windows("a", "b", "c")
    later_ms = START_MS + 2 * LENGTH_MS

    assert [table.evict_idle(later_ms, max_scanned=2) for _ in range(3)] == [["a", "b"], ["c"], []]


def test_evictions_of_a_large_table_visit_every_segment() -> None:
    table = FixedWindows(LENGTH_MS)
    for number in range(6_000):
        table.add(f"k{number}", 1, START_MS, "")
    table.add("open", 1, START_MS + 1, "")

    evicted = [key for _ in range(7) for key in table.evict_idle(START_MS + LENGTH_MS, max_scanned=1_000)]

    assert (len(evicted), len(set(evicted)), [*table.keys()]) == (6_000, 6_000, ["open"])


@pytest.mark.parametrize("max_scanned", [1, 63, 64, 100, 1_000])
def test_an_eviction_of_a_large_table_removes_no_more_windows_than_asked(max_scanned: int) -> None:
    table = FixedWindows(LENGTH_MS)
    for number in range(6_000):
        table.add(f"k{number}", 1, START_MS, "")

    evicted = table.evict_idle(START_MS + LENGTH_MS, max_scanned=max_scanned)

    assert (len(evicted), len(table)) == (max_scanned, 6_000 - max_scanned)


# -- sliding windows -----------------------------------------------------------------------------------------------


def make_sliding(*, is_meter: bool = False) -> SlidingWindows:
    """Return sliding windows of 1,000 ms in four slices."""
    return SlidingWindows(LENGTH_MS, 4, is_meter=is_meter)


@pytest.mark.parametrize(
    ("length_ms", "slices", "is_meter", "width_ms", "retention_ms"),
    [(1_000, 4, False, 250, 1_250), (1_000, 4, True, 250, 1_000), (1_000, 3, False, 334, 1_336), (10, 1, True, 10, 10)],
)
def test_a_slice_counts_for_a_window_and_in_a_limit_for_one_slice_more(
    length_ms: int, slices: int, is_meter: bool, width_ms: int, retention_ms: int
) -> None:
    table = SlidingWindows(length_ms, slices, is_meter=is_meter)

    assert (table.length_ms, table.width_ms, table.retention_ms) == (length_ms, width_ms, retention_ms)


def test_charges_of_one_slice_are_one_count() -> None:
    table = make_sliding()

    ends_ms = [table.add("k", 1, START_MS + offset_ms, "") for offset_ms in (10, 249, 250, 499, 750)]

    assert ends_ms == [START_MS + offset_ms + 1_250 for offset_ms in (0, 0, 250, 250, 750)]
    assert table.dump_row("k") == (250, 1_250, START_MS, 2, START_MS + 250, 2, START_MS + 750, 1)


def test_slices_expire_one_after_the_other() -> None:
    table = make_sliding()
    for offset_ms, cost in ((0, 1), (250, 10), (500, 100)):
        table.add("k", cost, START_MS + offset_ms, "")

    moments_ms = (500, 1_249, 1_250, 1_499, 1_500, 1_749, 1_750)
    assert [table.count_used("k", START_MS + offset_ms) for offset_ms in moments_ms] == [
        111,
        111,
        110,
        110,
        100,
        100,
        0,
    ]


def test_several_slices_can_expire_at_once() -> None:
    table = make_sliding()
    for offset_ms, cost in ((0, 1), (250, 10), (500, 100)):
        table.add("k", cost, START_MS + offset_ms, "")

    assert table.count_used("k", START_MS + 1_500) == 100
    assert table.dump_row("k") == (250, 1_250, START_MS + 500, 100)


def test_an_expired_count_starts_again_with_the_current_rule() -> None:
    table = make_sliding()
    for offset_ms in (0, 250):
        table.add("k", 5, START_MS + offset_ms, "")
    table.width_ms, table.retention_ms = 100, 400

    assert table.add("k", 7, START_MS + 1_520, "") == START_MS + 1_900
    assert table.dump_row("k") == (100, 400, START_MS + 1_500, 7)


def test_after_a_backward_clock_step_later_counts_move_into_the_current_slice() -> None:
    table = make_sliding()
    for offset_ms, cost in ((0, 1), (250, 10), (500, 100), (750, 1_000)):
        table.add("k", cost, START_MS + offset_ms, "")

    assert table.count_used("k", START_MS + 300) == 1_111
    assert table.dump_row("k") == (250, 1_250, START_MS, 1, START_MS + 250, 1_110)
    assert table.count_used("k", START_MS + 1_250) == 1_110


def test_a_charge_after_a_small_backward_clock_step_stays_in_the_newest_slice() -> None:
    table = make_sliding()
    table.add("k", 1, START_MS + 260, "")

    assert table.add("k", 2, START_MS + 240, "") == START_MS + 1_500
    assert table.dump_row("k") == (250, 1_250, START_MS + 250, 3)


@pytest.mark.parametrize(
    ("offset_ms", "end_offset_ms"), [(0, 1_750), (500, 1_750), (1_749, 1_750), (1_750, 2_750), (9_000, 10_000)]
)
def test_a_sliding_window_ends_with_its_last_slice(offset_ms: int, end_offset_ms: int) -> None:
    table = make_sliding()
    for slice_ms in (0, 500):
        table.add("k", 1, START_MS + slice_ms, "")

    assert table.get_end_ms("k", START_MS + offset_ms) == START_MS + end_offset_ms


@pytest.mark.parametrize(
    ("required", "free_offset_ms"),
    [(1, 1_250), (4, 1_250), (5, 1_500), (6, 1_500), (7, 1_750), (10, 1_750), (11, 1_750)],
)
def test_a_charge_fits_when_enough_slices_have_expired(required: int, free_offset_ms: int) -> None:
    table = make_sliding()
    for slice_ms, cost in ((0, 4), (250, 2), (500, 4)):
        table.add("k", cost, START_MS + slice_ms, "")

    assert table.get_free_at_ms("k", required, 10, START_MS + 500) == START_MS + free_offset_ms


def test_an_unknown_key_is_free_now_and_has_a_window_that_opens_now() -> None:
    table = make_sliding()

    assert (table.get_free_at_ms("k", 1, 1, START_MS), table.get_end_ms("k", START_MS)) == (
        START_MS,
        START_MS + LENGTH_MS,
    )
    assert (table.count_used("k", START_MS), table.dump_row("k"), "k" in table) == (0, None, False)


def test_a_sliding_window_is_saved_and_restored() -> None:
    table = make_sliding()
    row = (100, 400, START_MS, 2, START_MS + 100, 3, START_MS + 300, 5)

    table.load_row("k", row)
    table.load_row("single", (100, 400, START_MS + 300, 5))

    assert (table.dump_row("k"), table.dump_row("single")) == (row, (100, 400, START_MS + 300, 5))
    assert [table.count_used("k", START_MS + offset_ms) for offset_ms in (300, 400, 500)] == [10, 8, 5]
    assert (len(table), [*table.keys()]) == (2, ["k", "single"])


def test_a_reset_removes_a_key() -> None:
    table = make_sliding()
    table.add("k", 1, START_MS, "")

    table.reset("k")
    table.reset("unknown")

    assert (len(table), table.count_used("k", START_MS)) == (0, 0)


def test_an_eviction_scans_only_the_next_keys_and_removes_the_expired_ones() -> None:
    table = make_sliding()
    for key, offset_ms in (("a", 0), ("b", 500), ("c", 0), ("d", 0)):
        table.add(key, 1, START_MS + offset_ms, "")
    now_ms = START_MS + 1_250

    assert [table.evict_idle(now_ms, max_scanned=3) for _ in range(4)] == [["a", "c"], ["d"], [], []]
    assert [*table.keys()] == ["b"]
    assert table.evict_idle(now_ms - 1, max_scanned=3) == []


def test_the_slices_of_a_window_are_listed_from_the_oldest() -> None:
    window = SlidingWindow(250, 1_250, START_MS + 500, 3, 3, [START_MS, 1, START_MS + 250, 2])

    assert [*window.iterate_slices()] == [(START_MS, 1), (START_MS + 250, 2), (START_MS + 500, 3)]


# -- leases --------------------------------------------------------------------------------------------------------


def test_a_lease_counts_until_it_expires() -> None:
    table = ConcurrencyLeases()
    for offset_ms, name in ((0, "a"), (10, "b")):
        assert table.add("k", 1, START_MS + offset_ms, name) == START_MS + offset_ms + RETRY_DELAY_MS

    end_ms = START_MS + LEASE_TTL_MS
    assert [table.count_used("k", at_ms) for at_ms in (START_MS + 10, end_ms - 1, end_ms, end_ms + 10)] == [2, 2, 1, 0]


def test_a_lease_that_starts_again_expires_last() -> None:
    table = ConcurrencyLeases()
    for offset_ms, name in ((0, "a"), (10, "b"), (20, "a")):
        table.add("k", 1, START_MS + offset_ms, name)

    assert [table.count_used("k", START_MS + LEASE_TTL_MS + offset_ms) for offset_ms in (0, 10, 20)] == [2, 1, 0]


def test_after_a_backward_clock_step_a_lease_lasts_no_longer_than_usual() -> None:
    table = ConcurrencyLeases()
    table.add("k", 1, START_MS, "a")
    earlier_ms = START_MS - 60_000

    assert table.count_used("k", earlier_ms) == 1
    assert [table.count_used("k", earlier_ms + LEASE_TTL_MS + offset_ms) for offset_ms in (-1, 0)] == [1, 0]


def test_a_released_lease_frees_its_slot_once() -> None:
    table = ConcurrencyLeases()
    table.add("k", 1, START_MS, "a")
    table.add("k", 1, START_MS, "b")

    assert [table.release("k", name) for name in ("a", "a", "b", "b")] == [True, False, True, False]
    assert ("k" in table, len(table), table.count_used("k", START_MS)) == (False, 0, 0)


@pytest.mark.parametrize(("offset_ms", "is_revived"), [(LEASE_TTL_MS - 1, False), (LEASE_TTL_MS, True)])
def test_a_renewed_lease_counts_again_even_if_it_had_expired(offset_ms: int, is_revived: bool) -> None:
    table = ConcurrencyLeases()
    table.add("k", 1, START_MS, "a")
    renewed_ms = START_MS + offset_ms

    assert table.renew("k", "a", renewed_ms) is is_revived
    assert [table.count_used("k", renewed_ms + later_ms) for later_ms in (LEASE_TTL_MS - 1, LEASE_TTL_MS)] == [1, 0]


def test_a_lease_that_was_evicted_is_revived_by_a_renewal() -> None:
    table = ConcurrencyLeases()

    assert table.renew("k", "a", START_MS)
    assert table.count_used("k", START_MS) == 1


@pytest.mark.parametrize(
    ("key", "name", "offset_ms", "expected"),
    [
        ("k", "a", LEASE_TTL_MS - 1, True),
        ("k", "a", LEASE_TTL_MS, False),
        ("k", "b", 0, False),
        ("other", "a", 0, False),
    ],
)
def test_a_request_holds_a_lease_until_it_expires(key: str, name: str, offset_ms: int, expected: bool) -> None:
    table = ConcurrencyLeases()
    table.add("k", 1, START_MS, "a")

    assert table.has_lease(key, name, START_MS + offset_ms) is expected


def test_a_full_concurrency_limit_asks_to_retry_after_a_second() -> None:
    table = ConcurrencyLeases()

    assert (table.get_end_ms("k", START_MS), table.get_free_at_ms("k", 1, 1, START_MS)) == (START_MS + 1_000,) * 2


def test_an_eviction_of_leases_scans_only_the_next_keys() -> None:
    table = ConcurrencyLeases()
    for key, offset_ms in (("a", 0), ("b", 10), ("c", 0), ("d", 0)):
        table.add(key, 1, START_MS + offset_ms, "r")
    now_ms = START_MS + LEASE_TTL_MS

    assert [table.evict_idle(now_ms, max_scanned=3) for _ in range(3)] == [["a", "c"], ["d"], []]
    assert [*table.keys()] == ["b"]


def test_leases_are_not_saved_and_a_reset_ends_them() -> None:
    table = ConcurrencyLeases()
    table.add("k", 1, START_MS, "a")

    assert table.dump_row("k") is None
    table.reset("k")
    assert len(table) == 0
