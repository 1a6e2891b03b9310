"""How often a node asks its container engine for a ping and for its version: a server on a socket counts requests."""

import asyncio
import json
import socketserver
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_servers import QuietHandler, serving
from tests.node.drivers.test_docker import RecordingWatcher
from wharf.node.drivers.docker.config import DockerSettings
from wharf.node.drivers.docker.driver import DockerDriver
from wharf.node.node_mark import NodeMark
from wharf.world import RealWorld


class CountingEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers the requests of a probe as an engine does, and records them."""

    daemon_threads = True

    def __init__(self, socket: Path) -> None:
        super().__init__(str(socket), _Handler)
        self.version = "4.3.1"
        self.is_broken = False
        self.requests: list[str] = []


class _Handler(QuietHandler):
    server: CountingEngine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        request = self.path.rpartition("/")[2]
        self.server.requests.append(request)
        version = {"Version": self.server.version, "Os": "linux", "ApiVersion": "1.41"}
        body = json.dumps(version).encode() if request == "version" else b"OK"
        self.send_response_only(500 if self.server.is_broken else 200)
        self.send_header("Server", f"Libpod/{self.server.version} (linux)")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[CountingEngine]:
    with serving(CountingEngine(tmp_path / "s")) as engine:
        yield engine


def probe(engine: CountingEngine, tmp_path: Path, *changes: str) -> list[tuple[bool, str]]:
    """Probe the engine twice, and again after each change. Return (is healthy, version) of the last probes."""

    async def run() -> list[tuple[bool, str]]:
        driver = DockerDriver(
            RealWorld(),
            RecordingWatcher(),
            socket=tmp_path / "s",
            settings=DockerSettings(),
            owner=NodeMark("n"),
            folder=tmp_path,
            is_current_run=lambda _: False,
        )
        await driver.probe()
        results = [await driver.probe()]
        for change in changes:
            engine.is_broken = change == "broken"
            if change not in ("broken", "back"):
                engine.version = change
            results.append(await driver.probe())
        await driver.close()
        return [(each.is_healthy, each.attributes.get("driver.docker.version", "")) for each in results]

    return asyncio.run(run())


def test_the_version_of_an_engine_is_requested_once(engine: CountingEngine, tmp_path: Path) -> None:
    assert [(True, "4.3.1")] == probe(engine, tmp_path)
    assert ["_ping", "version", "_ping"] == engine.requests


def test_the_version_is_requested_again_after_the_engine_was_away(engine: CountingEngine, tmp_path: Path) -> None:
    assert [(True, "4.3.1"), (False, ""), (True, "4.3.1")] == probe(engine, tmp_path, "broken", "back")
    assert ["_ping", "version", "_ping", "_ping", "_ping", "version"] == engine.requests


def test_the_version_is_requested_again_after_the_engine_was_replaced(engine: CountingEngine, tmp_path: Path) -> None:
    assert [(True, "4.3.1"), (True, "5.0.0")] == probe(engine, tmp_path, "5.0.0")
    assert ["_ping", "version", "_ping", "_ping", "version"] == engine.requests
