"""Blocking queries while servers restart: every client continues from its last index and misses nothing.

Each client waits for changes of one record, through many rounds. In a round every record is written once. The next round
begins when every client has received its record, so a single missed change stops the test and is reported.
"""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.agent.test_servers import configure
from tests.cluster.engines.etcd_server import running_etcd
from tests.ports import free_ports
from tests.reliability.callers import FILES, Reply, Waiter, allow_sockets, ask, open_waiter

ROUND_WITHIN_S = 120.0
RETRY_S = 0.1
RECORDS = 20


class Client:
    """Follows one record at any server that replies, from the last index that it has seen."""

    def __init__(self, number: int, ports: list[int]) -> None:
        self.path = f"/v1/var/n{number % RECORDS}"
        self.ports = ports
        self.server_number = number
        self.index = 0
        self.round = -1
        self.regressions: list[str] = []
        self.cut_off_count = 0
        self.refused_count = 0

    async def follow(self, on_round_seen: Callable[[], None]) -> None:
        while True:
            reply = await self._send_blocking_query()
            if reply is None or reply.status != 200 or not reply.is_whole:
                self.cut_off_count += reply is None or not reply.is_whole
                self.refused_count += reply is not None and reply.is_whole
                self.server_number += 1  # Another server, with the same index.
                await asyncio.sleep(RETRY_S)
                continue
            round_number = int(json.loads(reply.body)["Items"]["round"])
            if reply.index < self.index or round_number < self.round:
                self.regressions.append(
                    f"{self.path}: index {self.index} -> {reply.index}, {self.round} -> {round_number}"
                )
            self.index = max(self.index, reply.index)
            if round_number > self.round:
                self.round = round_number
                on_round_seen()

    async def _send_blocking_query(self) -> Reply | None:
        port = self.ports[self.server_number % len(self.ports)]
        waiter: Waiter | None = None
        try:
            waiter = await open_waiter(port, f"{self.path}?index={self.index}&wait=5m")
            return await waiter.ended
        except OSError:
            return None
        finally:
            if waiter is not None:
                waiter.leave()


async def write(port_of: Callable[[], int], number: int, round_number: int) -> None:
    """Write a record, repeatedly until a server acknowledges it."""
    body = json.dumps({"Items": {"round": str(round_number)}}).encode()
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            if (await ask(port_of(), f"/v1/var/n{number}", method="PUT", body=body)).status == 200:
                return
        await asyncio.sleep(RETRY_S)


class Servers:
    """Agents on fixed ports that can be stopped, killed and restarted."""

    def __init__(self, start: Callable[[int], AbstractContextManager[RunningAgent]], ports: list[int]) -> None:
        self._start = start
        self.ports = ports
        self._stacks = [ExitStack() for _ in ports]
        self.agents: list[RunningAgent | None] = [None] * len(ports)
        self._port_requests = 0

    def start(self, number: int) -> None:
        agent = self._stacks[number].enter_context(self._start(number))
        agent.wait_ready()
        agent.children()
        self.agents[number] = agent

    def end(self, number: int, stop_signal: signal.Signals) -> None:
        agent = self.agents[number]
        assert agent is not None, "the server runs"
        agent.children()
        agent.signal(stop_signal)
        agent.wait_end(within_s=60.0)
        self._stacks[number].close()  # Also ends the children of a killed parent.
        self._stacks[number] = ExitStack()
        self.agents[number] = None

    def next_port(self) -> int:
        self._port_requests += 1
        return self.ports[self._port_requests % len(self.ports)]

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()


