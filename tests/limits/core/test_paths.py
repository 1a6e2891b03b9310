"""Paths: their normal form, their readings, and that the limits of a path are those of what a service serves at it."""

from collections.abc import Sequence
from urllib.parse import unquote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.routing import Match, Route

from tests.limits.builders import a_user, build_rules_text
from wharf.limits.core.paths import (
    BadPath,
    PathReading,
    list_readings,
    normalize_decoded_path,
    normalize_path,
    normalize_raw_path,
)
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import EscapedSlash, PathDifference, PathRules, SegmentTreatment
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import read_profile

DEFAULT = PathRules()
KEEPING = PathRules(
    dot_segments=SegmentTreatment.KEEP,
    empty_segments=SegmentTreatment.KEEP,
    escaped_slash=EscapedSlash.TEXT,
    parameters=PathDifference.EXACT,
    case=PathDifference.EXACT,
    formats=(),
)
REMOVING = PathRules(dot_segments=SegmentTreatment.REMOVE, empty_segments=SegmentTreatment.REMOVE)


def normalize(path: str, rules: PathRules = DEFAULT) -> str:
    """Return the normal form of a path; `refused` if it has none."""
    try:
        return normalize_path(path, rules)
    except BadPath:
        return "refused"


# -- the normal form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/", "/a/"),
        ("/%61/%2Eb", "/a/.b"),
        ("/%7e%2D%5f", "/~-_"),
        ("/users/%40me%3a", "/users/@me:"),
        ("/a%2f%c3%a9", "/a%2F%C3%A9"),
        ("/a%20b%2B+%3f%23", "/a%20b%2B+%3F%23"),
        ("/.well-known/a...b/...", "/.well-known/a...b/..."),
        ("/a;b=c", "/a;b=c"),
        ("/%252F", "/%252F"),
        ("/%e9", "/%E9"),
        ("/..", "refused"),
        ("/a/./b", "refused"),
        ("/a/%2e%2E/b", "refused"),
        ("/a/.%2e", "refused"),
        ("/a%2f../b", "refused"),
        ("/a%5c..%5Cb", "refused"),
        ("/a/..;x/b", "refused"),
        ("/a/..%3Bx/b", "refused"),
        ("/a/%252e%252e/b", "refused"),
        ("/a/%25252E/b", "refused"),
        ("/a%252f..%252Fb", "refused"),
        ("//a", "refused"),
        ("/a//b", "refused"),
        ("/a//", "refused"),
        ("/%2Fa", "refused"),
        ("/a%2F/b", "refused"),
        ("/;x/a", "refused"),
        ("/a\\b", "refused"),
        ("/a%", "refused"),
        ("/a%4", "refused"),
        ("/a%zz", "refused"),
        ("/a%00", "refused"),
        ("/a%0d%0A", "refused"),
        ("/a%7F", "refused"),
        ("/%c0%ae%C0%AE/a", "refused"),
        ("/%c1%9f", "refused"),
        ("/%e0%80%af", "refused"),
        ("/%f0%80%80%af", "refused"),
    ],
)
def test_a_path_has_one_normal_form_or_is_refused(path: str, expected: str) -> None:
    assert normalize(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/./b", "/a/b"),
        ("/a/b/../c", "/a/c"),
        ("/../../a", "/a"),
        ("/a/%2e%2E", "/"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("//a///b", "/a/b"),
        ("/a//../b", "/a/b"),
        ("/a%2F..%2Fb", "refused"),
        ("/a/..;x/b", "refused"),
        ("/a%2F/b", "refused"),
    ],
)
def test_segments_are_removed_if_the_rules_say_so(path: str, expected: str) -> None:
    assert normalize(path, REMOVING) == expected


@pytest.mark.parametrize("path", ["/a/../b", "/a//b", "/a%2F..%2Fb", "/a;b/..;c", "/./a/"])
def test_segments_stay_if_the_rules_say_so(path: str) -> None:
    assert normalize(path, KEEPING) == path


@pytest.mark.parametrize(("path", "expected"), [("/a%2Fb", "refused"), ("/a%5cb", "refused"), ("/a%20b", "/a%20b")])
def test_escaped_slashes_are_refused_if_the_rules_say_so(path: str, expected: str) -> None:
    assert normalize(path, PathRules(escaped_slash=EscapedSlash.REFUSE)) == expected


