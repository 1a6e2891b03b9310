"""Patterns of method and path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.limits.core.paths import split_path
from wharf.limits.core.route import (
    BadPattern,
    RouteTree,
    derive_endpoint_name,
    find_path_below,
    parse_pattern,
    place_pattern,
)

segments = st.sampled_from(["a", "b", ".git", "c.git", "{x}", "{x}.git"])
paths = st.lists(st.sampled_from(["a", "b", "c", "c.git", ".git"]), max_size=6).map(
    lambda segments_: "/" + "/".join(segments_)
)
patterns = st.builds(
    lambda methods, before, after, has_rest: f"{methods} /" + "/".join([*before, *after, *(["*"] if has_rest else [])]),
    st.sampled_from(["*", "GET", "POST", "GET,POST"]),
    st.lists(segments, max_size=2),
    st.lists(segments, max_size=2).flatmap(lambda after: st.sampled_from([after, ["**", *after] if after else after])),
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
        ("* /**/-/raw/*", "GET", "/group/project/-/raw/main/a", True),
        ("* /**/-/raw/*", "GET", "/group/below/project/-/raw/main/a", True),
        ("* /**/-/raw/*", "GET", "/-/raw/main", False),
        ("* /**/-/raw/*", "GET", "/group/-/raw", False),
        ("* /**/-/raw/*", "GET", "/group/-/blob/raw/a", False),
        ("* /**/-/raw/*", "GET", "/group/-/blob/-/raw/a", True),
        ("* /a/**/{x}.git", "GET", "/a/b/c/d.git", True),
        ("* /a/**/{x}.git", "GET", "/a/d.git", False),
        ("* /**/x", "GET", "/a" * 24 + "/x", True),
        ("* /**/x", "GET", "/a" * 25 + "/x", False),
    ],
)
def test_a_pattern_matches_by_method_and_segment(pattern: str, method: str, path: str, fits: bool) -> None:
    assert matches(pattern, method, path) is fits


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "GET",
            "/x",
            "get /x",
            "GET x",
            "GET /a/*/b",
            "GET /a b",
            "GET /a//b",
            "GET /{A}",
            "GET /{a}{b}",
            "GET /a*",
        ),
        *("GET /a/**", "GET /**", "GET /**/a/**/b", "GET /a**/b", "GET outside:x", "GET inside:/x"),
    ],
)
def test_an_invalid_pattern_is_rejected(text: str) -> None:
    with pytest.raises(BadPattern):
        parse_pattern(text)


def test_the_most_specific_pattern_comes_first() -> None:
    tree: RouteTree[str] = RouteTree()
    for text in ("* /*", "GET /{a}", "GET /x", "GET /x/*"):
        tree.add(parse_pattern(text), text)

    assert [value for _, value in tree.find_matches("GET", ("x",))] == ["GET /x", "GET /{a}", "* /*"]


def test_a_pattern_with_any_segments_comes_after_one_with_names_and_before_a_wildcard() -> None:
    tree: RouteTree[str] = RouteTree()
    for text in ("* /*", "* /**/x", "* /{a}/x"):
        tree.add(parse_pattern(text), text)

    assert [value for _, value in tree.find_matches("GET", ("a", "x"))] == ["* /{a}/x", "* /**/x", "* /*"]


@pytest.mark.parametrize(
    ("text", "is_outside", "fits"),
    [
        ("GET /api/v1/search", False, True),
        ("GET outside:/api/v1/search", False, False),
        ("GET /api/v1/search", True, False),
        ("GET outside:/api/v1/search", True, True),
    ],
)
def test_a_pattern_matches_only_paths_on_its_side_of_the_base_path(text: str, is_outside: bool, fits: bool) -> None:
    tree: RouteTree[None] = RouteTree()
    tree.add(parse_pattern(text), None)

    assert bool(tree.find_matches("GET", ("api", "v1", "search"), is_outside=is_outside)) is fits


def test_a_pattern_covers_no_pattern_of_the_other_side_of_the_base_path() -> None:
    inside, outside = parse_pattern("* /*"), parse_pattern("* outside:/*")
    tree: RouteTree[str] = RouteTree()
    tree.add(inside, "inside")
    tree.add(outside, "outside")

    assert (inside.covers(outside), outside.covers(inside)) == (False, False)
    assert (tree.find_covering(inside), tree.find_covering(outside)) == (["inside"], ["outside"])


@pytest.mark.parametrize(
    ("text", "site_path", "base_path", "placed"),
    [
        ("GET /search/*", "", "", "GET /search/*"),
        ("GET /search/*", "", "/api/v1", "GET /api/v1/search/*"),
        ("GET /search/*", "/git", "/api/v1", "GET /git/api/v1/search/*"),
        ("GET /", "", "/api/v1", "GET /api/v1"),
        ("GET /", "", "", "GET /"),
        ("GET outside:/{owner}/*", "", "/api/v1", "GET outside:/{owner}/*"),
        ("GET outside:/{owner}/*", "/git", "/api/v1", "GET outside:/git/{owner}/*"),
        ("GET outside:/{owner}/*", "", "", "GET /{owner}/*"),
        ("GET outside:/{owner}/*", "/git", "", "GET /git/{owner}/*"),
    ],
)
def test_a_pattern_is_placed_below_the_base_path_or_outside_of_it(
    text: str, site_path: str, base_path: str, placed: str
) -> None:
    assert place_pattern(text, site_path, base_path) == placed


@pytest.mark.parametrize(
    ("prefix", "path", "rest"),
    [
        ("", "/a", "/a"),
        ("/api/v1", "/api/v1/a", "/a"),
        ("/api/v1", "/api/v1", "/"),
        ("/api/v1", "/api/v1/", "/"),
        ("/api/v1", "/api/v10/a", None),
        ("/api/v1", "/api", None),
        ("/api/v1", "/a", None),
    ],
)
def test_the_rest_of_a_path_below_a_prefix_begins_with_a_slash(prefix: str, path: str, rest: str | None) -> None:
    assert find_path_below(prefix, path) == rest


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
