"""The base path of the API: which limits a path meets, and where the limiter's own pages lie."""

import asyncio

import pytest

from tests.limits.builders import a_user, anonymous
from tests.limits.decision_services import (
    ADA,
    DIRECTORY,
    WORKFLOW,
    AsgiCaller,
    make_application,
    make_decision_service,
    send_request,
)
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.decisions import DecisionService
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.toml.problems import InvalidFile

CODE_HOST_BELOW = 'base_path = "/api/v3"\n'


def find_bucket(rules: str, path: str, method: str = "GET") -> str:
    return Rulebook(read_rules(rules)).get_plan(RequestFacts("id", method, path, a_user())).resource


@pytest.mark.parametrize(
    ("method", "path", "bucket"),
    [
        ("GET", "/api/v3/search/code", "code_search"),
        ("GET", "/api/v3/search/users", "search"),
        ("GET", "/search/users", "core"),
        ("GET", "/api/v30/search/users", "core"),
        ("POST", "/api/graphql", "graphql"),
        ("POST", "/api/v3/graphql", "graphql"),
        ("POST", "/acme/site.git/info/lfs/objects/batch", "lfs"),
        ("POST", "/api/v3/site.git/info/lfs/objects/batch", "core"),
    ],
)
def test_the_paths_of_the_contract_lie_below_the_base_path(method: str, path: str, bucket: str) -> None:
    assert find_bucket(CODE_HOST_BELOW, path, method) == bucket


def test_without_a_base_path_the_contract_is_at_the_root() -> None:
    assert find_bucket("", "/search/users") == "search"
    assert find_bucket("", "/acme/site.git/info/lfs/objects/batch", "POST") == "lfs"


def test_a_pattern_without_outside_never_matches_a_path_outside_of_the_base_path() -> None:
    rules = CODE_HOST_BELOW + '[[rule]]\nname = "all"\nmatch = "* /*"\nresource = "all"\nceiling = 5\n'

    assert (find_bucket(rules, "/acme/site"), find_bucket(rules, "/api/v3/user")) == ("core", "all")


def test_a_pattern_with_outside_never_matches_a_path_below_the_base_path() -> None:
    rules = CODE_HOST_BELOW + '[[rule]]\nname = "pages"\nmatch = "* outside:/*"\nresource = "pages"\nceiling = 5\n'

    assert (find_bucket(rules, "/acme/site"), find_bucket(rules, "/api/v3/user")) == ("pages", "core")


def test_the_name_of_an_endpoint_is_its_complete_path() -> None:
    book = Rulebook(read_rules('profile = "gitea"\n'))

    assert [
        book.get_endpoint("POST", "/api/v1/repos/acme/site/issues").name,
        book.get_endpoint("POST", "/acme/site/issues/new").name,
        book.get_endpoint("GET", "/api/v1/repos/acme/site/issues/7").name,
    ] == [
        "POST /api/v1/repos/{owner}/{repository}/issues",
        "POST /{owner}/{repository}/issues/new",
        "GET /api/v1/repos/acme/site/issues/*",
    ]


def test_a_host_below_a_path_of_its_site_has_all_its_limits_there() -> None:
    rules = 'profile = "gitlab"\nsite_path = "/git"\n'

    assert [
        find_bucket(rules, path)
        for path in ("/git/api/v4/search", "/git/acme/site/-/raw/main/a", "/git/acme/site", "/api/v4/search", "/other")
    ] == ["search", "raw", "web", "core", "core"]


@pytest.mark.parametrize(
    ("text", "read"),
    [("/api/v3", "/api/v3"), ("/api/v3/", "/api/v3"), ("/", ""), ("/git-lab/api_2", "/git-lab/api_2")],
)
def test_a_base_path_is_read_without_its_last_slash(text: str, read: str) -> None:
    assert read_rules(f'base_path = "{text}"\n').base_path == read