def test_a_path_of_more_than_8192_characters_is_refused() -> None:
    longest = "/" + "x" * 8_191

    assert (normalize(longest), normalize(longest + "x")) == (longest, "refused")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/a b", "/a%20b"), ("/é", "/%C3%A9"), ("/a?b#c", "/a%3Fb%23c"), ("/a%2F", "/a%252F"), ("/\udcff", "/%FF")],
)
def test_a_decoded_path_has_the_same_normal_form_as_the_raw_one(path: str, expected: str) -> None:
    raw_path = expected.encode()

    assert (normalize_decoded_path(path, DEFAULT), normalize_raw_path(raw_path, DEFAULT)) == (expected, expected)


target_parts = st.sampled_from(
    [*"aAbB/;.%", "/", "/", "..", "%2e", "%2E", "%2f", "%5C", "%61", "%25", "%252e", "%c0%ae", "%40", "@", ".json", "é"]
)
targets = st.lists(target_parts, max_size=12).map(lambda parts: "/" + "".join(parts))


@given(targets, st.sampled_from([DEFAULT, REMOVING, KEEPING]))
def test_a_normal_form_is_its_own_normal_form(target: str, rules: PathRules) -> None:
    normal_path = normalize(target, rules)
    assume(normal_path != "refused")

    assert normalize(normal_path, rules) == normal_path


# -- readings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", [()]),
        ("/a/b/", [("a", "b")]),
        ("/%C3%A9%20", [("é ",)]),
        ("/A", [("a",), ("A",)]),
        ("/%C5%BFearch/%E2%84%AA", [("search", "k"), ("\u017fearch", "\u212a")]),
        ("/a%2Fb", [("a/b",), ("a", "b")]),
        ("/a%5Cb", [("a\\b",), ("a", "b")]),
        ("/a;x/b", [("a", "b"), ("a;x", "b")]),
        ("/a.json", [("a.json",), ("a",)]),
        ("/.json", [(".json",)]),
        ("/a.12345678901234567", [("a.12345678901234567",)]),
        ("*", [("*",)]),
    ],
)
def test_a_path_is_read_in_all_ways_that_are_possible(path: str, expected: list[tuple[str, ...]]) -> None:
    assert list(dict.fromkeys(reading.segments for reading in list_readings(path, DEFAULT))) == expected


@pytest.mark.parametrize(
    ("rules", "segments", "is_folded"),
    [
        (KEEPING, ("A/b;x.json",), False),
        (PathRules(escaped_slash=EscapedSlash.SEPARATOR, parameters=PathDifference.IGNORE, case=PathDifference.IGNORE,
                   formats=()), ("a", "b"), True),
    ],
)  # fmt: skip
def test_a_service_that_is_known_reads_a_path_in_one_way(
    rules: PathRules, segments: tuple[str, ...], is_folded: bool
) -> None:
    assert list_readings("/A%2Fb;x.json", rules) == (PathReading(segments, is_folded),)


@given(targets)
def test_a_path_has_at_most_24_readings(target: str) -> None:
    normal_path = normalize(target)
    assume(normal_path != "refused")

    assert 1 <= len(list_readings(normal_path, DEFAULT)) <= 24


# -- what is judged is what is served ------------------------------------------------------------------------------

PATTERNS = ("/rate_limit", "/search/code", "/search/{q}", "/users/@me", "/users/{name}", "/files/*")


def build_rulebook(paths: str = "") -> Rulebook:
    """Return rules with a bucket and an endpoint for each of the patterns; the first one is free."""
    rules = [
        f'[[rule]]\nname = "r{number}"\nmatch = ["GET {pattern}"]\nresource = "r{number}"\nceiling = {number + 1}'
        f'\n[[endpoint]]\nmatch = ["GET {pattern}"]\npoints = {number + 10}\nfree = {str(not number).lower()}'
        for number, pattern in enumerate(PATTERNS)
    ]
    return Rulebook(read_rules(build_rules_text(*rules) + paths))


EXACT = '\n[paths]\nparameters = "exact"\ncase = "exact"\nformats = []\n'
UNKNOWN_SERVICE = build_rulebook()
SPLITTING_SERVICE = build_rulebook(EXACT + 'escaped_slash = "separator"\n')
GO_SERVICE = build_rulebook(EXACT + 'escaped_slash = "text"\n')


def find_pattern(book: Rulebook, path: str) -> str | None:
    """Return the pattern whose limit a path in normal form meets; `None` for the limit of all other requests."""
    plan = book.get_plan(RequestFacts("", "GET", path, a_user()))
    return PATTERNS[int(plan.resource[1:])] if plan.resource.startswith("r") else None


