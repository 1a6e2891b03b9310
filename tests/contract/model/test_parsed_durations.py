"""Go durations in query parameters (conventions 1.1)."""

import pytest

from wharf.contract.model.times import DurationError, parse_duration_ns

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5s", 5 * SECOND),
        ("1m30s", 90 * SECOND),
        ("100ms", SECOND // 10),
        ("1.5h", 5_400 * SECOND),
        (".5s", SECOND // 2),
        ("0", 0),
        ("-2s", -2 * SECOND),
        ("+2s", 2 * SECOND),
        ("1us", 1_000),
        ("1µs", 1_000),
        ("7ns", 7),
    ],
)
def test_a_duration_is_parsed(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "5", "1d", "s", "5 s", "1h-1m", "٣s", "--1s", "1s1", "9" * 70 + "s", "99999999999999h", "+", "-"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(DurationError):
        parse_duration_ns(text)
