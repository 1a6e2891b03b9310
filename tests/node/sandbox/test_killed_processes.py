"""Tasks of the driver `exec` survive killed agents, supervisors and shims."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("namespaces")
WITHIN_S = 60.0
SCRIPT = "echo start >>/alloc/starts; while [ ! -e /alloc/go ]; do sleep 0.02; done; seq 2000; exit 43"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("sandbox")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as running_node:
        yield running_node


def start_job(node: NodeProcess, job: str, count: int) -> list[Path]:
    """Run a job and return the shared folders of its allocations."""
    node.run(build_raw_job(job, SCRIPT, count=count, Driver="exec"))
    wait_until(
        lambda: [each["ClientStatus"] for each in node.allocations(job)] == ["running"] * count,
        what=f"{job} runs",
        within_s=WITHIN_S,
    )
    folders = [node.folder / "alloc" / each["ID"] / "alloc" for each in node.allocations(job)]
    wait_until(lambda: all((folder / "starts").exists() for folder in folders), what="all tasks have started")
    return folders


def finish_job(node: NodeProcess, job: str, folders: list[Path]) -> list[tuple[str, str, int]]:
    """Let the tasks end; return exit code, starts and number of lines of each."""
    for folder in folders:
        (folder / "go").touch()
    wait_until(
        lambda: all(each["ClientStatus"] == "failed" for each in node.allocations(job)),
        what=f"{job} has ended",
        within_s=WITHIN_S,
    )
    codes = [find_termination(each)["exit_code"] for each in node.allocations(job)]
    lines = [len((folder / "logs" / "t.stdout.0").read_text().splitlines()) for folder in folders]
    starts = [(folder / "starts").read_text() for folder in folders]
    ids = [each["ID"] for each in node.allocations(job)]
    wait_until(lambda: not node.list_processes(ids), what="all processes are gone")
    wait_until(lambda: not list((node.folder / "node" / "runs").iterdir()), what="the run folders are deleted")
    assert [path for path in _list_mounts() if path.startswith(f"{node.folder}/")] == []
    return list(zip(codes, starts, lines, strict=True))


def test_exit_codes_and_output_survive_a_killed_agent_and_supervisor(node: NodeProcess) -> None:
    folders = start_job(node, "lasts", 3)
    for _ in range(2):
        supervisor = node.supervisor()
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        node.kill_agent()
        node.wait_ready()
    assert [("43", "start\n", 2000)] * 3 == finish_job(node, "lasts", folders)


def test_a_task_survives_its_killed_shim_but_its_exit_code_is_unknown(node: NodeProcess) -> None:
    folders = start_job(node, "alone", 1)
    for pid in node.shims():
        os.kill(pid, signal.SIGKILL)
    assert [("-1", "start\n", 2000)] == finish_job(node, "alone", folders)


def _list_mounts() -> list[str]:
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
