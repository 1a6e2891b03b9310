"""Section 1 of the design: terms."""

import pytest

from tests.limits.builders import CODE_HOST, InMemoryLimiter, a_user
from wharf.limits.core.paths import normalize_path
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import PathRules, SegmentTreatment
from wharf.limits.core.rulebook import Rulebook

BOOK = Rulebook(CODE_HOST)


def test_1_a_request_belongs_to_exactly_one_primary_bucket() -> None:
    paths = ["/meta", "/search/code", "/graphql", "/orgs/a/audit-log", "/a/b.git/info/lfs/objects/batch"]

    assert [
        sum(charge.rule.is_primary for charge in InMemoryLimiter().send(a_user(), path).charges) for path in paths
    ] == [1] * 5


def test_1_the_rule_table_comes_first_and_core_is_for_the_rest() -> None:
    rule = '[[rule]]\nname = "zen"\nmatch = ["GET /zen"]\nresource = "zen"\nceiling = 7\n'
    limiter = InMemoryLimiter(rule)

    assert [limiter.send(a_user(), path).plan.resource for path in ("/zen", "/octocat")] == ["zen", "core"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/repos/acme/site/issues", "POST /repos/{owner}/{repository}/issues"),
        ("/repos/acme/site/issues/", "POST /repos/{owner}/{repository}/issues"),
        ("/things/42", "POST /things/*"),
        ("/things/0a1b2c3", "POST /things/*"),
        ("/things/deadbeef", "POST /things/*"),
        ("/things/0b51c0de-8a3e-4e0d-9d55-5a8ad7a3a111", "POST /things/*"),
        ("/things/0a1b2c", "POST /things/0a1b2c"),
        ("/things/ada", "POST /things/ada"),
        ("/", "POST /"),
    ],
)
def test_1_an_endpoint_is_a_template_of_the_rules_else_the_path_without_ids(path: str, name: str) -> None:
    assert BOOK.get_endpoint("POST", path).name == name


def test_1_at_most_256_endpoints_of_a_caller_are_counted_separately() -> None:
    limiter = InMemoryLimiter()
    for number in range(300):
        limiter.send(a_user(), f"/page-{'x' * number}")
    points = limiter.counters.tables["points"]

    assert (len(points), limiter.count("points", "user:ada other")) == (257, 300 - 256)


def test_1_another_caller_has_its_own_endpoints() -> None:
    limiter = InMemoryLimiter()
    for number in range(300):
        limiter.send(a_user(), f"/page-{'x' * number}")
    limiter.send(a_user("eve"), "/page")

    assert limiter.count("points", "user:eve GET /page") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/search/../search/code",
        "//search//code",
        "/search/code/",
        "/%73earch/code",
        "/search/./code",
        "/Search/CODE",
        "/search/code.json",
        "/search/code;v=1",
        "/search%2Fcode",
        "/search%5Ccode",
    ],
)
def test_1_no_spelling_of_a_path_avoids_its_bucket(path: str) -> None:
    removing = PathRules(dot_segments=SegmentTreatment.REMOVE, empty_segments=SegmentTreatment.REMOVE)

    request = RequestFacts("", "GET", normalize_path(path, removing), a_user())

    assert BOOK.get_plan(request).resource == "code_search"


def test_1_head_is_in_the_bucket_of_get() -> None:
    assert BOOK.get_endpoint("HEAD", "/search/code").primary_rules[0].name == "code_search"
