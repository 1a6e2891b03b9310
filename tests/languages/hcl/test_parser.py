"""Parsing HCL: trees, errors, limits, and linear time."""

import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.languages.hcl.trees import DOCUMENTS, as_hcl
from wharf.languages.hcl import (
    Attribute,
    Block,
    Body,
    BooleanValue,
    HclError,
    HclSyntaxError,
    ListValue,
    NullValue,
    NumberValue,
    ObjectValue,
    TextValue,
    parse_document,
    parse_hcl,
)
from wharf.languages.hcl.lexer import MAX_NUMBER_CHARS
from wharf.languages.hcl.source import MAX_DOCUMENT_CHARS, MAX_DOCUMENT_DEPTH


def body(*items: Attribute | Block) -> Body:
    return Body(items)


A = Attribute("a", NumberValue(1))
B = Attribute("b", TextValue("x"))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", body()),
        ("a = 1", body(A)),
        ("\ufeffa = 1", body(A)),
        ('a = 1\r\nb = "x"\r\n', body(A, B)),
        # Newlines count as spaces, and commas are optional: older documents rely on both.
        ('a = 1 b = "x"', body(A, B)),
        ('a = 1, b = "x",', body(A, B)),
        ("a\n=\n1", body(A)),
        ('"a" = 1', body(A)),
        # Comments of all three forms, anywhere between words.
        ("# one\na = 1 // two\n/* three\n * lines */", body(A)),
        ('a /* "no */ = /**/ 1 # text', body(A)),
        # Blocks.
        ("node {}", body(Block("node", (), body()))),
        ('node { a = 1 b = "x" }', body(Block("node", (), body(A, B)))),
        ('key "label" { a = 1 }', body(Block("key", (TextValue("label"),), body(A)))),
        ("key label { a = 1 }", body(Block("key", (TextValue("label"),), body(A)))),
        ('"key" "x" "y" { }', body(Block("key", (TextValue("x"), TextValue("y")), body()))),
        ("a-b.c_d {}", body(Block("a-b.c_d", (), body()))),
        ("a {} a {}", body(Block("a", (), body()), Block("a", (), body()))),
        # Values.
        ("a = [true, false, null]", body(Attribute("a", ListValue((BooleanValue(True), BooleanValue(False), NullValue()))))),
        ("a = []", body(Attribute("a", ListValue(())))),
        ("a = [1,]", body(Attribute("a", ListValue((NumberValue(1),))))),
        ("a = [-1, 0, 1.5, -2e3, 1E+2]", body(Attribute("a", ListValue(tuple(map(NumberValue, (-1, 0, 1.5, -2000.0, 100.0))))))),
        ('a = { b = "x" }', body(Attribute("a", ObjectValue(body(B))))),
        ('a = { "b": "x", a: 1 }', body(Attribute("a", ObjectValue(body(B, A))))),
        ("a = { c { a = 1 } }", body(Attribute("a", ObjectValue(body(Block("c", (), body(A))))))),
        # Texts.
        (r'a = "q\"\\\n\t\x41\u00e9\U0001F600\101"', body(Attribute("a", TextValue('q"\\\n\tAé😀A')))),
        (r'a = "\xc3\xa9"', body(Attribute("a", TextValue("é")))),
        ('a = "# no // comment"', body(Attribute("a", TextValue("# no // comment")))),
        ('a = "${b} %{c}"', body(Attribute("a", TextValue("${b} %{c}")))),
        ("a = <<EOF\none\n  two\nEOF\n", body(Attribute("a", TextValue("one\n  two\n")))),
        ("a = <<-EOF\n    one\n\n      two\n    EOF\nb = \"x\"", body(Attribute("a", TextValue("one\n\n  two\n")), B)),
        ("a = <<EOF\r\none\r\nEOF\r\n", body(Attribute("a", TextValue("one\n")))),
        ("a = <<EOF\nEOF", body(Attribute("a", TextValue("")))),
        ("a = [<<X\n1\nX\n, 1]", body(Attribute("a", ListValue((TextValue("1\n"), NumberValue(1)))))),
    ],
)  # fmt: skip
def test_a_document_is_parsed_to_its_tree(text: str, tree: Body) -> None:
    assert tree == parse_hcl(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a", 'At 1:2: expected "=", "{" or a label, found the end'),
        ("a = 1\n\n  b: 2", 'At 3:4: expected "=", "{" or a label, found ":"; write "="'),
        ('a "b" = 1', 'At 1:7: expected "{" after a label, found "="; a value takes "=" before it'),
        ('policy "read"', 'At 1:14: expected "{" after a label, found the end; a value takes "=" before it'),
        ("a {\n  b = 1\n", 'At 3:1: expected a name or "}", found the end; the brace was opened at 1:3'),
        ("a = {", 'At 1:6: expected a name or "}", found the end; the brace was opened at 1:5'),
        ("a {} }", 'At 1:6: expected a name, found "}"'),
        ("= 1", 'At 1:1: expected a name, found "="'),
        (", a = 1", 'At 1:1: expected a name, found ","'),
        ("a = 1,, b = 2", 'At 1:7: expected a name, found ","'),
        ("a =", "At 1:4: expected a value (a text in quotes, a number, true, false, a list or an object), found the end"),
        ("a = read", "At 1:5: expected a value (a text in quotes, a number, true, false, a list or an object), found the word read; put text in quotes"),
        ("a = ['x']", "At 1:6: expected a value (a text in quotes, a number, true, false, a list or an object), found \"'\""),
        ("a = [1 2]", 'At 1:8: expected "," or "]", found "2"; the list was opened at 1:5'),
        ("a = [1", 'At 1:7: expected "," or "]", found the end; the list was opened at 1:5'),
        ("a = [1}", 'At 1:7: expected "," or "]", found "}"; the list was opened at 1:5'),
        ('a = "x\ny"', "At 1:5: this string has no closing quote on its line; write several lines between <<EOF and EOF"),
        ('a = "\\q"', "At 1:6: no such escape; write \\\\ for a backslash"),
        ('a = "\\ud800"', "At 1:6: no such escape; write \\\\ for a backslash"),
        ('a = "\\400"', "At 1:6: no such escape; write \\\\ for a backslash"),
        ('a = "\\xff"', "At 1:6: the bytes of this text are not UTF-8"),
        ("a = 01", "At 1:5: invalid number; numbers are decimal, without leading zeros; put other text in quotes"),
        ("a = 0x1f", "At 1:5: invalid number; numbers are decimal, without leading zeros; put other text in quotes"),
        ("a = 5m", "At 1:5: invalid number; numbers are decimal, without leading zeros; put other text in quotes"),
        ("a = -", "At 1:5: invalid number; numbers are decimal, without leading zeros; put other text in quotes"),
        ("a = 1e999", "At 1:5: the number is too large"),
        ("/* x", "At 1:1: this comment has no end; write */"),
        ("a = <<EOF\nx\n", "At 1:5: this heredoc has no end; write EOF on a line of its own"),
        ("a = << EOF\nx\nEOF", "At 1:5: expected a word after << and the lines of text below it"),
        ("a = 1\x00", "At 1:6: expected a name, found '\\x00'"),
        ("a = \udc80", "At 1:5: the document is not UTF-8"),
    ],
)  # fmt: skip
def test_an_invalid_document_is_reported_with_its_location_and_what_was_expected(text: str, error: str) -> None:
    with pytest.raises(HclSyntaxError) as raised:
        parse_hcl(text)

    assert error == raised.value.text
    assert f"At {raised.value.location.line}:{raised.value.location.column}: {raised.value.reason}" == error


