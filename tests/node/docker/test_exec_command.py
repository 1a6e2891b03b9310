"""Commands in containers, at an engine that the test plays: the load of the engine by control messages and long commands."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tests.waiting import WITHIN_S, wait_on_loop_until
from wharf.node.drivers.docker import ContainerEngine
from wharf.node.drivers.docker.exec_command import ContainerCommand
from wharf.node.drivers.docker.exec_connection import ExecConnection
from wharf.world import RealWorld


class EngineOnSocket:
    """An engine that replies to requests about one command while `is_replying` is set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.targets: list[str] = []
        self.is_replying = asyncio.Event()

    def has_received(self, count: int) -> bool:
        return len(self.targets) >= count

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.targets.append(head.split()[1].decode())
        await self.is_replying.wait()
        body = b'{"Running": true}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        writer.close()


@asynccontextmanager
async def run_command(folder: Path) -> AsyncIterator[tuple[EngineOnSocket, ContainerCommand]]:
    """Run a command without output at an engine."""
    served = EngineOnSocket(folder / "engine.sock")
    server = await asyncio.start_unix_server(served.serve, served.path)
    ours, theirs = socket.socketpair()
    connection = ExecConnection(*await asyncio.open_connection(sock=ours), is_tty=True)
    async with ContainerEngine(served.path) as engine:
        command = ContainerCommand(RealWorld(), engine, "x", connection)
        try:
            yield served, command
        finally:
            served.is_replying.set()
            await command.end()
            theirs.close()
            server.close()


def test_many_terminal_sizes_become_one_request_at_a_time_and_the_newest_counts(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        async with asyncio.timeout(WITHIN_S), run_command(tmp_path) as (engine, command):
            for number in range(1, 1_001):
                command.resize(number, 80)
            await wait_on_loop_until(lambda: engine.targets, what="the first size")
            for number in range(1_001, 2_001):
                command.resize(number, 80)
            engine.is_replying.set()
            await wait_on_loop_until(lambda: len(engine.targets) == 2, what="the newest size")
            return [target.partition("?")[2] for target in engine.targets]

    assert asyncio.run(scenario()) == ["h=1000&w=80", "h=2000&w=80"]


def test_the_state_of_a_long_command_is_read_at_growing_intervals(tmp_path: Path) -> None:
    async def scenario() -> list[float]:
        async with asyncio.timeout(WITHIN_S), run_command(tmp_path) as (engine, command):
            engine.is_replying.set()
            waiting = asyncio.ensure_future(command.wait())
            loop, times_s = asyncio.get_running_loop(), []
            for count in (1, 6):
                await wait_on_loop_until(partial(engine.has_received, count), what="reads of the state")
                times_s.append(loop.time())
            waiting.cancel()
            return times_s

    first_s, sixth_s = asyncio.run(scenario())

    assert sixth_s - first_s > 1.4
