"""Locations of keys and elements in a TOML document."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wharf.languages.source_locations import SourceLocation
from wharf.languages.toml_locations import KeyPath, find_locations


def test_keys_tables_elements_and_inner_tables_have_locations() -> None:
    text = "\n".join(
        [
            '# a comment with [brackets] = and "quotes"',
            'top = "a # no comment"',
            "",
            "[[rule]]",
            '  name = "x"  # a comment',
            "  match = [",
            '     "one", # [[rule]]',
            "     'two'",
            "  ]",
            '  ceiling = { user = 3, "no ne" = 4 }',
            "[rule.scale]",
            "most = 5",
            "[[rule]]",
            'a.b = """',
            "[[rule]]",
            '"""',
            "last = 2026-01-01T00:00:00Z",
        ]
    )
    positions = {path: (location.line, location.column) for path, location in find_locations(text).items()}

    assert positions == {
        ("top",): (2, 1),
        ("rule",): (4, 1),
        ("rule", 0): (4, 1),
        ("rule", 0, "name"): (5, 3),
        ("rule", 0, "match"): (6, 3),
        ("rule", 0, "match", 0): (7, 6),
        ("rule", 0, "match", 1): (8, 6),
        ("rule", 0, "ceiling"): (10, 3),
        ("rule", 0, "ceiling", "user"): (10, 15),
        ("rule", 0, "ceiling", "no ne"): (10, 25),
        ("rule", 0, "scale"): (11, 1),
        ("rule", 0, "scale", "most"): (12, 1),
        ("rule", 1): (13, 1),
        ("rule", 1, "a"): (14, 1),
        ("rule", 1, "a", "b"): (14, 1),
        ("rule", 1, "last"): (17, 1),
    }


def paths_of(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    found: set[KeyPath] = {path} if path else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= paths_of(inner, (*path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found |= paths_of(inner, (*path, index))
    return found


values = st.recursive(
    st.one_of(
        st.integers(-9, 99).map(str),
        st.booleans().map(lambda b: str(b).lower()),
        st.sampled_from(['"a]b"', "'c=d'", '"""x\n#y"""', "1.5"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda elements: "[" + ", ".join(elements) + "]"),
        st.dictionaries(st.sampled_from(["k", '"q r"', "m-1"]), inner, max_size=2).map(
            lambda elements: "{" + ", ".join(f"{key} = {value}" for key, value in elements.items()) + "}"
        ),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c.d", '"e f"']), values, max_size=4))
def test_every_key_and_element_of_a_valid_document_has_a_location(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{key} = {value} # note" for key, value in pairs.items())
    document = tomllib.loads(text)

    assert paths_of(document) - set(find_locations(text)) == set()


@given(st.text(max_size=200))
def test_any_text_is_scanned_to_its_end(text: str) -> None:
    lines = text.count("\n") + 1

    assert all(
        isinstance(location, SourceLocation) and 1 <= location.line <= lines
        for location in find_locations(text).values()
    )
