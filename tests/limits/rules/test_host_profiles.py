"""The profiles of Gitea, Forgejo and GitLab: each row is a request of the host's API, pages, git, files or runners.

Each pattern of a profile matches a row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.limits.builders import a_user, anonymous
from wharf.limits.core.paths import split_path
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.route import find_path_below, parse_pattern
from wharf.limits.core.rule import EndpointRule, Rule, RuleSet
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.rules import Severity, lint_rules
from wharf.limits.rules.rules_file import read_profile


class Row(NamedTuple):
    """A request of a host, and how a profile treats it."""

    request: str
    bucket: str
    traits: str = ""
    """`content`, `files`, `large_files`, `waiting` or `free`, and names of secondary limits with patterns."""


REPOSITORY = "/api/v1/repos/acme/site"
GITEA = [
    Row("GET /api/v1/repos/search", "search"),
    Row("GET /api/v1/repos/issues/search", "search"),
    Row("GET /api/v1/users/search", "search"),
    Row("GET /api/v1/topics/search", "search"),
    Row("GET /api/v1/orgs/acme/teams/search", "search"),
    Row("GET /explore/code", "search"),
    Row("GET /acme/site/search", "search"),
    Row("PUT /api/packages/acme/generic/tool/1.0/tool.bin", "packages", "files"),
    Row("GET /api/packages/acme/npm/left-pad", "packages", "files"),
    Row("GET /v2/", "packages", "files"),
    Row("GET /v2/acme/site/manifests/latest", "packages", "files"),
    Row("POST /acme/site.git/info/lfs/objects/batch", "lfs", "large_files"),
    Row("PUT /acme/site.git/info/lfs/objects/0a1b/7", "lfs", "large_files"),
    Row("GET /acme/site/info/lfs/locks", "lfs", "large_files"),
    Row("GET /acme/site.git/info/refs", "git", "files"),
    Row("POST /acme/site.git/git-receive-pack", "git", "files"),
    Row("GET /acme/site/info/refs", "git", "files"),
    Row("POST /acme/site/git-upload-pack", "git", "files"),
    Row("POST /acme/site/git-receive-pack", "git", "files"),
    Row(f"GET {REPOSITORY}/raw/docs/a.md", "raw", "files"),
    Row(f"GET {REPOSITORY}/media/a.bin", "raw", "files"),
    Row(f"GET {REPOSITORY}/archive/main.zip", "raw", "files"),
    Row(f"GET {REPOSITORY}/actions/artifacts/7/zip", "raw", "files"),
    Row("GET /acme/site/raw/branch/main/a.md", "raw", "files"),
    Row("GET /acme/site/media/branch/main/a.bin", "raw", "files"),
    Row("GET /acme/site/archive/main.tar.gz", "raw", "files"),
    Row("GET /acme/site/releases/download/v1/a.zip", "raw", "files"),
    Row("GET /acme/site/attachments/9c5b94b1-35ad-49bb-b118-8e8fc24abf80", "raw", "files"),
    Row("GET /attachments/9c5b94b1-35ad-49bb-b118-8e8fc24abf80", "raw", "files"),
    Row("POST /api/actions/runner.v1.RunnerService/FetchTask", "runners", "files"),
    Row("PUT /api/actions_pipeline/_apis/pipelines/workflows/7/artifacts", "runners", "files"),
    Row("POST /twirp/github.actions.results.api.v1.ArtifactService/CreateArtifact", "runners", "files"),
    Row("POST /acme/site/actions/runs/7/jobs/0", "job_logs"),
    Row("GET /assets/css/index.css", "assets", "files"),
    Row("GET /avatars/0a1b2c3d", "assets", "files"),
    Row("GET /repo-avatars/0a1b2c3d", "assets", "files"),
    Row("GET /user/avatar/ada/64", "assets", "files"),
    Row("GET /favicon.ico", "assets", "files"),
    Row("GET /robots.txt", "assets", "files"),
    Row("GET /", "web"),
    Row("GET /acme/site/src/branch/main", "web"),
    Row("GET /user/events", "web", "waiting"),
    Row("POST /user/login", "web", "sign_in"),
    Row("POST /user/sign_up", "web", "sign_in"),
    Row("POST /user/two_factor", "web", "sign_in"),
    Row("POST /user/forgot_password", "web", "sign_in"),
    Row("POST /login/oauth/access_token", "web", "sign_in"),
    Row("GET /api/v1/rate_limit", "core", "free"),
    Row("GET /api/v1/version", "core"),
    Row("GET /api/v1/user", "core"),
    Row(f"GET {REPOSITORY}/issues", "core"),
    Row(f"PATCH {REPOSITORY}/issues/7", "core"),
    Row(f"GET {REPOSITORY}/contents/a.md", "core"),
    *(
        Row(request, "core", "content")
        for request in (
            f"POST {REPOSITORY}/issues",
            f"POST {REPOSITORY}/issues/7/comments",
            f"POST {REPOSITORY}/pulls",
            f"POST {REPOSITORY}/pulls/7/merge",
            f"POST {REPOSITORY}/pulls/7/reviews",
            f"POST {REPOSITORY}/pulls/7/reviews/9",
            f"POST {REPOSITORY}/pulls/7/requested_reviewers",
            f"POST {REPOSITORY}/releases",
            f"POST {REPOSITORY}/forks",
            f"POST {REPOSITORY}/generate",
            f"POST {REPOSITORY}/wiki/new",
            f"PUT {REPOSITORY}/collaborators/bob",
            "POST /api/v1/repos/migrate",
            "POST /api/v1/user/repos",
            "POST /api/v1/orgs",
            "POST /api/v1/orgs/acme/repos",
            "POST /api/v1/org/acme/repos",
        )
    ),
    *(
        Row(request, "web", "content")
        for request in (
            "POST /acme/site/issues/new",
            "POST /acme/site/issues/7/comments",
            "POST /acme/site/compare/main...feature",
            "POST /acme/site/pulls/7/merge",
            "POST /acme/site/pulls/7/files/reviews/comments",
            "POST /acme/site/pulls/7/files/reviews/submit",
            "POST /acme/site/releases/new",
            "POST /acme/site/fork",
            "POST /repo/create",
            "POST /repo/migrate",
            "POST /org/create",
        )
    ),
]
FORGEJO = [
    *GITEA,
    Row("GET /api/forgejo/v1/version", "forgejo_api"),
    Row("POST /report_abuse", "web", "content"),
]
PROJECT = "/api/v4/projects/acme%2Fweb%2Fsite"
GITLAB = [
    Row("GET /api/v4/search", "search"),
    Row("GET /api/v4/groups/7/search", "search"),
    Row("GET /api/v4/groups/7/-/search", "search"),
    Row(f"GET {PROJECT}/search", "search"),
    Row(f"GET {PROJECT}/-/search", "search"),
    Row("GET /search", "search"),
    Row("GET /search/autocomplete", "search"),
    Row("POST /api/graphql", "graphql"),
    Row("POST /api/v4/jobs/request", "runners", "files waiting"),
    Row("PUT /api/v4/jobs/7", "runners", "files"),
    Row("PATCH /api/v4/jobs/7/trace", "runners", "files"),
    Row("POST /api/v4/runners/verify", "runners", "files"),
    Row("GET /api/v4/packages/npm/left-pad", "packages", "files"),
    Row(f"PUT {PROJECT}/packages/generic/tool/1.0/tool.bin", "packages", "files"),
    Row("GET /api/v4/groups/7/-/packages/pypi/simple/tool", "packages", "files"),
    Row("GET /v2/", "packages", "files"),
    Row("GET /v2/acme/site/manifests/latest", "packages", "files"),
    Row("GET /jwt/auth", "packages", "files"),
    Row("POST /acme/web/site.git/info/lfs/objects/batch", "lfs", "large_files"),
    Row("PUT /acme/site.git/gitlab-lfs/objects/0a1b/7", "lfs", "large_files"),
    Row("GET /acme/web/deep/site.git/info/refs", "git", "files"),
    Row("POST /acme/site.git/git-receive-pack", "git", "files"),
    Row("GET /acme/site/info/refs", "git", "files"),
    Row("POST /acme/site/git-upload-pack", "git", "files"),
    Row("POST /acme/site/git-receive-pack", "git", "files"),
    Row(f"GET {PROJECT}/repository/files/docs%2Fa.md/raw", "raw", "files"),
    Row(f"GET {PROJECT}/repository/blobs/0a1b/raw", "raw", "files"),
    Row(f"GET {PROJECT}/repository/archive", "raw", "files"),
    Row(f"GET {PROJECT}/repository/archive.zip", "raw", "files"),
    Row(f"GET {PROJECT}/repository/archive.tar", "raw", "files"),
    Row(f"GET {PROJECT}/repository/archive.tar.gz", "raw", "files"),
    Row(f"GET {PROJECT}/repository/archive.tar.bz2", "raw", "files"),
    Row(f"GET {PROJECT}/jobs/artifacts/main/download", "raw", "files"),
    Row(f"GET {PROJECT}/jobs/7/artifacts", "raw", "files"),
    Row(f"GET {PROJECT}/jobs/7/artifacts/a/b.txt", "raw", "files"),
    Row(f"GET {PROJECT}/snippets/7/raw", "raw", "files"),
    Row("GET /api/v4/snippets/7/raw", "raw", "files"),
    Row("GET /acme/web/site/-/raw/main/a.md", "raw", "files"),
    Row("GET /acme/site/-/archive/main/site-main.zip", "raw", "files"),
    Row("GET /acme/site/-/jobs/7/artifacts/download", "raw", "files"),
    Row("GET /acme/site/-/releases/v1/downloads/a.zip", "raw", "files"),
    Row("GET /assets/application.js", "assets", "files"),
    Row("GET /uploads/-/system/user/avatar/7/avatar.png", "assets", "files"),
    Row("GET /-/emojis/1/emojis.json", "assets", "files"),
    Row("GET /favicon.ico", "assets", "files"),
    Row("GET /robots.txt", "assets", "files"),
    Row("GET /", "web"),
    Row("GET /acme/site/-/blob/main/a.md", "web"),
    Row("GET /-/cable", "web"),
    Row("POST /users", "web", "sign_in"),
    Row("POST /users/sign_in", "web", "sign_in"),
    Row("POST /users/password", "web", "sign_in"),
    Row("POST /oauth/token", "web", "sign_in"),
    Row("GET /api/v4/rate_limit", "core", "free"),
    Row("GET /api/v4/user", "core"),
    Row("GET /api/v4/projects", "core"),
    Row(f"GET {PROJECT}/issues", "core"),
    Row(f"PUT {PROJECT}/issues/7", "core"),
    Row(f"GET {PROJECT}/packages", "core"),
    *(
        Row(request, "core", "content")
        for request in (
            "POST /api/v4/projects",
            f"POST {PROJECT}/fork",
            f"POST {PROJECT}/issues",
            f"POST {PROJECT}/issues/7/notes",
            f"POST {PROJECT}/issues/7/discussions",
            f"POST {PROJECT}/issues/7/discussions/0a1b/notes",
            f"POST {PROJECT}/merge_requests",
            f"PUT {PROJECT}/merge_requests/7/merge",
            f"POST {PROJECT}/merge_requests/7/notes",
            f"POST {PROJECT}/merge_requests/7/discussions",
            f"POST {PROJECT}/merge_requests/7/discussions/0a1b/notes",
            f"POST {PROJECT}/repository/commits/0a1b/comments",
            f"POST {PROJECT}/repository/commits/0a1b/discussions",
            f"POST {PROJECT}/snippets",
            f"POST {PROJECT}/snippets/7/notes",
            f"POST {PROJECT}/releases",
            f"POST {PROJECT}/wikis",
            f"POST {PROJECT}/members",
            f"POST {PROJECT}/invitations",
            "POST /api/v4/groups",
            "POST /api/v4/groups/7/epics",
            "POST /api/v4/groups/7/members",
            "POST /api/v4/groups/7/invitations",
            "POST /api/v4/snippets",
        )
    ),
    *(
        Row(request, "web", "content")
        for request in (
            "POST /acme/web/site/-/issues",
            "POST /acme/site/-/merge_requests",
            "POST /acme/site/-/releases",
            "POST /acme/site/-/forks",
            "POST /acme/site/notes",
            "POST /projects",
            "POST /groups",
        )
    ),
]
ROWS = {"gitea": GITEA, "forgejo": FORGEJO, "gitlab": GITLAB}
RULES = {name: read_profile(name) for name in ROWS}
BOOKS = {name: Rulebook(rules) for name, rules in RULES.items()}
CASES = [pytest.param(name, row, id=f"{name}: {row.request}") for name, rows in ROWS.items() for row in rows]


def describe_traits(book: Rulebook, method: str, path: str) -> str:
    """Return the traits of a request, as a row has them."""
    endpoint = book.get_endpoint(method, path)
    traits = [
        *(["content"] if endpoint.content else []),
        *([endpoint.interface.value] if endpoint.interface.value != "rest" else []),
        *(["waiting"] if endpoint.is_waiting else []),
        *(["free"] if endpoint.is_free else []),
        *(["sign_in"] if "sign_in" in {rule.name for rule in endpoint.secondary_rules} else []),
    ]
    return " ".join(traits)


@pytest.mark.parametrize(("profile", "row"), CASES)
def test_a_request_of_a_host_has_the_bucket_and_the_traits_of_its_row(profile: str, row: Row) -> None:
    method, _, path = row.request.partition(" ")
    plan = BOOKS[profile].get_plan(RequestFacts("id", method, path, a_user()))

    assert (plan.resource, describe_traits(BOOKS[profile], method, path)) == (row.bucket, row.traits)


@pytest.mark.parametrize(("profile", "row"), CASES)
def test_only_requests_of_the_api_that_transfer_no_files_are_charged_points_and_cpu_time(
    profile: str, row: Row
) -> None:
    method, _, path = row.request.partition(" ")
    plan = BOOKS[profile].get_plan(RequestFacts("id", method, path, a_user()))
    is_computation = find_path_below(RULES[profile].base_path, path) is not None and "files" not in row.traits
    charged = {charge.name for charge in plan.charges} & {"points", "cpu"}

    if path == "/api/graphql":
        assert charged == {"cpu"}
    elif row.traits == "free":
        assert charged == {"points"}
    else:
        assert charged == ({"points", "cpu"} if is_computation else set())


def iter_patterns(rules: RuleSet) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each pattern of a profile."""
    entries: list[Rule | EndpointRule] = [*rules.rules, *rules.endpoints]
    for entry in entries:
        for text in entry.match:
            yield entry.name if isinstance(entry, Rule) else "endpoint", text


