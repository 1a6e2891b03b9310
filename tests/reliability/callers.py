"""Thousands of clients over plain sockets: for blocking queries, for misuse, and for measurements of latency."""

import asyncio
import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HOST: Final = "127.0.0.1"
AT_ONCE: Final = 200
"""Clients that connect at once, so that no listen backlog overflows."""
FILES: Final = 20_000


def allow_sockets(count: int) -> None:
    """Raise the limit of open files of this process for `count` sockets, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


class Reply:
    """A reply read from one connection, possibly truncated."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1]) if first.startswith("HTTP/1.1 ") else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def is_whole(self) -> bool:
        return self.status > 0 and len(self.body) == int(self.headers.get("content-length", "-1"))

    @property
    def index(self) -> int:
        return int(self.headers.get("x-cluster-index", "0"))


async def ask(port: int, target: str, *, method: str = "GET", body: bytes = b"", within_s: float = 30.0) -> Reply:
    """Send one request on a new connection and return its possibly truncated reply."""
    data = b""
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            with contextlib.suppress(ConnectionError):
                data = await reader.read()
        finally:
            writer.transport.abort()
    return Reply(data)


async def read(port: int, target: str) -> Any:
    reply = await ask(port, target)
    assert reply.status == 200, (reply.status, reply.body)
    return json.loads(reply.body)


async def count_blocked_queries(port: int) -> int:
    """Return the number of waiting blocking queries from the server's metrics."""
    description = await read(port, "/v1/agent/self")
    return _find(description, "blocked_queries")


def _find(document: Any, name: str) -> int:
    if isinstance(document, dict):
        if name in document:
            return int(document[name])
        return max((_find(value, name) for value in document.values()), default=-1)
    return -1


async def wait_until_all_block(port: int, count: int, *, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while (waiting_count := await count_blocked_queries(port)) < count:
        assert time.monotonic() < deadline, f"after {within_s} s {waiting_count} of {count} wait"
        await asyncio.sleep(0.2)


async def run_in_groups(count: int, call: Any) -> list[Any]:
    """Run `call(number)` for all numbers, at most `AT_ONCE` at a time."""
    results = []
    for start in range(0, count, AT_ONCE):
        results += await asyncio.gather(*(call(number) for number in range(start, min(count, start + AT_ONCE))))
    return results


class Waiter(asyncio.Protocol):
    """One blocking query. `ended` has the reply and its time once the connection is closed."""

    def __init__(self, target: str) -> None:
        self._request = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        self._parts: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.last_data_s = 0.0
        self.ended: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.last_data_s = time.monotonic()
        self._parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.ended.done():
            self.ended.set_result(Reply(b"".join(self._parts)))

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_waiter(port: int, target: str) -> Waiter:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Waiter(target), HOST, port))[1]


# -- processes -------------------------------------------------------------------------------------------------------


def memory_mb(pid: int) -> float:
    """Return the private memory of the process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def open_sockets(pid: int) -> int:
    return sum(1 for link in _links(pid) if link.startswith("socket:"))


def _links(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(entry)


# -- latency of other clients ------------------------------------------------------------------------------------


class LatencyProbe:
    """Repeats a small request on new connections and records the latency of each reply."""

    def __init__(self, port: int, target: str = "/v1/job/small") -> None:
        self._port = port
        self._target = target
        self.latencies_ms: list[float] = []
        self.error_statuses: list[int] = []

    async def measure(self, times: int) -> None:
        for _ in range(times):
            started_s = time.monotonic()
            reply = await ask(self._port, self._target)
            self.latencies_ms.append((time.monotonic() - started_s) * 1_000)
            if reply.status != 200:
                self.error_statuses.append(reply.status)
            await asyncio.sleep(0.005)

    def get_percentile_ms(self, share: float) -> float:
        return sorted(self.latencies_ms)[min(len(self.latencies_ms) - 1, int(len(self.latencies_ms) * share))]
