"""Parsing filters: trees, errors, limits, and linear time."""

import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.languages.filters.datum import Datum
from wharf.languages.filters import FilterError, FilterSyntaxError, compile_filter, parse_filter
from wharf.languages.filters.parser import MAX_FILTER_CHARS, MAX_FILTER_DEPTH, MAX_FILTER_TERMS
from wharf.languages.filters.tree import (
    And,
    FilterOperator,
    LiteralValue,
    Match,
    Not,
    Or,
    QuantifiedExpression,
    Quantifier,
    Selector,
)

A = Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue("1"))
B = Match(Selector(("B",)), FilterOperator.EQUAL, LiteralValue("1"))
C = Match(Selector(("C",)), FilterOperator.EQUAL, LiteralValue("1"))
ANY = QuantifiedExpression(Quantifier.ANY, Selector(("L",)), A, member="x")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("A == 1 and B == 1 and C == 1", And((A, B, C))),
        ("A == 1 and (B == 1 and C == 1)", And((A, And((B, C))))),
        ("A == 1 or B == 1 and C == 1", Or((A, And((B, C))))),
        ("not A == 1 and B == 1", And((Not(A), B))),
        ("not (A == 1 and B == 1)", Not(And((A, B)))),
        ("A == 1 or any L as x { A == 1 }", Or((A, ANY))),
        ("(any L as x { A == 1 }) or A == 1", Or((ANY, A))),
        ("all L as i , _ {A == 1 }", QuantifiedExpression(Quantifier.ALL, Selector(("L",)), A, key="i")),
        # There are no reserved words.
        ("not == 1", Match(Selector(("not",)), FilterOperator.EQUAL, LiteralValue("1"))),
        ("not is empty", Match(Selector(("not",)), FilterOperator.IS_EMPTY)),
        ("not in Foo", Match(Selector(("Foo",)), FilterOperator.CONTAINS, LiteralValue("not"))),
        ("not not in Foo", Not(Match(Selector(("Foo",)), FilterOperator.CONTAINS, LiteralValue("not")))),
        ("not not == 1", Not(Match(Selector(("not",)), FilterOperator.EQUAL, LiteralValue("1")))),
        ("any == 1", Match(Selector(("any",)), FilterOperator.EQUAL, LiteralValue("1"))),
        ("any in all", Match(Selector(("all",)), FilterOperator.CONTAINS, LiteralValue("any"))),
        ("or == and", Match(Selector(("or",)), FilterOperator.EQUAL, LiteralValue("and"))),
        # Selectors and values.
        ('A.0["b.c"].d_e/f == 1', Match(Selector(("A", "0", "b.c", "d_e/f")), FilterOperator.EQUAL, LiteralValue("1"))),
        ('"/a~1b/~0/é" == 1', Match(Selector(("a/b", "~", "é")), FilterOperator.EQUAL, LiteralValue("1"))),
        ('A == "/a~1b"', Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue("/a~1b"))),
        ("A == b.c", Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue("b.c"))),
        ("A == -1.50", Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue("-1.50"))),
        ('A == "\\x41\\u00e9\\U0001F600\\101\\t\\\\"', Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue("Aé😀A\t\\"))),
        ('A == "\\xc3\\xa9"', Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue("é"))),
        ('A == ""', Match(Selector(("A",)), FilterOperator.EQUAL, LiteralValue(""))),
    ],
)  # fmt: skip
def test_an_expression_is_parsed_to_its_tree(text: str, tree: object) -> None:
    assert tree == parse_filter(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", '1:1 (0): no match found, expected: "(", "all", "any", "not", a number, a selector, a string or a word'),
        ("Name", '1:5 (4): no match found, expected: "!=", ".", "==", "[" or white space'),
        ("Name = web", '1:6 (5): no match found, expected: "!=", "==", "contains", "in", "is", "matches" or "not"; write "=="'),
        ("A == 1 and\n B = 1", '2:4 (14): no match found, expected: "!=", "==", "contains", "in", "is", "matches" or "not"; write "=="'),
        ("A == 1 xor B == 1", '1:8 (7): no match found, expected: "and", "or" or the end'),
        ("A == 1 AND B == 1", '1:8 (7): no match found, expected: "and", "or" or the end; write keywords in lower case'),
        ("A == 1 && B == 1", '1:8 (7): no match found, expected: "and", "or" or the end; write "and"'),
        ("A == 'x'", "1:6 (5): no match found, expected: a number, a string or a word; strings take double quotes or backticks"),
        ("A is", '1:5 (4): no match found, expected: white space'),
        ("A is full", '1:6 (5): no match found, expected: "empty", "nil" or "not"'),
        ("A. == 1", "1:3 (2): no match found, expected: a name or an index"),
        ("A == 1 and any L as x { x == 1 }", '1:16 (15): no match found, expected: "!=", "==", "contains", "in", "is", "matches" or "not"; put any and all in parentheses, or write them last, after or'),
        ("any L as _ { x == 1 }", '1:12 (11): no match found, expected: ","'),
        ("any L as _, _ { x == 1 }", "1:13 (12): no match found, expected: a name"),
        ("any L as x { x == 1 ", '1:21 (20): no match found, expected: "and", "or" or "}"'),
        ("A == 05", '1:7 (6): rule "number": Invalid number literal; put a value that is not a number in quotes'),
        ("A == -", '1:6 (5): rule "number": Invalid number literal; put a value that is not a number in quotes'),
        ('A == "b', '1:8 (7): rule "string": Unterminated string literal'),
        ('A == "\\"', '1:7 (6): rule "string": invalid syntax: no such escape; write \\\\ for a backslash, or use backticks'),
        ('A == "\\ud800"', '1:7 (6): rule "string": invalid syntax: no such escape; write \\\\ for a backslash, or use backticks'),
        ('A == "\\400"', '1:7 (6): rule "string": invalid syntax: no such escape; write \\\\ for a backslash, or use backticks'),
        ('A == "a\nb"', '1:8 (7): rule "string": invalid syntax: a string in double quotes ends on its line; use backticks'),
        ('A == "\\xff"', '1:7 (6): rule "string": invalid syntax: the bytes of the string are not UTF-8'),
        ("A[0] == 1", '1:3 (2): rule "index": Invalid index; write ["key"] for a map and .0 for a list'),
        ('A["0" == 1', '1:6 (5): rule "index": Unclosed index expression'),
        ('"A" == 1', '1:1 (0): rule "selector": Invalid selector; a selector has no quotes, or is a pointer like "/Meta/key"'),
        ('"/A//B" == 1', '1:1 (0): rule "selector": Invalid selector; a selector has no quotes, or is a pointer like "/Meta/key"'),
        ("(A == 1", '1:8 (7): rule "grouping": Unmatched parentheses'),
        ("A == 1)", '1:7 (6): rule "grouping": Unmatched parentheses'),
        ("(A is nil]", '1:10 (9): no match found, expected: ")" or white space'),
        ("A == \udc80", "1:6 (5): the expression is not UTF-8"),
    ],
)  # fmt: skip
def test_a_syntax_error_has_its_location_and_what_was_expected(text: str, error: str) -> None:
    with pytest.raises(FilterSyntaxError) as raised:
        parse_filter(text)

    assert error == raised.value.text
    assert f"{raised.value.line}:{raised.value.column} ({raised.value.offset}): " == error[: error.index(")") + 3]


