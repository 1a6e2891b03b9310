"""A gateway between a caller who sends bytes and a service that is scripted, all in one loop and on real sockets."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from tests.limits.front.desks import DIRECTORY
from wharf.limits.config.settings_file import read_upstream
from wharf.limits.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.world import RealWorld

T = TypeVar("T")
WITHIN_S = 60.0
Handler = Callable[["Got", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Got(msgspec.Struct):
    """A request as the service got it."""

    line: str
    headers: dict[str, str]
    body: bytes = b""


class Heard(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def hello(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


async def read_body(headers: dict[str, str], reader: asyncio.StreamReader) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


class Service:
    """Answers by its handler, which may be changed. It keeps what it got."""

    def __init__(self) -> None:
        self.handler: Handler = hello
        self.reads_bodies = True
        self.got: list[Got] = []
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
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                got = Got(lines[0], headers)
                self.got.append(got)
                if self.reads_bodies:
                    got.body = await read_body(headers, reader)
                await self.handler(got, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


class Wire:
    """One connection of a caller."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self, *, is_head: bool = False) -> Heard:
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
            }
            status = int(lines[0].split()[1])
            if is_head or status in (101, 204, 304):
                return Heard(status, headers, b"")
            if "content-length" in headers or "transfer-encoding" in headers:
                return Heard(status, headers, await read_body(headers, self.reader))
            return Heard(status, headers, await self.reader.read())

    async def ask(
        self, target: str = "/things", *headers: str, method: str = "GET", body: bytes | None = None
    ) -> Heard:
        lines = [f"{method} {target} HTTP/1.1", "Host: service.example", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        return await self.hear(is_head=method == "HEAD")

    async def rest(self) -> bytes:
        """Everything until the gateway closes."""
        async with asyncio.timeout(WITHIN_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.close()


class Place:
    def __init__(self, service: Service, gateway: Gateway) -> None:
        self.service = service
        self.gateway = gateway
        self.desk = gateway.decision_service
        self._wires: list[Wire] = []

    async def wire(self) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.gateway.port, limit=1 << 22))
        self._wires.append(wire)
        return wire

    async def ask(
        self, target: str = "/things", *headers: str, method: str = "GET", body: bytes | None = None
    ) -> Heard:
        wire = await self.wire()
        return await wire.ask(target, *headers, method=method, body=body)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()


@asynccontextmanager
async def a_place(
    folder: Path, *, rules: str = "", gateway: str = "", more: str = "", upstream: str = ""
) -> AsyncIterator[Place]:
    (folder / "rules.toml").write_text(rules)
    (folder / "people.toml").write_text(DIRECTORY)
    (folder / "limits.toml").write_text(
        f'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n{more}\n'
        f'[gateway]\nlisten = "127.0.0.1:0"\ndrain_timeout = "1s"\n{gateway}\n'
    )
    world = RealWorld()
    service = Service()
    await service.open()
    limits = RateLimiter(load_settings(folder / "limits.toml"), world)
    await limits.open()
    running = Gateway(limits, read_upstream(upstream or f"http://127.0.0.1:{service.port}"), world)
    await running.open()
    place = Place(service, running)
    try:
        yield place
    finally:
        place.close()
        await running.close()
        await limits.close()
        service.close()


def at(folder: Path, scenario: Callable[[Place], Awaitable[T]], **how: str) -> T:
    async def whole() -> T:
        async with a_place(folder, **how) as place:
            return await scenario(place)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(whole())


def statuses(data: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]
