"""The clock of heartbeat deadlines: it pauses while the server cannot receive heartbeats."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from wharf.cluster.controllers.reception import (
    MAX_GAP_S,
    MAX_PEER_SILENCE_S,
    MAX_RECOVERY_S,
    MAX_SOURCES,
    ReceptionClock,
)

MAX_PAUSE_S = 100.0


def make_clock() -> ReceptionClock:
    return ReceptionClock(0.0, max_pause_s=MAX_PAUSE_S)


def pass_time(clock: ReceptionClock, since_s: int, until_s: int, *sources: str) -> float:
    """Read the clock every second, with a pulse of each of these api processes. Return how far it advanced."""
    before_s = clock.read_s(float(since_s))
    for second in range(since_s + 1, until_s + 1):
        for source in sources:
            clock.record_pulse(source, float(second))
        clock.read_s(float(second))
    return clock.read_s(float(until_s)) - before_s


def test_the_clock_follows_the_time_while_all_api_processes_send_pulses() -> None:
    assert pass_time(make_clock(), 0, 50, "api-1", "api-2") == 50.0


def test_the_clock_follows_the_time_exactly_if_no_api_process_has_ever_sent_a_pulse() -> None:
    clock = make_clock()

    assert [clock.read_s(now_s) for now_s in (0.5, 1.75, 3.0)] == [0.5, 1.75, 3.0]


def test_between_two_pulses_the_clock_waits_for_the_next_one() -> None:
    clock = make_clock()
    clock.record_pulse("api", 1.0)

    assert (clock.read_s(1.9), clock.read_s(2.5)) == (1.0, 1.0)
    clock.record_pulse("api", 2.6)
    assert clock.read_s(2.7) == 2.6


def test_the_clock_pauses_from_the_last_pulse_of_a_dead_api_process() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api")

    assert pass_time(clock, 10, 40) == 0.0
    assert clock.outage_since_s == 10.0


def test_one_silent_api_process_of_several_pauses_the_clock() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api-1", "api-2")

    assert pass_time(clock, 10, 30, "api-1") == 0.0
    assert clock.list_silent_sources(30.0) == ["api-2"]


def test_after_an_outage_nodes_have_as_much_time_as_it_lasted() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api")
    pass_time(clock, 10, 19)

    # The pulse at second 20 ends an outage of 10 s, so the clock runs again from second 30.
    assert pass_time(clock, 19, 30, "api") == 0.0
    assert pass_time(clock, 30, 35, "api") == 5.0
    assert clock.outage_since_s is None


def test_the_recovery_is_limited() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api")
    pass_time(clock, 10, 59)

    assert pass_time(clock, 59, 60 + int(MAX_RECOVERY_S), "api") == 0.0
    assert pass_time(clock, 60 + int(MAX_RECOVERY_S), 100, "api") == 25.0


def test_a_gap_within_the_limit_is_no_outage() -> None:
    clock = make_clock()
    clock.record_pulse("api", 1.0)
    clock.record_pulse("api", 1.0 + MAX_GAP_S)

    assert clock.read_s(1.0 + MAX_GAP_S) == 1.0 + MAX_GAP_S


def test_a_lasting_outage_pauses_the_clock_only_until_the_budget_is_used_up() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api")

    assert pass_time(clock, 10, 10 + int(MAX_PAUSE_S)) == 0.0
    assert pass_time(clock, 10 + int(MAX_PAUSE_S), 200) == 90.0


def test_an_api_process_that_dies_again_and_again_does_not_pause_the_clock_for_ever() -> None:
    clock = make_clock()
    for start_s in range(0, 1_000, 20):
        pass_time(clock, start_s, start_s + 10, "api")
        pass_time(clock, start_s + 10, start_s + 20)

    assert clock.read_s(1_000.0) >= 1_000.0 - MAX_PAUSE_S - 10.0


def test_a_pause_of_the_brain_or_of_the_machine_counts_as_no_time_however_long_it_was() -> None:
    for stalled_s in (5, 20, 3_600, 1_000_000):
        clock = make_clock()
        pass_time(clock, 0, 10, "api")
        resumed_s = 10 + stalled_s

        assert clock.read_s(float(resumed_s)) == 10.0
        recovery_s = min(stalled_s, int(MAX_RECOVERY_S))
        assert pass_time(clock, resumed_s, resumed_s + recovery_s, "api") == 0.0
        assert pass_time(clock, resumed_s + recovery_s, resumed_s + recovery_s + 5, "api") == 5.0


def test_an_outage_during_which_the_brain_stalls_is_still_an_outage() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api")
    pass_time(clock, 10, 20)

    assert clock.read_s(60.0) == 10.0
    assert pass_time(clock, 60, 70) == 0.0
    assert clock.list_silent_sources(70.0) == ["api"]


def test_a_brain_that_is_busy_all_the_time_does_not_pause_the_clock_for_ever() -> None:
    clock = make_clock()
    for count in range(1, 251):
        clock.read_s(4.0 * count)

    assert clock.read_s(1_000.0) == 1_000.0 - MAX_PAUSE_S


def test_the_clock_advances_only_to_the_time_for_which_a_pulse_vouches() -> None:
    clock = make_clock()
    clock.record_pulse("api", 1.0)

    clock.record_pulse("api", 3.0, delay_s=1.5)

    assert (clock.read_s(3.0), clock.read_ahead_s(3.0)) == (1.5, 3.0)


def test_a_process_that_is_always_late_pauses_the_clock_first_and_then_delays_it_by_as_much() -> None:
    clock = make_clock()
    clock.record_pulse("api", 0.0)
    readings_s = []
    for second in range(1, 1_001):
        clock.record_pulse("api", float(second), delay_s=min(second, 8.0))
        readings_s.append(clock.read_s(float(second)))

    assert readings_s[int(MAX_PAUSE_S) - 1] <= MAX_GAP_S
    # With an empty budget, each minute counts as one minute.
    assert [readings_s[second - 1] - readings_s[399] for second in (460, 700, 1_000)] == [60.0, 300.0, 600.0]


def test_a_silent_process_of_another_server_pauses_the_clock_for_a_limited_time() -> None:
    clock = make_clock()
    for second in range(11):
        clock.record_pulse("api", float(second))
        clock.record_pulse("m2/api", float(second), member_id="m2")

    assert pass_time(clock, 10, 9 + int(MAX_PEER_SILENCE_S), "api") == 0.0
    pass_time(clock, 9 + int(MAX_PEER_SILENCE_S), 11 + int(MAX_PEER_SILENCE_S) + int(MAX_RECOVERY_S), "api")

    start_s = 11 + int(MAX_PEER_SILENCE_S) + int(MAX_RECOVERY_S)
    assert pass_time(clock, start_s, start_s + 20, "api") == 20.0


def test_a_server_that_left_the_cluster_does_not_pause_the_clock() -> None:
    clock = make_clock()
    for member_id in ("m2", "m3"):
        clock.record_pulse(f"{member_id}/api", 1.0, member_id=member_id)

    clock.retain_members(["m3"])

    assert (clock.measure_silence_s("m2", 2.0), clock.measure_silence_s("m3", 2.0)) == (None, 1.0)


def test_a_new_term_begins_without_an_outage() -> None:
    clock = make_clock()
    pass_time(clock, 0, 10, "api")
    pass_time(clock, 10, 50)

    clock.restart(50.0)

    assert (clock.outage_since_s, clock.list_silent_sources(50.0)) == (None, [])
    assert pass_time(clock, 50, 60, "api") == 10.0


def test_the_number_of_observed_api_processes_is_limited() -> None:
    clock = make_clock()
    for number in range(2 * MAX_SOURCES):
        clock.record_pulse(f"api-{number}", 1.0)

    clock.read_s(2.0)
    clock.read_s(4.5)

    assert len(clock.list_silent_sources(4.5)) == MAX_SOURCES


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=0.0, max_value=30.0), st.dictionaries(st.sampled_from(["a", "b"]), st.booleans())
        ),
        max_size=60,
    )
)
def test_the_clock_never_goes_back_nor_runs_faster_than_the_time(steps: list[tuple[float, Mapping[str, bool]]]) -> None:
    clock, now_s, before_s = make_clock(), 0.0, 0.0
    for delay_s, pulses in steps:
        now_s += delay_s
        for source, has_pulse in pulses.items():
            if has_pulse:
                clock.record_pulse(source, now_s)
        value_s = clock.read_s(now_s)

        assert before_s <= value_s <= now_s + 1e-6
        before_s = value_s


def test_a_pulse_is_late_only_after_the_longest_normal_gap() -> None:
    clock = make_clock()
    clock.record_pulse("api", 1.0)

    assert clock.list_silent_sources(1.0 + MAX_GAP_S) == []
    assert clock.list_silent_sources(1.0 + MAX_GAP_S + 0.01) == ["api"]


def test_the_isolation_lasts_since_the_newest_pulse_of_any_api_process() -> None:
    clock = make_clock()
    before = clock.measure_isolation_s(5.0)
    clock.record_pulse("api-1", 6.0)
    clock.record_pulse("api-2", 8.0)

    assert (before, clock.measure_isolation_s(9.5)) == (0.0, 1.5)
