"""Unmodified clients of Gitea and GitLab, and git-lfs, through the gateway: no refusal in normal use, and waits under limits."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.limits.existing.test_clients import GIT_LFS, PYTHON, run
from tests.limits.hosts.code_host import TOKEN, run_code_host

PY_GITEA = """
import sys, gitea
host = gitea.Gitea(sys.argv[1], sys.argv[2])
print(host.get_version())
for number in range(int(sys.argv[3])):
    print(host.get_user().username)
    repository = gitea.Repository.request(host, "acme", "site")
    repository.create_issue("issue %d" % number, assignees=[])
    print(host.requests_get("/repos/search", params={"q": "site"})["ok"])
    print(len(host.requests_get("/repos/acme/site/issues")))
"""
PYTHON_GITLAB = """
import sys, gitlab
host = gitlab.Gitlab(sys.argv[1], **{sys.argv[4]: sys.argv[2]})
host.auth()
for number in range(int(sys.argv[3])):
    print(host.user.username)
    project = host.projects.get("acme/site")
    issue = project.issues.create({"title": "issue %d" % number})
    issue.notes.create({"body": "a comment"})
    print(host.search("projects", "site"))
    print(len(project.issues.list(get_all=False)))
    print(project.files.raw("docs/a.md", ref="main"))
"""
SHORT_CORE = '[[rule]]\nname = "core"\nwindow = "3s"\nceiling = { credential = 5, none = 5 }\n'
SHORT_CONTENT = '[[rule]]\nname = "content"\nwindow = "3s"\nceiling = 2\n'


def test_a_client_of_gitea_works_without_a_refusal(tmp_path: Path) -> None:
    with run_code_host(tmp_path, "gitea") as running:
        output = run(PYTHON, "-c", PY_GITEA, running.address, TOKEN, "20")

    assert output.split()[:1] == ["1.24.0"]
    assert Counter(output.split())["ada"] == 20
    assert (len(running.host.issues), running.list_refusals()) == (20, [])
    assert Counter(entry["resource"] for entry in running.read_decisions()).keys() == {"core", "search"}


@pytest.mark.parametrize("carrier", ["private_token", "oauth_token"])
def test_a_client_of_gitlab_works_without_a_refusal(tmp_path: Path, carrier: str) -> None:
    with run_code_host(tmp_path, "gitlab") as running:
        output = run(PYTHON, "-c", PYTHON_GITLAB, running.address, TOKEN, "20", carrier)

    assert Counter(output.split())["ada"] == 20
    assert (len(running.host.issues), running.list_refusals()) == (20, [])
    assert Counter(entry["resource"] for entry in running.read_decisions()).keys() == {"core", "search", "raw"}


@pytest.mark.parametrize("rules", [SHORT_CORE, SHORT_CONTENT], ids=["primary", "secondary"])
def test_a_client_of_gitlab_waits_for_a_limit_and_finishes(tmp_path: Path, rules: str) -> None:
    with run_code_host(tmp_path, "gitlab", rules) as running:
        output = run(PYTHON, "-c", PYTHON_GITLAB, running.address, TOKEN, "2", "oauth_token")

    assert Counter(output.split())["ada"] == 2
    assert len(running.host.issues) == 2
    # Each refusal is followed by a wait until the window ends, so no request is refused twice.
    refusals = running.list_refusals()
    assert 1 <= len(refusals) <= 2


@pytest.mark.parametrize("profile", ["gitea", "forgejo", "gitlab"])
def test_git_lfs_pushes_and_pulls_large_files_without_a_refusal(tmp_path: Path, profile: str) -> None:
    count = 12
    home = {
        "HOME": str(tmp_path),
        "PATH": f"{GIT_LFS}:{os.environ['PATH']}",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    work = tmp_path / "work"
    work.mkdir()
    with run_code_host(tmp_path, profile) as running:
        remote = f"{running.address_with_token}/acme/site.git"

        def git(folder: Path, *words: str) -> str:
            return run("git", *words, folder=folder, **home)

        git(work, "config", "--global", "user.email", "ada@example.com")
        git(work, "config", "--global", "user.name", "Ada")
        git(work, "lfs", "install")
        git(work, "init", "-q", "-b", "main")
        git(work, "lfs", "track", "*.bin")
        for number in range(count):
            (work / f"{number}.bin").write_bytes(bytes([number]) * 100_000)
        git(work, "add", ".")
        git(work, "commit", "-q", "-m", "large files")
        git(work, "remote", "add", "origin", remote)
        git(work, "push", "-q", "origin", "main")
        git(tmp_path, "clone", "-q", remote, "clone")

    assert len(running.host.objects) == count
    assert [(tmp_path / "clone" / f"{number}.bin").stat().st_size for number in range(count)] == [100_000] * count
    assert running.list_refusals() == []
    assert {entry["resource"] for entry in running.read_decisions()} == {"git", "lfs"}
