"""The files and commands of docs/limits-for-your-host.md work on the stand-in for a host, and print what the page shows."""

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docs.test_limits import Terminal
from tests.limits.hosts.code_host import CodeHost, make_handler
from wharf.limits.rules import Severity, lint_rules, read_rules
from wharf.limits.rules.rules_file import PROFILES, read_profile

PAGE = Path(__file__).parents[2] / "docs" / "limits-for-your-host.md"


def read_files() -> dict[str, str]:
    """Return the files of the page by name."""
    return dict(re.findall(r"`([\w-]+\.toml)`[^\n]*:\n\n```toml\n(.*?)```", PAGE.read_text(), re.DOTALL))


def read_commands() -> Iterator[tuple[str, str]]:
    """Yield each command of the page with the output that the page shows."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def commit_empty_tree(repository: Path) -> None:
    """Give a repository without commits one commit."""

    def git(*words: str) -> str:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        command = ["git", "-C", str(repository), *identity, *words]
        return subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout.strip()

    commit = git("commit-tree", "-m", "a commit", git("mktree"))
    git("update-ref", "refs/heads/main", commit)


@contextmanager
def run_host(folder: Path, terminal: Terminal) -> Iterator[None]:
    """Run the stand-in at the port that the terminal has for the service."""
    host = CodeHost(folder, f"http://127.0.0.1:{terminal.gateway}", "/api/v1")
    commit_empty_tree(host.repositories / "acme" / "site.git")
    server = ThreadingHTTPServer(("127.0.0.1", terminal.service), make_handler(host))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def mask(text: str) -> list[str]:
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", re.sub(r"(?<=retry-after: )\d+", "SECONDS", text))
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_steps_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    files = read_files()
    terminal = Terminal(tmp_path)
    (tmp_path / "rules.toml").write_text(files["rules.toml"])
    settings = terminal.replace_ports(files["limits.toml"])
    (tmp_path / "limits.toml").write_text(settings)
    shown, expected = [], []
    try:
        with run_host(tmp_path / "host", terminal):
            for command, output in read_commands():
                expected.append((command, mask(output)))
                shown.append((command, mask(terminal.run_command(command))))
    finally:
        terminal.close()

    assert shown == expected
    assert subprocess.run(["git", "-C", str(tmp_path / "site"), "rev-parse"], check=False).returncode == 0


@pytest.mark.parametrize("name", ["rules.toml", "rules-changed.toml", "rules-of-an-api.toml"])
def test_lint_finds_no_mistake_in_the_rules_of_the_page(name: str) -> None:
    findings = lint_rules(read_rules(read_files()[name], name))

    assert [str(finding) for finding in findings if finding.severity is not Severity.NOTE] == []


def test_the_page_names_each_bucket_of_the_profiles_of_hosts_with_its_numbers() -> None:
    page = PAGE.read_text()
    rows = {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)` \|.*$", page, re.MULTILINE)}
    missing = []
    for profile in ("gitea", "forgejo", "gitlab"):
        for rule in read_profile(profile).rules:
            if rule.resource is None or rule.name == "assets":
                continue
            numbers = {f"{ceiling:,}" for ceiling in rule.ceilings.values()}
            missing += [f"{profile} {rule.name} {number}" for number in numbers if number not in rows[rule.name]]

    assert missing == []


def test_the_page_names_only_profiles_that_exist() -> None:
    table = PAGE.read_text().partition("## Steps")[0]
    named = set(re.findall(r"^\| (?!Host)[^|`]+ \| `([\w-]+)`", table, re.MULTILINE))

    assert named == {"gitea", "forgejo", "gitlab", "code-host", "none"}
    assert named - {*PROFILES, "none"} == set()
