"""Which requests are checked after marks: patterns of the paths of a caller, and routes that the service names."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wharf.limits.core.rule import PathDifference, PathRules
from wharf.limits.decisions import marked_endpoints as module
from wharf.limits.decisions.marked_endpoints import (
    MAX_LITERALS,
    MAX_PATTERN_NODES,
    MAX_UNEXPECTED_MARKS,
    UNEXPECTED_PERIOD_MS,
    MarkedEndpoints,
)

RULES = PathRules()
EXACT = PathRules(case=PathDifference.EXACT)


class Marks:
    """The marks of one caller after another, at a time that a test sets."""

    def __init__(self, rules: PathRules = RULES) -> None:
        self.endpoints = MarkedEndpoints()
        self.rules = rules
        self.now_ms = 1_800_000_000_000

    def mark(self, *paths: str, owner: str = "user:ada", method: str = "POST", route: str = "") -> list[bool]:
        """Mark a request at each path. Return for each whether its action was unknown."""
        return [
            self.endpoints.add(
                owner, method, path, f"{method} {path}", route=route, rules=self.rules, now_ms=self.now_ms
            )
            for path in paths
        ]

    def is_checked(self, path: str, *, owner: str = "user:ada", method: str = "POST") -> bool:
        return self.endpoints.may_create_content(
            owner, method, path, f"{method} {path}", rules=self.rules, now_ms=self.now_ms
        )

    def list_checked(self, *paths: str) -> list[bool]:
        return [self.is_checked(path) for path in paths]


def test_only_the_marked_path_is_checked_before_a_segment_has_many_values() -> None:
    marks = Marks()
    marks.mark("/acme/site/issues/new", "/acme/site/releases/new")

    assert marks.list_checked("/acme/site/issues/new", "/acme/site/labels/new", "/acme/other/issues/new") == [
        True,
        False,
        False,
    ]


def test_ids_in_a_path_are_equal() -> None:
    marks = Marks()
    marks.mark("/acme/site/issues/7/comments")

    assert marks.list_checked("/acme/site/issues/8/comments", "/acme/site/issues/new/comments") == [True, False]


@pytest.mark.parametrize(
    ("varying", "checked", "unchecked"),
    [
        ("/acme/site/wiki/page-{}", "/acme/site/wiki/other", "/acme/site/labels/other"),
        ("/acme/repo-{}/wiki/start", "/acme/other/wiki/start", "/acme/other/labels/start"),
        ("/owner-{0}/repo-{0}/wiki/start", "/eve/other/wiki/start", "/eve/other/labels/start"),
        ("/acme/repo-{0}/wiki/page-{0}", "/acme/other/wiki/other", "/acme/other/wiki/other/edit"),
        ("/owner-{0}/repo-{0}/wiki/page-{0}", "/eve/other/wiki/other", "/eve/other/labels/other"),
    ],
)
def test_a_segment_with_many_values_stands_for_any_value(varying: str, checked: str, unchecked: str) -> None:
    marks = Marks()
    unknown = marks.mark(*(varying.format(number) for number in range(9)))

    assert unknown == [True] * (MAX_LITERALS + 1) + [False] * (8 - MAX_LITERALS)
    assert marks.list_checked(checked, unchecked) == [True, False]


def test_each_caller_and_method_has_its_own_patterns() -> None:
    marks = Marks()
    marks.mark("/new-page")

    assert [
        marks.is_checked("/new-page", owner="user:eve"),
        marks.is_checked("/new-page", method="DELETE"),
        marks.is_checked("/new-page"),
    ] == [False, False, True]


@pytest.mark.parametrize(
    "path", ["/Wiki/Start", "/wiki/start;v=1", "/wiki%2Fstart", "/wiki/start.json", "/wiki/start/"]
)
def test_no_spelling_of_a_path_avoids_its_pattern(path: str) -> None:
    marks = Marks()
    marks.mark("/wiki/start")

    assert marks.is_checked(path)


def test_a_named_route_is_checked_for_all_callers() -> None:
    marks = Marks()
    marks.mark("/acme/site/wiki/start", route="/{owner}/{repository}/wiki/{page}")

    found = [marks.is_checked(path, owner="user:eve") for path in ("/x/y/wiki/z", "/x/y/WIKI/z", "/x/y/labels/z")]
    assert found == [True, True, False]


def test_a_named_route_teaches_no_pattern() -> None:
    marks = Marks()
    marks.mark(*(f"/acme/site/wiki/p{number}" for number in range(9)), route="/{owner}/{repository}/wiki/{page}")

    assert len(marks.endpoints) == 1


@pytest.mark.parametrize("route", ["/other", "/{", "wiki", "/{owner}/{repository}", "/" + "{a}/" * 200])
def test_a_route_that_is_no_pattern_of_the_path_is_ignored(route: str) -> None:
    marks = Marks()
    marks.mark("/acme/site/wiki/start", route=route)

    assert marks.list_checked("/acme/site/wiki/start", "/acme/site/wiki/other") == [True, False]


def test_a_request_with_an_unknown_method_can_be_marked_with_a_route() -> None:
    marks = Marks()
    marks.mark("/a", method="BREW", route="/{page}")

    assert marks.is_checked("/a", method="BREW")


def test_an_endpoint_that_the_rules_describe_is_checked_for_all_callers() -> None:
    endpoints = MarkedEndpoints()
    for owner in ("user:ada", "user:eve"):
        found = endpoints.may_create_content(owner, "POST", "/f/2", "POST /f/{form}", rules=RULES, now_ms=0)
        assert found is (owner == "user:eve")
        endpoints.add(owner, "POST", "/f/1", "POST /f/{form}", route="", rules=RULES, now_ms=0)


@pytest.mark.parametrize("limit", ["MAX_MARKED_ROUTES", "MAX_MARKED_CALLERS"])
def test_the_action_whose_last_mark_is_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(module, limit, 2)
    marks = Marks()
    is_by_caller = limit == "MAX_MARKED_CALLERS"
    for name in ("a", "b", "a", "c"):
        marks.mark(
            f"/{name}/x", owner=name if is_by_caller else "ada", route="" if is_by_caller else f"/{name}/{{page}}"
        )

    assert [marks.is_checked(f"/{name}/x", owner=name if is_by_caller else "ada") for name in "abc"] == [
        True,
        False,
        True,
    ]
    assert len(marks.endpoints) == 2


def test_after_many_unexpected_marks_all_requests_with_the_method_are_checked_for_an_hour() -> None:
    marks = Marks()
    marks.mark("/a")
    for _ in range(MAX_UNEXPECTED_MARKS):
        assert not marks.is_checked("/other")
        marks.endpoints.add_unexpected_mark("user:ada", marks.now_ms)

    assert [marks.is_checked("/other"), marks.is_checked("/other", method="GET")] == [True, False]
    marks.now_ms += UNEXPECTED_PERIOD_MS
    assert not marks.is_checked("/other")


# -- any requests --------------------------------------------------------------------------------------------------

words = st.sampled_from(["a", "b", "new", "wiki", "7", "Page", "x" * 100])
any_paths = st.lists(words, min_size=1, max_size=40).map(lambda segments: "/" + "/".join(segments))


@given(st.lists(st.tuples(st.sampled_from(["POST", "PUT", "PATCH"]), any_paths), max_size=60))
def test_a_marked_path_is_checked_and_the_memory_is_limited(requests: Sequence[tuple[str, str]]) -> None:
    marks = Marks()
    for method, path in requests:
        marks.mark(path, method=method)
        assert marks.is_checked(path, method=method)

    for patterns in marks.endpoints._patterns.values():
        assert patterns._count_nodes() <= MAX_PATTERN_NODES


WORDS = ("issues", "wiki", "pulls", "notes")
OTHER_WORDS = ("labels", "stars", "hooks", "session")
PATTERNS = (
    "/{a}/{b}/{word}/{c}",
    "/{a}/{b}/{word}/new",
    "/{word}/{a}",
    "/{a}/{word}",
    "/{word}",
    "/{a}/{word}/{b}/edit",
)
names = st.text("pqrst", min_size=1, max_size=6)
actions = st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(WORDS)), min_size=1, max_size=4, unique=True)


@st.composite
def draw_paths(draw: st.DrawFn, pairs: Sequence[tuple[str, str]]) -> str:
    pattern, word = draw(st.sampled_from(pairs))
    return pattern.format(word=word, a=draw(names), b=draw(names), c=draw(names))


@given(st.data(), actions)
def test_other_actions_of_the_same_pattern_are_never_checked(data: st.DataObject, pairs: list[tuple[str, str]]) -> None:
    """Whichever content a caller creates: a request of an action without marks is free to go.

    The words of the actions differ from the names that callers choose, as in services that reserve them.
    """
    patterns = [pattern for pattern, _ in pairs]
    assume(
        len(set(map(_describe_places, patterns))) == 1
    )  # Otherwise one action's names are at the place of another's word.
    marks = Marks()
    marks.mark(*data.draw(st.lists(draw_paths(pairs), max_size=30)))
    other_pairs = [(pattern, word) for pattern in patterns for word in OTHER_WORDS]

    for path in data.draw(st.lists(draw_paths(other_pairs), max_size=10)):
        assert not marks.is_checked(path)


def _describe_places(pattern: str) -> tuple[int, int]:
    """Return the number of segments of a pattern, and the place of its word."""
    segments = pattern.split("/")
    return len(segments), segments.index("{word}")


@given(st.data(), actions)
def test_an_action_is_unknown_a_limited_number_of_times(data: st.DataObject, pairs: list[tuple[str, str]]) -> None:
    """A caller that varies all names at once cannot create more unchecked content than this."""
    marks = Marks()
    unknown = 0
    for number in range(40):
        pattern, word = data.draw(st.sampled_from(pairs))
        name = f"z{number}z"
        unknown += sum(marks.mark(pattern.format(word=word, a=name, b=name, c=name)))

    assert unknown <= len(pairs) * (MAX_LITERALS + 1)
