"""Delays between repeated attempts."""

from random import Random

import pytest

from wharf.world.backoff import MAX_REQUESTED_DELAY_S, REQUESTED_SPREAD, Backoff, draw_delay_s


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(Random(1), min_s=0.5, max_s=3.0)

    delays_s = [backoff.next_delay_s() for _ in range(5)]

    limits_s = [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [limit / 2 <= delay <= limit for delay, limit in zip(delays_s, limits_s, strict=True)] == [True] * 5


def test_delays_of_two_clients_differ() -> None:
    delays_s = {Backoff(Random(seed), min_s=1.0, max_s=30.0).next_delay_s() for seed in range(100)}

    assert len(delays_s) == 100
    assert max(delays_s) - min(delays_s) > 0.4


def test_a_success_starts_again_with_the_shortest_delay() -> None:
    backoff = Backoff(Random(1), min_s=0.5, max_s=30.0)
    for _ in range(10):
        backoff.next_delay_s()

    backoff.reset()

    assert backoff.next_delay_s() <= 0.5


def test_a_requested_delay_is_never_cut_short_and_is_spread() -> None:
    delays_s = [Backoff(Random(seed), min_s=0.5, max_s=3.0).next_delay_s(20.0) for seed in range(100)]

    assert min(delays_s) >= 20.0
    assert max(delays_s) <= 20.0 * (1 + REQUESTED_SPREAD)
    assert max(delays_s) - min(delays_s) > 8.0


def test_a_short_requested_delay_does_not_shorten_the_own_one() -> None:
    assert draw_delay_s(Random(1), 6, min_s=1.0, max_s=30.0, requested_s=1.0) >= 15.0


def test_a_server_cannot_request_hours() -> None:
    delay_s = Backoff(Random(1), min_s=0.5, max_s=3.0).next_delay_s(36_000.0)

    assert delay_s <= MAX_REQUESTED_DELAY_S * (1 + REQUESTED_SPREAD)


@pytest.mark.parametrize("attempt", [1, 17, 10_000])
def test_any_number_of_failures_gives_a_finite_delay(attempt: int) -> None:
    assert 0 < draw_delay_s(Random(1), attempt, min_s=0.01, max_s=5.0) <= 5.0
