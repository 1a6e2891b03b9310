"""Sessions of users at frozen servers and nodes: followed logs, commands in tasks and blocking queries."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.processes import RunningAgent, role_of
from tests.agent.test_frozen_servers import TwoServers, endpoint, freeze, running_node, running_two_servers
from tests.waiting import wait_until
from wharf.contract.client import NO_RETRIES, ClientSettings, Unreachable, connect, connect_async
from wharf.contract.client.errors import RequestRefused
from wharf.contract.client.exec import open_command
from wharf.contract.client.liveness import PROBE_INTERVAL_S, PROBE_TIMEOUT_S

pytestmark = [pytest.mark.needs_program("etcd"), pytest.mark.faults]

__all__ = ["endpoint"]

LEAVE_WITHIN_S: Final = PROBE_INTERVAL_S + PROBE_TIMEOUT_S + 3.0
"""The documented limit until a frozen server is left, and time for the next server on a busy machine."""
LEAVE_NODE_WITHIN_S: Final = 45.0
"""The connection to a frozen node is closed when it answers no ping: sent every 20 s, it has 20 s for the answer."""
COUNT_LINES: Final = "i=0; while true; do i=$((i + 1)); echo $i; sleep 0.05; done"


class Session:
    """The servers, their node, and a running task that writes numbered lines."""

    def __init__(self, servers: TwoServers, node: RunningAgent) -> None:
        self.leader, self.follower = servers
        self.node = node
        task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", COUNT_LINES]}}
        self.leader.put("/v1/jobs", {"Job": {"ID": "lines", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}})
        self.allocation_id = str(wait_until(self._find_running, what="the task runs", within_s=60.0))

    def _find_running(self) -> str:
        allocations: Any = self.leader.get("/v1/job/lines/allocations")
        return "".join(each["ID"] for each in allocations if each["ClientStatus"] == "running")

    def settings(self, *servers: RunningAgent) -> ClientSettings:
        return ClientSettings(addresses=tuple(server.address for server in servers))


@pytest.fixture
def session(tmp_path: Path, endpoint: str) -> Iterator[Session]:
    with running_two_servers(tmp_path, endpoint) as servers, running_node(tmp_path, *servers) as node:
        try:
            yield Session(servers, node)
        finally:
            thaw_node(node)


def freeze_node(node: RunningAgent) -> None:
    """Stop the processes of the agent, but not its supervisor and tasks."""
    for pid in [node.process.pid, *(pid for pid in node.children() if role_of(pid))]:
        os.kill(pid, signal.SIGSTOP)


def thaw_node(node: RunningAgent) -> None:
    for pid in [*node.children(), node.process.pid]:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def in_thread(function: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=function)
    thread.start()
    try:
        yield
    finally:
        thread.join(LEAVE_WITHIN_S * 4)
        assert not thread.is_alive()


async def run_silent_command(session: Session, server: RunningAgent, freeze_it: Callable[[], None]) -> float:
    """Run a command that prints one line, freeze something, and return after how many seconds the command failed."""
    settings = session.settings(server)
    async with open_command(settings, session.allocation_id, "t", ["sh", "-c", "echo begun; sleep 1000"]) as running:
        output = running.read_output()
        async with aclosing(output):  # type: ignore[type-var]
            assert (await anext(output)).data == b"begun\n"
            freeze_it()
            began_s = time.monotonic()
            with pytest.raises((Unreachable, RequestRefused)):
                await asyncio.wait_for(anext(output), 60.0)
            return time.monotonic() - began_s


async def follow_over(session: Session, freeze_it: Callable[[], None], *servers: RunningAgent) -> float:
    """Follow the log, freeze something, and return after how many seconds the next line came. No line is lost."""
    async with connect_async(session.settings(*servers)) as client:
        text, began_s, size = b"", 0.0, 0
        async with aclosing(client.files.logs(session.allocation_id, "t", follow=True)) as chunks:
            async for chunk in chunks:
                text += chunk
                if not began_s and len(text) > 20:
                    freeze_it()
                    began_s, size = time.monotonic(), len(text)
                elif began_s and len(text) > size + 200:
                    break
        lines = text.decode().splitlines()[:-1]
        assert lines == [str(number) for number in range(1, len(lines) + 1)]
        return time.monotonic() - began_s


def test_a_followed_log_continues_at_another_server(session: Session) -> None:
    silent_s = asyncio.run(follow_over(session, lambda: freeze(session.follower), session.follower, session.leader))

    assert silent_s < LEAVE_WITHIN_S + 10.0  # The 200 bytes take about three seconds.


def test_a_command_at_a_frozen_server_ends_with_an_error(session: Session) -> None:
    ended_s = asyncio.run(run_silent_command(session, session.follower, lambda: freeze(session.follower)))

    assert ended_s < LEAVE_WITHIN_S


def test_a_blocking_query_of_the_synchronous_client_continues_at_another_server(session: Session) -> None:
    settings = session.settings(session.follower, session.leader)
    with connect(settings, retry_policy=NO_RETRIES) as client:
        index = client.namespaces.list().index
        timer = threading.Timer(1.0, freeze, (session.follower,))
        timer.start()
        began_s = time.monotonic()
        response = client.namespaces.list(index=index, wait_s=LEAVE_WITHIN_S + 5.0)

    assert response.index == index
    assert time.monotonic() - began_s < 3 * LEAVE_WITHIN_S


def test_a_command_in_a_task_of_a_frozen_node_ends_with_an_error(session: Session) -> None:
    ended_s = asyncio.run(run_silent_command(session, session.leader, lambda: freeze_node(session.node)))

    assert ended_s < LEAVE_NODE_WITHIN_S


def test_a_followed_log_of_a_node_that_is_frozen_for_ten_seconds_continues_without_a_loss(session: Session) -> None:
    def freeze_for_a_while() -> None:
        freeze_node(session.node)
        threading.Timer(10.0, thaw_node, (session.node,)).start()

    assert asyncio.run(follow_over(session, freeze_for_a_while, session.leader)) < LEAVE_NODE_WITHIN_S
