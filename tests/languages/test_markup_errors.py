"""Texts that cannot be read as YAML, TOML or JSON: what the error says, which part it marks, and how to fix it."""

import json
import warnings
from typing import Final

import pytest

from tests.attempts import limited_cpu
from wharf.languages.exact_values import MAX_DEPTH
from wharf.languages.markup import MAX_SLOW_CHARS, MarkupFormat, parse_json, parse_markup
from wharf.languages.markup_errors import MarkupError

YAML_FAULTS: Final = [
    ("TaskGroups:\n\u00a0 - Name: g\n    Tasks: []\n", "\u00a0", "the line has a no-break space (U+00A0)", "replace it by a blank"),
    ("ID: a\nType:\u00a0batch\nPriority: 5\n", "\u00a0", "the line has a no-break space (U+00A0)", "replace it by a blank"),
    ("ID: a\n\tType: batch\n", "\t", "the line has a tab", "indent YAML with blanks: two for each level"),
    ("TaskGroups:\n\t- Name: g\n", "\t", "the line has a tab", "indent YAML with blanks: two for each level"),
    ("TaskGroups:\n  -\tName: g\n", "\t", "the line has a tab", "write a blank instead of the tab"),
    ("Meta:\n  a: 1\n\tb: 2\n", "\t", "the line has a tab", "indent YAML with blanks: two for each level"),
    ("ID: a\n  Type: batch\nName: x\n", "Type", "the line is indented deeper than line 1, which has a value", "indent it by 0 blanks, as the text of line 1, or remove that value"),
    ("TaskGroups:\n  - Name: g\n     Count: 2\n", "Count", "the line is indented deeper than line 2, which has a value", "indent it by 4 blanks, as the text of line 2, or remove that value"),
    ("TaskGroups:\n  - Name: g\n   Count: 2\n", "Count: 2", "the line is indented by 3 blanks, unlike any line above it", "indent it by 0 or 4 blanks"),
    ("TaskGroups:\n    - Name: g\n  Tasks: x\n", "Tasks: x", "the line is indented by 2 blanks, unlike any line above it", "indent it by 0 or 6 blanks"),
    ("Meta:\n   a: 1\n  b: 2\nx: 1\n", "b: 2", "the line is indented by 2 blanks, unlike any line above it", "indent it by 0 or 3 blanks"),
    ('ID: "a\nType: batch\nName: x\n', '"a', "the quote that opens here is not closed", 'write " at the end of the text'),
    ('ID: "a\nType: "batch"\nName: x\n', '"a', "the quote that opens here is not closed", 'write " at the end of the text'),
    ("ID: 'a\nType: batch\n", "'a", "the quote that opens here is not closed", "write ' at the end of the text"),
    ("ID: 'it's'\nType: batch\n", "'s'", "the text ends at this quote", "write '' for an apostrophe, or put the text in double quotes"),
    ('ID: "a\\q"\n', "\\q", "this escape is unknown", "write \\\\ for a backslash, or put the text in single quotes: 'C:\\x'"),
    ("ID:a\nType: batch\n", ":", "a blank is missing after the colon", "write ID: a"),
    ("ID: a\nType:batch\nName: x\n", ":", "a blank is missing after the colon", "write Type: batch"),
    ("A:\n  - Name:g\n    Count: 2\n", ":", "a blank is missing after the colon", "write Name: g"),
    ("ID: @a\n", "@a", "a value that begins with @ needs quotes", 'write "@a"'),
    ("ID: `a`\n", "`a`", "a value that begins with ` needs quotes", 'write "`a`"'),
    ("ID: *a\n", "*a", "no anchor &a is above this alias", 'if it is a text, write "*a"; if not, mark the value that it repeats by &a'),
    ("Args: [*.py]\n", "*.py", "no anchor &.py is above this alias", 'if it is a text, write "*.py"; if not, mark the value that it repeats by &.py'),
    ("ID: *\n", "*", "a value that begins with * needs quotes", 'write "*"'),
    ("ID: &a\n", "&a", "a value that begins with & needs quotes", 'write "&a"'),
    ("ID: & b\n", "& b", "a value that begins with & needs quotes", 'write "& b"'),
    ("ID: %a\n", "%a", "a value that begins with % needs quotes", 'write "%a"'),
    ("%a: 1\n", "%a: 1", "a value that begins with % needs quotes", 'write "%a: 1"'),
    ("ID: {a\nType: b\n", "{", "the { that opens here is not closed", "write } at the end, or put the value in quotes if it is a text"),
    ("ID:\n  {", "{", "the { that opens here is not closed", "write } at the end, or put the value in quotes if it is a text"),
    ("ID: [", "[", "the [ that opens here is not closed", "write ] at the end, or put the value in quotes if it is a text"),
    ("ID: {{ x }}\n", "{{ x }}", "a value that begins with { needs quotes", 'write "{{ x }}"'),
    ("ID: {a} b\n", "{a} b", "a value that begins with { needs quotes", 'write "{a} b"'),
    ("ID: [a\nType: b\n", "[", "the [ that opens here is not closed", "write ] at the end, or put the value in quotes if it is a text"),
    ("ID: [a] b\nType: c\n", "[a] b", "a value that begins with [ needs quotes", 'write "[a] b"'),
    ("ID: [a, b}\n", "}", "} does not close [", "write ]"),
    ("ID: a: b\n", "a: b", 'a value with ": " in it needs quotes', 'write "a: b"'),
    ("command: echo x: y\nA: b\n", "echo x: y", 'a value with ": " in it needs quotes', 'write "echo x: y"'),
    ("TaskGroups:\n  - Name: a\n - Name: b\n", "-", "this - is not below the other items of its list", "indent it by 2 blanks, as the - of line 2"),
    ("TaskGroups:\n  - Name: a\n    - Name: b\n", "-", "this - is not below the other items of its list", "indent it by 2 blanks, as the - of line 2"),
    ("TaskGroups:\n  Name: a\n  - Name: b\n", "-", "an item of a list is among keys", 'begin each item of the list with "- ", or write a key'),
    ("ID: a\n- b\n", "-", "an item of a list is among keys", 'begin each item of the list with "- ", or write a key'),
    ("A: - b\n", "-", "a list begins on the line of its key", 'write "- " on the line below, indented'),
    ("A:\n  - a\n  -c\n", "-", "a blank is missing after the -", "write - c"),
    ("ID: a\nID: b\n", "ID", 'the key "ID" occurs twice', "remove one"),
    ("ID: !foo a\n", "!foo", "the tag !foo is unknown", "delete it, or put the value in quotes if it is a text"),
    ("ID: !!foo a\n", "!!foo", "the tag !!foo is unknown", "delete it, or put the value in quotes if it is a text"),
    ("ID: !foo {a: 1}\n", "!foo", "the tag !foo is unknown", "delete it, or put the value in quotes if it is a text"),
    ("ID: !! a\n", "!!", "the tag !! is unknown", "delete it, or put the value in quotes if it is a text"),
    ("ID: *x\n", "*x", "no anchor &x is above this alias", 'if it is a text, write "*x"; if not, mark the value that it repeats by &x'),
    ("ID: a\n---\nID: b\n", "---", "expected one YAML document, got several", "write one file for each document, or delete the line ---"),
    ("ID: a\n...\nID: b\n", "...", "expected one YAML document, got several", "write one file for each document, or delete the line ..."),
    ("ID: >x\n", ">x", "a text follows > on the same line", "write it on the lines below >, or without > and in quotes"),
    ("ID: | text\n", "| text", "a text follows | on the same line", "write it on the lines below |, or without | and in quotes"),
    ('ID: "a" b\n', "b", "a text follows the closing quote", 'put the whole value in quotes, and write \\" for " in it'),
    ("ID: \u0001\n", "\u0001", "the control character #x0001 is not allowed in YAML", 'remove it, or write it in a quoted text as "\\x01"'),
    ("<<: 1\nID: a\n", "1", "<< needs a map, or a list of maps", "write <<: *name, where &name marks a map"),
    ("ID a\nType: b\n", "ID", 'the key "ID" has no colon', "write ID: a"),
    ("ID: a\nType b\nName: c\n", "Type", 'the key "Type" has no colon', "write Type: b"),
    ("{a: b}: c\n", "{a: b}", "a key must be a text, not a list or a map", ""),
    ("A: [a b, c\n", "[", "the [ that opens here is not closed", "write ] at the end, or put the value in quotes if it is a text"),
    ("A: {a: 1 b: 2}\n", ":", 'expected "," or "}"', "separate the entries by commas, and put texts with , : [ ] { } in quotes"),
    ("A: {a: 1, b: 2\nB: 1\n", "{", "the { that opens here is not closed", "write } at the end, or put the value in quotes if it is a text"),
    ("ID: <<EOF\nfoo\nEOF\n", "<<EOF", "YAML has no <<", "write | there, and the text on the lines below, indented"),
    ("ID: ?\n", "?", "a value that begins with ? needs quotes", 'write "?"'),
    ("ID: a\n%b: c\n", "%b: c", "a value that begins with % needs quotes", 'write "%b: c"'),
]  # fmt: skip
TOML_FAULTS: Final = [
    ('ID = "a"\nID = "b"\n', "ID", "the key ID occurs twice", "remove one"),
    ("[Meta]\na=1\n[Meta]\nb=2\n", "[Meta]", "the table Meta occurs twice", "write both as one table, or [[Meta]] in both places if they are items of a list"),
    ("Meta = {a = 1}\nMeta.b = 2\n", "Meta.b", "Meta is complete before this line", "write the key there"),
    ("Meta = {a = 1, a = 2}\n", "a", "the key Meta.a occurs twice", "remove one"),
    ('[TaskGroups]\nName="a"\n[TaskGroups]\nName = "b"\n', "[TaskGroups]", "the table TaskGroups occurs twice", "write both as one table, or [[TaskGroups]] in both places if they are items of a list"),
    ('[TaskGroups]\nName="a"\n[[TaskGroups]]\nName="b"\n', "[[TaskGroups]]", "the list TaskGroups occurs twice", "write [[TaskGroups]] there too, if it is an item of the list"),
    ('[[TaskGroups]]\nName="a"\n[TaskGroups]\nName="b"\n', "[TaskGroups]", "the table TaskGroups occurs twice", "write both as one table, or [[TaskGroups]] in both places if they are items of a list"),
    ('[[TaskGroups]]\nName="a"\n[TaskGroups.Tasks]\nName="b"\n[[TaskGroups.Tasks]]\nName="c"\n', "[[TaskGroups.Tasks]]", "the list TaskGroups.Tasks occurs twice", "write [[TaskGroups.Tasks]] there too, if it is an item of the list"),
    ("TaskGroups = []\n[[TaskGroups]]\na = 1\n", "[[TaskGroups]]", "the list TaskGroups occurs twice", "remove the key above: each [[TaskGroups]] adds an item"),
    ("ID = web\n", "web", "a text needs quotes", 'write "web"'),
    ("ID = web app\n", "web app", "a text needs quotes", 'write "web app"'),
    ("Args = [a, b]\n", "a", "a text needs quotes", 'write "a"'),
    ("A = True\n", "True", "True is no TOML value", "write true"),
    ("A = null\n", "null", "TOML has no null", "remove the key: a missing key has no value"),
    ("A = 30s\n", "30s", "a text needs quotes", 'write "30s"'),
    ("A = 1.2.3\n", "1.2.3", "a text needs quotes", 'write "1.2.3"'),
    ("A = /bin/sh\n", "/bin/sh", "a text needs quotes", 'write "/bin/sh"'),
    ("A = 10MB\n", "10MB", "a text needs quotes", 'write "10MB"'),
    ('ID = "a\nType = "b"\n', '"a', "the quote that opens here is not closed", 'write " at the end of the text; a text of several lines begins and ends with """'),
    ("ID = 'a\nType = 'b'\n", "'a", "the quote that opens here is not closed", "write ' at the end of the text; a text of several lines begins and ends with '''"),
    ('ID = """a\nType = "b"\n', '"""a', "the quote that opens here is not closed", 'write """ at the end of the text'),
    ("ID = '''a\nType = 'b'\n", "'''a", "the quote that opens here is not closed", "write ''' at the end of the text"),
    ("ID = 'it's'\n", "'", "the text ends at this quote", "put a text with an apostrophe in double quotes"),
    ('ID = "a\\q"\n', "\\q", "this escape is unknown", "write \\\\ for a backslash, or put the text in single quotes: 'C:\\x'"),
    ("A = 2020-01-01\n", "2020-01-01", "JSON has no dates", 'put the date in quotes: "2020-01-01"'),
    ("A = [2020-01-01]\n", "2020-01-01", "JSON has no dates", 'put the date in quotes: "2020-01-01"'),
    ("A = 07:32:00\n", "07:32:00", "JSON has no dates", 'put the date in quotes: "07:32:00"'),
    ("ID: a\n", ":", 'a ":" follows the key', "write = instead"),
    ("ID =\n", "=", "the key has no value", "write one, or remove the line"),
    ("ID\n", "ID", 'the key has no "=" and value', "write ID = ..."),
    ('ID "a"\n', 'ID "a"', 'the key has no "=" and value', 'write ID = "a"'),
    ("A = 1 B = 2\n", "B = 2", "two keys are on one line", "write each key on a line of its own"),
    ("A = [1, 2\nB = 3\n", "[", "the [ that opens here is not closed", "write ] at its end"),
    ("A = 1\nB = [\n", "[", "the [ that opens here is not closed", "write ] at its end"),
    ("A = [1,\n", "[", "the [ that opens here is not closed", "write ] at its end"),
    ('A == "b"\n', "=", 'a second "=" follows the key', "delete it"),
    ("A = [1, , 2]\n", ",", "a value is missing", "write one, or delete the comma before it"),
    ("A = [1 2]\n", "2", 'expected "," or "]"', "separate the entries by commas"),
    ("A = {a = 1,\n b = 2}\n", "{", "an inline table must be on one line", "write it on one line, or as a table with a header"),
    ("A = {a = 1, }\n", ", ", 'a "," is before the }', "delete the comma"),
    ("A = {a = 1\nB = 2\n", "{", "the { that opens here is not closed", "write } at its end, on the same line"),
    ("A = {\n", "{", "the { that opens here is not closed", "write } at its end, on the same line"),
    ("A = {\n a = '}'\n", "{", "the { that opens here is not closed", "write } at its end, on the same line"),
    ("A = {\n a = {b = 1}\n}\n", "{", "an inline table must be on one line", "write it on one line, or as a table with a header"),
    ("[A\nb = 1\n", "[A", "the header of this table has no end", "write [A]"),
    ("[[A]\nb = 1\n", "[[A]", "the header of this table has no end", "write [[A]]"),
    ("[A] b = 1\n", "b = 1", "a text follows the header of the table", "write it on the next line"),
    ("[A B]\n", "[A B]", "the header of this table has no end", "write [A B]"),
    ("A = 007\n", "007", "the number 007 begins with 0", 'write 7, or "007"'),
    ("A = nan\n", "nan", "nan is not a finite number", ""),
    ('A = 1e400x"\n', "1e400x", "the number 1e400 is too large", ""),
    ("a b = 1\n", "a b", "a key with blanks needs quotes", 'write "a b"'),
    ("// x\n", "//", "a comment of TOML begins with #", "write # instead"),
    ("A = 1;\n", ";", 'a ";" is after the value', "delete it: a value ends with its line"),
    ("A = 1,\n", ",", 'a "," is after the value', "delete it: a value ends with its line"),
    ("\u00e9 = 1\n", "\u00e9", "this key needs quotes", 'write "é"'),
    ('ID = "C:\\Users"\n', "\\U", "this escape is unknown", "write \\\\ for a backslash, or put the text in single quotes: 'C:\\x'"),
    ('A = "\x01"\n', "\u0001", "the control character #x0001 is not allowed in TOML", 'remove it, or write it as "\\u0001"'),
    ("A.b = 1\n[A]\nc = 1\n", "[A]", "the table A occurs twice", "write both as one table, or [[A]] in both places if they are items of a list"),
    ("[A.b]\nc=1\n[A]\nb.d = 2\n", "b.d", "A.b is complete before this line", "write the key there"),
    ('A = """x"""\nB = "y\n', '"y', "the quote that opens here is not closed", 'write " at the end of the text; a text of several lines begins and ends with """'),
    ('A = {"a": 1}\n', ":", 'a ":" follows the key', "write = instead"),
    ('A = ["a" "b"]\n', '"', 'expected "," or "]"', "separate the entries by commas"),
]  # fmt: skip
JSON_FAULTS: Final = [
    ('{"a": 1,}', ",", 'a "," is before the }', "delete the comma"),
    ('{"a": 1, // x\n}', "// x", "JSON has no comments", "delete it, or write the file in YAML or HCL"),
    ('{"a": 1 /* x */}', "/* x */", "JSON has no comments", "delete it, or write the file in YAML or HCL"),
    ("{'a': 1}", "'a'", "a key needs double quotes", 'write "a"'),
    ('{"a": \'b\'}', "'b'", "a text needs double quotes", 'write "b"'),
    ('{"a": 1 "b": 2}', "1", 'a "," is missing after this value', "write a comma after it"),
    ('{"a": "b\n"c": 1}', '"b', "the quote that opens here is not closed on its line", 'write " at the end of the text, and \\n for a line break in it'),
    ('{"a": {"b": 1}', "{", "the { that opens here is not closed", "write } at its end"),
    ('{"a": [1, 2}', "}", "} does not close [", "write ]"),
    ('{"a": NaN}', "NaN", "NaN is not a finite number", ""),
    ('{"a": 1}}', "}", "this } closes nothing", "delete it"),
    ("{a: 1}", "a", "a key needs double quotes", 'write "a"'),
    ('{"a": True}', "True", "True is not a JSON value", "write true"),
    ('{"a": "b\\q"}', "\\q", "this escape is unknown", 'write \\\\ for a backslash; the escapes are \\n \\r \\t \\b \\f \\" \\\\ \\/ \\uNNNN'),
    ('{"a" 1}', "1", 'expected ":" after the key, found "1"', ""),
    ('{"a": }', ":", "the key has no value", "write one, or null"),
    ("[1,]", ",", 'a "," is before the ]', "delete the comma"),
    ('{"a": 01}', "01", "01 is not a JSON value", 'write 1, or "01" if it is a text'),
    ('{"a": .5}', ".5", ".5 is not a JSON value", 'write 0.5, or ".5" if it is a text'),
    ('{"a":"x', '"x', "the quote that opens here is not closed on its line", 'write " at the end of the text, and \\n for a line break in it'),
    ('{"a": 1} {"b": 2}', "{", 'expected the end of the file, found "{"', ""),
    ("# x\n{}", "# x", "JSON has no comments", "delete it, or write the file in YAML or HCL"),
    ('{"a": -Infinity}', "-Infinity", "-Infinity is not a finite number", ""),
    ('{"a": undefined}', "undefined", "undefined is not a JSON value", "write null"),
    ('{"a": "a\tb"}', "\t", "the control character #x0009 is not allowed in a JSON string", "write \\t"),
    ('{"a": +1}', "+1", "+1 is not a JSON value", 'write 1, or "+1" if it is a text'),
    ('{"a"; 1}', ";", 'expected ":" after the key, found ";"', "delete it: arguments end with their line, and items are separated by commas"),
    ('{"a": 1; "b": 2}', ";", 'expected "," or "}", found ";"', "delete it: arguments end with their line, and items are separated by commas"),
    ('{"a": 0x1F}', "0x1F", "0x1F is not a JSON value", 'write 31, or "0x1F" if it is a text'),
    ('{"a": 1,, "b": 2}', ",", "two commas follow each other", "delete one"),
    ('{,"a":1}', ",", 'expected a key in double quotes, found ","', ""),
    ('{"a": "x" + "y"}', "+", 'expected "," or "}", found "+"', ""),
    ("\u201ca\u201d", "\u201c", 'expected a JSON value, found "“"', 'replace the typographic quote by "'),
    ('{\n  "a": {\n    "b": 1\n  ,\n  "c": 2\n}\n', "{", "the { that opens here is not closed", "write } at its end"),
    ('{"a": {"b": 1, "c": 2, "b": 3}}', '"b"', 'the key "b" occurs twice', "remove one"),
]  # fmt: skip


