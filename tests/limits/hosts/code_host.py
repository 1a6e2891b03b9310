"""A stand-in for a Gitea, Forgejo or GitLab host, behind a gateway process.

It serves the documented routes that clients use: git over HTTPS by the real `git http-backend`, large files, packages, raw
files, an event stream, pages, and a part of the REST API. It knows one token and one session, and stores all requests. Private
repositories need the token, so clients first receive 401, as from a real host. Pages of a user redirect strangers to the sign-in page.
"""

import base64
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from tests.limits.hosts.gateway import GatewayCaller, run_gateway
from tests.ports import free_ports

TOKEN: Final = "0123456789abcdef0123456789abcdef01234567"
SESSION: Final = "89abcdef01234567"
SESSION_COOKIES: Final = ("i_like_gitea", "_gitlab_session")
PAGES_OF_USERS: Final = (
    "/notifications",
    "/issues",
    "/pulls",
    "/user/settings",
    "/dashboard",
    "/-/profile",
    "/-/user_settings",
)
GIT_SERVICES: Final = ("/info/refs", "/git-upload-pack", "/git-receive-pack")
EVENTS: Final = 3
"""The number of events after which the host ends the event stream."""
USER: Final = {
    "id": 5,
    "login": "ada",
    "username": "ada",
    "name": "Ada",
    "full_name": "Ada",
    "email": "ada@example.com",
}


class HostReply(NamedTuple):
    """A complete reply of the host."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class HostRequest(NamedTuple):
    """A request as the host received it. `headers` has lowercase names."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


def _reply_json(value: Any, status: int = 200, content_type: str = "application/json") -> HostReply:
    return HostReply(status, json.dumps(value).encode(), content_type)


class CodeHost:
    """The state and the routes of the host. `gateway` is the address that users know; `base_path` is that of its API."""

    def __init__(self, folder: Path, gateway: str, base_path: str) -> None:
        self.requests: list[str] = []
        """Method and path of each request, in order."""
        self.objects: dict[str, bytes] = {}
        self.packages: dict[str, bytes] = {}
        self.issues: list[dict[str, Any]] = []
        self.repositories = folder / "repositories"
        self._gateway = gateway
        self._base_path = base_path
        repository = self.repositories / "acme" / "site.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(repository)], check=True)
        subprocess.run(["git", "-C", str(repository), "config", "http.receivepack", "true"], check=True)

    def reply(self, request: HostRequest) -> HostReply:
        """Return the reply to a request, and store the request."""
        self.requests.append(f"{request.method} {request.path}")
        path = request.path
        if path.startswith(f"{self._base_path}/") and "/packages/generic/" not in path:
            return self._reply_api(request, unquote(path.removeprefix(self._base_path)))
        if "/info/lfs/" in path:
            return self._reply_large_files(request)
        if path.endswith(GIT_SERVICES):
            return self._reply_git(request)
        if "/packages/" in path:
            return self._reply_package(request)
        if path in ("/v2/", "/v2"):
            return HostReply(401, b"{}", headers=(("WWW-Authenticate", f'Bearer realm="{self._gateway}/v2/token"'),))
        if "/raw/" in path:
            return HostReply(200, b"the file\n", "text/plain")
        is_start_page = path == "/" and self._base_path == "/api/v4"
        is_of_user = is_start_page or any(path == page or path.startswith(f"{page}/") for page in PAGES_OF_USERS)
        if is_of_user and not self._has_session(request):
            return HostReply(303, b"", headers=(("Location", "/user/login"),))
        return HostReply(200, b"<html>a page</html>", "text/html")

    def _has_session(self, request: HostRequest) -> bool:
        cookies = request.headers.get("cookie", "").split("; ")
        return any(f"{name}={SESSION}" in cookies for name in SESSION_COOKIES)

    def _is_authorized(self, request: HostRequest) -> bool:
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            return base64.b64decode(value).decode().partition(":")[2] == TOKEN
        return value == TOKEN or request.headers.get("private-token") == TOKEN

    def _reply_api(self, request: HostRequest, path: str) -> HostReply:
        """Reply to a request of the API; `path` is relative to the base path. The objects have the fields of both APIs."""
        if path == "/version":
            return _reply_json({"version": "1.24.0", "revision": "0"})
        if not self._is_authorized(request):
            return _reply_json({"message": "401 Unauthorized"}, 401)
        last = path.rpartition("/")[2]
        if request.method == "POST":
            content = json.loads(request.body or b"{}")
            if last == "issues":
                self.issues.append(content)
            number = len(self.issues)
            return _reply_json(
                {**self._describe_issue(number, content.get("title", "")), "body": content.get("body", "")}, 201
            )
        if last == "user":
            return _reply_json(USER)
        if last == "issues":
            return _reply_json([self._describe_issue(1 + i, issue["title"]) for i, issue in enumerate(self.issues)])
        if last == "search":
            return _reply_json({"ok": True, "data": [self._describe_repository()]} if "repos" in path else [])
        if last == "raw" or "/raw/" in path:
            return HostReply(200, b"the file\n", "text/plain")
        return _reply_json(self._describe_repository())

    def _describe_issue(self, number: int, title: str) -> dict[str, Any]:
        return {
            "id": number,
            "iid": number,
            "number": number,
            "project_id": 1,
            "title": title,
            "state": "open",
            "user": USER,
            "author": USER,
            "body": "",
            "assignee": None,
            "assignees": [],
            "labels": [],
            "milestone": None,
            "repository": {"id": 1, "name": "site", "owner": "acme", "full_name": "acme/site"},
        }

    def _describe_repository(self) -> dict[str, Any]:
        return {
            "id": 1,
            "name": "site",
            "full_name": "acme/site",
            "path_with_namespace": "acme/site",
            "owner": {"id": 2, "login": "acme", "username": "acme", "name": "acme", "email": "acme@example.com"},
            "private": True,
            "default_branch": "main",
        }

    def _reply_large_files(self, request: HostRequest) -> HostReply:
        """Reply to a request of Git LFS: a batch, an upload or a download."""
        kind = "application/vnd.git-lfs+json"
        if not self._is_authorized(request):
            return HostReply(401, b"{}", kind, (("LFS-Authenticate", 'Basic realm="host"'),))
        if request.path.endswith("/objects/batch"):
            batch = json.loads(request.body)
            base = f"{self._gateway}{request.path.removesuffix('/batch')}"
            objects = []
            for entry in batch["objects"]:
                is_needed = batch["operation"] == "download" or entry["oid"] not in self.objects
                action = {
                    "href": f"{base}/{entry['oid']}",
                    "header": {"Authorization": request.headers["authorization"]},
                }
                objects.append({**entry, **({"actions": {batch["operation"]: action}} if is_needed else {})})
            return _reply_json({"transfer": "basic", "objects": objects}, content_type=kind)
        if "/locks" in request.path:
            return _reply_json({"message": "locks are not supported"}, 404, kind)
        if request.method == "PUT":
            self.objects[hashlib.sha256(request.body).hexdigest()] = request.body
            return _reply_json({}, content_type=kind)
        content = self.objects.get(request.path.rpartition("/")[2])
        return _reply_json({}, 404, kind) if content is None else HostReply(200, content, "application/octet-stream")

    def _reply_package(self, request: HostRequest) -> HostReply:
        """Store a package, or reply with a stored one."""
        if request.method == "PUT":
            if not self._is_authorized(request):
                return HostReply(401, b"{}", headers=(("WWW-Authenticate", 'Basic realm="packages"'),))
            self.packages[request.path] = request.body
            return HostReply(201, b"{}")
        content = self.packages.get(request.path)
        return _reply_json({}, 404) if content is None else HostReply(200, content, "application/octet-stream")

    def _reply_git(self, request: HostRequest) -> HostReply:
        """Reply by `git http-backend`, which runs as a CGI program."""
        if not self._is_authorized(request):
            return HostReply(401, b"", "text/plain", (("WWW-Authenticate", 'Basic realm="git"'),))
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "REMOTE_USER": "ada",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(request.body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }
        result = subprocess.run(
            ["git", "http-backend"], input=request.body, env=environment, capture_output=True, timeout=60, check=True
        )
        head, _, body = result.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(fields.pop("Status", "200").split()[0])
        return HostReply(status, body, fields.pop("Content-Type"), tuple(fields.items()))


