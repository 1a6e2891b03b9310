"""The files and commands of docs/limits-for-your-host.md work on the stand-in for a host, and print what the page shows."""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docs.limits_proxies import TIMEOUT_S, replace_ports, run_limiter, run_nginx
from tests.docs.test_limits import Terminal
from tests.limits.hosts.code_host import CodeHost, make_handler
from tests.ports import free_ports
from wharf.limits.config.settings import StoreKind
from wharf.limits.rate_limiter import load_settings
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


@pytest.mark.parametrize("name", ["rules.toml", "rules-changed.toml", "rules-shadow.toml", "rules-of-an-api.toml"])
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


def test_the_settings_of_the_page_for_nginx_and_redis_are_valid(tmp_path: Path) -> None:
    files = read_files()
    (tmp_path / "rules.toml").write_text(files["rules.toml"])
    (tmp_path / "people.toml").write_text(files["people.toml"])
    key, tables = files["limits-redis.toml"].split("\n", 1)
    parts = ('directory = "people.toml"', key, files["limits.toml"], tables, files["limits-nginx.toml"])
    (tmp_path / "limits.toml").write_text("\n".join(parts))

    settings = load_settings(tmp_path / "limits.toml")

    assert settings.store.kind is StoreKind.REDIS


# -- nginx in front of the gateway ---------------------------------------------------------------------------------------


class _StreamingHandler(BaseHTTPRequestHandler):
    """A host that sends one event and waits, echoes after an upgrade, and else replies with the size of the body and `Host`."""

    protocol_version = "HTTP/1.1"
    is_event_read = threading.Event()

    def _reply(self) -> None:
        if self.headers.get("upgrade") == "websocket":
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.end_headers()
            self.wfile.write(self.rfile.readline())
            self.close_connection = True
        elif self.path == "/user/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            self.is_event_read.wait(TIMEOUT_S / 2)
            self.wfile.write(b"data: last\n\n")
            self.close_connection = True
        else:
            size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            body = f"{self.path} {size} {self.headers['Host']} {self.headers['X-Forwarded-For']}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = _reply

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[int]:
    """An nginx with the block of the page, without TLS, in front of the gateway. Yields its port."""
    files, (port, gateway) = read_files(), free_ports(2)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _StreamingHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    ports = {8080: gateway, 3000: server.server_address[1]}
    (tmp_path / "rules.toml").write_text(files["rules.toml"])
    (tmp_path / "limits.toml").write_text(replace_ports(files["limits.toml"] + files["limits-nginx.toml"], ports))
    block = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    block = re.sub(r"ssl_certificate.*", "", block.replace("listen 443 ssl", f"listen 127.0.0.1:{port}"))
    configuration = f"events {{}}\nhttp {{\n{replace_ports(block, {8080: gateway})}}}\n"
    _StreamingHandler.is_event_read.clear()
    try:
        with (
            run_limiter(tmp_path, "limits.toml", ["gateway"]),
            run_nginx(tmp_path, configuration, port, path="/healthz"),
        ):
            yield port
    finally:
        _StreamingHandler.is_event_read.set()
        server.shutdown()
        server.server_close()


def read_through_nginx(port: int, request: str, end: bytes, body: bytes = b"") -> bytes:
    """Send a request, and return what is received until it ends with `end`, or until the connection is closed."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode() + body)
        while not received.endswith(end):
            data = connection.recv(1 << 16)
            if not data:
                break
            received += data
    return received


@pytest.mark.needs_program("nginx")
def test_a_large_push_passes_nginx_with_its_host_and_address(nginx: int) -> None:
    size = 3_000_000
    request = f"POST /acme/a%2Fb HTTP/1.1\nHost: git.example.com:8443\nContent-Length: {size}\nConnection: close\n\n"

    reply = read_through_nginx(nginx, request, b"127.0.0.1, 127.0.0.1", b"x" * size)

    assert reply.endswith(f"/acme/a%2Fb {size} git.example.com:8443 127.0.0.1, 127.0.0.1".encode())


@pytest.mark.needs_program("nginx")
def test_nginx_sends_an_event_before_the_stream_ends(nginx: int) -> None:
    received = read_through_nginx(nginx, "GET /user/events HTTP/1.0\nHost: git.example.com\n\n", b"data: first\n\n")

    assert received.endswith(b"data: first\n\n")


@pytest.mark.needs_program("nginx")
def test_a_websocket_passes_nginx_and_the_gateway(nginx: int) -> None:
    head = "GET /socket HTTP/1.1\nHost: git.example.com\nConnection: Upgrade\nUpgrade: websocket\n"
    head += "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n\n"

    received = read_through_nginx(nginx, head, b"a frame\r\n", b"a frame\r\n")

    assert received.startswith(b"HTTP/1.1 101 ")
    assert received.endswith(b"a frame\r\n")
