"""Tasks within walls outlast whoever is killed, as all others do."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.nodes import ANode, a_node, a_raw_job, a_server, find_termination
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("namespaces")
WITHIN_S = 60.0
SCRIPT = "echo start >>/alloc/starts; while [ ! -e /alloc/go ]; do sleep 0.02; done; seq 2000; exit 43"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("walls")
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        yield it


def begun(node: ANode, job: str, count: int) -> list[Path]:
    """The shared folders of its allocations."""
    node.run(a_raw_job(job, SCRIPT, count=count, Driver="exec"))
    wait_until(
        lambda: [each["ClientStatus"] for each in node.allocations(job)] == ["running"] * count,
        what=f"{job} runs",
        within_s=WITHIN_S,
    )
    folders = [node.folder / "alloc" / each["ID"] / "alloc" for each in node.allocations(job)]
    wait_until(lambda: all((folder / "starts").exists() for folder in folders), what="they have begun")
    return folders


def told(node: ANode, job: str, folders: list[Path]) -> list[tuple[str, str, int]]:
    """Of each: its exit code, its starts, and how many lines it has said."""
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
    wait_until(lambda: not node.list_processes(ids), what="no process of it is left")
    wait_until(lambda: not list((node.folder / "node" / "runs").iterdir()), what="nothing is kept of its runs")
    assert [place for place in _mounts() if place.startswith(f"{node.folder}/")] == []
    return list(zip(codes, starts, lines, strict=True))


def test_an_exit_code_and_every_line_outlast_agent_and_supervisor(node: ANode) -> None:
    folders = begun(node, "lasts", 3)
    for _ in range(2):
        supervisor = node.supervisor()
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        node.kill_agent()
        node.wait_ready()
    assert [("43", "start\n", 2000)] * 3 == told(node, "lasts", folders)


def test_a_task_goes_on_without_who_waits_for_it_and_its_exit_code_is_unknown(node: ANode) -> None:
    folders = begun(node, "alone", 1)
    for pid in node.shims():
        os.kill(pid, signal.SIGKILL)
    assert [("-1", "start\n", 2000)] == told(node, "alone", folders)


def _mounts() -> list[str]:
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
