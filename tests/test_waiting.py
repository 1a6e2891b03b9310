"""Waiting for a state: how long the pauses between checks are."""

import pytest

from tests.waiting import compute_pause_s, wait_until


@pytest.mark.parametrize(("waited_s", "pause_s"), [(0.0, 0.01), (0.2, 0.01), (1.0, 0.05), (2.0, 0.1), (60.0, 0.1)])
def test_pauses_grow_with_the_time_waited_up_to_a_tenth_of_a_second(waited_s: float, pause_s: float) -> None:
    assert pause_s == pytest.approx(compute_pause_s(waited_s))


def test_a_true_state_is_returned_at_once() -> None:
    assert "ready" == wait_until(lambda: "ready", what="the state is true", within_s=0.0)


def test_a_state_that_is_not_reached_in_time_fails_with_its_description() -> None:
    with pytest.raises(AssertionError, match=r"not reached within 0\.0 s: the queue is empty"):
        wait_until(lambda: False, what="the queue is empty", within_s=0.0)
