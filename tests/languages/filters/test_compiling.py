"""Compiled filters are cached within a limit, and every evaluation ends."""

import msgspec
import pytest

from tests.languages.filters.datum import DATUM, Datum, accepts
from wharf.languages.filters import FilterEvaluationError, FilterSubject, FilterTypeError, compile_filter
from wharf.languages.filters.compiler import MAX_CACHE_WEIGHT, MAX_PATTERNS
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


def test_long_chains_are_decided_in_order() -> None:
    decides_early = " or ".join(["N == 1", "N == 2", "N == 50", "Subs.9.Name == x"])
    decides_late = " and ".join(["N == 50"] * 4 + ["Name == x", "Subs.9.Name == x"])

    assert accepts(decides_early)
    assert not accepts(decides_late)


def test_one_filter_accepts_many_records() -> None:
    compiled = compile_filter("Name == web", Datum)

    assert [compiled.accepts(DATUM), compiled.accepts(msgspec.structs.replace(DATUM, name="x"))] == [True, False]
