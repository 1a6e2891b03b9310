"""Which resource a request is about, by its path and its credential."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import a_client, a_user, a_workflow, an_installation, anonymous, build_rules_text
from wharf.limits.core import resources
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.directory import Installation, MemoryDirectory, Organization, Repository
from wharf.limits.core.callers.recognition import is_enterprise_account
from wharf.limits.core.paths import BadPath, normalize_path
from wharf.limits.core.resources import (
    ResourceFinder,
    ResourceName,
    build_finder,
    list_accounts,
    parse_owner_pattern,
    select_organization_resource,
)
from wharf.limits.core.route import BadPattern
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import read_profile

ACME = Organization(login="acme")
DIRECTORY = MemoryDirectory(
    organizations={
        "acme": ACME,
        "big": Organization(login="Big"),
        "rich": Organization(login="rich", is_enterprise_tier=True),
    },
    enterprises=frozenset({"corp"}),
    organizations_by_id={7: ACME},
    repositories_by_id={42: Repository(name="acme/web/site"), 44: Repository(name="rich/site")},
    installations={71: Installation(id=71, app=7, account="acme"), 72: Installation(id=72, app=7, account="eve")},
)


class Row(NamedTuple):
    """A request of a host, and the resource that it is about."""

    request: str
    resource: str
    """Owner and repository, the owner alone, or empty. An id is written as `#42`."""


CODE_HOST = [
    Row("GET /repos/acme/site", "acme/site"),
    Row("POST /repos/acme/site/issues/7/comments", "acme/site"),
    Row("GET /repos/acme/acme.github.io/issues", "acme/acme.github.io"),
    Row("GET /repos/acme", ""),
    Row("GET /orgs/acme", "acme"),
    Row("GET /orgs/acme/members", "acme"),
    Row("GET /enterprises/corp/audit-log", "corp:"),
    Row("GET /enterprises/corp", "corp:"),
    Row("GET /repositories/42", "#42"),
    Row("GET /repositories/42/issues", "#42"),
    Row("GET /organizations/7", "#7"),
    Row("GET /organizations/7/repos", "#7"),
    Row("GET /v2/acme/site/manifests/latest", "acme"),
    Row("GET /acme/site.git/info/refs", "acme/site"),
    Row("GET /acme/site.wiki.git/info/refs", "acme/site"),
    Row("GET /acme/site/info/refs", "acme/site"),
    Row("POST /acme/site/git-upload-pack", "acme/site"),
    Row("POST /acme/site/git-receive-pack", "acme/site"),
    Row("POST /acme/site/info/lfs/objects/batch", "acme/site"),
    Row("POST /acme/site.git/info/lfs/objects/batch", "acme/site"),
    Row("GET /acme/site/settings", ""),
    Row("GET /users/acme", ""),
    Row("POST /graphql", ""),
    Row("GET /user", ""),
    Row("GET /", ""),
    Row("GET /api/v1/repos/acme/site", "acme/site"),
    Row("GET /api/v1/repos/acme/site/pulls", "acme/site"),
    Row("GET /api/v1/orgs/acme", "acme"),
    Row("GET /api/v1/orgs/acme/members", "acme"),
    Row("GET /api/v3/repos/acme/site", "acme/site"),
    Row("GET /api/v3/repos/acme/site/pulls", "acme/site"),
    Row("GET /api/v3/orgs/acme", "acme"),
    Row("GET /api/v3/orgs/acme/members", "acme"),
    Row(f"GET /repos/acme/{'x' * 300}", "acme"),
]
CODE_HOST_BELOW_A_PATH = [
    Row("GET /git/api/v3/repos/acme/site/issues", "acme/site"),
    Row("GET /git/api/v3/orgs/acme", "acme"),
    Row("GET /git/API/v3/Repos/Acme/Site", "acme/site"),
    Row("POST /git/api/graphql", ""),
    Row("GET /git/acme/site/issues", "acme/site"),
    Row("GET /git/acme", "acme"),
    Row("GET /git/orgs/acme/people", "acme"),
    Row("GET /git/search", ""),
    Row("GET /git/settings/profile", ""),
    Row("GET /git/acme/site.git/info/refs", "acme/site"),
    Row("GET /repos/acme/site", ""),
    Row("GET /acme/site", ""),
]
GITEA = [
    Row("GET /api/v1/repos/acme/site", "acme/site"),
    Row("POST /api/v1/repos/acme/site/issues", "acme/site"),
    Row("GET /api/v1/repositories/42", "#42"),
    Row("GET /api/v1/orgs/acme", "acme"),
    Row("GET /api/v1/orgs/acme/teams", "acme"),
    Row("POST /api/v1/org/acme/repos", "acme"),
    Row("GET /api/v1/packages/acme", "acme"),
    Row("DELETE /api/v1/packages/acme/npm/left-pad/1.0", "acme"),
    Row("GET /api/v1/user", ""),
    Row("GET /api/v1/repos/search", ""),
    Row("GET /repos/acme/site", "repos/acme"),
    Row("GET /api/packages/acme/npm/left-pad", "acme"),
    Row("GET /v2/", ""),
    Row("GET /v2/acme/site/manifests/latest", "acme"),
    Row("GET /acme/site.git", "acme/site"),
    Row("GET /acme/site.git/info/refs", "acme/site"),
    Row("GET /acme/site.wiki.git/info/refs", "acme/site"),
    Row("POST /acme/site/git-receive-pack", "acme/site"),
    Row("POST /acme/site.git/info/lfs/objects/batch", "acme/site"),
    Row("GET /acme/site/info/lfs/locks", "acme/site"),
    Row("GET /acme/site", "acme/site"),
    Row("GET /acme/site.rss", "acme/site"),
    Row("GET /acme/site.atom", "acme/site"),
    Row("GET /acme/site/src/branch/main/a.md", "acme/site"),
    Row("POST /acme/site/issues/new", "acme/site"),
    Row("GET /acme", "acme"),
    Row("GET /acme.rss", "acme"),
    Row("GET /acme.atom", "acme"),
    Row("GET /acme/-/packages", "acme"),
    Row("GET /org/acme/settings", "acme"),
    Row("GET /user/login", ""),
    Row("GET /explore/repos", ""),
    Row("GET /assets/css/index.css", ""),
    Row("POST /api/actions/runner.v1.RunnerService/FetchTask", ""),
    Row("GET /", ""),
]
FORGEJO = [*GITEA, Row("GET /api/forgejo/v1/version", "")]
GITLAB = [
    Row("GET /api/v4/projects/acme%2Fsite/issues", "acme/site"),
    Row("GET /api/v4/projects/acme%2Fweb%2Fsite", "acme/web/site"),
    Row("GET /api/v4/projects/acme%2Fweb%2Fsite/repository/files/docs%2Fa.md/raw", "acme/web/site"),
    Row("PUT /api/v4/projects/acme%2Fsite/packages/generic/tool/1.0/tool.bin", "acme/site"),
    Row("GET /api/v4/projects/42/issues", "#42"),
    Row("GET /api/v4/projects", ""),
    Row("GET /api/v4/groups/acme", "acme"),
    Row("GET /api/v4/groups/acme%2Fweb/projects", "acme"),
    Row("GET /api/v4/groups/7/-/packages/pypi/simple/tool", "#7"),
    Row("GET /api/v4/namespaces/acme", "acme"),
    Row("GET /api/v4/namespaces/acme/exists", "acme"),
    Row("GET /api/v4/user", ""),
    Row("POST /api/graphql", ""),
    Row("GET /v2/acme/web/site/image/manifests/latest", "acme"),
    Row("GET /jwt/auth", ""),
    Row("GET /acme/web/deep/site.git/info/refs", "acme/web/deep/site"),
    Row("POST /acme/web/site.git/info/lfs/objects/batch", "acme/web/site"),
    Row("PUT /acme/site.git/gitlab-lfs/objects/0a1b/7", "acme/site"),
    Row("GET /acme/site.wiki.git/info/refs", "acme/site"),
    Row("GET /acme/web/site.git", "acme/web/site"),
    Row("POST /acme/web/site/git-upload-pack", "acme/web/site"),
    Row("POST /acme/web/site/git-receive-pack", "acme/web/site"),
    Row("GET /acme/site/info/refs", "acme/site"),
    Row("GET /acme/web/site/-/issues/7", "acme/web/site"),
    Row("GET /acme/site/-/raw/main/a/-/b.md", "acme/site"),
    Row("POST /acme/site/-/merge_requests", "acme/site"),
    Row("GET /groups/acme/web/-/issues", "acme"),
    Row("GET /groups/acme", "acme"),
    Row("GET /acme", "acme"),
    Row("GET /acme/site", "acme"),
    Row("GET /acme/web/site", "acme"),
    Row("GET /users/sign_in", ""),
    Row("GET /-/cable", ""),
    Row("GET /-/snippets/7/raw", ""),
    Row("GET /uploads/-/system/user/avatar/7/avatar.png", ""),
    Row("GET /explore/projects", ""),
    Row("GET /", ""),
]
CLUSTER = [Row("GET /v1/jobs", ""), Row("GET /repos/acme/site", ""), Row("GET /orgs/acme", "")]
HOSTS = {
    "code-host": (read_profile(), CODE_HOST),
    "code-host below a path": (read_rules('base_path = "/api/v3"\nsite_path = "/git"\n'), CODE_HOST_BELOW_A_PATH),
    "gitea": (read_profile("gitea"), GITEA),
    "forgejo": (read_profile("forgejo"), FORGEJO),
    "gitlab": (read_profile("gitlab"), GITLAB),
    "cluster": (read_profile("cluster"), CLUSTER),
    "none": (read_rules(build_rules_text()), CODE_HOST),
}
FINDERS = {host: build_finder(rules) for host, (rules, _) in HOSTS.items()}
CASES = [pytest.param(host, row, id=f"{host}: {row.request[:60]}") for host, (_, rows) in HOSTS.items() for row in rows]


def find_resource(host: str, request: str) -> str:
    """Return the resource of a request as a row has it, by the first reading of its path."""
    method, _, path = request.partition(" ")
    name = FINDERS[host].find_names(method, path)[0]
    number = name.repository_id or name.organization_id
    return f"#{number}" if number else name.resource or (f"{name.owner}:" if name.owner else "")


@pytest.mark.parametrize(("host", "row"), CASES)
def test_a_request_of_a_host_names_the_owner_of_its_row(host: str, row: Row) -> None:
    assert [find_resource(host, row.request) for _ in range(2)] == [row.resource] * 2


@pytest.mark.parametrize("host", ["code-host", "gitea", "forgejo", "gitlab", "cluster"])
def test_each_pattern_of_a_host_is_the_first_that_matches_a_row(host: str) -> None:
    rules, rows = HOSTS[host]

    def find_first(request: str) -> str:
        method, _, path = request.partition(" ")
        api = rules.api_path.split("/")[1:] if rules.api_path else []
        segments = path.lower().strip("/").split("/") if path != "/" else []
        for text in rules.owner_paths:
            pattern = parse_owner_pattern(text)
            is_outside = segments[: len(api)] != api
            if pattern.is_outside is is_outside and pattern.matches_method(method) and pattern.matches_path(segments):
                return text
        return ""

    assert set(rules.owner_paths) - {find_first(row.request) for row in rows} == set()


@pytest.mark.parametrize(
    ("host", "request_", "resource"),
    [
        ("code-host", "GET /Repos/ACME/Site/issues", "acme/site"),
        ("code-host", "GET /repos/acme;v=1/site;x", "acme/site"),
        ("code-host", "GET /repos%2Facme%2Fsite", "acme/site"),
        ("code-host", "GET /repos/acme%2Fsite/issues", "acme/site"),
        ("code-host", "GET /orgs/acme.json", "acme"),
        ("code-host", "GET /repos/acme/site/", "acme/site"),
        ("gitea", "GET /Api/V1/Repos/ACME/site", "acme/site"),
        ("gitea", "GET /acme%2Fsite/issues", "acme/site"),
        ("gitea", "GET /acme/site;x", "acme/site"),
        ("gitlab", "GET /api/v4/Projects/ACME%2Fsite/issues", "acme/site"),
        ("gitlab", "GET /api/v4/projects/acme%2Fsite;x/issues", "acme/site"),
        ("gitlab", "GET /ACME/site/-/Issues.json", "acme/site"),
        ("gitlab", "GET /api/v4/projects/42", "acme/web/site"),
        ("gitlab", "GET /api/v4/projects/43", ""),
        ("gitlab", "GET /api/v4/groups/7/members", "acme"),
        ("gitlab", "GET /api/v4/groups/8", ""),
    ],
)
def test_no_spelling_hides_a_request_from_the_owner_of_its_resource(host: str, request_: str, resource: str) -> None:
    method, _, path = request_.partition(" ")
    names = FINDERS[host].find_names(method, path)

    assert select_organization_resource(names, anonymous(), DIRECTORY) == resource


@given(
    st.lists(
        st.sampled_from([*"aA/;.%", "repos", "acme", "site.git", "-", "%2F", "groups", "7", "x" * 90]), max_size=14
    ),
    st.sampled_from(list(FINDERS)),
)
def test_any_path_names_resources_of_limited_length(parts: list[str], host: str) -> None:
    try:
        path = normalize_path("/" + "".join(parts), HOSTS[host][0].paths)
    except BadPath:
        return
    names = FINDERS[host].find_names("GET", path)

    assert 1 <= len(names) <= 24
    assert all(len(name.owner) <= 200 and len(name.resource) <= 200 for name in names)


def test_own_patterns_replace_those_of_code_hosts() -> None:
    finder = build_finder(read_profile("gitea"), ["GET /teams/{owner}/*", "* /boards/{repository}/of/{owner}"])

    found = [
        finder.find_names(method, path)[0].resource
        for method, path in (
            ("GET", "/teams/acme/x"),
            ("POST", "/teams/acme/x"),
            ("POST", "/boards/b1/of/acme"),
            ("GET", "/api/v1/orgs/acme"),
        )
    ]

    assert found == ["acme", "", "acme/b1", ""]


def test_a_full_cache_loses_its_oldest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_CACHED_RESOURCES", 2)
    finder = ResourceFinder()

    found = [finder.find_names("GET", f"/repos/acme/r{number % 4}x")[0].resource for number in range(12)]

    assert found == [f"acme/r{number % 4}x" for number in range(12)]


@pytest.mark.parametrize(
    ("path", "is_enterprise"),
    [
        ("/repos/rich/site", True),
        ("/repos/RICH/site;v=1", True),
        ("/rich/site.git/info/refs", True),
        ("/v2/rich/site/manifests/latest", True),
        ("/user", True),
        ("/repos/acme/site", False),
        ("/repos/rich%2F..x/site", False),
        ("/repositories/43/issues", False),
        ("/repositories/44/issues", True),
        ("/enterprises/corp/audit-log", True),
    ],
)
def test_a_workflow_has_the_ceiling_of_the_account_that_each_reading_names(path: str, is_enterprise: bool) -> None:
    names = FINDERS["code-host"].find_names("GET", path)

    accounts = list_accounts(names, "rich", DIRECTORY)
    assert all(is_enterprise_account(account, DIRECTORY) for account in accounts) is is_enterprise


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
    names = [ResourceName(resource.partition("/")[0], resource)]

    assert select_organization_resource(names, caller, DIRECTORY) == expected
