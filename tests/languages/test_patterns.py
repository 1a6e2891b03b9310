"""Patterns of users: what a replacement builds, and the cost of compiling."""

import pytest

from wharf.languages.patterns import compile_pattern, count_compile_steps


def test_a_replacement_counts_the_characters_of_each_match() -> None:
    counts: list[int] = []

    text = compile_pattern("(b)|c").replace("abca", "[$1]", count_chars=counts.append)

    assert ("a[b][]a", [3, 2]) == (text, counts)


def test_a_replacement_stops_if_the_counter_raises() -> None:
    def refuse(_: int) -> None:
        raise OverflowError

    with pytest.raises(OverflowError):
        compile_pattern("a").replace("aaa", "b", count_chars=refuse)


def test_repetitions_and_unicode_classes_cost_most_to_compile() -> None:
    assert 503 == count_compile_steps("abc")
    assert 500 + 8 + 300 == count_compile_steps("a{0,100}")
    assert 8_503 == count_compile_steps("\\pL")
