"""Durations, sizes and secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.contract.model.settings import Duration, SecretText, Size


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("30s", 30 * 10**9),
        ("1h30m", 5_400 * 10**9),
        ("1.5s", 1_500_000_000),
        ("200ms", 2 * 10**8),
        ("7d", 604_800 * 10**9),
        ("0", 0),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, ns: int) -> None:
    assert Duration.parse(text) == Duration(ns)


@pytest.mark.parametrize("text", ["", "30", "s", "3 s", "-5s", "5s x", "five"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        Duration.parse(text)


@given(st.integers(0, 10**18))
def test_a_duration_that_is_said_is_read_back(ns: int) -> None:
    assert Duration.parse(str(Duration(ns))) == Duration(ns)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10", 10),
        ("1M", 10**6),
        ("10MB", 10**7),
        ("10 mb", 10**7),
        ("512KiB", 524_288),
        ("1.5G", 15 * 10**8),
        ("7b", 7),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, count: int) -> None:
    assert Size.parse(text) == Size(count)


@pytest.mark.parametrize("text", ["", "M", "ten", "10X", "-1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        Size.parse(text)


@given(st.integers(0, 10**15))
def test_a_size_that_is_said_is_read_back(count: int) -> None:
    assert Size.parse(str(Size(count))) == Size(count)


def test_a_secret_shows_only_to_who_asks_for_it() -> None:
    secret = SecretText("hunter2")

    assert (f"{secret}", f"{secret!r}", secret.reveal()) == ("<redacted>", "Secret('<redacted>')", "hunter2")
    assert (str(SecretText()), bool(SecretText())) == ("", False)
