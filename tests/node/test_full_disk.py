"""A node whose disk is full or read-only: running tasks continue, no task starts, and the node reports it and
recovers.
"""

import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until

WRITE_FAILED_MESSAGE = (
    "Failed to write the node's journal. Running tasks continue; none is started until it can be written"
)
MOUNTS = Path("/proc/self/mounts")
WRITABLE_MESSAGE = "The node's journal can be written again"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "wharf-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def list_messages(node: NodeProcess) -> list[str]:
    nodes: Any = node.server.get("/v1/nodes")
    description: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return [event["Message"] for event in description["Events"]]


def list_statuses(node: NodeProcess, job: str) -> list[str]:
    return [allocation["ClientStatus"] for allocation in node.allocations(job)]


@pytest.mark.needs("namespaces")
def test_on_a_full_disk_running_tasks_continue_and_new_ones_wait_for_free_space(tmp_path: Path, disk: Path) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, disk / "node") as node:
        agent = node.agent()
        node.run(build_raw_job("runs", "exec sleep 1000", kind="service"))
        wait_until(lambda: list_statuses(node, "runs") == ["running"], what="the allocation runs")
        fill(disk / "filler")

        node.run(build_raw_job("later", "exit 7"))
        wait_until(lambda: WRITE_FAILED_MESSAGE in list_messages(node), what="the node reports its disk")
        assert (list_statuses(node, "runs"), list_statuses(node, "later")) == (["running"], ["pending"])

        (disk / "filler").unlink()
        wait_until(lambda: list_statuses(node, "later") == ["failed"], what="the task has run and failed")
        wait_until(
            lambda: WRITABLE_MESSAGE in list_messages(node), what="the node reports that its journal is writable"
        )
        assert (list_statuses(node, "runs"), node.agent()) == (["running"], agent)


@pytest.mark.needs("namespaces")
def test_an_end_that_cannot_be_stored_on_a_full_disk_survives_the_agent(tmp_path: Path, disk: Path) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, disk / "node") as node:
        node.run(build_raw_job("ends", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 7"))
        wait_until(lambda: list_statuses(node, "ends") == ["running"], what="the allocation runs")
        os.kill(node.agent(), signal.SIGSTOP)  # The supervisor notices the end, and the agent does not.
        (tmp_path / "go").touch()
        runs = disk / "node" / "node" / "runs"
        wait_until(lambda: list(runs.glob("*/outcome")), what="the shim has written the outcome")
        fill(disk / "filler")

        node.kill_agent()
        wait_until(lambda: WRITE_FAILED_MESSAGE in list_messages(node), what="the next agent reports its disk")
        node.query("/v1/client/stats")
        (disk / "filler").unlink()
        node.kill_agent()

        wait_until(lambda: list_statuses(node, "ends") == ["failed"], what="the end is reported")
        assert "7" == find_termination(node.allocations("ends")[0])["exit_code"]


@pytest.mark.faults
@pytest.mark.needs("namespaces")
def test_a_nearly_full_disk_is_reported_before_the_first_write_fails(tmp_path: Path, disk: Path) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, disk / "node") as node:
        with open(disk / "filler", "wb") as filler:
            filler.write(b"x" * (77 << 20))
        warning = f"The disk of {disk}/node/node is nearly full ("
        wait_until(lambda: find_message(node, warning), what="the node warns")
        assert WRITE_FAILED_MESSAGE not in list_messages(node)
        node.run(build_raw_job("runs", "exit 0"))
        wait_until(lambda: list_statuses(node, "runs") == ["complete"], what="the task runs all the same")

        (disk / "filler").unlink()
        wait_until(lambda: find_message(node, "has free space again"), what="the node reports the free space")


def find_message(node: NodeProcess, part: str) -> bool:
    return any(part in message for message in list_messages(node))


@pytest.mark.faults
@pytest.mark.needs("namespaces")
def test_a_node_killed_on_a_full_disk_starts_again_and_recovers_when_there_is_space(tmp_path: Path, disk: Path) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, disk / "node") as node:
        node.run(build_raw_job("runs", "echo begun; exec sleep 1000", kind="service"))
        wait_until(lambda: list_statuses(node, "runs") == ["running"], what="the task runs")
        processes = node.list_processes([node.allocations("runs")[0]["ID"]])
        fill(disk / "filler")
        supervisor = node.supervisor()
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        node.kill_agent()

        wait_until(lambda: WRITE_FAILED_MESSAGE in list_messages(node), what="the next agent reports its disk")
        node.wait_ready()
        node.run(build_raw_job("later", "exit 7"))
        assert b"begun" in read_log(node, "runs")
        # The next agent has found no capacity on the disk.
        wait_until(lambda: has_blocked_evaluation(node, "later"), what="the new task waits for a disk with space")
        assert (list_statuses(node, "runs"), list_statuses(node, "later")) == (["running"], [])

        (disk / "filler").unlink()
        wait_until(lambda: list_statuses(node, "later") == ["failed"], what="the new task has run", within_s=90.0)
        wait_until(
            lambda: WRITABLE_MESSAGE in list_messages(node), what="the node reports that its journal is writable"
        )
        assert list_statuses(node, "runs") == ["running"]
        assert processes == node.list_processes([node.allocations("runs")[0]["ID"]])


