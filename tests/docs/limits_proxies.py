"""The files on docs/limits-proxies.md, and the processes that tests start with them."""

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tests.limits.decision_services import OAUTH
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits-proxies.md"
TIMEOUT_S = 30.0


def read_files() -> Mapping[str, str]:
    """Return the files of the page by name. The line before each file begins with its name."""
    found: dict[str, str] = {}
    name = ""
    lines: list[str] | None = None
    for line in PAGE.read_text("utf-8").splitlines():
        if lines is None:
            if heading := re.match(r"`([\w.]+)`, ", line):
                name = heading[1]
            elif line.startswith("```") and name:
                lines = []
        elif line == "```":
            found[name] = "\n".join(lines) + "\n"
            name, lines = "", None
        else:
            lines.append(line)
    return found


class Reply(NamedTuple):
    """A reply that a caller received."""

    status: int
    headers: Mapping[str, str]
    body: str


def fetch(port: int, path: str = "/orders", *, body: bytes | None = None, **headers: str) -> Reply:
    """Send a request to this machine, and return the reply whatever its status. `_` stands for `-` in names of headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return Reply(reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode())


class RawReply(NamedTuple):
    """A reply as it was received: names of headers in lower case, in order, with repetitions."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


def send_raw(port: int, request_line: bytes, *headers: bytes, body: bytes = b"") -> RawReply:
    """Send a request over a connection of its own, with exactly these bytes as its first line and headers."""
    lines = [b"%b HTTP/1.1" % request_line, b"Host: shop.example", b"Connection: close", *headers]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", body]))
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, content = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in rest)]
    if ("transfer-encoding", "chunked") in pairs:
        content = _join_chunks(content)
    return RawReply(int(first.split()[1]), pairs, content)


def _join_chunks(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


@contextlib.contextmanager
def run_program(
    command: Sequence[str], folder: Path, port: int, *, path: str = "/orders", **environment: str
) -> Iterator[None]:
    """Run a program in a folder until the block ends, and wait first until it listens on a port."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        try:
            wait_until(lambda: _is_answering(process, port, path, log), what=f"{command[0]} listens on port {port}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def run_nginx(folder: Path, configuration: str, port: int, *, path: str) -> Iterator[None]:
    """Run nginx with a configuration that listens on this port until the block ends. `path` replies while it runs."""
    # nginx of the distribution would write into folders of the system.
    own = "".join(f"{name}_temp_path {name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(configuration.replace("http {\n", f"http {{\naccess_log off;\n{own}"))
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
    command = [program, "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr"]
    command += ["-g", f"daemon off; pid {folder}/nginx.pid; user {getpass.getuser()};"]
    with run_program(command, folder, port, path=path):
        yield


def _is_answering(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> bool:
    assert process.poll() is None, log.read_text("utf-8", "replace")
    try:
        fetch(port, path)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def run_limiter(folder: Path, file: str, command: Sequence[str] = ("limits", "serve")) -> Iterator[list[str]]:
    """Run `wharf limits serve`, or another command, until the block ends, and yield the lines that it printed at its start."""
    command = [sys.executable, "-c", "from wharf.cli import main; main()", *command, "--config", file]
    with (folder / f"{file}.log").open("wb") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith("Admin commands"):
                    break
            assert lines, (folder / f"{file}.log").read_text("utf-8")
            yield lines
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
            process.stdout.close()


TOKEN_OF_ADA = "token-of-ada-0123456789"
"""A token that only the service knows."""


class _OrdersHandler(BaseHTTPRequestHandler):
    """A service that replies with the method and the path of each request.

    It replies with 403 at /forbidden, and at /limited with limits of its own. At /api/v1/user it names the owner of one token.
    """

    def _reply(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = f"{self.command} {self.path}".encode("latin-1")
        if self.path == "/api/v1/user":
            is_known = self.headers.get("authorization") == f"Bearer {TOKEN_OF_ADA}"
            self.send_response(200 if is_known else 401)
            body = b'{"login": "ada", "id": 5}' if is_known else b"{}"
        else:
            self.send_response(403 if self.path == "/forbidden" else 200)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-type", "text/plain")
        if self.path == "/limited":
            for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit", "ratelimit-policy"):
                self.send_header(name, "of the service")
            self.send_header("x-wharf-cpu-ms", "7")
            self.send_header("access-control-expose-headers", "X-Of-The-Service")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_OPTIONS = _reply  # noqa: N815 - the base class needs these names

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def run_service() -> Iterator[int]:
    """Run a service to protect, and yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OrdersHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT_S)


def replace_ports(text: str, ports: Mapping[int, int]) -> str:
    """Return the text with the port numbers of the page replaced. Each must occur."""
    for number, port in ports.items():
        assert str(number) in text, f"the file does not contain the port {number}"
        text = re.sub(rf"\b{number}\b", f"<{port}>", text)
    return re.sub(r"<(\d+)>", r"\1", text)


