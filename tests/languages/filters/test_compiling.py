"""Compiled filters are cached within a limit, and every evaluation ends."""

import re

import msgspec
import pytest

from tests.languages.filters.datum import DATUM, Datum, accepts
from wharf.languages.filters import (
    FilterEvaluationError,
    FilterStepsExceeded,
    FilterSubject,
    FilterTypeError,
    compile_filter,
)
from wharf.languages.filters.compiler import MAX_CACHE_WEIGHT, MAX_PATTERNS, MAX_UNCOUNTED_STEPS
from wharf.languages.filters.scope import MAX_STEPS
from wharf.languages.patterns import MAX_PATTERN_CHARS


def test_a_filter_is_compiled_once_for_each_subject() -> None:
    subject = FilterSubject(Datum)

    assert compile_filter("N == 50", Datum) is compile_filter("N == 50", Datum)
    assert compile_filter("N == 50", Datum) is not compile_filter("N == 50", subject)


def test_filters_that_were_not_used_for_long_are_evicted() -> None:
    first = compile_filter("N == 1", Datum)
    often = compile_filter("N == 2", Datum)
    for number in range(MAX_CACHE_WEIGHT):
        compile_filter(f"N == 1{number}", Datum)
        assert often is compile_filter("N == 2", Datum)

    assert first is not compile_filter("N == 1", Datum)


def test_the_number_of_patterns_is_bounded() -> None:
    compile_filter(" and ".join(["Name matches web"] * MAX_PATTERNS), Datum)

    with pytest.raises(FilterTypeError, match="more than 20 regular expressions"):
        compile_filter(" and ".join(["Name matches web"] * (MAX_PATTERNS + 1)), Datum)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=web)",
        "(?<=w)eb",
        "(w)\\1",
        "w{1001}",
        "((a{100}){100}){100}",
        "x" * (MAX_PATTERN_CHARS + 1),
        "[",
        "*",
    ],
)
def test_a_pattern_that_is_invalid_or_too_large_is_rejected(pattern: str) -> None:
    with pytest.raises(FilterTypeError, match="failed to compile regular expression"):
        compile_filter(f"Name matches `{pattern}`", Datum)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        *(("web", True), ("^web", True), ("web$", True), ("^web$", True), ("eb", True), ("^eb", False), ("we$", False)),
        *(("^we$", False), ("", True), ("^", True), ("$", True), ("^$", False), ("(?i)WEB", True), ("w.b", True)),
        *(("w\\x65b", True), ("^w|x$", True), ("\\Aweb\\z", True), ("é", False)),
    ],
)
def test_a_pattern_is_found_anywhere_unless_it_is_anchored(pattern: str, found: bool) -> None:
    assert found is accepts(f"Name matches `{pattern}`")


def test_a_dollar_sign_is_the_end_of_the_text_and_not_of_its_last_line() -> None:
    lines = Datum(name="web\n")

    assert not accepts("Name matches `web$`", lines)
    assert not accepts("Name matches `w.b$`", lines)
    assert accepts("Name matches `(?m)w.b$`", lines)


def test_a_pattern_takes_linear_time() -> None:
    assert not accepts("Name matches `^(a+)+$`", Datum(name="a" * 100_000 + "b"))
    assert not accepts("Name matches `^(a|a)*$`", Datum(name="a" * 100_000 + "b"))


def test_nested_quantifiers_end_after_a_limited_number_of_steps() -> None:
    numbers = Datum(ints=tuple(range(1_000)))
    nested = "all Ints as a { all Ints as b { all Ints as c { a != -1 } } }"

    with pytest.raises(FilterEvaluationError) as raised:
        accepts(nested, numbers)

    assert raised.value.text == f"all Ints: more than {MAX_STEPS} steps for one record"
    assert accepts("all Ints as a { all Ints as b { a != -1 } }", Datum(ints=tuple(range(300))))


