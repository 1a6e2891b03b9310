"""Commands in this process, asking a server in memory: the real commands, the real API, virtual time."""

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulation.loop import SimulatedLoop
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemory, OpenedInMemory
from tests.kit.virtual_time import SEED, pass_time
from wharf.cli.root import main
from wharf.cluster.api.app import Api
from wharf.contract.client import ClientReply, ClientRequest, ClientSettings, SyncClient
from wharf.contract.client.flow import NO_RETRIES, ClientDefaults
from wharf.contract.client.transport import SyncStreamedReply
from wharf.world import World

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
class Ended:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class _Exchange:
    """The sync client's port: the loop runs for as long as a request takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, api: Api, token: str) -> None:
        self._loop = loop
        self._exchange = InMemory(api)
        self._headers = {"x-cluster-token": token} if token else {}

    def send(self, request: ClientRequest) -> ClientReply:
        return self._loop.run_until_complete(self._exchange.send(self._told(request)))

    def _told(self, request: ClientRequest) -> ClientRequest:
        headers = {**self._headers, **request.headers}
        return ClientRequest(request.method, request.path, request.query, headers, request.body, request.timeout_s)

    def open(self, request: ClientRequest) -> SyncStreamedReply:
        return _Opened(self._loop, self._loop.run_until_complete(self._exchange.open(self._told(request))))

    def close(self) -> None:
        return


class _Opened:
    def __init__(self, loop: asyncio.AbstractEventLoop, opened: OpenedInMemory) -> None:
        self.status, self.headers = opened.status, opened.headers
        self._loop = loop
        self._opened = opened

    def read_chunk(self) -> bytes:
        return self._loop.run_until_complete(self._opened.read_chunk())

    def close(self) -> None:
        self._loop.run_until_complete(self._opened.close())


class Person:
    """Types commands. `asked`: what the client was connected with, command by command."""

    def __init__(self, loop: SimulatedLoop, cluster: ACluster, server: OneServer, capture: Any) -> None:
        self.loop = loop
        self.cluster = cluster
        self.server = server
        self.world: World = server.world
        self.asked: list[ClientSettings] = []
        self._capture = capture

    def connect(self, settings: ClientSettings) -> SyncClient:
        self.asked.append(settings)
        exchange = _Exchange(self.loop, self.server.api, settings.token)
        defaults = ClientDefaults(settings.namespace, settings.region, settings.stale)
        return SyncClient(self.world, [exchange], defaults=defaults, retry_policy=NO_RETRIES)

    def wharf(self, *words: str) -> Ended:
        self._capture.readouterr()
        try:
            main(words, environment=self)
        except SystemExit as end:
            code = int(end.code or 0)
        else:
            code = 0
        out, err = self._capture.readouterr()
        return Ended(code, out, err)

    def does(self, *words: str) -> str:
        """A command that goes well; what it prints."""
        ended = self.wharf(*words)
        assert (ended.code, ended.err) == (0, ""), ended
        return ended.out

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(pass_time(seconds))


@contextmanager
def a_person(capture: pytest.CaptureFixture[str], *, nodes: int = 0, access: bool = False) -> Iterator[Person]:
    """At a cluster of one server and so many fake nodes, named node-1 and so on."""
    loop = SimulatedLoop(SEED)
    asyncio.set_event_loop(loop)
    cluster: ACluster = loop.run_until_complete(_begun())
    server: OneServer = loop.run_until_complete(cluster.a_server(access=access))
    if nodes:
        loop.run_until_complete(cluster.ready_nodes(server, nodes))
    try:
        yield Person(loop, cluster, server, capture)
    finally:
        loop.run_until_complete(cluster.__aexit__(None, None, None))
        asyncio.set_event_loop(None)
        loop.close()


async def _begun() -> ACluster:
    return await ACluster().__aenter__()


def a_file(folder: Path, text: str, name: str = "job.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)