def find_error(text: str, format: str) -> MarkupError:
    """Return the error of a text."""
    with pytest.raises(MarkupError) as caught:
        parse_markup(text, MarkupFormat(format))
    return caught.value


def describe_error(text: str, format: str) -> tuple[str, str, str]:
    """Return the marked part of a text, what is wrong with it, and how to fix it."""
    error = find_error(text, format)
    return text[error.start : error.end], error.message, error.fix


@pytest.mark.parametrize(("text", "marked", "message", "fix"), YAML_FAULTS)
def test_a_fault_of_yaml_is_explained_at_its_place(text: str, marked: str, message: str, fix: str) -> None:
    assert describe_error(text, "yaml") == (marked, message, fix)


@pytest.mark.parametrize(("text", "marked", "message", "fix"), TOML_FAULTS)
def test_a_fault_of_toml_is_explained_at_its_place(text: str, marked: str, message: str, fix: str) -> None:
    assert describe_error(text, "toml") == (marked, message, fix)


@pytest.mark.parametrize(("text", "marked", "message", "fix"), JSON_FAULTS)
def test_a_fault_of_json_is_explained_at_its_place(text: str, marked: str, message: str, fix: str) -> None:
    assert describe_error(text, "json") == (marked, message, fix)


@pytest.mark.parametrize(
    ("text", "format", "start"),
    [
        ("ID: a\nMeta: {a: 1}\nID: b\n", "yaml", 0),
        ("Meta:\n  a: 1\n  b: 2\n  a: 3\n", "yaml", 8),
        ('{"x": 1, "a": {"b": 1, "b": 2}}', "json", 15),
        ('A = 1\n[B]\nc = 1\nc = 2\n', "toml", 10),
        ("[A]\n[B]\n[A]\n", "toml", 0),
    ],
)  # fmt: skip
def test_a_key_that_occurs_twice_has_both_places(text: str, format: str, start: int) -> None:
    related = find_error(text, format).related

    assert related is not None
    assert (related[0], related[2]) == (start, "the first is at")


