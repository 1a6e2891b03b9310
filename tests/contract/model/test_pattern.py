"""Regular expressions that users write."""

import pytest

from wharf.languages.patterns import MAX_PATTERN_CHARS, PatternError, compile_pattern


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
