"""The server of commands for operators: what it reads from a connection, and what it refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.limits.decision_services import AdvancingWorld
from wharf.limits.admin.server import AdminServer
from wharf.limits.config import LimiterSettings
from wharf.limits.config.settings import GatewaySettings, StoreSettings
from wharf.limits.rate_limiter import RateLimiter

T = TypeVar("T")
TOKEN = "a token"
REQUEST = b"GET /rules HTTP/1.1\r\nHost: a\r\n"


class Running:
    """A running server, on its socket, its port and the port of its metrics."""

    def __init__(self, folder: Path) -> None:
        gateway = GatewaySettings(metrics_host="127.0.0.1")
        settings = LimiterSettings(
            data_folder=folder,
            admin_host="127.0.0.1",
            admin_token=TOKEN,
            gateway=gateway,
            store=StoreSettings(is_saved=False),
        )
        self.path = settings.socket_path
        world = AdvancingWorld()
        self.server = AdminServer(RateLimiter(settings, world), world)

    async def send(self, data: bytes, *, port: int = 0) -> bytes:
        """Send bytes over a new connection, and return what is received until its end."""
        if port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        else:
            reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(data)
        writer.write_eof()
        received = await reader.read()
        writer.close()
        return received

    async def ask(self, data: bytes, *, port: int = 0) -> int:
        """Return the status of the reply; 0 without one."""
        received = await self.send(data, port=port)
        return int(received[9:12]) if received else 0


def run(folder: Path, scenario: Callable[[Running], Awaitable[T]]) -> T:
    async def wait() -> T:
        running = Running(folder)
        await running.server.open()
        try:
            return await scenario(running)
        finally:
            await running.server.close()

    return asyncio.run(wait())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (REQUEST + b"\r\n", 200),
        (REQUEST + b"A: b\r\n" * 49 + b"\r\n", 200),
        (REQUEST + b"A: b\r\n" * 50 + b"\r\n", 400),
        (b"what\r\n\r\n", 400),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 67108864\r\n\r\n", 0),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 67108865\r\n\r\n", 400),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{}", 0),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 200),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{x", 400),
        (b"POST /reload HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"POST /unknown HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"GET /unknown HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"GET /rules HTTP/1.1\r\nHost:", 0),
    ],
)
def test_each_connection_has_one_request_with_a_short_head(tmp_path: Path, data: bytes, status: int) -> None:
    assert run(tmp_path, lambda running: running.ask(data)) == status


@pytest.mark.parametrize(
    ("header", "status"),
    [(b"", 401), (b"Authorization: Bearer x\r\n", 401), (b"Authorization: Bearer a token\r\n", 200)],
)
def test_the_port_needs_the_token(tmp_path: Path, header: bytes, status: int) -> None:
    async def scenario(running: Running) -> int:
        return await running.ask(REQUEST + header + b"\r\n", port=running.server.port)

    assert run(tmp_path, scenario) == status


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"GET /metrics", 200), (b"GET /rules", 404), (b"POST /metrics", 404), (b"GET /metrics?a=b", 404)],
)
def test_the_port_of_the_metrics_serves_nothing_else(tmp_path: Path, line: bytes, status: int) -> None:
    async def scenario(running: Running) -> int:
        return await running.ask(line + b" HTTP/1.1\r\nHost: a\r\n\r\n", port=running.server.metrics_port)

    assert run(tmp_path, scenario) == status


def test_a_second_server_at_the_same_socket_is_rejected(tmp_path: Path) -> None:
    async def scenario(running: Running) -> int:
        with pytest.raises(OSError, match="another limiter listens at"):
            await running.server.open()
        return await running.ask(REQUEST + b"\r\n")

    assert run(tmp_path, scenario) == 200


def test_a_closed_server_leaves_no_socket_and_listens_nowhere(tmp_path: Path) -> None:
    async def scenario(running: Running) -> bool:
        await running.server.close()
        for port in (running.server.port, running.server.metrics_port):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        return running.path.exists()

    assert run(tmp_path, scenario) is False


def test_a_grant_that_cannot_be_saved_is_refused_with_the_reason(tmp_path: Path) -> None:
    body = (
        b'{"caller": "address:192.0.2.7", "resource": "core", "amount": 5, "for_ms": 1000, "by": "ops", "reason": "x"}'
    )
    request = b"POST /grant HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def grant(running: Running) -> bytes:
        (tmp_path / "grants.json.new").mkdir()
        return await running.send(request)

    reply = run(tmp_path, grant)

    assert (reply[9:12], b"nothing was changed: the file " in reply) == (b"503", True), reply