def test_the_bracket_that_is_not_closed_is_found_by_the_indentation() -> None:
    text = '{\n  "a": {\n    "b": 1\n  },\n  "c": {\n    "d": 1\n}\n'

    error = find_error(text, "json")

    assert (error.start, error.message) == (text.index("{", 30), "the { that opens here is not closed")


@pytest.mark.parametrize(
    ("text", "format"),
    [("%YAML 3.0\n---\na: b\n", "yaml"), ("a" * 2000 + ": 1\n", "yaml")],
)  # fmt: skip
def test_an_unknown_fault_has_the_detail_of_the_parser(text: str, format: str) -> None:
    assert find_error(text, format).message.startswith("this is not YAML: ")


@pytest.mark.parametrize(
    ("text", "marked_at"),
    [
        ("x = 1\n" + "a." * 400_000 + "a = 1\n", 6),
        ("[" + " 'a' . " * 200 + "b]\n", 2),
        ("[[" + '"a.b".' * 100 + "b]]\n", 2),
    ],
)
def test_a_key_of_toml_with_more_than_100_parts_is_an_error(text: str, marked_at: int) -> None:
    with pytest.raises(MarkupError) as raised:
        parse_markup(text, MarkupFormat.TOML)
    assert (raised.value.message, raised.value.start) == ("the key has more than 100 parts", marked_at)