def has_blocked_evaluation(node: NodeProcess, job: str) -> bool:
    evaluations: Any = node.server.get(f"/v1/job/{job}/evaluations")
    return any(evaluation["Status"] == "blocked" for evaluation in evaluations)


def read_log(node: NodeProcess, job: str) -> bytes:
    path = f"/v1/client/fs/logs/{node.allocations(job)[0]['ID']}?task=t&type=stdout&plain=true"
    with urllib.request.urlopen(node.server.address + path, timeout=ANSWERED_WITHIN_S) as reply:
        return bytes(reply.read())


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as filler:
        for size in (1 << 20, 512):
            with suppress(OSError):
                while filler.write(b"x" * size) == size:
                    pass


class BreakableDisk:
    """A file system in a file, which becomes read-only when the kernel finds an error in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "breaking"
        self._image = folder / "breaking.image"
        self.folder.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(128 << 20)
        run_program("mkfs.ext4", "-q", "-O", "^has_journal", self._image)
        self._mount()

    def _mount(self) -> None:
        run_program("mount", "-o", "loop,errors=remount-ro", self._image, self.folder)

    def break_down(self) -> None:
        run_program("sync", "--file-system", self.folder)
        (device,) = [line.split()[0] for line in MOUNTS.read_text().splitlines() if f" {self.folder} " in line]
        (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("broken by a test")

    def repair(self) -> None:
        """Check and mount the file system again, as an operator does it."""
        run_program("umount", "--lazy", self.folder)
        repaired = self._image.with_suffix(".repaired")
        shutil.copyfile(self._image, repaired)
        subprocess.run(["fsck.ext4", "-f", "-y", str(repaired)], check=False, capture_output=True)
        self._image = repaired
        self._mount()

    def close(self) -> None:
        run_program("umount", "--lazy", self.folder)


def run_program(*arguments: str | Path) -> None:
    subprocess.run(list(map(str, arguments)), check=True, capture_output=True)


@pytest.fixture
def breakable_disk(tmp_path: Path) -> Iterator[BreakableDisk]:
    disk = BreakableDisk(tmp_path)
    try:
        yield disk
    finally:
        disk.close()


@pytest.mark.faults
@pytest.mark.needs("breaking_disks")
@pytest.mark.needs_program("mkfs.ext4")
def test_on_a_read_only_disk_running_tasks_continue_and_the_node_recovers_with_the_disk(
    tmp_path: Path, breakable_disk: BreakableDisk
) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, breakable_disk.folder / "node") as node:
        node.run(build_raw_job("runs", "exec sleep 1000", kind="service"))
        wait_until(lambda: list_statuses(node, "runs") == ["running"], what="the allocation runs")
        agent, supervisor = node.agent(), node.supervisor()
        breakable_disk.break_down()

        node.run(build_raw_job("later", "exit 7"))
        wait_until(lambda: WRITE_FAILED_MESSAGE in list_messages(node), what="the node reports its disk")
        assert (list_statuses(node, "runs"), list_statuses(node, "later")) == (["running"], ["pending"])

        breakable_disk.repair()
        wait_until(
            lambda: WRITABLE_MESSAGE in list_messages(node), what="the node reports that its journal is writable"
        )
        wait_until(lambda: list_statuses(node, "later") == ["failed"], what="the task has run and failed")
        assert (list_statuses(node, "runs"), node.agent(), node.supervisor()) == (["running"], agent, supervisor)


def test_a_node_starts_with_an_unreadable_journal_and_reports_it(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server:
        folder = tmp_path / "node"
        with run_node(server, folder) as node:
            node.run(build_raw_job("runs", "exec sleep 1000", kind="service"))
            wait_until(lambda: list_statuses(node, "runs") == ["running"], what="the allocation runs")
            journal = folder / "node" / "journal"
            data = journal.read_bytes()
            node.replace_journal(data[: len(data) // 2] + b"\0" * 20 + data[len(data) // 2 + 20 :])
            wait_until(
                lambda: any("are damaged and were skipped" in message for message in list_messages(node)),
                what="the damage is reported",
            )
            node.run(build_raw_job("next", "exit 0"))
            wait_until(lambda: list_statuses(node, "next") == ["complete"], what="the node runs tasks")


@pytest.mark.needs("namespaces")
def test_a_task_whose_output_cannot_be_written_has_one_event_with_the_reason(tmp_path: Path, disk: Path) -> None:
    def list_driver_messages() -> list[str]:
        events = node.allocations("prints")[0]["TaskStates"]["t"]["Events"]
        return [event["DisplayMessage"] for event in events if event["Type"] == "Driver"]

    with run_server(tmp_path / "server") as server, run_node(server, disk / "node") as node:
        script = "while true; do echo line; [ -e $WHARF_TASK_DIR/go ] || sleep 0.1; done"
        node.run(build_raw_job("prints", script, kind="service", LogConfig={"MaxFiles": 20, "MaxFileSizeMB": 1}))
        wait_until(lambda: list_statuses(node, "prints") == ["running"], what="the allocation runs")
        (node.folder / "alloc" / node.allocations("prints")[0]["ID"] / "t" / "local" / "go").touch()
        fill(disk / "filler")

        wait_until(list_driver_messages, what="the blocked output is reported")
        node.kill_agent()
        wait_until(node.has_adopted_all_runs, what="the restarted agent has found the task")

        [message] = list_driver_messages()
        assert message.startswith("output cannot be written to the log files: No space left on device")
        (disk / "filler").unlink()