@pytest.mark.parametrize("text", ["api/v3", "/api//v3", "/api/{v}", "/api/*", "/api/../v3", "/.", "/api?x", "/a%20b"])
def test_a_base_path_that_no_path_can_begin_with_is_refused(text: str) -> None:
    with pytest.raises(InvalidFile) as problem:
        read_rules(f'base_path = "{text}"\n')

    assert f'rules.toml:1:1: base_path: "{text}" is not the beginning of paths: write it as "/api/v1"' in str(
        problem.value
    )


def test_the_keys_of_a_profile_outside_of_tables_are_the_defaults_of_a_rules_file() -> None:
    own = read_rules('profile = "gitea"\nbase_path = "/gitea/api/v1"\n')

    assert (read_rules('profile = "gitea"\n').base_path, own.base_path) == ("/api/v1", "/gitea/api/v1")
    assert read_rules('profile = "cluster"\n').documentation == "/v1/docs"


# -- the limiter's own pages ---------------------------------------------------------------------------------------------


def get_body(decision_service: DecisionService, path: str) -> bytes:
    reply = send_request(decision_service, AsgiCaller(path, token=ADA), make_application(body=[b"the host's"]))
    return reply.body


def test_the_status_and_meta_pages_lie_below_the_base_path() -> None:
    decision_service = make_decision_service(CODE_HOST_BELOW)

    assert b'"resources"' in get_body(decision_service, "/api/v3/rate_limit")
    assert b"verifiable_password_authentication" in get_body(decision_service, "/api/v3/meta")


@pytest.mark.parametrize("path", ["/rate_limit", "/meta", "/api/rate_limit", "/acme/api/v3/rate_limit"])
def test_a_page_of_the_host_with_the_name_of_a_page_of_the_limiter_comes_from_the_host(path: str) -> None:
    assert get_body(make_decision_service(CODE_HOST_BELOW), path) == b"the host's"


def test_the_status_page_below_the_base_path_charges_no_primary_limit() -> None:
    decision_service = make_decision_service(CODE_HOST_BELOW)
    reply = send_request(
        decision_service, AsgiCaller("/api/v3/rate_limit", token=ADA), make_application(body=[b"the host's"])
    )

    assert reply.headers["x-ratelimit-remaining"] == reply.headers["x-ratelimit-limit"]


def test_pages_move_with_the_base_path_when_rules_are_reloaded() -> None:
    decision_service = make_decision_service(CODE_HOST_BELOW)

    asyncio.run(decision_service.set_rules('base_path = "/api/v1"\n', "rules.toml"))

    assert b'"resources"' in get_body(decision_service, "/api/v1/rate_limit")
    assert get_body(decision_service, "/api/v3/rate_limit") == b"the host's"


# -- callers and streams -------------------------------------------------------------------------------------------------


def test_the_owner_of_a_repository_is_found_below_the_base_path() -> None:
    decision_service = make_decision_service(CODE_HOST_BELOW)
    decision_service.caller_resolver.set_directory(
        read_directory(DIRECTORY + '[[organization]]\nlogin = "big"\ntier = "enterprise"\n')
    )

    def get_limit(path: str) -> str:
        return send_request(decision_service, AsgiCaller(path, token=WORKFLOW), make_application()).headers[
            "x-ratelimit-limit"
        ]

    assert [
        get_limit(path)
        for path in ("/api/v3/repos/big/site", "/api/v3/repos/acme/site", "/repos/big/site", "/big/site")
    ] == ["15000", "1000", "1000", "15000"]


def test_an_event_stream_takes_no_place_of_plain_requests() -> None:
    book = Rulebook(read_rules('profile = "gitea"\n'))
    plan = book.get_plan(RequestFacts("id", "GET", "/user/events", anonymous()))
    stream_rules = '[[endpoint]]\nmatch = "GET /stream"\nwaiting = true\n'
    own_plan = Rulebook(read_rules(stream_rules)).get_plan(RequestFacts("id", "GET", "/stream", a_user()))

    assert [charge.name for charge in plan.charges] == ["web", "waiting"]
    assert [charge.name for charge in own_plan.charges] == ["core", "points", "cpu", "compute"]
    assert own_plan.is_waiting  # Elapsed time is not charged as CPU time, only what the service reports.
