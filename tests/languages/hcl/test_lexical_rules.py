"""The lexical rules of documents (reference section 2): encoding, comments, names, numbers, strings and escapes."""

import pytest

from tests.languages.hcl.evaluations import FREE_SCHEMA, evaluate, find_errors, find_failure, list_errors, read_body
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_document

# -- encoding, line ends, columns


def test_a_byte_order_mark_at_the_start_is_skipped() -> None:
    assert {"a": 1} == read_body("\ufeffa = 1\n")


def test_bytes_that_are_not_utf_8_are_refused_with_their_place() -> None:
    with pytest.raises(DocumentErrors, match=r"job\.hcl:2:6: the file is not UTF-8"):
        parse_document(b'a = 1\nb = "\xff"\n')


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(DocumentErrors, match="the file is not UTF-8"):
        parse_document('a = "\ud800"\n')


def test_lines_may_end_with_crlf() -> None:
    assert {"a": 1, "b": [({"c": 2},)]} == read_body("a = 1\r\nb {\r\n  c = 2\r\n}\r\n")


def test_crlf_stays_in_the_text_of_a_heredoc() -> None:
    assert {"a": "x\r\ny\r\n"} == read_body("a = <<EOF\r\nx\r\ny\r\nEOF\r\n")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("a =\u00a01\n", "replace it by a space"),
        ("a = \u201cx\u201d\n", 'replace the typographic quote by "'),
        ("a = 'x'\n", 'texts are in double quotes: "..."'),
    ],
)
def test_a_sign_that_only_looks_right_has_a_message_of_its_own(text: str, fix: str) -> None:
    assert fix in find_errors(text, FREE_SCHEMA)


@pytest.mark.parametrize(
    ("before", "column"),
    [("é", 8), ("e\u0301", 8), ("👨\u200d👩\u200d👧", 8), ("🇩🇪🇫🇷", 9), ("\t", 8), ("日本", 9)],
)
def test_columns_count_characters_as_a_user_sees_them(before: str, column: int) -> None:
    assert list_errors(f'a = "{before}" ?\n', FREE_SCHEMA)[0].startswith(f"job.hcl:1:{column + 2}:")


# -- comments


@pytest.mark.parametrize(
    "text",
    [
        "# one\na = 1",
        "// one\na = 1",
        "/* one\n * two */ a = 1",
        "a = 1 # one",
        "a = 1 // one",
        "a /* one */ = /* two */ 1 /* three */",
        "a = 1\n/* /* */",
        "a = 1\n#",
        "a = 1\n/**/",
        "a = 3/3//three",
        "a = 1/* one */",
    ],
)
def test_comments_are_skipped(text: str) -> None:
    assert {"a": 1} == read_body(text)


@pytest.mark.parametrize("value", ["attr.x//c", "attr.x/*c*/", "attr.x#c", '"${attr.x}"//c'])
def test_a_comment_directly_after_a_name_is_skipped(value: str) -> None:
    assert {"a": "${attr.x}"} == read_body(f"a = {value}")


def test_comments_do_not_nest() -> None:
    assert ['job.hcl:1:10: expected an argument or a block, found "*"'] == list_errors("/* /* */ */\n", FREE_SCHEMA)


def test_an_unclosed_comment_is_an_error_at_its_start() -> None:
    assert ["job.hcl:2:1: this comment has no end"] == list_errors("a = 1\n/* b", FREE_SCHEMA)


def test_comments_are_text_inside_strings_and_heredocs() -> None:
    assert {"a": "# x // y /* z */", "b": "# x\n/* y\n"} == read_body(
        'a = "# x // y /* z */"\nb = <<EOF\n# x\n/* y\nEOF\n'
    )


# -- names


@pytest.mark.parametrize("name", ["a", "_", "a1", "a-b", "a-", "é", "名", "e\u0301", "true1", "if"])
def test_a_name_has_letters_digits_underscores_and_dashes(name: str) -> None:
    assert {name: 1} == read_body(f"{name} = 1\n")


@pytest.mark.parametrize("name", ["1a", "-a", ".a", "a.b", "a b"])
def test_other_texts_are_no_names(name: str) -> None:
    assert find_errors(f"{name} = 1\n", FREE_SCHEMA)


