"""A tree is printed as text that is parsed to the same tree."""

import pytest
from hypothesis import given

from tests.languages.filters.expressions import any_trees
from wharf.languages.filters import format_filter, parse_filter
from wharf.languages.filters.tree import Expression


@given(tree=any_trees)
def test_printed_text_is_parsed_to_the_same_tree(tree: Expression) -> None:
    assert tree == parse_filter(format_filter(tree))


@given(tree=any_trees)
def test_printing_is_canonical(tree: Expression) -> None:
    printed = format_filter(tree)

    assert printed == format_filter(parse_filter(printed))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Name==web", 'Name == "web"'),
        ("dc1 in DCs", 'DCs contains "dc1"'),
        ('"/Meta/x.y" == z', 'Meta["x.y"] == "z"'),
        ('"/0/x" == z', '"/0/x" == "z"'),
        ("((A == 1)) and (B == 1 or C == 1)", 'A == "1" and (B == "1" or C == "1")'),
        ("A == 1 or (any L as _, v { v is nil })", 'A == "1" or any L as _, v { v is nil }'),
        ("not not == 1", 'not "/not" == "1"'),
        ('A == `"\\`', 'A == "\\x22\\\\"'),
    ],
)
def test_an_expression_has_one_printed_form(text: str, printed: str) -> None:
    assert printed == format_filter(parse_filter(text))
