"""Endpoints of requests: patterns that cover others, normal paths, names, and the rules and costs that match."""

import pytest

from tests.limits.builders import a_user, an_installation, anonymous
from wharf.limits.core import rulebook as rulebook_module
from wharf.limits.core.paths import split_path
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.route import derive_endpoint_name, parse_pattern
from wharf.limits.core.rule import ConnectionClass, Interface
from wharf.limits.core.rulebook import Rulebook, hash_rules
from wharf.limits.rules import read_rules


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("* /a", "GET /a", True),
        ("GET /a", "* /a", False),
        ("GET /a", "HEAD /a", True),
        ("HEAD /a", "GET /a", False),
        ("GET,POST /a", "POST /a", True),
        ("GET /a", "GET,POST /a", False),
        ("* /a/*", "* /a/*", True),
        ("* /a/*", "* /a/b", True),
        ("* /a/*", "* /a/b/c", True),
        ("* /a/*", "* /a", False),
        ("* /*", "* /a/*", True),
        ("* /a/*", "* /*", False),
        ("* /a/b/*", "* /a/*", False),
        ("* /a/b", "* /a/*", False),
        ("* /{x}", "* /a", True),
        ("* /{x}", "* /{y}", True),
        ("* /a", "* /{x}", False),
        ("* /{x}.git", "* /{y}.git", True),
        ("* /{x}.git", "* /a.git", True),
        ("* /{x}.git", "* /.git", False),
        ("* /{x}.git", "* /{y}", False),
        ("* /{x}", "* /{y}.git", True),
        ("* /a/b", "* /a", False),
        ("* /a", "* /a/b", False),
        ("* /", "* /", True),
        ("* /*", "* /**/-/raw/*", True),
        ("* /{x}/*", "* /**/-/raw/*", True),
        ("* /{x}/-/*", "* /**/-/raw/*", False),
        ("* /{x}/-", "* /**/-", False),
        ("* /**/-/*", "* /**/-/raw/*", True),
        ("* /**/-/*", "* /a/-/raw/*", False),
        ("* /**/-", "* /**/-", True),
        ("* /**/-", "* /**/-/*", False),
    ],
)
def test_a_pattern_covers_another_if_it_matches_all_of_its_requests(wide: str, narrow: str, expected: bool) -> None:
    assert parse_pattern(wide).covers(parse_pattern(narrow)) is expected


@pytest.mark.parametrize(
    ("text", "methods", "segments", "has_wildcard", "is_template"),
    [
        ("GET /a/{b}", {"GET"}, ("a", "{b}"), False, True),
        ("* /a", set(), ("a",), False, False),
        ("GET /a/*", {"GET"}, ("a",), True, False),
        ("PUT,GET /", {"PUT", "GET"}, (), False, True),
        ("* /*", set(), (), True, False),
    ],
)
def test_a_pattern_has_methods_segments_and_maybe_a_wildcard(
    text: str, methods: set[str], segments: tuple[str, ...], has_wildcard: bool, is_template: bool
) -> None:
    pattern = parse_pattern(text)

    assert (pattern.text, set(pattern.methods), pattern.segments) == (text, methods, segments)
    assert (pattern.has_wildcard, pattern.is_template) == (has_wildcard, is_template)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("* /a", "/a", True),
        ("* /a", "/b", False),
        ("* /a", "/a/b", False),
        ("* /a", "/", False),
        ("* /a/*", "/a", False),
        ("* /a/*", "/a/b", True),
        ("* /a/*", "/a/b/c", True),
        ("* /{x}.git", "/.git", False),
        ("* /{x}.git", "/a.git", True),
        ("* /{x}.git", "/a", False),
        ("* /{x}", "/", False),
        ("* /", "/", True),
    ],
)
def test_a_pattern_matches_the_segments_of_a_path(pattern: str, path: str, expected: bool) -> None:
    assert parse_pattern(pattern).matches_path(split_path(path)) is expected


@pytest.mark.parametrize(("path", "segments"), [("/", ()), ("", ()), ("/a", ("a",)), ("/a/b", ("a", "b"))])
def test_a_path_is_split_into_segments(path: str, segments: tuple[str, ...]) -> None:
    assert split_path(path) == segments


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/a/12/b", "GET /a/*/b"),
        ("PATCH", "/", "PATCH /"),
        ("BREW", "/a", "other /a"),
        ("GET", "/abcdef0/abcdef", "GET /*/abcdef"),
        ("GET", "/abcdefa", "GET /*"),
        ("GET", "/123e4567-e89b-12d3-a456-426614174000", "GET /*"),
        ("GET", "/v1", "GET /v1"),
    ],
)
def test_ids_in_the_name_of_an_endpoint_become_stars(method: str, path: str, name: str) -> None:
    assert derive_endpoint_name(method, split_path(path)) == name


