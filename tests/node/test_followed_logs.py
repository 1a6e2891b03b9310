"""Following a log while the agent of its node and the api process of its server are killed: each line arrives once."""

import copy
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, role_of
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until
from wharf.contract.client import ClientSettings, connect

LINES_PER_STEP = 500
LINE = "x" * 60
"""Fills lines, so that a log file is rotated within a few steps: the smallest size of one is 1 MB."""
SCRIPT = f"""
i=1
until [ -e $STOP ]; do
  seq -f 'line %.0f {LINE}' $i $((i + {LINES_PER_STEP} - 1)); i=$((i + {LINES_PER_STEP})); sleep 0.02
done
echo end $((i - 1))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("followed")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


class FollowedLog:
    """The log of a task that writes numbered lines until `stop` exists, read by a thread."""

    def __init__(self, node: NodeProcess, job: str, stop: Path) -> None:
        self.text = b""
        self.error: Exception | None = None
        self._node = node
        self._job = job
        self._stop = stop
        # The node keeps more than the task can write while a killed agent starts again on a busy machine.
        log_config = {"MaxFiles": 200, "MaxFileSizeMB": 1}
        description = build_raw_job(job, SCRIPT, Env={"STOP": str(stop)}, LogConfig=log_config)
        description["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 300}
        node.run(description)
        wait_until(lambda: self._has_status("running"), what="the task runs")
        self.allocation_id = str(node.allocations(job)[0]["ID"])
        self._thread = threading.Thread(target=self._read)

    def read_again(self) -> "FollowedLog":
        """Return another reader of the same log."""
        other = copy.copy(self)
        other._thread = threading.Thread(target=other._read)
        return other

    def _has_status(self, status: str) -> bool:
        return any(each["ClientStatus"] == status for each in self._node.allocations(self._job))

    def start(self) -> None:
        self._thread.start()
        self.wait_for_lines()

    def _read(self) -> None:
        try:
            self.read()
        except Exception as error:
            self.error = error

    def read(self) -> None:
        with connect(ClientSettings(addresses=(self._node.server.address,))) as client:
            for chunk in client.files.logs(self.allocation_id, "t", follow=True):
                self.text += chunk

    def wait_for_lines(self) -> None:
        """Wait until more lines have arrived."""
        size = len(self.text)
        wait_until(lambda: len(self.text) > size + 500_000 or self.error, what="more lines")

    def wait_end(self) -> list[bytes]:
        """End the task, and return all lines that were read."""
        self._stop.touch()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None
        return self.text.splitlines()


class PlainFollowedLog(FollowedLog):
    """A log that is read as plain text by a single HTTP request, which cannot be resumed."""

    def read(self) -> None:
        url = f"{self._node.server.address}/v1/client/fs/logs/{self.allocation_id}"
        with urllib.request.urlopen(
            f"{url}?task=t&type=stdout&follow=true&plain=true", timeout=ANSWERED_WITHIN_S
        ) as reply:
            while part := reply.read1():
                self.text += part


def build_expected_lines(last: bytes) -> list[bytes]:
    count = int(last.removeprefix(b"end "))
    return [*(f"line {number} {LINE}".encode() for number in range(1, count + 1)), last]


def test_a_followed_log_has_each_line_once_after_kills_of_agent_and_api_process(
    node: NodeProcess, tmp_path: Path
) -> None:
    log = FollowedLog(node, "followed", tmp_path / "stop")
    log.start()
    for _ in range(2):
        node.kill_agent()
        log.wait_for_lines()
    api = node.server.child("api")
    assert api is not None
    os.kill(api, signal.SIGKILL)
    log.wait_for_lines()

    lines = log.wait_end()

    assert build_expected_lines(lines[-1]) == lines
    assert len(log.text) > 2_000_000  # The log was rotated.


def test_a_request_that_follows_a_log_continues_after_a_kill_of_the_agent(node: NodeProcess, tmp_path: Path) -> None:
    log = PlainFollowedLog(node, "plain", tmp_path / "stop")
    log.start()
    node.kill_agent()
    log.wait_for_lines()

    lines = log.wait_end()

    assert build_expected_lines(lines[-1]) == lines


@pytest.mark.faults
def test_logs_are_relayed_between_api_processes_without_a_loss_when_each_is_killed(tmp_path: Path) -> None:
    """Twelve readers are spread over two api processes, and the node is connected to one of them."""
    with (
        run_server(tmp_path / "server", "[api]\nprocesses = 2\n") as server,
        run_node(server, tmp_path / "node") as node,
    ):
        logs = [FollowedLog(node, "relayed", tmp_path / "stop")]
        logs += [logs[0].read_again() for _ in range(11)]
        for log in logs:
            log.start()
        apis = [pid for pid in server.children() if role_of(pid).startswith("api")]
        for api in apis:
            os.kill(api, signal.SIGKILL)
            for log in logs:
                log.wait_for_lines()
        node.kill_agent()
        for log in logs:
            log.wait_for_lines()

        ends = [log.wait_end() for log in logs]

    assert len(apis) == 2
    assert [lines == build_expected_lines(ends[0][-1]) for lines in ends] == [True] * len(logs)
