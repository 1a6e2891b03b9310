"""A real Gitea behind the gateway: normal use is never refused, and abuse is refused exactly."""

import http.cookiejar
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.limits.existing.gitea_host import PASSWORD, USER, RunningGitea, run_gitea
from tests.limits.existing.test_clients import GIT_LFS, PYTHON, run
from tests.limits.existing.test_host_clients import PY_GITEA
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.rules.rules_file import read_profile

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
    """Create a private repository by the API, through the gateway. Return its address for the administrator."""
    body = f'{{"name": "{name}", "private": true}}'.encode()
    path, kind = "/api/v1/orgs/acme/repos", "application/json"
    assert gitea.send(path, method="POST", token=gitea.token, body=body, content_type=kind).status == 201
    return gitea.name_remote(name, USER, gitea.token)


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
    kind = "application/octet-stream"
    published = gitea.send(path, method="PUT", token=gitea.token, body=package, content_type=kind)
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

    def sign_in(self, name: str = USER) -> None:
        """Sign in with the form of the host."""
        _, page = self.open("/user/login")
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
        path, _ = self.open("/user/login", {**hidden, "user_name": name, "password": PASSWORD})
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
    # Podman takes only short paths for this folder.
    state = tempfile.mkdtemp(prefix="wharf-podman-")
    podman = ["podman", "--root", f"{state}/images", "--runroot", f"{state}/run", "--storage-driver", "vfs"]
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
        shutil.rmtree(state)


CONTENT = {
    "comments",
    "forks",
    "generate",
    "issues",
    "merge",
    "migrate",
    "orgs",
    "pulls",
    "releases",
    "repos",
    "reviews",
}
"""The last parts of the paths of the host's API where a POST creates content."""


def test_the_profile_counts_all_content_that_the_api_of_the_host_creates(gitea: RunningGitea) -> None:
    """The host itself lists the paths of its API. An administrator who creates something for others is not counted."""
    description = json.loads(gitea.send("/swagger.v1.json").body)
    paths = [path for path, methods in description["paths"].items() if "post" in methods]
    creating = [path for path in paths if path.rpartition("/")[2] in CONTENT and not path.startswith("/admin/")]
    book = Rulebook(read_profile("gitea"))
    examples = [description["basePath"] + re.sub(r"{\w+}", "7", path) for path in creating]

    assert len(examples) >= 12
    assert [path for path in examples if not book.get_endpoint("POST", path).content] == []


@pytest.mark.parametrize(("has_token", "ceiling"), [(True, 30), (False, 10)], ids=["with a token", "without a token"])
def test_searches_above_the_limit_are_refused_exactly(tmp_path: Path, has_token: bool, ceiling: int) -> None:
    with run_gitea(tmp_path) as running:
        token = running.token if has_token else None
        # The host shows with the first request that the token is valid.
        assert running.send("/api/v1/user", token=token).status == (200 if token else 401)
        replies = [running.send("/api/v1/repos/search?q=site", token=token) for _ in range(ceiling + 5)]

    assert [reply.status for reply in replies] == [200] * ceiling + [429] * 5
    assert {reply.headers["x-ratelimit-resource"] for reply in replies} == {"search"}
    assert len(running.list_refusals()) == 5


def test_invented_tokens_gain_no_searches(tmp_path: Path) -> None:
    with run_gitea(tmp_path) as running:
        replies = [running.send("/api/v1/repos/search?q=site", token=f"{number:040x}") for number in range(15)]

    assert Counter(reply.status for reply in replies) == {401: 10, 429: 5}


PEOPLE = 8
OFFICE_MINUTES = float(os.environ.get("WHARF_OFFICE_MINUTES", "1"))
"""How long the office works. An hour of it is described in docs/limits-for-your-host.md."""
SCRIPT_OF_A_PERSON = """
import sys, gitea
host, repository = gitea.Gitea(sys.argv[1], sys.argv[2]), sys.argv[3]
for _ in range(5):
    host.get_user()
    host.requests_get(f"/repos/acme/{repository}/issues")
issue = gitea.Repository.request(host, "acme", repository).create_issue("an issue", assignees=[])
host.requests_get("/repos/search", params={"q": repository})
"""


class Office:
    """People with one address, each with an open browser, git, and a script that searches and creates content."""

    def __init__(self, gitea: RunningGitea) -> None:
        self._gitea = gitea
        self._ends_s = time.monotonic() + OFFICE_MINUTES * 60.0
        self._is_closed = threading.Event()

    def work(self, name: str, folder: Path) -> int:
        """Work as one person until the office closes. Return the number of rounds."""
        try:
            return self._work(name, folder)
        except BaseException:
            self._is_closed.set()
            raise

    def _work(self, name: str, folder: Path) -> int:
        gitea, home = self._gitea, make_git_home(folder)
        token, browser = gitea.add_person(name), Browser(gitea.address)
        repository, work = f"work-of-{name}", folder / "work"
        create_repository(gitea, repository)
        remote = gitea.name_remote(repository, name, token)

        def git(folder: Path, *words: str) -> None:
            run("git", *words, folder=folder, **home)

        work.mkdir()
        git(work, "init", "-q")
        browser.sign_in(name)
        for rounds in count(1):
            next_round_s = min(time.monotonic() + 15.0, self._ends_s)
            (work / "notes.txt").write_text(f"round {rounds}\n")
            git(work, "add", ".")
            git(work, "commit", "-q", "-m", f"round {rounds}")
            git(work, "push", "-q", remote, "main")
            for path in ("/notifications", f"/acme/{repository}", f"/acme/{repository}/src/branch/main/notes.txt"):
                browser.open(path)
            git(folder, "clone", "-q", "--depth=1", remote, "clone")
            shutil.rmtree(folder / "clone")
            run(PYTHON, "-c", SCRIPT_OF_A_PERSON, gitea.address, token, repository)
            if self._is_closed.wait(max(0.0, next_round_s - time.monotonic())) or time.monotonic() >= self._ends_s:
                return rounds
        raise AssertionError("counting has ended")


def test_an_office_behind_one_address_works_without_a_refusal(tmp_path: Path) -> None:
    names = [f"person{number}" for number in range(PEOPLE)]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
    with run_gitea(tmp_path) as running, ThreadPoolExecutor(PEOPLE) as people:
        rounds = list(people.map(Office(running).work, names, folders))
    decisions = running.read_decisions()
    print(f"{sum(rounds)} rounds of {PEOPLE} people in {OFFICE_MINUTES:g} minutes: {len(decisions):,} requests")

    assert len(rounds) == PEOPLE
    assert running.list_refusals() == []
