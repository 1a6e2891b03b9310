"""An agent that is killed on a full disk: it starts again, answers reads, and accepts writes when there is space."""

import asyncio
import json
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.node.nodes import build_raw_job
from tests.node.test_full_disk import fill
from tests.waiting import wait_until
from wharf.cluster.api.handlers.agents.folder_checks import FolderChecks
from wharf.cluster.api.handlers.agents.health import find_disk_problem, find_node_problem
from wharf.world.disk_space import measure_disk_space
from wharf.world.problem_file import store_problem

CONFIG = """\
data_dir = "{disk}/data"
server.enabled = true
ports.http = 0
[state]
engine = "sqlite"
[client]
enabled = true
drivers.raw_exec.enabled = true
"""

SERVER_CONFIG = """\
data_dir = "{disk}/data"
server.enabled = true
ports.http = 0
[state]
engine = "sqlite"
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m", "wharf-test", str(folder)], check=True)
    yield folder
    # The agents of the test have unmounted everything below their folders.
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def list_statuses(agent: RunningAgent, job: str) -> list[str]:
    allocations: Any = agent.get(f"/v1/job/{job}/allocations?stale")
    return [each["ClientStatus"] for each in allocations]


def submit(agent: RunningAgent, job: dict[str, Any]) -> int:
    """Return the status of the reply."""
    try:
        agent.put("/v1/jobs", {"Job": job})
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    return 200


def stop(agent: RunningAgent, job: str) -> None:
    request = urllib.request.Request(f"{agent.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def read_server_health(agent: RunningAgent) -> tuple[int, str]:
    """Return the status and the message."""
    try:
        health: Any = agent.get("/v1/agent/health?type=server")
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    return 200, health["server"]["message"]


@pytest.mark.needs("namespaces")
def test_the_health_of_a_node_warns_before_its_disk_is_full(disk: Path) -> None:
    def find_problem() -> tuple[bool, str]:
        return asyncio.run(find_disk_problem(FolderChecks(), (disk, disk / "missing")))

    empty = find_problem()
    with open(disk / "filler", "wb") as filler:
        filler.write(b"x" * (116 << 20))
    nearly_full = find_problem()
    fill(disk / "more")

    assert (False, "") == empty
    free_space = "(4 MB free, 6 MB recommended)"
    assert (
        False,
        f"the disk of {disk} is nearly full {free_space}: free some space before no task starts",
    ) == nearly_full
    assert (True, f"the disk of {disk} is full: free some space; no task starts until then") == find_problem()


def test_the_health_of_a_node_has_the_problem_that_its_agent_stored(tmp_path: Path) -> None:
    def find_problem() -> str:
        return asyncio.run(find_node_problem(FolderChecks(), (tmp_path, tmp_path / "missing")))

    store_problem(tmp_path, "it hangs")
    stored = find_problem()
    store_problem(tmp_path, "")

    assert ("it hangs", "") == (stored, find_problem())


def read_client_health(agent: RunningAgent) -> tuple[int, bool]:
    """Return the status, and whether the node is healthy."""
    try:
        health: Any = agent.get("/v1/agent/health?type=client")
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["client"]["ok"]
    return 200, health["client"]["ok"]


@pytest.mark.needs("namespaces")
def test_the_health_of_a_server_warns_before_the_disk_of_its_log_is_full(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "wharf.toml").write_text(SERVER_CONFIG.format(disk=disk))
    with running(tmp_path, "agent", "--config", "wharf.toml") as agent:
        agent.wait_ready()
        enough_space = read_server_health(agent)

        with open(disk / "filler", "wb") as filler:
            filler.write(bytes(measure_disk_space(disk).available_bytes - (4 << 20)))

        def find_warning() -> str:
            status, message = read_server_health(agent)
            return message if status == 200 and message != "ok" else ""

        warning = wait_until(find_warning, what="the health warns of the disk")
        written = submit(agent, build_raw_job("waits", "exit 0"))

    assert enough_space == (200, "ok")
    assert warning.startswith(f"the disk of the log in {disk}/data/")
    assert warning.endswith(" MB free, 6 MB recommended): free some space before writes are refused")
    assert written == 200


@pytest.mark.needs("namespaces")
def test_the_health_of_a_server_warns_that_records_of_its_audit_log_are_lost(tmp_path: Path, disk: Path) -> None:
    config = SERVER_CONFIG.format(disk=tmp_path) + f'[audit]\nfile = "{disk}/audit.log"\n'
    (tmp_path / "wharf.toml").write_text(config)
    with running(tmp_path, "agent", "--config", "wharf.toml") as agent:
        agent.wait_ready()
        enough_space = wait_until(lambda: read_server_health(agent), what="the health check replies")
        fill(disk / "filler")

        def find_warning() -> str:
            status, message = read_server_health(agent)
            return message if status == 200 and message != "ok" else ""

        warning = wait_until(find_warning, what="the health warns of the disk")

    assert enough_space == (200, "ok")
    assert warning == (
        f"the disk of the audit log in {disk} is full: free some space; records of the audit log are lost until then"
    )


@pytest.mark.faults
@pytest.mark.needs("namespaces")
def test_an_agent_killed_on_a_full_disk_starts_for_reading_and_recovers(tmp_path: Path, disk: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "wharf.toml").write_text(CONFIG.format(disk=disk))
    with running(folder, "agent", "--config", "wharf.toml") as first:
        first.wait_ready()
        submit(first, build_raw_job("runs", "exec sleep 1000", kind="service"))
        wait_until(lambda: list_statuses(first, "runs") == ["running"], what="the task runs")
        assert (200, True) == read_client_health(first)
        fill(disk / "filler")
        assert (500, False) == read_client_health(first)
        wait_until(lambda: read_server_health(first)[0] == 500, what="the health check reports the full disk")
        first.process.kill()
        first.process.wait()
        wait_until(lambda: not first.children(), what="the children have ended")
        fill(disk / "more")

        again = tmp_path / "again"
        again.mkdir()
        (again / "wharf.toml").write_text(CONFIG.format(disk=disk))
        with running(again, "agent", "--config", "wharf.toml") as second:
            second.wait_ready()
            assert ["running"] == list_statuses(second, "runs")
            assert 503 == submit(second, build_raw_job("later", "exit 0"))

            (disk / "filler").unlink()
            (disk / "more").unlink()
            wait_until(lambda: submit(second, build_raw_job("later", "exit 0")) == 200, what="a write is accepted")
            wait_until(lambda: list_statuses(second, "later") == ["complete"], what="the new job has run", within_s=60)
            assert (["running"], (200, "ok")) == (list_statuses(second, "runs"), read_server_health(second))
            stop(second, "runs")  # Its processes would outlive the agent.
            wait_until(lambda: list_statuses(second, "runs") == ["complete"], what="the task has ended")