async def run_rounds(servers: Servers, *, clients: int, restarts: list[tuple[int, signal.Signals]]) -> str:
    """Run one round for each restart; the server restarts while the round is written. Return the results as text."""
    for number in range(RECORDS):
        await write(servers.next_port, number, 0)
    all_clients = [Client(number, servers.ports) for number in range(clients)]
    waiting = clients
    all_seen = asyncio.Event()

    def on_round_seen() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            all_seen.set()

    follow_tasks: list[asyncio.Task[None]] = []

    async def start_following(number: int) -> None:
        follow_tasks.append(asyncio.get_running_loop().create_task(all_clients[number].follow(on_round_seen)))
        await asyncio.sleep(0)

    async def wait_until_all_seen(round_number: int) -> None:
        try:
            await asyncio.wait_for(all_seen.wait(), ROUND_WITHIN_S)
        except TimeoutError:
            behind = [client for client in all_clients if client.round != round_number]
            raise AssertionError(
                f"round {round_number}: {len(behind)} clients received no change, for example {behind[0].__dict__}"
            ) from None

    try:
        for start in range(0, clients, 200):
            await asyncio.gather(*(start_following(number) for number in range(start, min(clients, start + 200))))
            await asyncio.sleep(0.05)
        await wait_until_all_seen(0)
        durations_s: list[float] = []
        for round_number, (server_number, stop_signal) in enumerate(restarts, start=1):
            waiting = clients
            all_seen.clear()
            started_s = time.monotonic()
            writing = [
                asyncio.create_task(write(servers.next_port, number, round_number)) for number in range(RECORDS // 2)
            ]
            await asyncio.to_thread(servers.end, server_number, stop_signal)
            writing += [
                asyncio.create_task(write(servers.next_port, number, round_number))
                for number in range(RECORDS // 2, RECORDS)
            ]
            await asyncio.to_thread(servers.start, server_number)
            await asyncio.gather(*writing)
            await wait_until_all_seen(round_number)
            durations_s.append(time.monotonic() - started_s)
    finally:
        for task in follow_tasks:
            task.cancel()
        await asyncio.gather(*follow_tasks, return_exceptions=True)
    assert [text for client in all_clients for text in client.regressions] == []
    assert [client.round for client in all_clients if client.round != len(restarts)] == []
    cut_off_count, refused_count = (
        sum(client.cut_off_count for client in all_clients),
        sum(client.refused_count for client in all_clients),
    )
    return (
        f"\n{clients} clients, {len(restarts)} restarts: all received every round; {cut_off_count} answers cut off, {refused_count} refused; "
        f"seconds from the signal until all had received the round: {', '.join(f'{s:.1f}' for s in durations_s)}"
    )


def run_with_sqlite(folder: Path, *, clients: int, restarts: list[tuple[int, signal.Signals]]) -> None:
    allow_sockets(FILES)
    ports = free_ports(1)
    servers = Servers(lambda _: running(folder, "dev", "--port", str(ports[0])), ports)
    try:
        servers.start(0)
        print(asyncio.run(run_rounds(servers, clients=clients, restarts=restarts)))
    finally:
        servers.close()


def test_clients_continue_from_their_last_index_after_a_restart_of_their_server(tmp_path: Path) -> None:
    run_with_sqlite(tmp_path / "a", clients=300, restarts=[(0, signal.SIGTERM), (0, signal.SIGKILL)])


@pytest.mark.faults
def test_9500_clients_of_one_server_miss_no_change_while_it_restarts(tmp_path: Path) -> None:
    run_with_sqlite(tmp_path / "a", clients=9_500, restarts=[(0, signal.SIGTERM), (0, signal.SIGKILL)] * 2)


@pytest.mark.faults
@pytest.mark.needs_program("etcd")
def test_9500_clients_of_two_servers_miss_no_change_while_both_restart(tmp_path: Path) -> None:
    allow_sockets(FILES)
    ports = free_ports(2)
    with running_etcd(tmp_path / "etcd") as cluster:
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder, port in zip(folders, ports, strict=True):
            file = configure(folder, folder.name, cluster.members[0].endpoint)
            file.write_text(file.read_text().replace("http = 0", f"http = {port}"))
        servers = Servers(
            lambda number: running(folders[number], "agent", "--config", str(folders[number] / "wharf.toml")), ports
        )
        try:
            servers.start(0)
            servers.start(1)
            restarts = [(0, signal.SIGTERM), (1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGTERM)]
            print(asyncio.run(run_rounds(servers, clients=10_000, restarts=restarts)))
        finally:
            servers.close()
