"""A real Gitea behind the gateway: normal use is never refused, and abuse is refused exactly."""

import http.cookiejar
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.limits.existing.gitea_host import PASSWORD, USER, RunningGitea, run_gitea
from tests.limits.existing.test_clients import GIT_LFS, PYTHON, run
from tests.limits.existing.test_host_clients import PY_GITEA

PRIVATE_PAGES = ["/notifications", "/issues", "/pulls", "/user/settings", "/acme/site/issues", "/acme/site"]


@pytest.fixture(scope="module")
def gitea(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGitea]:
    """One host for all tests that use it as intended. At the end, the gateway must have refused nothing."""
    with run_gitea(tmp_path_factory.mktemp("host")) as running:
        yield running
    assert running.list_refusals() == []


def make_git_home(folder: Path) -> dict[str, str]:
    """Return the environment of a user of git and git-lfs whose home is this folder."""
    (folder / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.com\n[init]\ndefaultBranch = main\n")
    path = f"{GIT_LFS}:{os.environ['PATH']}"
    return {"HOME": str(folder), "PATH": path, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}


def create_repository(gitea: RunningGitea, name: str) -> str:
    """Create a private repository by the API, through the gateway. Return its address with the token."""
    body = f'{{"name": "{name}", "private": true}}'.encode()
    request = urllib.request.Request(f"{gitea.address}/api/v1/orgs/acme/repos", body)
    request.add_header("Authorization", f"token {gitea.token}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 201
    return f"{gitea.address_with_token}/acme/{name}.git"


def test_git_pushes_clones_and_pulls_a_private_repository(gitea: RunningGitea, tmp_path: Path) -> None:
    remote, home, work = create_repository(gitea, "sources"), make_git_home(tmp_path), tmp_path / "work"
    content = os.urandom(50_000_000)
    work.mkdir()
    run("git", "init", "-q", folder=work, **home)
    (work / "data.bin").write_bytes(content)
    run("git", "add", ".", folder=work, **home)
    run("git", "commit", "-q", "-m", "a file of 50 MB", folder=work, **home)
    run("git", "push", "-q", remote, "main", folder=work, **home)
    run("git", "clone", "-q", remote, "clone", folder=tmp_path, **home)
    run("git", "pull", "-q", folder=tmp_path / "clone", **home)

    assert (tmp_path / "clone" / "data.bin").read_bytes() == content


def test_git_lfs_pushes_and_pulls_large_files(gitea: RunningGitea, tmp_path: Path) -> None:
    remote, home, work = create_repository(gitea, "large"), make_git_home(tmp_path), tmp_path / "work"
    work.mkdir()
    run("git", "lfs", "install", folder=work, **home)
    run("git", "init", "-q", folder=work, **home)
    run("git", "lfs", "track", "*.bin", folder=work, **home)
    for number in range(20):
        (work / f"{number}.bin").write_bytes(bytes([number]) * 1_000_000)
    run("git", "add", ".", folder=work, **home)
    run("git", "commit", "-q", "-m", "large files", folder=work, **home)
    run("git", "remote", "add", "origin", remote, folder=work, **home)
    run("git", "push", "-q", "origin", "main", folder=work, **home)
    run("git", "clone", "-q", remote, "clone", folder=tmp_path, **home)

    assert [(tmp_path / "clone" / f"{number}.bin").read_bytes()[:2] for number in range(20)] == [
        bytes([number]) * 2 for number in range(20)
    ]


def test_an_api_client_reads_searches_and_creates_issues(gitea: RunningGitea) -> None:
    output = run(PYTHON, "-c", PY_GITEA, gitea.address, gitea.token, "20")

    assert Counter(output.split())[USER] == 20


def test_a_package_is_published_and_installed(gitea: RunningGitea) -> None:
    package, path = os.urandom(3_000_000), "/api/packages/acme/generic/tool/1.0/tool.bin"
    published = gitea.send(path, method="PUT", token=gitea.token, body=package)
    installed = gitea.send(path, token=gitea.token)

    assert (published.status, installed.status, installed.body == package) == (201, 200, True)


class Browser:
    """A browser without scripts: it keeps cookies, follows redirects, and sends forms."""

    def __init__(self, address: str) -> None:
        self._address = address
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)

    def open(self, path: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        """Return the path at which the browser arrives, and the page."""
        body = urllib.parse.urlencode(form).encode() if form is not None else None
        with self._opener.open(self._address + path, body, timeout=60) as reply:
            return urllib.parse.urlsplit(reply.url).path, reply.read().decode()

    def sign_in(self) -> None:
        """Sign in with the form of the host."""
        _, page = self.open("/user/login")
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
        path, _ = self.open("/user/login", {**hidden, "user_name": USER, "password": PASSWORD})
        assert path == "/"


def test_a_browser_signs_in_and_reads_pages_as_a_caller_of_its_own(gitea: RunningGitea) -> None:
    browser = Browser(gitea.address)
    browser.sign_in()

    assert [browser.open(path)[0] for path in PRIVATE_PAGES] == PRIVATE_PAGES
    last = gitea.wait_for_decision(f"GET {PRIVATE_PAGES[-1]}")
    assert (last["resource"], last["caller"].partition(":")[0]) == ("web", "credential")


def test_a_container_is_pushed_and_pulled(gitea: RunningGitea, tmp_path: Path) -> None:
    registry = gitea.address.removeprefix("http://")
    image = f"{registry}/acme/tool:1"
    (tmp_path / "file").write_bytes(os.urandom(1_000_000))
    run("tar", "-cf", "root.tar", "file", folder=tmp_path)
    storage = ["--root", str(tmp_path / "images"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]
    podman = ["podman", *storage]
    access = partial(run, REGISTRY_AUTH_FILE=str(tmp_path / "auth.json"))
    try:
        run(*podman, "import", str(tmp_path / "root.tar"), image)
        access(*podman, "login", "--tls-verify=false", "-u", USER, "-p", gitea.token, registry)
        access(*podman, "push", "--tls-verify=false", image)
        run(*podman, "rmi", image)
        access(*podman, "pull", "--tls-verify=false", image)
        assert image in run(*podman, "images", "--format", "{{.Repository}}:{{.Tag}}").split()
    finally:
        subprocess.run([*podman, "system", "reset", "--force"], capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("path", "ceiling", "resource"),
    [("/api/v1/repos/search?q=site", 30, "search"), ("/explore/repos?q=site", 10, "search")],
    ids=["token", "address"],
)
def test_searches_above_the_limit_are_refused_exactly(tmp_path: Path, path: str, ceiling: int, resource: str) -> None:
    with run_gitea(tmp_path) as running:
        token = running.token if path.startswith("/api") else None
        # The host shows with the first request that the token is valid.
        assert running.send("/api/v1/user", token=token).status == (200 if token else 401)
        replies = [running.send(path, token=token) for _ in range(ceiling + 5)]

    assert [reply.status for reply in replies] == [200] * ceiling + [429] * 5
    assert {reply.headers["x-ratelimit-resource"] for reply in replies} == {resource}
    assert len(running.list_refusals()) == 5


def test_invented_tokens_gain_no_searches(tmp_path: Path) -> None:
    with run_gitea(tmp_path) as running:
        replies = [running.send("/api/v1/repos/search?q=site", token=f"{number:040x}") for number in range(15)]

    assert Counter(reply.status for reply in replies) == {401: 10, 429: 5}