# For each target: what the limiter forwards, what nginx 1.22 (locations) and what Go 1.26 (ServeMux) serve at it. 0 stands
# for an error or a redirect. Measured with both programs.
SERVED: Sequence[tuple[str, str, str | int, str | int]] = [
    ("/rate_limit", "/rate_limit", "/rate_limit", "/rate_limit"),
    ("/%72ate_limit", "/rate_limit", "/rate_limit", "/rate_limit"),
    ("/rate%5Flimit", "/rate_limit", "/rate_limit", "/rate_limit"),
    ("//rate_limit", "refused", "/rate_limit", 0),
    ("/rate_limit/", "/rate_limit/", 0, 0),
    ("/./rate_limit", "refused", "/rate_limit", 0),
    ("/files/a/../../rate_limit", "refused", "/rate_limit", 0),
    ("/files/a/%2e%2e/%2e%2e/rate_limit", "refused", "/rate_limit", "/files/*"),
    ("/files/.%2E/rate_limit", "refused", "/rate_limit", "/files/*"),
    ("/files%2F..%2Frate_limit", "refused", "/rate_limit", 0),
    ("/files/..%2Frate_limit", "refused", "/rate_limit", "/files/*"),
    ("/files/%252e%252e/rate_limit", "refused", "/files/*", "/files/*"),
    ("/files/..;/rate_limit", "refused", "/files/*", "/files/*"),
    ("/files/..%5Crate_limit", "refused", "/files/*", "/files/*"),
    ("/files/..\\rate_limit", "refused", "/files/*", "/files/*"),
    ("/rate_limit%00", "refused", 0, 0),
    ("/rate_limit%0A", "refused", 0, 0),
    ("/rate_limit%20", "/rate_limit%20", 0, 0),
    ("/rate_limit;a=b", "/rate_limit;a=b", 0, 0),
    ("/rate_limit%3Ba", "/rate_limit%3Ba", 0, 0),
    ("/rate_limit.json", "/rate_limit.json", 0, 0),
    ("/RATE_LIMIT", "/RATE_LIMIT", 0, 0),
    ("/rate_limit%2F", "/rate_limit%2F", 0, 0),
    ("/rate_limit%3Fa", "/rate_limit%3Fa", 0, 0),
    ("/rate%c1%9flimit", "refused", 0, 0),
    ("/search/code", "/search/code", "/search/code", "/search/code"),
    ("/search%2Fcode", "/search%2Fcode", "/search/code", 0),
    ("/search%2fcode", "/search%2Fcode", "/search/code", 0),
    ("/search/c%6Fde", "/search/code", "/search/code", "/search/code"),
    ("/search/code/", "/search/code/", 0, 0),
    ("/search//code", "refused", "/search/code", 0),
    ("/search/Code", "/search/Code", "/search/{q}", "/search/{q}"),
    ("/search/code;x", "/search/code;x", "/search/{q}", "/search/{q}"),
    ("/search/a%2Fb", "/search/a%2Fb", 0, "/search/{q}"),
    ("/search/a%5Cb", "/search/a%5Cb", "/search/{q}", "/search/{q}"),
    ("/search/%252F", "/search/%252F", "/search/{q}", "/search/{q}"),
    ("/search/%e2%82%ac", "/search/%E2%82%AC", "/search/{q}", "/search/{q}"),
    ("/search/a%2520b", "/search/a%2520b", "/search/{q}", "/search/{q}"),
    ("/search/%2B", "/search/%2B", "/search/{q}", "/search/{q}"),
    ("/search/%zz", "refused", 0, 0),
    ("/users/@me", "/users/@me", "/users/@me", "/users/@me"),
    ("/users/%40me", "/users/@me", "/users/@me", "/users/@me"),
    ("/users/%40ME", "/users/@ME", "/users/{name}", "/users/{name}"),
    ("/users/@me.json", "/users/@me.json", "/users/{name}", "/users/{name}"),
    ("/files/a", "/files/a", "/files/*", "/files/*"),
    ("/files/a/", "/files/a/", "/files/*", "/files/*"),
    ("/files/a//b", "refused", "/files/*", 0),
    ("/files/a%2Fb", "/files/a%2Fb", "/files/*", "/files/*"),
]


@pytest.mark.parametrize(("target", "forwarded", "by_nginx", "by_go"), SERVED)
def test_a_request_is_judged_as_the_endpoint_that_nginx_and_go_serve(
    target: str, forwarded: str, by_nginx: str | int, by_go: str | int
) -> None:
    assert normalize(target) == forwarded
    for book, served in ((SPLITTING_SERVICE, by_nginx), (GO_SERVICE, by_go)):
        if forwarded != "refused" and served:
            assert find_pattern(book, forwarded) == served