@pytest.mark.parametrize("profile", ROWS)
def test_each_pattern_of_a_profile_matches_a_row(profile: str) -> None:
    def is_matched(text: str) -> bool:
        pattern = parse_pattern(text)
        for row in ROWS[profile]:
            method, _, path = row.request.partition(" ")
            is_outside = find_path_below(RULES[profile].base_path, path) is None
            if (
                pattern.is_outside is is_outside
                and pattern.matches_method(method)
                and pattern.matches_path(split_path(path.rstrip("/") or "/"))
            ):
                return True
        return False

    assert [entry for entry in iter_patterns(RULES[profile]) if not is_matched(entry[1])] == []


@pytest.mark.parametrize("profile", ROWS)
def test_lint_finds_no_mistake_in_the_profile_of_a_host(profile: str) -> None:
    assert [str(finding) for finding in lint_rules(RULES[profile]) if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("profile", ROWS)
def test_every_refusal_of_a_host_profile_has_the_status_that_all_clients_know(profile: str) -> None:
    statuses = {rule.name: rule.status for rule in RULES[profile].rules if rule.name not in ("lfs", "assets")}

    assert set(statuses.values()) == {429}


@pytest.mark.parametrize("profile", ROWS)
def test_requests_of_an_hour_in_which_nobody_hurries_fit_the_limits_of_one_address(profile: str) -> None:
    """An office behind one address: 100 people who read a page every minute, and 20 clones, 50 runners and 5 installs."""
    per_minute = {"web": 100, "git": 20 * 4, "runners": 50 * 30 + 10 * 60, "packages": 5 * 200}
    ceilings = {rule.name: rule.get_ceiling(anonymous()) for rule in RULES[profile].rules if rule.name in per_minute}

    assert {name: ceilings[name] >= count for name, count in per_minute.items()} == dict.fromkeys(per_minute, True)


@pytest.mark.parametrize(("profile", "path"), [("gitea", "/user/login"), ("gitlab", "/users/sign_in")])
def test_attempts_to_sign_in_are_limited_also_with_a_credential(profile: str, path: str) -> None:
    plans = [BOOKS[profile].get_plan(RequestFacts("id", "POST", path, caller)) for caller in (a_user(), anonymous())]

    charges = [next(charge for charge in plan.charges if charge.name == "sign_in") for plan in plans]

    assert [charge.ceiling for charge in charges] == [30, 30]


def test_forgejo_has_every_rule_of_gitea() -> None:
    names = {rule.name for rule in RULES["forgejo"].rules}

    assert names - {rule.name for rule in RULES["gitea"].rules} == {"forgejo_api"}
    assert {rule.name for rule in RULES["gitea"].rules} - names == set()