def make_handler(host: CodeHost) -> type[BaseHTTPRequestHandler]:
    """Return a handler of HTTP requests for this host."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def _reply(self) -> None:
            path, _, query = self.path.partition("?")
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = HostRequest(self.command, path, query, headers, self._read_body())
            if path == "/user/events":
                host.requests.append(f"GET {path}")
                self._send_events()
                return
            reply = host.reply(request)
            self.send_response(reply.status)
            for name, value in (("Content-Type", reply.content_type), *reply.headers):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        def _send_events(self) -> None:
            """Send some events, then end the stream."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for number in range(EVENTS):
                self.wfile.write(f"event: ping\ndata: {number}\n\n".encode())
                self.wfile.flush()
            self.close_connection = True

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _reply  # noqa: N815 - the base class needs these names

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class RunningHost(GatewayCaller):
    """The stand-in behind a gateway process."""

    def __init__(self, host: CodeHost, address: str, folder: Path) -> None:
        super().__init__(address, folder)
        self.host = host

    @property
    def address_with_token(self) -> str:
        """The address with user and token, as git and git-lfs use it."""
        return self.address.replace("http://", f"http://ada:{TOKEN}@")


@contextmanager
def run_code_host(folder: Path, profile: str, rules: str = "", *, settings: str = "") -> Iterator[RunningHost]:
    """Run `wharf gateway` with this profile and more rules in front of the host. TOKEN is a token of ada.

    `settings` replaces the settings before `[gateway]`, which list the token.
    """
    (port,) = free_ports(1)
    host = CodeHost(folder, f"http://127.0.0.1:{port}", "/api/v4" if profile == "gitlab" else "/api/v1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(host))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (folder / "people.toml").write_text(
        f'[[user]]\nlogin = "ada"\nid = 5\ntokens = [{{ name = "t", sha256 = "{digest}" }}]\n'
    )
    settings = settings or 'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n'
    settings += f'[gateway]\nupstream = "http://127.0.0.1:{server.server_address[1]}"\nlisten = "127.0.0.1:{port}"\n'
    try:
        with run_gateway(folder, f'profile = "{profile}"\n{rules}', settings) as address:
            yield RunningHost(host, address, folder)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