def test_every_node_has_its_location() -> None:
    document = parse_hcl('# a policy\nnamespace "web" {\n  capabilities = [ "read-job" ]\n}\n')

    (block,) = document.items
    assert isinstance(block, Block)
    (attribute,) = block.body.items
    assert isinstance(attribute, Attribute)
    assert isinstance(attribute.value, ListValue)
    assert ((2, 1), (2, 11), (3, 3), (3, 18), (3, 20)) == (
        block.location, block.labels[0].location, attribute.location, attribute.value.location, attribute.value.elements[0].location,
    )  # fmt: skip


@given(DOCUMENTS)
def test_a_tree_written_as_hcl_is_parsed_to_the_same_tree(tree: Body) -> None:
    assert tree == parse_hcl(as_hcl(tree))


# -- bounds --------------------------------------------------------------------------------------------------------


def get_error_text(text: str) -> str:
    with pytest.raises(HclSyntaxError) as raised:
        parse_hcl(text)
    return raised.value.text


def test_the_length_is_bounded() -> None:
    parse_hcl("#" * MAX_DOCUMENT_CHARS)

    assert get_error_text("#" * (MAX_DOCUMENT_CHARS + 1)) == "At 1:1: the document is longer than 1000000 characters"


def test_a_caller_may_pass_a_lower_limit() -> None:
    with pytest.raises(HclSyntaxError, match="longer than 4 characters"):
        parse_document("a = 1", max_chars=4)