@pytest.mark.parametrize("text", ["'{}'", '"{}"', "'''\n{}'''", "1 # {}"])
def test_dots_in_texts_and_comments_of_toml_have_no_limit(text: str) -> None:
    parse_markup(f"a = {text.format('a.' * 1_000)}\n", MarkupFormat.TOML)


def test_a_map_of_yaml_that_merges_others_has_their_entries() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: [*b, *a], z: 3}\n"
    assert parse_markup(text, MarkupFormat.YAML).value["c"] == {"x": 1, "y": 2, "z": 3}


def test_a_repeated_key_of_a_large_object_is_found_in_linear_time() -> None:
    text = "{" + ", ".join(f'"k{at}": 1' for at in range(50_000)) + ', "k49999": 2}'

    with limited_cpu(5.0, "parsing"), pytest.raises(MarkupError, match='the key "k49999" occurs twice'):
        parse_markup(text, MarkupFormat.JSON)


DEEP = MAX_DEPTH + 1


@pytest.mark.parametrize(
    ("text", "format", "marked_at"),
    [
        ("a: " + "[" * 100_000, "yaml", 3 + MAX_DEPTH),
        ("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, "yaml", 3 + MAX_DEPTH - 1),
        ("- " * 100_000, "yaml", 2 * MAX_DEPTH),
        ("".join(" " * at + "a:\n" for at in range(DEEP)) + " " * DEEP + "x: 1\n", "yaml", 5250 + MAX_DEPTH),
        ("a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60, "yaml", 7 + 120 + 3 + 60),
        ("[" * 100_000, "json", MAX_DEPTH),
        ('{"a":' * DEEP + "1" + "}" * DEEP, "json", 5 * MAX_DEPTH),
        ("a = " + "[" * 100_000, "toml", 4 + MAX_DEPTH),
        ("a = " + "{ a = " * DEEP + "1" + "}" * DEEP, "toml", 4 + 6 * MAX_DEPTH),
    ],
)
def test_a_document_that_is_nested_too_deeply_has_the_place_of_the_excess(
    text: str, format: str, marked_at: int
) -> None:
    error = find_error(text, format)

    assert (error.message, error.start) == (f"nested more than {MAX_DEPTH} deep", marked_at)


def test_keys_of_toml_with_dots_nest_too() -> None:
    key = ".".join("a" * 60)

    assert find_error(f"{key} = {{ {key} = 1 }}\n", "toml").message == f"nested more than {MAX_DEPTH} deep"


@pytest.mark.parametrize("format", ["json", "yaml", "toml"])
def test_a_document_may_nest_up_to_the_limit(format: str) -> None:
    count = MAX_DEPTH - 1
    start, end = {"json": ('{"a":', "}"), "yaml": ("a: ", ""), "toml": ("a = ", "")}[format]

    value = parse_markup(f"{start}{'[' * count}{']' * count}{end}\n", MarkupFormat(format)).value

    assert len(str(value["a"])) == 2 * count


@pytest.mark.parametrize(
    ("text", "format", "marked", "message"),
    [
        ("a: 1\nb: &b [1, *b]\n", "yaml", "*b]\n", "the alias *b is inside of the list or map that it repeats"),
        ("a: &a {x: {<<: *a}}\n", "yaml", "*a}}\n", "the alias *a is inside of the list or map that it repeats"),
        ("x: &x [" + "1, " * 999 + "]\ny: [" + "*x, " * 200 + "]\n", "yaml", "*x, ", "the file has more than 100,000 keys and values once its aliases are expanded"),
        ("x: &x {a: [" + "1, " * 999 + "]}\ny:\n" + "- <<: *x\n" * 200, "yaml", "*x\n", "the file has more than 100,000 keys and values once its aliases are expanded"),
        ("".join(f"k{at}:\n" + "- 1\n" * 4_000 for at in range(9)), "yaml", "1\n- 1", "the file has more than 20,000 keys and values"),
        ('{"a": [' + "1," * 150_000 + "1]}", "json", ",1", "the file has more than 100,000 values"),
        ("a = [" + '"=,[", ' * 60_000 + "1]\n", "toml", ', "=', "the file has more than 50,000 values"),
        ("".join(f"a.b.c{at} = 1\n" for at in range(20_000)), "toml", "= 1", "the file has more than 50,000 values"),
        ("a = [1, " + "1" * 5_000 + "]\n", "toml", "1" * 5_000, "the number 1111111111111111111111111111111111111111... is too long: it has 5,000 characters"),
        ("a = '1111' # 1\nb = -" + "1_1" * 2_000 + "\n", "toml", "-1_1", "the number -1_11_11_11_11_11_11_11_11_11_11_11_11_1... is too long: it has 6,001 characters"),
        ("a = 0x" + "f" * 5_000 + "\n", "toml", "0xff", "the number 0xffffffffffffffffffffffffffffffffffffff... is too long: it has 5,002 characters"),
    ],
)  # fmt: skip
def test_a_limit_of_a_document_is_explained_at_the_place_of_the_excess(
    text: str, format: str, marked: str, message: str
) -> None:
    error = find_error(text, format)

    assert error.message == message
    assert error.start is not None
    assert text.startswith(marked, error.start)


@pytest.mark.parametrize("format", ["yaml", "toml"])
def test_a_text_in_yaml_or_toml_has_a_limit_of_characters(format: str) -> None:
    error = find_error("#" * (MAX_SLOW_CHARS + 1), format)

    assert str(error) == (
        f"the file has 1,000,001 characters, more than the 1,000,000 that a file in {format.upper()} may have: "
        "make it smaller, or write it in JSON"
    )


def test_a_text_of_a_program_may_have_any_number_of_values_and_no_deeper_levels() -> None:
    assert len(parse_json("[" + "1," * 200_000 + "1]", max_values=None)) == 200_001
    with pytest.raises(MarkupError, match="nested more than 100 deep") as raised:
        parse_json("[" * 100_000, max_values=None)
    assert raised.value.start == MAX_DEPTH
    with pytest.raises(MarkupError, match="this is not JSON: expecting value"):
        parse_json("[" + "1," * 200_000 + "?]", max_values=None)


def test_brackets_and_commas_in_texts_of_json_are_no_values() -> None:
    text = json.dumps(['[,{\\"' * 100_000])

    assert parse_markup(text, MarkupFormat.JSON).value == json.loads(text)


def test_an_anchor_that_is_set_again_is_no_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = parse_markup("a: &x 1\nb: *x\nc: &x 2\nd: *x\n", MarkupFormat.YAML).value

    assert value == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_an_error_of_syntax_behind_a_repeated_key_is_reported_at_its_place() -> None:
    error = find_error('{"a": {"b": 1, "b": 2}, "c": ?}', "json")

    assert (error.message, error.start) == ('expected a JSON value, found "?"', 29)


def test_a_number_that_is_not_finite_is_found_before_other_characters() -> None:
    error = find_error("a = ['inf', 1.5, infx]\n", "toml")

    assert (error.message, error.start) == ("inf is not a finite number", 17)
