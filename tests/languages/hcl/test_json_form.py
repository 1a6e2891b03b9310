"""Documents as JSON: the same tree as HCL, errors with locations, and only valid JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.languages.hcl.trees import JSON_DOCUMENTS, as_json
from wharf.languages.hcl import Body, HclError, HclSyntaxError, parse_document, parse_hcl, parse_json
from wharf.languages.hcl.source import MAX_DOCUMENT_CHARS, MAX_DOCUMENT_DEPTH


@pytest.mark.parametrize(
    ("text", "hcl"),
    [
        ("{}", ""),
        (
            '{"a": 1, "b": [true, null, -1.5e2], "c": "\\u00e9\\ud83d\\ude00\\/"}',
            'a = 1 b = [true, null, -1.5e2] c = "é😀/"',
        ),
        ('{"node": {"policy": "read"}}', 'node = { policy = "read" }'),
        (' \ufeff{"a":1}'.strip(), "a = 1"),
        ('{"a": 1, "a": 2}', "a = 1 a = 2"),
        ('{"any name \\n": {}}', '"any name \\n" = {}'),
    ],
)
def test_json_is_parsed_to_the_tree_of_the_same_hcl_document(text: str, hcl: str) -> None:
    assert parse_hcl(hcl) == parse_json(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'At 1:1: expected "{", found the end'),
        ("[]", 'At 1:1: expected "{", found "["'),
        ("{", 'At 1:2: expected a name in quotes, found the end'),
        ('{"a": 1,}', 'At 1:9: expected a name in quotes, found "}"'),
        ('{a: 1}', 'At 1:2: expected a name in quotes, found "a"'),
        ('{"a" 1}', 'At 1:6: expected ":", found "1"'),
        ('{"a": 1 "b": 2}', 'At 1:9: expected "," or "}", found a quote; the brace was opened at 1:1'),
        ('{"a": [1,]}', 'At 1:10: expected a value (a text in quotes, a number, true, false, null, a list or an object), found "]"'),
        ('{"a": [1 2]}', 'At 1:10: expected "," or "]", found "2"; the list was opened at 1:7'),
        ('{"a":\n tru}', 'At 2:2: expected a value (a text in quotes, a number, true, false, null, a list or an object), found "t"'),
        ('{"a": 01}', 'At 1:7: expected a value (a text in quotes, a number, true, false, null, a list or an object), found "0"'),
        ('{"a": NaN}', 'At 1:7: expected a value (a text in quotes, a number, true, false, null, a list or an object), found "N"'),
        ('{"a": 1e999}', "At 1:7: the number is too large"),
        ('{"a": "x', "At 1:7: invalid string: unterminated string starting"),
        ('{"a": "\\q"}', "At 1:8: invalid string: invalid \\escape"),
        ('{"a": "\n"}', "At 1:8: invalid string: invalid control character"),
        ('{"a": "\\ud83d"}', "At 1:7: this string has half of a surrogate pair: characters above \\uffff need two escapes"),
        ("{} {}", 'At 1:4: expected the end, found "{"'),
    ],
)  # fmt: skip
def test_invalid_json_is_reported_with_its_location_and_what_was_expected(text: str, error: str) -> None:
    with pytest.raises(HclSyntaxError) as raised:
        parse_json(text)

    assert error == raised.value.text


@given(JSON_DOCUMENTS)
def test_a_tree_written_as_json_is_parsed_to_the_same_tree(tree: Body) -> None:
    assert tree == parse_document(as_json(tree))


@given(
    st.text(max_size=100)
    | st.lists(st.sampled_from(['"a"', ":", ",", "{", "}", "[", "]", "1", "null", "\\", '"', " "])).map("".join)
)
def test_json_is_accepted_if_the_standard_decoder_returns_an_object(text: str) -> None:
    try:
        expected = isinstance(json.loads("{" + text), dict)
    except ValueError:
        expected = False
    try:
        parse_json("{" + text)
        accepted = True
    except HclError:
        accepted = False

    # The standard decoder also accepts values that are not JSON, and numbers and lone surrogates that we reject.
    odd = any(word in text for word in ("NaN", "Infinity", "e", "E", "\\ud", "\\uD"))
    assert odd or expected == accepted


def test_length_and_depth_of_json_are_bounded() -> None:
    deep = MAX_DOCUMENT_DEPTH - 1
    parse_json(f'{{"a": {"[" * deep}{"]" * deep}}}')

    for text in (
        f'{{"a": {"[" * MAX_DOCUMENT_DEPTH}',
        '{"a": ' * (MAX_DOCUMENT_DEPTH + 1),
        " " * MAX_DOCUMENT_CHARS + "{}",
    ):
        with pytest.raises(HclSyntaxError, match=r"deep|longer"):
            parse_json(text)


def test_a_document_that_starts_with_a_brace_is_json_and_any_other_is_hcl() -> None:
    assert parse_hcl("a = 1") == parse_document(' \n{"a": 1}') == parse_document(" a = 1")
