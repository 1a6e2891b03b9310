"""Clients of code hosts with credentials that only the host knows: git, registries, event streams and websockets."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.limits.decision_services import encode_basic
from tests.limits.gateway.code_host import BOB, BOB_TOKEN, CodeHost
from tests.limits.gateway.running_gateway import ReceivedRequest, RunningGateway, run_scenario
from tests.limits.gateway.test_opaque_credentials import OPAQUE, RULES, get_limit

MANY = '[[rule]]\nname = "core"\nceiling = { none = 3, user = 1000 }\n'
"""Fewer requests without a credential than a clone and a push need."""
GIT_SETTINGS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Bob",
    "GIT_AUTHOR_EMAIL": "bob@example.org",
    "GIT_COMMITTER_NAME": "Bob",
    "GIT_COMMITTER_EMAIL": "bob@example.org",
}
GIT_TIMEOUT_S = 300.0


class GitHost:
    """A host of git repositories over HTTP, which answers 401 to everybody but Bob."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.refused = 0

    async def handle(
        self, request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass a request to `git http-backend`, the CGI program of git, and stream its output."""
        if request.headers.get("authorization") != encode_basic("bob", BOB_TOKEN):
            self.refused += 1
            writer.write(
                b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="git"\r\nContent-Length: 0\r\n\r\n'
            )
            return
        method, target, _ = request.line.split(" ")
        path, _, query = target.partition("?")
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self._folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REMOTE_USER": "bob",
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(request.body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request.body)
        process.stdin.close()
        head = await process.stdout.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if line]
        status = next((line.split(b" ", 1)[1] for line in lines if line.lower().startswith(b"status:")), b"200 OK")
        writer.write(b"HTTP/1.1 %s\r\nTransfer-Encoding: chunked\r\n" % status)
        writer.write(b"".join(line + b"\r\n" for line in lines if not line.lower().startswith(b"status:")) + b"\r\n")
        while part := await process.stdout.read(1 << 16):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await process.wait()


async def run_git(folder: Path, *words: str) -> str:
    """Run a git command and return its output. A failure fails the test."""
    environment = {**os.environ, **GIT_SETTINGS, "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        "git", *words, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(GIT_TIMEOUT_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def make_repository(folder: Path, size: int) -> None:
    """Create `acme/site.git` with one file of random bytes, which cannot be compressed."""
    work = folder / "work"
    work.mkdir()
    await run_git(work, "init", "--quiet", "--initial-branch=main")
    with (work / "file").open("wb") as file:
        for _ in range(0, size, 1 << 20):
            file.write(os.urandom(min(size, 1 << 20)))
    await run_git(work, "add", "file")
    await run_git(work, "-c", "core.compression=0", "commit", "--quiet", "--message=Begin")
    await run_git(folder, "clone", "--quiet", "--bare", "work", "repositories/acme/site.git")
    await run_git(folder / "repositories/acme/site.git", "config", "http.receivepack", "true")


async def clone_change_and_push(running: RunningGateway, folder: Path) -> None:
    """Clone the repository through the gateway, push a commit of 2 MB, and compare both sides."""
    url = f"http://bob:{BOB_TOKEN}@127.0.0.1:{running.gateway.port}/acme/site.git"
    await run_git(folder, "clone", "--quiet", url, "clone")
    assert (folder / "clone/file").stat().st_size == (folder / "work/file").stat().st_size
    (folder / "clone/more").write_bytes(os.urandom(2 << 20))
    await run_git(folder / "clone", "add", "more")
    await run_git(folder / "clone", "commit", "--quiet", "--message=Continue")
    await run_git(folder / "clone", "push", "--quiet", "origin", "main")
    heads = [await run_git(folder / name, "rev-parse", "main") for name in ("clone", "repositories/acme/site.git")]
    assert heads[0] == heads[1]


def run_git_scenario(folder: Path, size: int) -> None:
    async def scenario(running: RunningGateway) -> None:
        host = GitHost(folder / "repositories")
        running.service.handler = host.handle
        await make_repository(folder, size)
        await clone_change_and_push(running, folder)
        service = running.decision_service
        service.activity.add_admissions_to_rows(service.now_ms())
        credential = next(name for name in service.activity.last_callers if name.startswith("credential:"))
        rows = [row for row in service.activity.list_rows(since_ms=0) if row.caller.owner == credential]

        assert sum(row.total for row in rows) >= 3
        assert host.refused == 2  # Git sends its credential only after a 401: once to clone, and once to push.

    run_scenario(folder, scenario, more=OPAQUE, rules=MANY)


def test_git_clones_and_pushes_with_a_token_that_only_the_host_knows(tmp_path: Path) -> None:
    run_git_scenario(tmp_path, 1 << 20)


@pytest.mark.faults
def test_git_clones_a_repository_of_a_gigabyte(tmp_path: Path) -> None:
    run_git_scenario(tmp_path, 1 << 30)


# -- registries, event streams and websockets ------------------------------------------------------------------------


def run(folder: Path, scenario: Callable[[RunningGateway], Awaitable[None]]) -> None:
    run_scenario(folder, scenario, more=OPAQUE, rules=RULES)


def test_a_registry_client_gets_a_token_for_its_password_and_uses_it(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> None:
        async def reply(request: ReceivedRequest, _reader: object, writer: asyncio.StreamWriter) -> None:
            authorization = request.headers.get("authorization", "")
            expected = (
                encode_basic("bob", "hunter2") if request.line.startswith("GET /v2/token") else "Bearer registry-token"
            )
            status = 200 if authorization == expected else 401
            challenge = b'WWW-Authenticate: Bearer realm="http://host/v2/token"\r\n' if status == 401 else b""
            writer.write(b"HTTP/1.1 %d X\r\n%sContent-Length: 0\r\n\r\n" % (status, challenge))

        running.service.handler = reply
        password = f"Authorization: {encode_basic('bob', 'hunter2')}"
        replies = [await running.request("/v2/")]
        replies += [await running.request("/v2/token?service=host", password)]
        replies += [await running.request("/v2/", "Authorization: Bearer registry-token") for _ in range(2)]

        assert replies[0].headers["www-authenticate"] == 'Bearer realm="http://host/v2/token"'
        assert [get_limit(reply) for reply in replies] == [
            (401, "30", "1"),
            (200, "30", "2"),
            (200, "30", "3"),
            (200, "100", "1"),
        ]

    run(tmp_path, scenario)


def test_a_batch_of_large_files_counts_for_the_user_and_its_objects_are_limited(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> None:
        running.service.handler = CodeHost().handle
        body = b'{"operation": "download", "objects": [{"oid": "a", "size": 1}]}'
        target = "/acme/site.git/info/lfs/objects/batch"
        replies = [await running.request(target, BOB, method="POST", body=body) for _ in range(2)]

        assert [reply.headers["x-ratelimit-resource"] for reply in replies] == ["lfs", "lfs"]
        assert [get_limit(reply) for reply in replies] == [(200, "3000", "1"), (200, "3000", "2")]
        assert running.service.requests[-1].body == body

    run_scenario(tmp_path, scenario, more='credentials = "resolved"\n', rules=RULES)


def test_an_open_websocket_proves_its_credential(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> None:
        async def echo(request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if "upgrade" not in request.headers:
                await CodeHost().handle(request, reader, writer)
                return
            writer.write(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            writer.write(await reader.readexactly(4))

        running.service.handler = echo
        caller = await running.connect()
        reply = await caller.request("/live", BOB, "Connection: upgrade", "Upgrade: websocket")
        await caller.send(b"ping")

        assert (reply.status, await caller.reader.readexactly(4)) == (101, b"ping")
        assert get_limit(await running.request("/api/x", BOB))[1] == "100"

    run(tmp_path, scenario)


def test_an_event_stream_proves_its_credential_with_its_head(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> None:
        has_ended = asyncio.Event()

        async def stream(request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not request.line.startswith("GET /events"):
                await CodeHost().handle(request, reader, writer)
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"9\r\ndata: 1\n\n\r\n")
            await writer.drain()
            await has_ended.wait()
            writer.write(b"0\r\n\r\n")

        running.service.handler = stream
        caller = await running.connect()
        await caller.send(f"GET /events HTTP/1.1\r\nHost: a\r\n{BOB}\r\n\r\n".encode())
        head = await caller.reader.readuntil(b"data: 1\n\n")

        assert b"text/event-stream" in head
        assert get_limit(await running.request("/api/x", BOB))[1] == "100"
        has_ended.set()

    run(tmp_path, scenario)
