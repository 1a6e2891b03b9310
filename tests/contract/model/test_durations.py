"""Formatting of durations."""

import pytest

from wharf.contract.model.times import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, format_duration


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (2 * MICROSECOND, "2µs"),
        (200 * MILLISECOND, "200ms"),
        (1_050 * MICROSECOND, "1.05ms"),
        (SECOND, "1s"),
        (1_500 * MILLISECOND, "1.5s"),
        (10 * MINUTE, "10m0s"),
        (HOUR + 30 * MINUTE, "1h30m0s"),
        (24 * HOUR + SECOND, "24h0m1s"),
        (-5 * SECOND, "-5s"),
    ],
)
def test_a_duration_is_formatted_in_go_notation(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text