STARLETTE_ROUTES = [
    Route(pattern.replace("*", "{rest:path}"), lambda _request: None, name=pattern) for pattern in PATTERNS
]


def find_route(path: str) -> str | None:
    """Return the name of the route that Starlette selects behind uvicorn, which decodes the path."""
    scope = {"type": "http", "method": "GET", "path": unquote(path), "headers": []}
    return next((route.name for route in STARLETTE_ROUTES if route.matches(scope)[0] is Match.FULL), None)


served_targets = st.builds(
    lambda start, parts: start + "".join(parts),
    st.sampled_from(["/", "/rate_limit", "/search/", "/search/code", "/search%2fcode", "/users/@me", "/users/%40me", "/files/"]),
    st.lists(
        st.sampled_from(
            [*"aA/;.", "..", "%2e", "%2F", "%5c", "%25", "%252e", "code", "@me", ".json", "rate_limit", "%72ate_limit", "é"]
        ),
        max_size=6,
    ),
)  # fmt: skip


@given(served_targets)
def test_a_request_is_judged_as_the_endpoint_that_starlette_serves(target: str) -> None:
    forwarded = normalize_raw(target)
    assume(forwarded != "refused")
    route = find_route(forwarded)
    assume(route is not None)
    assume(not forwarded.removesuffix("%2F").endswith("/"))  # Only Starlette's `path` matches an empty last segment.

    assert find_pattern(SPLITTING_SERVICE, forwarded) == route


@given(served_targets)
def test_an_application_is_judged_by_the_endpoint_that_starlette_serves(target: str) -> None:
    path = unquote(target)
    try:
        judged = normalize_decoded_path(path, SPLITTING_SERVICE.rules.paths)
    except BadPath:
        judged = "refused"
    route = find_route(target)
    assume(judged != "refused" and route is not None and not path.endswith("/"))

    assert find_pattern(SPLITTING_SERVICE, judged) == route


@given(served_targets)
def test_no_spelling_avoids_a_limit_of_a_service_that_is_not_known(target: str) -> None:
    forwarded = normalize_raw(target)
    assume(forwarded != "refused")
    routes = {find_route(forwarded), find_route(forwarded.lower()), find_route(forwarded.replace("%5C", "/"))}
    ceilings = [PATTERNS.index(route) + 1 for route in routes if route is not None]
    plan = UNKNOWN_SERVICE.get_plan(RequestFacts("", "GET", forwarded, a_user()))
    is_slash_at_end = forwarded.replace("%2F", "/").endswith("/")

    assert is_slash_at_end or plan.bucket_charge.ceiling <= min(ceilings, default=10**9)
    assert plan.is_free == (forwarded == "/rate_limit")


def normalize_raw(target: str) -> str:
    """Return what the gateway forwards for a target; `refused` if it refuses it."""
    try:
        return normalize_raw_path(target.encode(), DEFAULT)
    except BadPath:
        return "refused"


@pytest.mark.parametrize(
    "path",
    ["/repos/o/r/contents/x", "/Search/code", "/search/code.json", "/search/code;v=1", "/search/code/", "/x%2Fy"],
)
def test_head_has_no_budget_of_its_own(path: str) -> None:
    book = Rulebook(read_profile())

    assert book.get_endpoint("HEAD", path) is book.get_endpoint("GET", path)


@pytest.mark.parametrize(
    ("pattern", "path", "is_free"),
    [
        ("/status/", "/status/", True),
        ("/status/", "/status", False),
        ("/status", "/status/", False),
        ("/users/{name}", "/users/a%2Fb", False),
        ("/users/{name}", "/users/a%20b", True),
        ("/%61", "/a", True),
    ],
)
def test_only_the_spelling_of_the_pattern_is_free(pattern: str, path: str, is_free: bool) -> None:
    rules = build_rules_text(f'[[endpoint]]\nmatch = ["GET {pattern}"]\nfree = true')

    assert Rulebook(read_rules(rules)).get_endpoint("GET", path).is_free is is_free


def test_the_highest_points_of_all_readings_are_charged() -> None:
    rules = build_rules_text(
        '[[endpoint]]\nmatch = ["GET /files/{id}/export"]\npoints = 50\ncontent = true\n'
        '[[endpoint]]\nmatch = ["GET /files/*"]\npoints = 2'
    )
    endpoint = Rulebook(read_rules(rules)).get_endpoint("GET", "/files/1%2Fexport")

    assert (endpoint.points, endpoint.content) == (50, 1)