@pytest.mark.parametrize(("opening", "closing"), [("a {", "}"), ("a = {", "}"), ("a = {b {", "}}")])
def test_the_depth_of_bodies_is_bounded(opening: str, closing: str) -> None:
    levels = MAX_DOCUMENT_DEPTH // len(closing)
    parse_hcl(opening * levels + closing * levels)

    assert f"nested more than {MAX_DOCUMENT_DEPTH} deep" in get_error_text(
        opening * (levels + 1) + closing * (levels + 1)
    )


def test_the_depth_of_lists_is_bounded() -> None:
    parse_hcl(f"a = {'[' * MAX_DOCUMENT_DEPTH}{']' * MAX_DOCUMENT_DEPTH}")

    assert f"nested more than {MAX_DOCUMENT_DEPTH} deep" in get_error_text(f"a = {'[' * (MAX_DOCUMENT_DEPTH + 1)}")


def test_depth_is_counted_along_one_branch_only() -> None:
    assert len(parse_hcl("a {}" * 1_000).items) == 1_000


def test_the_digits_of_a_number_are_bounded() -> None:
    parse_hcl(f"a = {'1' * MAX_NUMBER_CHARS}")

    assert get_error_text(f"a = {'1' * (MAX_NUMBER_CHARS + 1)}") == "At 1:5: a number has at most 100 characters"


def count_parser_calls(text: str) -> int:
    """Return how many functions are called to parse a text. Unlike time, this does not depend on the load of the machine."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001 (a profile function)
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        parse_document(text)
    except HclError:
        pass
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "piece", ["a {", 'a "b" ', "a = [1] ", "a = {b: 1} ", "[", '"', "/* */", "<<A\n", "\\", 'x "\\"" {} ']
)
def test_the_time_is_linear_in_the_length(piece: str) -> None:
    short, long = count_parser_calls(piece * 500), count_parser_calls(piece * 1_000)

    assert long <= 2 * short + 100


# -- arbitrary text ------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["a", '"b"', "=", "{", "}", "[", "]", ",", ":", "\n", " ", "1", "-", ".5", "1e9", "true", "null", "#", "//", "/*", "*/",
     "<<E\n", "<<-E\n", "\nE\n", '"', "\\", "\\x", '\\"', "${", "é", "\x00", "\ufeff", "\udc80"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=40).map("".join) | st.text(max_size=200))
def test_any_text_is_a_document_or_a_syntax_error_with_a_location_in_it(text: str) -> None:
    try:
        location = parse_document(text).location
    except HclError as error:
        location = error.location

    lines = text.split("\n")
    assert 1 <= location.line <= len(lines)
    assert 1 <= location.column <= len(lines[location.line - 1]) + 1