# -- bounds --------------------------------------------------------------------------------------------------------


def get_error_text(text: str) -> str:
    with pytest.raises(FilterSyntaxError) as raised:
        parse_filter(text)
    return raised.value.text


def test_the_length_is_bounded() -> None:
    max_text_chars = MAX_FILTER_CHARS - len('A == ""')
    parse_filter(f'A == "{"x" * max_text_chars}"')

    assert "the expression is longer than 10000 characters" in get_error_text(f'A == "{"x" * (max_text_chars + 1)}"')


@pytest.mark.parametrize("nest", ["({})", "not {}", "any L as x {{ {} }}", "not ({})"])
def test_the_depth_is_bounded(nest: str) -> None:
    def nested(depth: int) -> str:
        text = "A is empty"
        for _ in range(depth):
            text = nest.format(text)
        return text

    levels = MAX_FILTER_DEPTH // 2 if nest == "not ({})" else MAX_FILTER_DEPTH
    parse_filter(nested(levels))

    assert "nested more than 64 deep" in get_error_text(nested(levels + 1))


def test_the_number_of_terms_is_bounded() -> None:
    parse_filter(" or ".join(["A == 1"] * MAX_FILTER_TERMS))

    assert "more than 500 terms" in get_error_text(" or ".join(["A == 1"] * (MAX_FILTER_TERMS + 1)))


def count_parser_calls(text: str) -> int:
    """Return how many functions are called to parse a text. Unlike time, this does not depend on the load of the machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        parse_filter(text)
    except FilterSyntaxError:
        pass
    finally:
        sys.setprofile(None)
    return calls


FRAGMENTS = (
    *("(", "not ", "not not == 1 and ", "any L as x { ", "(A == 1 or ", "(A == 1) and ", "A == 1 or not ", '"', "`", "\\", " "),
    *('"\\n', "A[", 'A["', "A.", "-", "1", "(any L as x { (", "not in ", "is ", "all all as all { ", "((A == 1) or (", "/", '"/'),
)  # fmt: skip


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_parsing_takes_linear_time(fragment: str) -> None:
    text = (fragment * MAX_FILTER_CHARS)[:MAX_FILTER_CHARS]

    assert count_parser_calls(text) <= 30 * MAX_FILTER_CHARS
    assert count_parser_calls(f'A == "{text[: MAX_FILTER_CHARS - 8]}"') <= 30 * MAX_FILTER_CHARS


WORDS = (
    *("and", "or", "not", "in", "is", "empty", "nil", "contains", "matches", "any", "all", "as", "Name", "Subs", "x", "_"),
    *("==", "!=", "(", ")", "{", "}", "[", "]", ".", ",", '"', "`", '"a"', "`b`", "1", "-1", "0x", "\\", " ", "\n", "é", "\ud800"),
)  # fmt: skip
garbage = st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)
garbage |= st.lists(st.sampled_from((*WORDS, " ", " ")), max_size=25).map("".join)


def find_error(text: str) -> FilterError | None:
    try:
        compile_filter(text, Datum).accepts(Datum())
    except FilterError as error:
        return error
    return None


@given(text=garbage)
def test_any_text_raises_only_filter_errors_with_an_offset_in_the_text(text: str) -> None:
    error = find_error(text)

    assert error is None or (error.text and 0 <= error.offset <= len(text))
