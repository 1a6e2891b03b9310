"""A real Gitea behind a gateway process with the settings of docs/limits-for-your-host.md.

`make clients` builds Gitea from its published Go module. It is a black box here: its command line, its settings and its API are
documented by its project.
"""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.docs.test_limits_for_your_host import read_files
from tests.limits.decision_services import encode_basic
from tests.limits.existing.test_clients import CLIENTS
from tests.limits.hosts.gateway import GatewayCaller, run_gateway
from tests.ports import free_ports
from tests.waiting import wait_until

GITEA: Final = CLIENTS / "gitea"
"""The folder with the program `gitea`, and with the files that it reads: pages, texts, license texts."""
USER: Final = "ada"
PASSWORD: Final = "a-long-password-of-ada"
SETTINGS: Final = """
RUN_USER = {user}
WORK_PATH = {folder}

[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = {gateway}/
STATIC_ROOT_PATH = {program}
DISABLE_SSH = true
OFFLINE_MODE = true
LFS_START_SERVER = true

[database]
DB_TYPE = sqlite3
PATH = {folder}/gitea.db

[repository]
DEFAULT_BRANCH = main

[security]
INSTALL_LOCK = true
PASSWORD_HASH_ALGO = pbkdf2

[log]
MODE = console
LEVEL = Warn

[cron]
ENABLED = false
"""


class RunningGitea(GatewayCaller):
    """A real Gitea with the private repository `acme/site`, behind a gateway process. `token` is the token of its administrator."""

    def __init__(self, address: str, folder: Path, token: str, host: str) -> None:
        super().__init__(address, folder)
        self.token = token
        self._host = host

    def add_person(self, name: str) -> str:
        """Create a user who owns `acme` too, without the gateway. Return a token of this user."""
        body = {"username": name, "email": f"{name}@example.com", "password": PASSWORD, "must_change_password": False}
        call_api(self._host, f"token {self.token}", "/admin/users", body)
        teams = call_api(self._host, f"token {self.token}", "/orgs/acme/teams")
        call_api(self._host, f"token {self.token}", f"/teams/{teams[0]['id']}/members/{name}", method="PUT")
        created = call_api(
            self._host, encode_basic(name, PASSWORD), f"/users/{name}/tokens", {"name": "work", "scopes": ["all"]}
        )
        return str(created["sha1"])

    def name_remote(self, repository: str, user: str, token: str) -> str:
        """Return the address of a repository of `acme` with user and token, as git and git-lfs use it."""
        return f"{self.address.replace('//', f'//{user}:{token}@')}/acme/{repository}.git"


def _run_command(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=_environment(folder), user=_user(), text=True, timeout=120, check=True, **options
    )


def _user() -> str | None:
    """Return the user of Gitea, which refuses to run as root."""
    return "nobody" if os.geteuid() == 0 else None


def _environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}


def _create_token(program: list[str], folder: Path) -> str:
    """Create the user, and return a token of this user with all rights."""
    names = ["--username", USER, "--password", PASSWORD, "--email", "ada@example.com"]
    _run_command([*program, "migrate"], folder, capture_output=True)
    _run_command(
        [*program, "admin", "user", "create", "--admin", "--must-change-password=false", *names],
        folder,
        capture_output=True,
    )
    created = _run_command(
        [*program, "admin", "user", "generate-access-token", "--raw", "--username", USER, "--scopes", "all"],
        folder,
        stdout=subprocess.PIPE,
    )
    return created.stdout.split()[-1]


def call_api(host: str, authorization: str, path: str, body: object = None, *, method: str | None = None) -> Any:
    """Call the API of Gitea without the gateway, and return its reply. Without `method`, a request with a body is a POST."""
    headers = {"Authorization": authorization, "Content-Type": "application/json"}
    data = msgspec.json.encode(body) if body is not None else None
    request = urllib.request.Request(f"{host}/api/v1{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return msgspec.json.decode(reply.read() or b"null")


@contextmanager
def run_gitea(folder: Path, rules: str = "") -> Iterator[RunningGitea]:
    """Run Gitea, and `wharf gateway` with the settings of the documentation and these rules in front of it."""
    # Gitea runs as another user, for whom the folders of tests are closed.
    with tempfile.TemporaryDirectory(prefix="wharf-gitea-") as home, _run_gitea(folder, Path(home), rules) as running:
        yield running


@contextmanager
def _run_gitea(folder: Path, home: Path, rules: str) -> Iterator[RunningGitea]:
    port, gateway_port = free_ports(2)
    gateway = f"http://127.0.0.1:{gateway_port}"
    settings_file = home / "app.ini"
    user = _user() or pwd.getpwuid(os.geteuid()).pw_name
    settings_file.write_text(SETTINGS.format(folder=home, port=port, gateway=gateway, program=GITEA, user=user))
    if _user():
        for path in (home, settings_file):
            shutil.chown(path, "nobody")
    program = [str(GITEA / "gitea"), "--config", str(settings_file), "--work-path", str(home)]
    token = _create_token(program, home)
    with (folder / "gitea.txt").open("wb") as output:
        host = subprocess.Popen(
            [*program, "web"], cwd=home, env=_environment(home), user=_user(), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: _is_ready(address), what="Gitea is ready", within_s=60.0)
        call_api(address, f"token {token}", "/orgs", {"username": "acme"})
        call_api(address, f"token {token}", "/orgs/acme/repos", {"name": "site", "private": True})
        settings = read_files()["limits.toml"]
        settings = re.sub(r"127\.0\.0\.1:3000", f"127.0.0.1:{port}", settings)
        settings = re.sub(r"127\.0\.0\.1:8080", f"127.0.0.1:{gateway_port}", settings)
        with run_gateway(folder, f'profile = "gitea"\n{rules}', settings) as gateway_address:
            yield RunningGitea(gateway_address, folder, token, address)
    finally:
        host.terminate()
        host.wait(timeout=60)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/healthz", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