RULES = read_rules("""
profile = "none"
[[rule]]
name = "search"
match = ["GET /search/*", "POST /search/code"]
resource = "search"
ceiling = { user = 10 }
[[rule]]
name = "core"
resource = "core"
ceiling = 100
[[rule]]
name = "queries"
interface = "graphql"
resource = "graphql"
counts = "query_cost"
ceiling = 50
[[rule]]
name = "points"
counts = "points"
ceiling = 90
[[rule]]
name = "hidden"
counts = "points"
hidden = true
ceiling = 90
[[rule]]
name = "endpoints"
counts = "points"
per_endpoint = true
ceiling = 90
[[rule]]
name = "content"
counts = "content"
ceiling = { user = 9 }
[[rule]]
name = "rest"
interface = ["rest", "large_files"]
ceiling = 90
[[rule]]
name = "waiting"
counts = "connections"
connection = "waiting"
ceiling = 3
[[rule]]
name = "logins"
counts = "failed_logins"
ceiling = { none = 4 }
[[endpoint]]
match = "* /graphql"
interface = "graphql"
[[endpoint]]
match = "GET /status"
free = true
[[endpoint]]
match = "GET /users/{login}"
points = 7
hidden = true
[[endpoint]]
match = "* /users/*"
points = 3
content = true
[[endpoint]]
match = "POST /free"
points = 0
""")


def list_charges(method: str, path: str, **facts: object) -> list[tuple[str, int]]:
    caller = facts.pop("caller", a_user())
    plan = Rulebook(RULES).get_plan(RequestFacts("r", method, path, caller, **facts))  # type: ignore[arg-type]
    return [(charge.name, charge.cost) for charge in plan.charges]


POINTS = ("points", "hidden", "endpoints")


@pytest.mark.parametrize(
    ("method", "path", "facts", "expected"),
    [
        ("GET", "/x", {}, [("core", 1), *((name, 1) for name in POINTS), ("rest", 1)]),
        ("PUT", "/x", {}, [("core", 1), *((name, 5) for name in POINTS), ("rest", 1)]),
        ("GET", "/search/x", {}, [("search", 1), *((name, 1) for name in POINTS), ("rest", 1)]),
        ("GET", "/search/x", {"caller": anonymous()}, [("core", 1), *((name, 1) for name in POINTS), ("rest", 1)]),
        ("GET", "/users/ada", {}, [("core", 1), *((name, 7) for name in POINTS), ("content", 1), ("rest", 1)]),
        ("POST", "/users/ada", {}, [("core", 1), *((name, 3) for name in POINTS), ("content", 1), ("rest", 1)]),
        ("POST", "/free", {}, [("core", 1), *((name, 0) for name in POINTS), ("rest", 1)]),
        ("GET", "/status", {}, [(name, 1) for name in POINTS]),
        (
            "GET",
            "/x",
            {"connection": ConnectionClass.WAITING},
            [("core", 1), *((name, 1) for name in POINTS), ("rest", 1), ("waiting", 1)],
        ),
        ("POST", "/graphql", {"query": QueryFacts(cost=4, points=2, content=0)}, [("core", 1), *((name, 2) for name in POINTS)]),
        (
            "POST",
            "/graphql",
            {"query": QueryFacts(cost=4, points=2, content=3)},
            [("core", 1), *((name, 2) for name in POINTS), ("content", 3)],
        ),
    ],
)  # fmt: skip
def test_a_request_charges_the_rules_that_match_it(
    method: str, path: str, facts: dict[str, object], expected: list[tuple[str, int]]
) -> None:
    if path == "/users/ada" and method == "GET":
        expected = [charge for charge in expected if charge[0] != "content"]  # The first endpoint that matches counts.

    assert list_charges(method, path, **facts) == expected


@pytest.mark.parametrize(
    ("method", "path", "name", "points", "interface", "is_free", "is_cost_hidden"),
    [
        ("GET", "/users/eve", "GET /users/{login}", 7, Interface.REST, False, True),
        ("HEAD", "/users/eve", "GET /users/{login}", 7, Interface.REST, False, True),
        ("PUT", "/users/eve", "PUT /users/eve", 3, Interface.REST, False, False),
        ("POST", "/search/code", "POST /search/code", 5, Interface.REST, False, False),
        ("GET", "/graphql", "GET /graphql", 1, Interface.GRAPHQL, False, False),
        ("GET", "/status", "GET /status", 1, Interface.REST, True, False),
        ("GET", "/status/", "GET /status", 1, Interface.REST, False, False),
        ("GET", "/STATUS", "GET /status", 1, Interface.REST, False, False),
        ("GET", "/status.json", "GET /status", 1, Interface.REST, False, False),
        ("GET", "/status;v=1", "GET /status", 1, Interface.REST, False, False),
        ("HEAD", "/other/7", "GET /other/*", 1, Interface.REST, False, False),
    ],
)
def test_an_endpoint_has_the_properties_of_its_rule(
    method: str, path: str, name: str, points: int, interface: Interface, is_free: bool, is_cost_hidden: bool
) -> None:
    endpoint = Rulebook(RULES).get_endpoint(method, path)

    assert (endpoint.name, endpoint.points, endpoint.interface) == (name, points, interface)
    assert (endpoint.is_free, endpoint.is_cost_hidden) == (is_free, is_cost_hidden)


