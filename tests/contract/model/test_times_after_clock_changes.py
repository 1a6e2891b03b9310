"""Deadlines that are stored, after the clock was set back."""

import pytest

from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, MINUTE, SECOND, has_passed

NOW_NS = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("left_ns", "is_over"),
    [
        pytest.param(-1, True, id="a nanosecond ago"),
        pytest.param(0, True, id="now"),
        pytest.param(1, False, id="in a nanosecond"),
        pytest.param(MINUTE, False, id="its whole time is left"),
        pytest.param(MINUTE + 30 * SECOND, False, id="the clock was corrected by less than its time"),
        pytest.param(2 * MINUTE + MAX_CLOCK_SKEW_NS, False, id="the longest wait"),
        pytest.param(2 * MINUTE + MAX_CLOCK_SKEW_NS + 1, True, id="the clock was set back by more than its time"),
        pytest.param(730 * 24 * 60 * MINUTE, True, id="in two years"),
    ],
)
def test_a_deadline_of_a_minute_has_passed_after_at_most_two_minutes(left_ns: int, is_over: bool) -> None:
    assert has_passed(NOW_NS + left_ns, MINUTE, NOW_NS) is is_over
