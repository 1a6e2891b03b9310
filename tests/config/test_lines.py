"""Line numbers of the keys in TOML and JSON files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.config.line_numbers import find_json_lines, find_repeated_json_key, find_toml_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a = 1\n\nb = 2", {("a",): 1, ("b",): 3}),
        ("# a = 0\na = 1 # b = 2\nc = 3", {("a",): 2, ("c",): 3}),
        ("[t]\na = 1\n[t.u]\nb = 2", {("t",): 1, ("t", "a"): 2, ("t", "u"): 3, ("t", "u", "b"): 4}),
        ("a.b . c = 1", {("a",): 1, ("a", "b"): 1, ("a", "b", "c"): 1}),
        ("\"x y\" = 1\n'z.z' = 2", {("x y",): 1, ("z.z",): 2}),
        ('a = """\nb = 1\n\\""" c\n"""\nd = 2', {("a",): 1, ("d",): 5}),
        ("a = '''\nb = 1\n'''\nd = 2", {("a",): 1, ("d",): 4}),
        ('a = [\n  "x = 1", # y = 2\n  "]",\n]\nb = 1', {("a",): 1, ("b",): 5}),
        (
            "a = { b = 1, c = { d = '}' } }\ne = 2",
            {("a",): 1, ("a", "b"): 1, ("a", "c"): 1, ("a", "c", "d"): 1, ("e",): 2},
        ),
        ("[[t]]\na = 1\n[[t]]\na = 2", {("t",): 1, ("t", "a"): 2}),
        ("a = 1979-05-27T07:32:00Z\nb = inf", {("a",): 1, ("b",): 2}),
        ("a=\"\"\nb=''\nc=1", {("a",): 1, ("b",): 2, ("c",): 3}),
    ],
)
def test_toml_keys_have_their_line_numbers(text: str, lines: dict[tuple[str, ...], int]) -> None:
    assert lines == find_toml_lines(text)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": 1,\n"b": {"c": [1,\n{"d": 2}],\n"e": "x: {"}}', {("a",): 1, ("b",): 2, ("b", "c"): 2, ("b", "e"): 4}),
        ('{\n"a\\"b":\n1}', {('a"b',): 2}),
        ("{}", {}),
    ],
)
def test_json_keys_have_their_line_numbers(text: str, lines: dict[tuple[str, ...], int]) -> None:
    assert lines == find_json_lines(text)


@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=12)
)
def test_every_key_of_a_json_document_has_a_line(document: object) -> None:
    whole = {"whole": document}
    lines = find_json_lines(json.dumps(whole, indent=1))

    line_numbers = [lines[path] for path in paths(whole)]
    assert len(line_numbers) == len(lines)
    assert line_numbers == sorted(set(line_numbers))  # One key a line, in the order of the document.


def paths(node: object, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(node, dict):
        return []
    return [path for key, value in node.items() for path in ((*before, key), *paths(value, (*before, key)))]


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ('{"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]}', None),
        ('{"a": 1,\n"b": {"a": 2}, "a": 3}', (("a",), 2)),
        ('{"a": [{"b": 1,\n\n"\\u0062": 2}]}', (("a", "b"), 3)),
        ("[1, 2]", None),
        ("", None),
    ],
)
def test_a_repeated_json_key_is_found(text: str, repeated: tuple[tuple[str, ...], int] | None) -> None:
    assert repeated == find_repeated_json_key(text)
