"""An exchange between a caller and a service through a gateway, step by step, on a clock that the test moves.

The sockets record what is called.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.limits.decision_services import ADA, DIRECTORY, AdvancingWorld
from tests.waiting import wait_on_loop_until
from wharf.limits.config.settings import GatewaySettings, LimiterSettings, StoreKind, StoreSettings, Upstream
from wharf.limits.gateway.caller.connection import CallerConnection
from wharf.limits.gateway.environment import GatewayEnvironment
from wharf.limits.gateway.upstream import UpstreamConnection
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.stores.guard import GuardSettings
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer

T = TypeVar("T")
HEAD_S, IDLE_S, UPSTREAM_S = 4.0, 6.0, 3.0
ADA_SENDS = f"Authorization: token {ADA}\r\n".encode()
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"Content-Length: 5\r\n\r\nhello"
EXPECT = b"Expect: 100-continue\r\n"
REFUSE_ALL = '[[rule]]\nname = "core"\nceiling = 0\n'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WEBSOCKET = b"Connection: upgrade\r\nUpgrade: websocket\r\n"
SWITCH = b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"


class Socket(asyncio.Transport):
    """A transport that records what is written, and the other calls in order."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.7", 4321)})
        self.written = b""
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data, self.written = self.written, b""
        return data

    def take_calls(self) -> list[str]:
        """Return the calls since the last one."""
        calls, self.calls = self.calls, []
        return calls

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("eof")


class Exchange:
    """A caller's connection to a gateway, and one connection from the gateway to the service, idle at first."""

    def __init__(self, folder: Path, rules: str = "", *, is_bare: bool = False, is_local: bool = True) -> None:
        (folder / "rules.toml").write_text(rules)
        (folder / "people.toml").write_text(DIRECTORY)
        gateway = GatewaySettings(
            upstream_ms=int(UPSTREAM_S * 1_000),
            head_ms=int(HEAD_S * 1_000),
            idle_ms=int(IDLE_S * 1_000),
            upstream_connections_most=0,  # Only connections that a test adds.
        )
        settings = LimiterSettings(
            rules_file=folder / "rules.toml",
            directory_file=folder / "people.toml",
            data_folder=folder,
            has_insights=True,
            gateway=gateway,
            store=StoreSettings(is_saved=False)
            if is_local
            else StoreSettings(
                kind=StoreKind.NEIGHBOUR, socket=folder / "counters.sock", guard=GuardSettings(wait_ms=60_000)
            ),
        )
        self.world = AdvancingWorld()
        self.world.advance(100)
        self.limits = RateLimiter(settings, self.world)
        self.service = self.limits.decision_service
        store = self.service.evaluator.store
        self.counter_server: CounterServer | None = None
        """Has the counters, unless they are in the gateway's process."""
        if not is_local:
            store = MemoryStore(self.world, self.service.evaluator.rules)
            self.counter_server = CounterServer(store, folder / "counters.sock")
        assert isinstance(store, MemoryStore)
        self.counters = store
        upstream = Upstream(host="127.0.0.1", port=1)
        self.environment = GatewayEnvironment(self.limits, upstream, self.world, is_bare=is_bare)
        self.opened: list[CallerConnection] = []
        self.closed: list[CallerConnection] = []
        self.connection = CallerConnection(self.environment, self.opened.append, self.closed.append)
        self.socket = Socket()
        self.connection.connection_made(self.socket)
        self.upstream = self.connect_upstream()

    def connect_upstream(self) -> UpstreamConnection:
        """Add an idle connection to the service to the pool."""
        upstream = UpstreamConnection(self.environment.pool)
        self.upstream_socket = Socket()
        upstream.connection_made(self.upstream_socket)
        self.environment.pool.return_connection(upstream)
        return upstream

    def send(
        self,
        line: str = "GET /x",
        headers: bytes = b"",
        body: bytes = b"",
        *,
        version: str = "1.1",
        by: bytes = ADA_SENDS,
    ) -> None:
        self.connection.data_received(f"{line} HTTP/{version}\r\nHost: a\r\n".encode() + by + headers + b"\r\n" + body)

    def reply(self, data: bytes = HELLO) -> None:
        self.upstream.data_received(data)

    def occupy_connection(self) -> UpstreamConnection:
        """Take the idle connection from the pool for another request, so that the next request waits for it."""
        upstream = self.environment.pool.take_idle()
        assert upstream is not None
        return upstream

    @property
    def caller_left_s(self) -> float | None:
        """How long the caller may take for its next step, or `None` without a limit."""
        return self._measure_left_s(self.connection.transport.deadline_s)

    @property
    def service_left_s(self) -> float | None:
        return self._measure_left_s(self.upstream.deadline_s)

    def _measure_left_s(self, deadline_s: float) -> float | None:
        return round(deadline_s - self.world.monotonic_s(), 3) if deadline_s else None

    @property
    def status(self) -> int:
        """The status of the reply that was written since the last call; 0 without one."""
        data = self.socket.take()
        return int(data[9:12]) if data else 0

    async def wait_for_status(self) -> int:
        """Return the status of the next reply."""
        await wait_on_loop_until(lambda: self.socket.written, what="a reply")
        return self.status

    async def settle(self) -> None:
        """Run all tasks that do not wait for time or a socket."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def settle_until_forwarded(self) -> None:
        await wait_on_loop_until(lambda: self.upstream_socket.written, what="the request is forwarded")

    async def settle_until_ended(self) -> None:
        await wait_on_loop_until(lambda: not self.service.running_requests, what="the request has ended")
        await self.settle()

    def open_second_connection(self) -> "SecondConnection":
        """Return another connection of the caller to the same gateway."""
        return SecondConnection(self)

    def count_running(self) -> tuple[int, int]:
        """Return how many requests Ada is charged for, and how many concurrency slots they hold."""
        return self.count_used("core"), self.count_used("concurrent")

    def count_used(self, rule: str) -> int:
        """Return how much of a rule's limit Ada has used."""
        return self.counters.counters.tables[rule].count_used("user:ada", self.counters.now_ms())


class SecondConnection:
    """Another connection of the caller."""

    def __init__(self, exchange: Exchange) -> None:
        self.connection = CallerConnection(exchange.environment, exchange.opened.append, exchange.closed.append)
        self.socket = Socket()
        self.connection.connection_made(self.socket)

    def send(self, line: str) -> None:
        self.connection.data_received(f"{line} HTTP/1.1\r\nHost: a\r\n".encode() + ADA_SENDS + b"\r\n")


def run(
    folder: Path,
    scenario: Callable[[Exchange], Awaitable[T]],
    *,
    rules: str = "",
    is_bare: bool = False,
    is_local: bool = True,
) -> T:
    async def run_scenario() -> T:
        exchange = Exchange(folder, rules, is_bare=is_bare, is_local=is_local)
        if exchange.counter_server is not None:
            await exchange.counter_server.open()
        await exchange.limits.stores.open()
        try:
            return await scenario(exchange)
        finally:
            await exchange.environment.pool.close()
            await exchange.service.close()
            await exchange.limits.stores.close()
            if exchange.counter_server is not None:
                await exchange.counter_server.close()

    return asyncio.run(run_scenario())


def read_head(data: bytes) -> tuple[bytes, bytes]:
    """Return the first line and the body of a request that the gateway has sent."""
    head, _, body = data.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body
