"""Regular expressions that users write."""

import pytest

from wharf.languages.patterns import MAX_PATTERN_CHARS, PatternError, Re2Pattern, compile_pattern


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [("^a+$", "aaa", True), ("b", "abc", True), ("^b", "abc", False), ("", "x", True), (r"\d{2}", "é12", True)],
)
def test_a_pattern_matches_anywhere_in_the_text(text: str, value: str, found: bool) -> None:
    assert compile_pattern(text).matches(value) == found


@pytest.mark.parametrize(
    "text", ["(", "a**", "(?=look)", r"(a)\1", "a{1001}", "x" * (MAX_PATTERN_CHARS + 1), "((a{100}){100}){100}"]
)
def test_invalid_and_too_large_patterns_are_refused(text: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(text)


def test_a_pattern_with_exponential_backtracking_is_evaluated_at_once() -> None:
    assert not compile_pattern("(a+)+$").matches("a" * 5_000 + "b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("([a-z]?){300}N", "66,731 transitions, more than 5,000"),
        ("(a?b?c?d?)" * 150, "transitions, more than 5,000"),
        (r"\PL{3}", "3,598 instructions, more than 2,500"),
        ("a{600}b{600}", "add up to 1,200, more than 1,000"),
        (r"\pL" * 11, "more than 10 Unicode classes"),
    ],
)
def test_a_pattern_that_costs_too_much_is_refused_with_the_limit(text: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        compile_pattern(text)


@pytest.mark.parametrize(
    "text",
    [r"^web-[0-9]+$", r"\pL+", r"(\pL|\pN)+", ".{100}", "a{1000}", r"(?i)error.*timeout", "^([a-z0-9-]{1,63}\\.)+$"],
)
def test_usual_patterns_are_accepted(text: str) -> None:
    assert compile_pattern(text).matches("") in (True, False)


def test_a_stored_pattern_above_the_limits_still_matches_short_texts() -> None:
    pattern = Re2Pattern("([a-z]?){300}N")

    assert (pattern.matches_cheaply("abcN"), pattern.matches_cheaply("abc")) == (True, False)


def test_a_match_that_could_take_too_long_is_not_attempted() -> None:
    pattern = Re2Pattern("([a-z]?){300}N")

    assert pattern.matches("a" * 5_000 + "N")
    assert not pattern.matches_cheaply("a" * 5_000 + "N")
