"""Parsing and formatting of durations, sizes and secrets in settings."""

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
def test_a_duration_is_parsed(text: str, ns: int) -> None:
    assert Duration.parse(text) == Duration(ns)


@pytest.mark.parametrize("text", ["", "30", "s", "3 s", "-5s", "5s x", "five"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Duration.parse(text)


@given(st.integers(0, 10**18))
def test_a_formatted_duration_is_parsed_to_the_same_value(ns: int) -> None:
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
def test_a_size_is_parsed(text: str, count: int) -> None:
    assert Size.parse(text) == Size(count)


@pytest.mark.parametrize("text", ["", "M", "ten", "10X", "-1"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        Size.parse(text)


@given(st.integers(0, 10**15))
def test_a_formatted_size_is_parsed_to_the_same_value(count: int) -> None:
    assert Size.parse(str(Size(count))) == Size(count)


def test_only_reveal_returns_a_secret() -> None:
    secret = SecretText("hunter2")

    assert (f"{secret}", f"{secret!r}", secret.reveal()) == ("<redacted>", "Secret('<redacted>')", "hunter2")
    assert (str(SecretText()), bool(SecretText())) == ("", False)
