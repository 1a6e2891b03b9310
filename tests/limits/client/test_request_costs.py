"""What a client expects a request to cost, before it is sent."""

import pytest

from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.request_costs import build_account_key, estimate_cost

HOST = "https://code.example"


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("get", "/repos/o/r/issues/12?page=3", "GET /repos/{owner}/{name}/issues/{id}"),
        ("GET", "/repos/o/r/commits/0123ABC/status", "GET /repos/{owner}/{name}/commits/{id}/status"),
        ("GET", "/repos/o/r/commits/01234/status", "GET /repos/{owner}/{name}/commits/{id}/status"),
        ("GET", "/x/abcdef", "GET /x/abcdef"),
        ("GET", "/users/ada/repos", "GET /users/{name}/repos"),
        ("GET", "", "GET /"),
        ("GET", "/" + "x" * 300, "GET /" + "x" * 199),
        ("POST", "/api/graphql/", "graphql"),
    ],
)
def test_an_endpoint_is_a_path_without_ids_and_names(method: str, path: str, endpoint: str) -> None:
    assert estimate_cost(method, HOST + path, b"").endpoint == endpoint


@pytest.mark.parametrize(
    ("method", "path", "body", "points", "is_content"),
    [
        ("GET", "/x", b"", 1, False),
        ("head", "/x", b"", 1, False),
        ("OPTIONS", "/x", b"", 1, False),
        ("post", "/x", b"", 5, True),
        ("PUT", "/x", b"", 5, False),
        ("PATCH", "/x", b"", 5, False),
        ("DELETE", "/x", b"", 5, False),
        ("POST", "/app/installations/1/access_tokens", b"", 5, False),
        ("POST", "/o/r.git/info/lfs/objects/batch/", b"", 5, False),
        ("POST", "/markdown/raw", b"", 5, False),
        ("POST", "/markdowns", b"", 5, True),
        ("POST", "/graphql", b'{"query": "query { mutation { x } }"}', 5, True),
        ("POST", "/graphql", b'{"query": "mutation { x }"}', 5, True),
        ("POST", "/graphql", b'{"query": "{ mutations }"}', 1, False),
        ("GET", "/graphql", b"", 1, False),
        ("POST", "/x", b'{"query": "query"}', 5, True),
    ],
)
def test_writes_cost_five_points_and_posts_create_content(
    method: str, path: str, body: bytes, points: int, is_content: bool
) -> None:
    cost = estimate_cost(method, HOST + path, body)

    assert (cost.points, cost.is_content) == (points, is_content)


@pytest.mark.parametrize(("path", "is_graphql"), [("/graphql", True), ("/api/graphql/", True), ("/graphql/x", False)])
def test_graphql_is_recognized_by_its_path(path: str, is_graphql: bool) -> None:
    assert estimate_cost("POST", HOST + path, b"").is_graphql is is_graphql


def test_an_account_is_a_host_and_a_hash_of_the_credential() -> None:
    keys = [
        build_account_key("https://Code.Example:81/x?y", ""),
        build_account_key("https://ada:secret@code.example/x", "Bearer x"),
        build_account_key("http://code.example/other", "Bearer x"),
        build_account_key("https://code.example/x", "Bearer y"),
    ]

    assert keys == [
        "https://code.example:81 none",
        "https://code.example b937a6fd6074f365",
        "http://code.example b937a6fd6074f365",
        keys[3],
    ]
    assert keys[3] not in keys[:3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(
            ({name: 0}, f"{name} is 0")
            for name in ("concurrent_max", "rest_points_max", "graphql_points_max", "content_minute_max", "content_hour_max")
        ),
        ({"rest_points_max": 4}, "must be 5 or more"),
        ({"graphql_points_max": 4}, "must be 5 or more"),
        ({"slow_below": -0.1}, "slow_below is -0.1"),
        ({"slow_below": 1.1}, "slow_below is 1.1"),
        ({"retries_max": -1}, "retries_max is -1"),
        ({"unknown_wait_s": 59.9}, "unknown_wait_s is 59.9"),
    ],
)  # fmt: skip
def test_a_policy_that_could_send_nothing_or_too_much_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClientPolicy(**values)  # type: ignore[arg-type]  # names and types match


@pytest.mark.parametrize(
    "values",
    [
        {"concurrent_max": 1, "content_minute_max": 1, "content_hour_max": 1},
        {"rest_points_max": 5, "graphql_points_max": 5},
        {"slow_below": 0},
        {"slow_below": 1},
        {"retries_max": 0},
        {"unknown_wait_s": 60},
    ],
)
def test_a_policy_at_its_limits_is_accepted(values: dict[str, float]) -> None:
    assert ClientPolicy(**values) is not None  # type: ignore[arg-type]  # names and types match
