"""Unmodified existing clients with small limits: they recognize both kinds of limit, wait and finish."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.limits.existing.host import TOKEN, LimitedHost, run_limited_host

CLIENTS = Path(os.environ["WHARF_CLIENTS"]).resolve()
PYTHON = CLIENTS / "python" / "bin" / "python"
GIT_LFS = CLIENTS / "lfs" / "usr" / "bin"

PRIMARY = '[[rule]]\nname = "core"\nwindow = "3s"\nceiling = { credential = 3, none = 3 }\n'
SECONDARY = '[[rule]]\nname = "points"\nwindow = "3s"\nceiling = 5\n'
CONTENT = '[[rule]]\nname = "content"\nwindow = "3s"\nceiling = 2\n'
LARGE_FILES = '[[rule]]\nname = "lfs"\nwindow = "3s"\nceiling = { credential = 3, none = 3 }\n'
GRAPHQL = '[[rule]]\nname = "graphql"\nwindow = "6s"\nceiling = { user = 2, none = 0, installation = 2, client = 2, workflow = 2 }\n'


def run(*command: str | Path, folder: Path | None = None, **environment: str) -> str:
    result = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def list_verdicts(host: LimitedHost) -> list[str]:
    return [refusal["verdict"] for refusal in host.wait_for_refusals()]


PYGITHUB = """
import sys, github, logging
hub = github.Github(base_url=sys.argv[1], auth=github.Auth.Token(sys.argv[2]), seconds_between_requests=0, seconds_between_writes=0)
for _ in range(int(sys.argv[4])):
    if sys.argv[3] == "read":
        print(hub.get_repo("acme/site").full_name)
    else:
        print(hub.get_repo("acme/site", lazy=True).create_issue("an issue").number)
"""


def test_pygithub_waits_for_the_reset_of_a_primary_limit_and_finishes(tmp_path: Path) -> None:
    with run_limited_host(tmp_path, PRIMARY) as host:
        output = run(PYTHON, "-c", PYGITHUB, host.address, TOKEN, "read", "7")

        assert output.split() == ["acme/site"] * 7
        # Each window admits three requests. The client is refused once per full window and never sends too early.
        assert list_verdicts(host) == ["primary", "primary"]


def test_pygithub_waits_for_the_time_of_a_secondary_limit_and_finishes(tmp_path: Path) -> None:
    with run_limited_host(tmp_path, CONTENT) as host:
        output = run(PYTHON, "-c", PYGITHUB, host.address, TOKEN, "write", "5")

        assert output.split() == ["7"] * 5
        assert list_verdicts(host) == ["secondary", "secondary"]


REQUESTS = """
import sys, requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=Retry(total=5, status_forcelist=[403, 429], backoff_factor=0)))
session.headers["Authorization"] = "Bearer " + sys.argv[2]
for _ in range(7):
    print(session.get(sys.argv[1] + "/user").status_code)
"""


def test_requests_with_retries_of_urllib3_waits_for_the_time_in_retry_after(tmp_path: Path) -> None:
    with run_limited_host(tmp_path, PRIMARY) as host:
        output = run(PYTHON, "-c", REQUESTS, host.address, TOKEN)

        assert output.split() == ["200"] * 7
        assert list_verdicts(host) == ["primary", "primary"]


OCTOKIT = """
import { createRequire } from "node:module";
const here = createRequire(process.argv[2] + "/package.json");
const { Octokit } = await import(here.resolve("@octokit/core"));
const { throttling } = await import(here.resolve("@octokit/plugin-throttling"));
const limits = [];
const Throttled = Octokit.plugin(throttling);
const hub = new Throttled({
  auth: process.argv[4],
  baseUrl: process.argv[3],
  throttle: {
    onRateLimit: (after, options) => { limits.push(["primary", after]); return true; },
    onSecondaryRateLimit: (after, options) => { limits.push(["secondary", after]); return true; },
  },
});
const statuses = [];
for (let i = 0; i < Number(process.argv[6]); i++) {
  if (process.argv[5] === "graphql") {
    statuses.push((await hub.graphql("{ viewer { login } }")).viewer.login);
  } else {
    statuses.push((await hub.request("GET /repos/{owner}/{repo}", { owner: "acme", repo: "site" })).status);
  }
}
console.log(JSON.stringify({ statuses, limits }));
"""


def run_octokit(folder: Path, host: LimitedHost, interface: str, count: int) -> Any:
    script = folder / "client.mjs"
    script.write_text(OCTOKIT)
    return json.loads(run("node", script, CLIENTS / "node", host.address, TOKEN, interface, str(count)))


def test_octokit_with_throttling_detects_a_primary_limit_and_waits_until_its_reset(tmp_path: Path) -> None:
    with run_limited_host(tmp_path, PRIMARY) as host:
        result = run_octokit(tmp_path, host, "read", 7)

        assert result["statuses"] == [200] * 7
        assert [kind for kind, _ in result["limits"]] == ["primary", "primary"]
        assert all(1 <= wait_s <= 5 for _, wait_s in result["limits"])
        assert list_verdicts(host) == ["primary", "primary"]


def test_octokit_with_throttling_detects_a_secondary_limit_and_waits_for_the_time_in_retry_after(
    tmp_path: Path,
) -> None:
    with run_limited_host(tmp_path, SECONDARY) as host:
        result = run_octokit(tmp_path, host, "read", 9)

        assert result["statuses"] == [200] * 9
        assert {kind for kind, _ in result["limits"]} == {"secondary"}
        assert all(1 <= wait_s <= 4 for _, wait_s in result["limits"])


def test_octokit_with_throttling_detects_a_used_up_graphql_bucket(tmp_path: Path) -> None:
    with run_limited_host(tmp_path, GRAPHQL) as host:
        result = run_octokit(tmp_path, host, "graphql", 5)

        assert result["statuses"] == ["ada"] * 5
        assert {kind for kind, _ in result["limits"]} == {"primary"}


def test_git_lfs_waits_when_it_is_limited_and_every_object_arrives(tmp_path: Path) -> None:
    count = 6
    with run_limited_host(tmp_path, LARGE_FILES) as host:
        work = tmp_path / "work"
        work.mkdir()
        home = {
            "HOME": str(tmp_path),
            "PATH": f"{GIT_LFS}:{os.environ['PATH']}",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }

        def git(*words: str) -> str:
            return run("git", *words, folder=work, **home)

        git("init", "-q", "-b", "main")
        git("config", "user.email", "ada@example.com")
        git("config", "user.name", "Ada")
        git("lfs", "install", "--local")
        git("lfs", "track", "*.bin")
        git("config", "lfs.url", f"{host.address}/acme/site.git/info/lfs")
        git("config", "lfs.locksverify", "false")
        for number in range(count):
            (work / f"{number}.bin").write_bytes(bytes([number]) * 1_000)
        git("add", ".")
        git("commit", "-q", "-m", "large files")
        git("remote", "add", "origin", f"{host.address}/acme/site.git")
        git("lfs", "push", "origin", "main")

        assert len(host.service.objects) == count
        assert set(list_verdicts(host)) == {"primary"}
