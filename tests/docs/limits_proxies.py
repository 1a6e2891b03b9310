"""The files on docs/limits-proxies.md, and the processes that tests start with them."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

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


def _is_answering(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> bool:
    assert process.poll() is None, log.read_text("utf-8", "replace")
    try:
        fetch(port, path)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def run_limiter(folder: Path, file: str) -> Iterator[list[str]]:
    """Run `wharf limits serve` until the block ends, and yield the lines that it printed at its start."""
    command = [sys.executable, "-c", "from wharf.cli import main; main()", "limits", "serve", "--config", file]
    with (folder / "limits.log").open("wb") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith("Admin commands"):
                    break
            assert lines, (folder / "limits.log").read_text("utf-8")
            yield lines
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
            process.stdout.close()


class _OrdersHandler(BaseHTTPRequestHandler):
    """A service that replies with the method and the path of each request, and with 403 at /forbidden."""

    def _reply(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = f"{self.command} {self.path}".encode()
        self.send_response(403 if self.path == "/forbidden" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _reply

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
