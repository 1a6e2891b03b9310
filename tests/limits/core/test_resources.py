"""Which resource a request is about, by its path and its credential."""

import pytest

from tests.limits.builders import a_client, a_user, a_workflow, an_installation, anonymous
from wharf.limits.core import resources
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.directory import Installation, MemoryDirectory, Organization
from wharf.limits.core.resources import ResourceFinder, parse_owner_pattern, select_organization_resource
from wharf.limits.core.route import BadPattern

DIRECTORY = MemoryDirectory(
    organizations={"acme": Organization(login="acme"), "big": Organization(login="Big")},
    installations={71: Installation(id=71, app=7, account="acme"), 72: Installation(id=72, app=7, account="eve")},
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/repos/acme/site", "acme/site"),
        ("/repos/acme/site/issues/7?page=2", "acme/site"),
        ("/repos/acme", ""),
        ("/orgs/acme", "acme"),
        ("/orgs/acme/members", "acme"),
        ("/api/v1/repos/acme/site/pulls", "acme/site"),
        ("/api/v3/orgs/acme", "acme"),
        ("/acme/site.git/info/refs", "acme/site"),
        ("/acme/site/info/lfs/objects/batch", "acme/site"),
        ("/acme/site/settings", ""),
        ("/user", ""),
        ("/", ""),
        (f"/repos/acme/{'x' * 300}", "acme"),
        (f"/repos/{'x' * 300}/site", ""),
    ],
)
def test_a_path_names_owner_and_repository(path: str, expected: str) -> None:
    finder = ResourceFinder()

    assert [finder.find_name("GET", path) for _ in range(2)] == [(expected.partition("/")[0], expected)] * 2


def test_own_patterns_replace_those_of_code_hosts() -> None:
    finder = ResourceFinder(["GET /teams/{owner}/*", "* /boards/{repository}/of/{owner}"])

    found = [
        finder.find_name(method, path)[1]
        for method, path in (
            ("GET", "/teams/acme/x"),
            ("POST", "/teams/acme/x"),
            ("POST", "/boards/b1/of/acme"),
            ("GET", "/orgs/acme"),
        )
    ]

    assert found == ["acme", "", "acme/b1", ""]


def test_a_full_cache_loses_its_oldest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_CACHED_RESOURCES", 2)
    finder = ResourceFinder()

    found = [finder.find_name("GET", f"/repos/acme/r{number % 4}")[1] for number in range(12)]

    assert found == [f"acme/r{number % 4}" for number in range(12)]


@pytest.mark.parametrize(("text", "message"), [("* /teams/{team}/*", "names no owner"), ("/teams", "is not a pattern")])
def test_a_pattern_without_an_owner_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadPattern, match=message):
        parse_owner_pattern(text)


@pytest.mark.parametrize(
    ("resource", "caller", "expected"),
    [
        ("acme/site", anonymous(), "acme/site"),
        ("ACME/site", anonymous(), "acme/site"),
        ("Big", anonymous(), "Big"),
        ("eve/site", a_user("eve"), ""),
        ("", a_user("ada"), ""),
        ("", a_client(), ""),
        ("", an_installation(71), "acme"),
        ("", an_installation(72), ""),
        ("", an_installation(99), ""),
        ("", a_workflow(), "acme/site"),
        ("eve/site", a_workflow(), ""),
        ("Big/site", an_installation(71), "Big/site"),
    ],
)
def test_a_resource_counts_for_an_organization_of_the_directory(resource: str, caller: Caller, expected: str) -> None:
    assert select_organization_resource(resource, caller, DIRECTORY) == expected
