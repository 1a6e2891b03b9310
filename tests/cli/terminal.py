"""Runs commands in the test's process against a server in memory: real commands, real API, virtual time."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulation.loop import SimulatedLoop
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryStream, InMemoryTransport
from tests.kit.virtual_time import SEED, pass_time
from wharf.cli.root import main
from wharf.contract.client import ClientReply, ClientRequest, ClientSettings, SyncClient
from wharf.contract.client.flow import ClientDefaults, RetryPolicy
from wharf.contract.client.transport import SyncStreamedReply
from wharf.world import World

COMMAND_RETRIES = RetryPolicy(max_attempts=1, retries_first_open=False)
"""Like the policy of commands, a stream that cannot be opened fails; other calls are not retried."""
WEB = """
ID: web
TaskGroups:
  - Name: api
    Count: 2
    Update: {MinHealthyTime: 1s}
    Tasks:
      - {Name: main, Driver: mock, Resources: {CPU: 100, MemoryMB: 32}}
"""


@dataclasses.dataclass
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def errors(self) -> list[str]:
        """The lines of the messages, without the excerpts of files below them."""
        return [line for line in self.err.splitlines() if not line.startswith("   ")]


def _do_nothing(path: str) -> None:
    """The default of `before_request`."""


class _SyncTransport:
    """A synchronous transport that runs the event loop until each request is complete."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: InMemoryTransport,
        token: str,
        before_request: Callable[[str], None] = _do_nothing,
    ) -> None:
        self._loop = loop
        self._exchange = exchange
        self._headers = {"x-cluster-token": token} if token else {}
        self._before_request = before_request

    def send(self, request: ClientRequest) -> ClientReply:
        self._before_request(request.path)
        return self._loop.run_until_complete(self._exchange.send(self._add_headers(request)))

    def _add_headers(self, request: ClientRequest) -> ClientRequest:
        headers = {**self._headers, **request.headers}
        return ClientRequest(request.method, request.path, request.query, headers, request.body, request.timeout_s)

    def open(self, request: ClientRequest) -> SyncStreamedReply:
        return _StreamedReply(
            self._loop, self._loop.run_until_complete(self._exchange.open(self._add_headers(request)))
        )

    def close(self) -> None:
        return


class _StreamedReply:
    """A reply that is read in chunks; each read runs the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: InMemoryStream) -> None:
        self.status, self.headers = opened.status, opened.headers
        self._loop = loop
        self._opened = opened

    def read_chunk(self) -> bytes:
        return self._loop.run_until_complete(self._opened.read_chunk())

    def close(self) -> None:
        self._loop.run_until_complete(self._opened.close())


class Terminal:
    """Runs commands against one server. `used_settings` has the client settings of each connection, in order,
    and `opened_pages` the addresses that the browser showed."""

    def __init__(self, loop: SimulatedLoop, cluster: ACluster, server: OneServer, capture: Any) -> None:
        self.loop = loop
        self.cluster = cluster
        self.server = server
        self.world: World = server.world
        self.used_settings: list[ClientSettings] = []
        self._capture = capture
        self._is_away = False
        self.has_browser = True
        self.opened_pages: list[str] = []
        self.lost_path = ""
        """A write to a path that begins with this text makes the server unreachable, for connections made later."""
        self.before_request: Callable[[str], None] = _do_nothing
        """Called with the path of each request before it is sent; may let time pass, so that records change meanwhile."""
        self._exchanges: list[InMemoryTransport] = []

    def set_away(self, is_away: bool) -> None:
        """Make the server unreachable for new requests of all connections, or reachable again."""
        self._is_away = is_away
        for exchange in self._exchanges:
            exchange.is_away = is_away

    def set_away_later(self, is_away: bool, *, after_s: float) -> None:
        """Do the same after a time, also while a command runs."""
        self.loop.call_later(after_s, self.set_away, is_away)

    def connect(self, settings: ClientSettings) -> SyncClient:
        self.used_settings.append(settings)
        exchange = InMemoryTransport(self.server.api)
        exchange.is_away, exchange.lost_path = self._is_away, self.lost_path
        self._exchanges.append(exchange)
        transport = _SyncTransport(self.loop, exchange, settings.token, lambda path: self.before_request(path))
        defaults = ClientDefaults(settings.namespace, settings.region, settings.stale)
        return SyncClient(self.world, [transport], defaults=defaults, retry_policy=COMMAND_RETRIES)

    def open_browser(self, url: str) -> bool:
        if self.has_browser:
            self.opened_pages.append(url)
        return self.has_browser

    def pause(self, seconds: float) -> None:
        self.wait(seconds)

    def run(self, *words: str, program: str = "wharf") -> CommandResult:
        """Run a command and return its result. `program` is the name by which the process is called."""
        self._capture.readouterr()
        try:
            main(words, environment=self, program=program)
        except SystemExit as end:
            code = int(end.code or 0)
        else:
            code = 0
        out, err = self._capture.readouterr()
        return CommandResult(code, out, err)

    def run_ok(self, *words: str) -> str:
        """Run a command that must succeed without messages; return its output."""
        result = self.run(*words)
        assert (result.code, result.err) == (0, ""), result
        return result.out

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(pass_time(seconds))


@contextmanager
def open_terminal(capture: pytest.CaptureFixture[str], *, nodes: int = 0, access: bool = False) -> Iterator[Terminal]:
    """Return a terminal at a cluster of one server with `nodes` fake nodes, named node-1, node-2, ..."""
    loop = SimulatedLoop(SEED)
    asyncio.set_event_loop(loop)
    cluster: ACluster = loop.run_until_complete(_start_cluster())
    server: OneServer = loop.run_until_complete(cluster.a_server(access=access))
    if nodes:
        loop.run_until_complete(cluster.ready_nodes(server, nodes))
    try:
        yield Terminal(loop, cluster, server, capture)
    finally:
        loop.run_until_complete(cluster.__aexit__(None, None, None))
        asyncio.set_event_loop(None)
        loop.close()


async def _start_cluster() -> ACluster:
    return await ACluster().__aenter__()


def write_file(folder: Path, text: str, name: str = "job.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)
