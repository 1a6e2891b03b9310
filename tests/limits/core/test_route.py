"""Patterns of method and path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.limits.core.paths import split_path
from wharf.limits.core.route import BadPattern, RouteTree, derive_endpoint_name, parse_pattern

segments = st.sampled_from(["a", "b", ".git", "c.git", "{x}", "{x}.git"])
paths = st.lists(st.sampled_from(["a", "b", "c", "c.git", ".git"]), max_size=4).map(
    lambda segments_: "/" + "/".join(segments_)
)
patterns = st.builds(
    lambda methods, segments_, has_rest: f"{methods} /" + "/".join([*segments_, *(["*"] if has_rest else [])]),
    st.sampled_from(["*", "GET", "POST", "GET,POST"]),
    st.lists(segments, max_size=3),
    st.booleans(),
)
methods = st.sampled_from(["GET", "HEAD", "POST", "DELETE"])


def matches(text: str, method: str, path: str) -> bool:
    tree: RouteTree[None] = RouteTree()
    tree.add(parse_pattern(text), None)
    return bool(tree.find_matches(method, split_path(path)))


@pytest.mark.parametrize(
    ("pattern", "method", "path", "fits"),
    [
        ("GET /search/*", "GET", "/search/code", True),
        ("GET /search/*", "GET", "/search/a/b", True),
        ("GET /search/*", "GET", "/search", False),
        ("GET /search/*", "POST", "/search/code", False),
        ("GET /search/*", "HEAD", "/search/code", True),
        ("POST /search/*", "HEAD", "/search/code", False),
        ("GET,POST /x", "POST", "/x", True),
        ("* /x/{id}", "DELETE", "/x/4", True),
        ("* /x/{id}", "DELETE", "/x", False),
        ("* /{a}/{b}.git/*", "GET", "/o/r.git/info", True),
        ("* /{a}/{b}.git/*", "GET", "/o/r/info", False),
        ("* /{a}/{b}.git/*", "GET", "/o/.git/info", False),
        ("* /*", "GET", "/", False),
        ("GET /", "GET", "/", True),
    ],
)
def test_a_pattern_matches_by_method_and_segment(pattern: str, method: str, path: str, fits: bool) -> None:
    assert matches(pattern, method, path) is fits


@pytest.mark.parametrize(
    "text",
    ["", "GET", "/x", "get /x", "GET x", "GET /a/*/b", "GET /a b", "GET /a//b", "GET /{A}", "GET /{a}{b}", "GET /a*"],
)
def test_an_invalid_pattern_is_rejected(text: str) -> None:
    with pytest.raises(BadPattern):
        parse_pattern(text)


def test_the_most_specific_pattern_comes_first() -> None:
    tree: RouteTree[str] = RouteTree()
    for text in ("* /*", "GET /{a}", "GET /x", "GET /x/*"):
        tree.add(parse_pattern(text), text)

    assert [value for _, value in tree.find_matches("GET", ("x",))] == ["GET /x", "GET /{a}", "* /*"]


@given(patterns, methods, paths)
def test_a_tree_finds_the_same_matches_as_a_single_pattern(text: str, method: str, path: str) -> None:
    pattern = parse_pattern(text)

    assert matches(text, method, path) is (pattern.matches_method(method) and pattern.matches_path(split_path(path)))


@given(patterns, patterns, methods, paths)
def test_a_pattern_that_covers_another_matches_all_that_it_matches(
    wider: str, narrower: str, method: str, path: str
) -> None:
    if parse_pattern(wider).covers(parse_pattern(narrower)) and matches(narrower, method, path):
        assert matches(wider, method, path)


@given(st.lists(patterns, max_size=6), patterns)
def test_a_tree_finds_the_same_covering_patterns_as_a_scan(wider_patterns: list[str], narrower: str) -> None:
    tree: RouteTree[int] = RouteTree()
    for number, text in enumerate(wider_patterns):
        tree.add(parse_pattern(text), number)
    expected = [
        number for number, text in enumerate(wider_patterns) if parse_pattern(text).covers(parse_pattern(narrower))
    ]

    assert sorted(tree.find_covering(parse_pattern(narrower))) == expected


@pytest.mark.parametrize(("count", "length", "end"), [(507, 512, "x"), (508, 512, "."), (8_000, 512, ".")])
def test_the_name_of_an_endpoint_has_at_most_512_characters(count: int, length: int, end: str) -> None:
    name = derive_endpoint_name("GET", ["x" * count])

    assert (len(name), name[-1]) == (length, end)


@given(st.text(max_size=30), st.lists(st.text(max_size=20), max_size=5))
def test_any_request_has_an_endpoint(method: str, segments: list[str]) -> None:
    assert " /" in derive_endpoint_name(method, segments)