def test_a_dash_without_a_blank_belongs_to_the_name() -> None:
    names = {"a": 5, "b": 2, "a-b": 1, "a-": 7}

    assert 1 == evaluate("a-b", names=names)
    assert 3 == evaluate("a - b", names=names)
    assert 3 == evaluate("a -b", names=names)
    assert 0 == evaluate("1-1")
    assert 'expected an operator or the end, found "b"' == find_failure("a- b", names=names).messages[0]


# -- numbers and literals


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1.5", 1.5),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("15e-1", 1.5),
        ("007", 7),
        ("-1", -1),
        ("- 1", -1),
        ("true", True),
        ("false", False),
        ("null", None),
    ],
)
def test_a_literal_has_its_value(text: str, value: object) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    "text", [".5", "5.", "0x10", "1_000", "1.2.3", "1e", "1a", "5m", "1e999999999", "1e-999999999"]
)
def test_another_form_is_no_number(text: str) -> None:
    assert find_failure(text).messages


def test_a_number_with_a_unit_belongs_in_quotes() -> None:
    assert ['put it in quotes: "256MB"'] == find_failure("256MB").fixes


@pytest.mark.parametrize("text", ["True", "FALSE", "Null"])
def test_literals_are_in_lower_case(text: str) -> None:
    assert f"${{{text}}}" == evaluate(text)


# -- strings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\n\r\t\"\\"', '\n\r\t"\\'),
        (r'"\u00e9"', "é"),
        (r'"\U0001F600"', "😀"),
        ('"$${x}"', "${x}"),
        ('"%%{x}"', "%{x}"),
        ('"$$"', "$$"),
        ('"$$x"', "$$x"),
        ('"100%"', "100%"),
        ('"$"', "$"),
        ('"$${1}"', "${1}"),
        ('"$$${1}"', "$${1}"),
        ('"$$$${1}"', "$$${1}"),
        ('"%%%{1}"', "%%{1}"),
        ('"$%%{a}"', "$%{a}"),
        ('"a$"', "a$"),
        ('"{}"', "{}"),
        ('""', ""),
    ],
)
def test_escapes_stand_for_their_text(text: str, value: str) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize("text", [r'"\x41"', r'"\q"', r'"\'"', r'"\u12"', r'"\U00110000"', r'"\uD800"', '"\\'])
def test_other_escapes_are_errors(text: str) -> None:
    assert find_failure(text).messages


def test_a_string_ends_on_its_line() -> None:
    assert ["this string has no closing quote on its line"] == find_failure('"a\nb"').messages


def test_texts_are_normalized_to_nfc() -> None:
    assert "é" == evaluate('"e\u0301"')
    assert "é" == evaluate('"${"e"}\u0301"')
    assert True is evaluate('"e\u0301" == "é"')
    assert {"é": 1} == evaluate('{ "e\u0301" = 1 }')


def test_labels_are_not_normalized() -> None:
    assert {"b": [("e\u0301", {})]} == read_body('b "e\u0301" {}\n')


def test_labels_have_escapes_but_no_templates() -> None:
    assert {"b": [("${x}", 'a"b', {})]} == read_body('b "$${x}" "a\\"b" {}\n')
    assert ["job.hcl:1:6: a label is a plain text: it is not computed, so it has no ${"] == list_errors(
        'b "a-${x}" {}\n', FREE_SCHEMA
    )


# -- line ends in expressions


@pytest.mark.parametrize(
    "text",
    [
        "(1\n+\n2)",
        "[1\n+ 2][0]",
        "max(1,\n 3\n)",
        '{ a =\n 3 }["a"]',
        "(true\n? 3\n: 4)",
        "{ a = 1 +\n 2 }.a",
        "{a = 1\n+ 2\n}.a",
    ],
)
def test_inside_brackets_line_ends_are_blanks(text: str) -> None:
    assert 3 == read_body(f"x = {text}\n")["x"]


def test_inside_an_interpolation_line_ends_are_blanks() -> None:
    assert {"x": "a3"} == read_body('x = "a${\n1 +\n2\n}"\n')


@pytest.mark.parametrize("text", ["1 +\n2", "1\n+ 2", "true ?\n1 : 2", "true\n? 1 : 2"])
def test_outside_brackets_a_line_end_ends_the_argument(text: str) -> None:
    assert find_errors(f"x = {text}\n", FREE_SCHEMA)