def test_steps_are_counted_for_each_record() -> None:
    numbers = Datum(ints=tuple(range(MAX_STEPS)))

    assert accepts("all Ints as a { a != -1 }", numbers)
    assert accepts("all Ints as a { a != -1 }", numbers)


@pytest.mark.parametrize(
    "text",
    [
        "Name matches `^[a-m]+$`",
        "Name not matches `^[a-m]+$`",
        "any Ints as i { i == 777 }",
        " or ".join(f"Name contains x{number}" for number in range(21)),
    ],
)
def test_a_filter_that_may_take_long_counts_its_steps(text: str) -> None:
    long = Datum(name="a" * 50_000, ints=(0,) * 500)

    assert compile_filter(text, Datum).is_metered
    assert compile_filter(text, Datum).accepts_within(Datum(name="x"), 100) == ("not matches" in text)
    with pytest.raises(FilterStepsExceeded, match="more than 100000 steps for one record"):
        compile_filter(text, Datum).accepts_within(long, 100)


@pytest.mark.parametrize("length", [0, 1, 100, 500, 2_000, 8_000, 30_000])
@pytest.mark.parametrize(
    "text", ["Name matches `b[a-b]{20}$`", "Name not matches `b[a-b]{20}$`", "1 in Ints and Name matches `a{20}b`"]
)
def test_short_and_long_values_get_the_same_result(text: str, length: int) -> None:
    """Steps are counted only for long values; with a low limit of steps, always."""
    for name in ("a" * length, "a" * length + "b", "b" + "a" * length, "é" * length + "b" + "a" * 20):
        record, compiled = Datum(name=name, ints=(1,)), compile_filter(text, Datum)
        expected = bool(re.search(text.split("`")[1], name)) is not ("not matches" in text)

        assert compiled.accepts(record) is expected
        assert compiled.accepts_within(record, 50_000) is expected
        if length <= 100:
            assert compiled.accepts_within(record, MAX_UNCOUNTED_STEPS - 1) is expected


@pytest.mark.parametrize(
    "text",
    ["Name == web and N != 3 and 1 in Ints", " or ".join(f"Name contains x{number}" for number in range(20))],
)
def test_a_filter_that_cannot_take_long_is_not_metered(text: str) -> None:
    compiled = compile_filter(text, Datum)

    assert not compiled.is_metered
    assert compiled.accepts_within(DATUM, 0) == compiled.accepts(DATUM)


def test_a_match_costs_its_instructions_times_the_bytes_of_the_text() -> None:
    compiled = compile_filter("Name matches `^[a-m]{96}x`", Datum)  # A hundred instructions.
    plain, accented = Datum(name="n" * 25_600), Datum(name="é" * 25_600)

    assert not compiled.accepts_within(plain, 10_001)
    with pytest.raises(FilterStepsExceeded):
        compiled.accepts_within(plain, 9_500)
    with pytest.raises(FilterStepsExceeded):
        compiled.accepts_within(accented, 39_000)


def test_all_patterns_of_a_filter_have_a_limit_together() -> None:
    compile_filter(" and ".join(["Name matches `^.{100}x`"] * 6), Datum)

    with pytest.raises(FilterTypeError, match="more than 5,000 instructions in total"):
        compile_filter(" and ".join(["Name matches `^.{100}x`"] * 7), Datum)


def test_long_chains_are_decided_in_order() -> None:
    decides_early = " or ".join(["N == 1", "N == 2", "N == 50", "Subs.9.Name == x"])
    decides_late = " and ".join(["N == 50"] * 4 + ["Name == x", "Subs.9.Name == x"])

    assert accepts(decides_early)
    assert not accepts(decides_late)


def test_one_filter_accepts_many_records() -> None:
    compiled = compile_filter("Name == web", Datum)

    assert [compiled.accepts(DATUM), compiled.accepts(msgspec.structs.replace(DATUM, name="x"))] == [True, False]
