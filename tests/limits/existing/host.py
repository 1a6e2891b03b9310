"""A minimal code host behind a gateway. It stores the requests of clients; the decision log has their refusals."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.waiting import wait_until

TOKEN = "ghp_0123456789abcdef"
REPOSITORY = {
    "id": 1,
    "name": "site",
    "full_name": "acme/site",
    "owner": {"login": "acme", "id": 2},
    "private": False,
}


class Service:
    """Replies to all requests that the clients of these tests send, and stores large files by their hash."""

    def __init__(self, gateway: str) -> None:
        self.served: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.gateway = gateway

    def reply(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the JSON body of the reply to a request."""
        self.served.append(f"{method} {path}")
        if path.endswith("/info/lfs/objects/batch"):
            return 200, self._build_batch(json.loads(body))
        if "/info/lfs/objects/" in path:
            if method == "PUT":
                self.objects[hashlib.sha256(body).hexdigest()] = body
            return 200, {}
        if "/info/lfs/locks" in path:
            return 404, {"message": "locks are not supported"}
        if path == "/graphql":
            return 200, {"data": {"viewer": {"login": "ada"}}}
        if method == "POST":
            return 201, {"id": 7, "number": 7, "title": "an issue", "user": {"login": "ada", "id": 5}}
        if path.startswith("/repos/"):
            return 200, REPOSITORY
        return 200, {"login": "ada", "id": 5}

    def _build_batch(self, request: dict[str, Any]) -> dict[str, Any]:
        def build_action(oid: str) -> dict[str, Any]:
            return {request["operation"]: {"href": f"{self.gateway}/acme/site.git/info/lfs/objects/{oid}"}}

        return {
            "transfer": "basic",
            "objects": [{**entry, "actions": build_action(entry["oid"])} for entry in request["objects"]],
        }


def _make_handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            body = self._read_body()
            status, content = service.reply(self.command, self.path, body)
            encoded = json.dumps(content).encode()
            is_large = "/info/lfs/" in self.path
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.git-lfs+json" if is_large else "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_PUT = do_PATCH = _reply  # noqa: N815 - the base class needs these names

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class LimitedHost:
    """The address of the gateway, and the requests that it refused."""

    def __init__(self, service: Service, address: str, folder: Path) -> None:
        self.service = service
        self.address = address
        self._folder = folder

    def wait_for_refusals(self) -> list[dict[str, Any]]:
        """Return all refusals in order, when there is at least one. The log is written once a second."""
        file = self._folder / "data" / "decisions.jsonl"

        def read() -> list[dict[str, Any]]:
            lines = file.read_text().splitlines() if file.exists() else []
            return [entry for entry in map(json.loads, lines) if entry["verdict"] != "admitted"]

        refusals = wait_until(read, what="a refusal is in the log")
        assert isinstance(refusals, list)
        return refusals


@contextmanager
def run_limited_host(folder: Path, rules: str) -> Iterator[LimitedHost]:
    """Run `wharf gateway` with these rules in front of the service. TOKEN is a token of ada."""
    (port,) = free_ports(1)
    service = Service(f"http://127.0.0.1:{port}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(service))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (folder / "rules.toml").write_text(rules)
    (folder / "people.toml").write_text(
        f'[[user]]\nlogin = "ada"\nid = 5\ntokens = [{{ name = "t", sha256 = "{digest}" }}]\n'
    )
    (folder / "limits.toml").write_text(
        'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n'
        f'[gateway]\nupstream = "http://127.0.0.1:{server.server_address[1]}"\nlisten = "127.0.0.1:{port}"\n'
    )
    out = folder / "gateway.txt"
    with out.open("wb") as file:
        gateway = subprocess.Popen(
            [sys.executable, "-m", "wharf", "gateway", "--config", str(folder / "limits.toml")],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "Gateway listens at" in out.read_text(), what="the gateway listens")
        yield LimitedHost(service, service.gateway, folder)
    finally:
        gateway.terminate()
        gateway.wait(timeout=60)
        server.shutdown()
        server.server_close()
        thread.join()