# -- what a caller gets from the gateway, to compare proxies with it -----------------------------------------------------

RULES = """
[[rule]]
name = "core"
ceiling = { credential = 30, none = 20 }
status = 429
[[rule]]
name = "reports"
match = ["* /reports/*"]
resource = "reports"
status = 429
ceiling = 1
[[rule]]
name = "graphql"
ceiling = { none = 1 }
"""
REQUESTS: Sequence[tuple[bytes, tuple[bytes, ...]]] = (
    (b"GET /orders?page=2", ()),
    (b"GET /orders", (b"Origin: https://acme.example",)),
    (b"GET /orders", (b"Authorization: Bearer " + OAUTH.encode(),)),
    (b"HEAD /orders", ()),
    (b"PUT /forbidden", ()),
    (b"GET /limited", (b"Origin: https://acme.example",)),
    (b"GET http://shop.example/orders", ()),
    (b"GET /reports/1", ()),
    (b"GET /reports/1", (b"Origin: https://acme.example",)),
    (b"HEAD /reports/1", ()),
    (b"POST /reports/1", ()),
    (b"GET /Reports/2", ()),
    (b"GET /graphql?query={viewer{login}}", ()),
    (b"GET /graphql?query={viewer{login}}", ()),
    (b"GET /orders", (b"Authorization: Bearer wrong",)),
    (b"GET /orders", (b"Authorization: Bearer wr\xc3\xb6ng",)),
    (b"GET /rate_limit", ()),
    (b"HEAD /rate_limit", ()),
    (b"GET /rate%5flimit?x=1", (b"Origin: https://acme.example",)),
    (b"POST /rate_limit", ()),
    (b"GET /rate_limit", (b"Authorization: Bearer wrong",)),
    (b"GET /meta", ()),
    (b"GET /orders%01", ()),
    (b"GET /r%65ports/1", ()),
    (b"GET /orders?q=caf\xc3\xa9", ()),
    (b"GET /caf%C3%A9", ()),
    (b"GET /orders", ()),
)
"""First line, without the version, and headers of requests that are sent in this order."""
ODD_REQUESTS: Sequence[tuple[bytes, tuple[bytes, ...]]] = (
    (b"GET /orgs/acme/insights/api/summary-stats", ()),
    (b"GET //orders", ()),
    (b"GET //rate_limit", ()),
    (b"GET /orders/../reports/1", ()),
    (b"GET /orders#x", ()),
    (b"GET /caf\xc3\xa9", ()),
)
"""Requests that some proxies change before they ask the limiter."""
LIMITER_HEADERS = (
    *("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-used", "x-ratelimit-reset", "x-ratelimit-resource"),
    *("ratelimit", "ratelimit-policy", "retry-after", "x-github-request-id", "x-oauth-scopes", "www-authenticate"),
    *("access-control-expose-headers", "content-type", "cache-control", "link", "x-wharf-reply", "x-wharf-admitted"),
    "x-wharf-cpu-ms",
)
_MASKED = re.compile(
    r"[0-9A-F]{4}:[0-9A-F]{6}:[0-9A-F]{8}:[0-9A-F]+:[0-9A-F]+|(?<=t=)\d+|(?<=Wait )\d+|\b1\d{9}\b|35\d\d|3600"
)
"""Request ids, times and durations, which differ in each run."""


def describe_replies(port: int, requests: Sequence[tuple[bytes, tuple[bytes, ...]]]) -> list[str]:
    """Send requests, and return what the caller sees of each reply: status, limiter's headers and body."""
    described = []
    for line, headers in requests:
        reply = send_raw(port, line, *headers)
        shown = sorted(f"{name}: {value}" for name, value in reply.headers if name in LIMITER_HEADERS)
        text = "\n".join([str(reply.status), *shown, reply.body.decode("latin-1")])
        described.append(f"{line.decode('latin-1')}\n{_MASKED.sub('N', text)}")
    return described


def list_differences(
    port: int, gateway: int, odd: Sequence[tuple[bytes, tuple[bytes, ...]]] = ODD_REQUESTS
) -> list[tuple[str, str]]:
    """Return each pair of replies that differ between a proxy and a gateway."""
    requests = (*REQUESTS, *odd)
    pairs = zip(describe_replies(port, requests), describe_replies(gateway, requests), strict=True)
    return [(shown, expected) for shown, expected in pairs if shown != expected]


@contextlib.contextmanager
def run_gateway(folder: Path, port: int, service: int) -> Iterator[None]:
    """Run a gateway with the rules and accounts of the folder and with counters of its own."""
    (folder / "gateway.toml").write_text(
        'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "gateway"\ninsights = true\n'
        f'[gateway]\nupstream = "http://127.0.0.1:{service}"\nlisten = "127.0.0.1:{port}"\n'
    )
    with run_limiter(folder, "gateway.toml", ["gateway"]):
        yield