def test_paths_of_one_endpoint_share_its_object() -> None:
    rulebook = Rulebook(RULES)

    assert rulebook.get_endpoint("GET", "/users/ada") is rulebook.get_endpoint("GET", "/users/eve")
    assert rulebook.get_endpoint("GET", "/x/1") is not rulebook.get_endpoint("PUT", "/x/1")
    assert rulebook.get_endpoint("GET", "/search/1") is not rulebook.get_endpoint("GET", "/other/1")


def test_a_plan_is_made_once_for_each_caller_endpoint_and_query() -> None:
    rulebook = Rulebook(RULES)

    def get(caller: object = None, path: str = "/x", **facts: object) -> object:
        return rulebook.get_plan(RequestFacts("r", "GET", path, caller or a_user(), **facts))  # type: ignore[arg-type]

    assert get() is get()
    assert len({id(plan) for plan in (get(), get(a_user("eve")), get(path="/y"), get(query=QueryFacts(1, 1)))}) == 4
    assert get(connection=ConnectionClass.WAITING) is not get(connection=ConnectionClass.WAITING)


@pytest.mark.parametrize("limit", ["MAX_CACHED_PATHS", "MAX_CACHED_PLANS", "MAX_CACHED_TEMPLATES"])
def test_full_caches_change_no_plan(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(rulebook_module, limit, 2)
    rulebook = Rulebook(RULES)
    requests = [
        RequestFacts("r", "GET", path, caller)
        for path in ("/users/ada", "/x", "/search/x", "/y/z", "/" + "x" * 300)
        for caller in (a_user(), a_user("eve"), an_installation(), anonymous())
    ]

    def get_charges(book: Rulebook, request: RequestFacts) -> list[tuple[str, str, int]]:
        return [(charge.name, charge.key, charge.cost) for charge in book.get_plan(request).charges]

    for _ in range(2):
        for request in requests:
            assert get_charges(rulebook, request) == get_charges(Rulebook(RULES), request)


def test_the_status_page_lists_the_buckets_and_visible_limits_of_a_caller() -> None:
    rulebook = Rulebook(RULES)

    assert [charge.name for charge in rulebook.list_primary_charges(a_user())] == ["search", "core", "queries"]
    assert [charge.name for charge in rulebook.list_primary_charges(anonymous())] == ["core", "queries"]
    assert [charge.name for charge in rulebook.list_secondary_charges(a_user())] == [
        "points",
        "content",
        "rest",
        "waiting",
    ]
    assert {charge.cost for charge in rulebook.list_primary_charges(a_user())} == {1}


@pytest.mark.parametrize(("ceiling", "names"), [("{ none = 4 }", ["mine"]), ("{ user = 4 }", []), ("4", ["mine"])])
def test_a_wrong_credential_is_charged_only_to_limits_on_callers_without_one(ceiling: str, names: list[str]) -> None:
    text = f'[[rule]]\nname = "mine"\ncounts = "failed_logins"\nscope = "address"\nceiling = {ceiling}\n'
    plan = Rulebook(read_rules(text)).build_failed_login_plan(anonymous())

    assert [charge.name for charge in plan.charges if charge.name == "mine"] == names


def test_charges_without_an_endpoint_are_those_of_one_kind() -> None:
    rulebook = Rulebook(RULES)
    logins = rulebook.build_failed_login_plan(anonymous())

    assert rulebook.build_core_charge(a_user()).name == "core"
    assert [charge.name for charge in rulebook.list_content_charges(a_user())] == ["content"]
    assert rulebook.list_content_charges(anonymous()) == ()
    assert ([charge.name for charge in logins.charges], logins.is_free, logins.bucket_charge.name) == (
        ["logins"],
        True,
        "core",
    )
    assert [charge.cost for charge in logins.charges] == [1]


def test_the_hash_of_rules_ignores_files_and_lines() -> None:
    text = 'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 5\n[[endpoint]]\nmatch = "GET /a"\n'

    assert hash_rules(read_rules(text, "a.toml")) == hash_rules(read_rules("\n\n" + text, "b.toml"))
    assert hash_rules(read_rules(text)) != hash_rules(read_rules(text.replace("5", "6")))
    assert len(hash_rules(RULES)) == 16
