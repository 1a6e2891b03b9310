"""A running gateway for tests, between a caller that sends bytes and a scripted service, on one loop and real sockets."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from tests.limits.decision_services import DIRECTORY
from wharf.limits.config.settings_file import read_upstream
from wharf.limits.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.world import RealWorld

T = TypeVar("T")
READ_TIMEOUT_S = 60.0
Handler = Callable[["ReceivedRequest", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ReceivedRequest(msgspec.Struct):
    """A request as the service received it."""

    line: str
    headers: dict[str, str]
    body: bytes = b""


class Reply(msgspec.Struct):
    """A reply as the caller received it."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def reply_hello(_request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


async def read_body(headers: dict[str, str], reader: asyncio.StreamReader) -> bytes:
    """Read the body of a request, chunked or with a content length."""
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


class ScriptedService:
    """The service behind the gateway. It stores each request, and replies with `handler`, which a test can replace."""

    def __init__(self) -> None:
        self.handler: Handler = reply_hello
        self.reads_bodies = True
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle the requests of one connection until it is closed."""
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                request = ReceivedRequest(lines[0], headers)
                self.requests.append(request)
                if self.reads_bodies:
                    request.body = await read_body(headers, reader)
                await self.handler(request, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


class CallerSocket:
    """One connection of a caller to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_reply(self, *, is_head: bool = False) -> Reply:
        """Return the next reply. `is_head`: it answers a HEAD request, so it has no body."""
        async with asyncio.timeout(READ_TIMEOUT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
            }
            status = int(lines[0].split()[1])
            if is_head or status in (101, 204, 304):
                return Reply(status, headers, b"")
            if "content-length" in headers or "transfer-encoding" in headers:
                return Reply(status, headers, await read_body(headers, self.reader))
            return Reply(status, headers, await self.reader.read())

    async def request(
        self, target: str = "/things", *headers: str, method: str = "GET", body: bytes | None = None
    ) -> Reply:
        """Send a request, and return the reply."""
        lines = [f"{method} {target} HTTP/1.1", "Host: service.example", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        return await self.read_reply(is_head=method == "HEAD")

    async def read_until_close(self) -> bytes:
        """Return all bytes received until the gateway closes the connection."""
        async with asyncio.timeout(READ_TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.close()


class RunningGateway:
    """A gateway with its service and its callers."""

    def __init__(self, service: ScriptedService, gateway: Gateway) -> None:
        self.service = service
        self.gateway = gateway
        self.decision_service = gateway.limits.decision_service
        self._callers: list[CallerSocket] = []

    async def connect(self) -> CallerSocket:
        caller = CallerSocket(*await asyncio.open_connection("127.0.0.1", self.gateway.port, limit=1 << 22))
        self._callers.append(caller)
        return caller

    async def request(
        self, target: str = "/things", *headers: str, method: str = "GET", body: bytes | None = None
    ) -> Reply:
        """Send a request over a new connection, and return the reply."""
        caller = await self.connect()
        return await caller.request(target, *headers, method=method, body=body)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


@asynccontextmanager
async def run_gateway(
    folder: Path, *, rules: str = "", gateway: str = "", more: str = "", upstream: str = ""
) -> AsyncIterator[RunningGateway]:
    """Run a gateway with its files in `folder`. `gateway` is TOML for the table of this name, `more` for all others."""
    (folder / "rules.toml").write_text(rules)
    (folder / "people.toml").write_text(DIRECTORY)
    (folder / "limits.toml").write_text(
        f'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n{more}\n'
        f'[gateway]\nlisten = "127.0.0.1:0"\ndrain_timeout = "1s"\n{gateway}\n'
    )
    world = RealWorld()
    service = ScriptedService()
    await service.open()
    limits = RateLimiter(load_settings(folder / "limits.toml"), world)
    opened = Gateway(limits, read_upstream(upstream or f"http://127.0.0.1:{service.port}"), world)
    await limits.open()
    await opened.open()
    running = RunningGateway(service, opened)
    try:
        yield running
    finally:
        running.close()
        await opened.close()
        await limits.close()
        service.close()


def run_scenario(folder: Path, scenario: Callable[[RunningGateway], Awaitable[T]], **options: str) -> T:
    """Run a scenario with a gateway on uvloop. The options are those of `run_gateway`."""

    async def run() -> T:
        async with run_gateway(folder, **options) as running:
            return await scenario(running)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def find_statuses(data: bytes) -> list[int]:
    """Return the statuses of all replies in the bytes that a caller received."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]
