"""A node whose disk is full or read-only: running tasks continue, no task starts, and the node reports it and
recovers.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.node.nodes import ANode, a_node, a_raw_job, a_server, ended
from tests.waiting import wait_until

TROUBLE = "Failed to write the node's journal. Running tasks continue; none is started until it can be written"
MOUNTS = Path("/proc/self/mounts")
OVER = "The node's journal can be written again"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "wharf-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def messages(node: ANode) -> list[str]:
    nodes: Any = node.server.get("/v1/nodes")
    found: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return [event["Message"] for event in found["Events"]]


def statuses(node: ANode, job: str) -> list[str]:
    return [each["ClientStatus"] for each in node.allocations(job)]


@pytest.mark.needs("namespaces")
def test_on_a_full_disk_running_tasks_continue_and_new_ones_wait_for_free_space(tmp_path: Path, disk: Path) -> None:
    with a_server(tmp_path / "server") as server, a_node(server, disk / "node") as node:
        agent = node.agent()
        node.run(a_raw_job("runs", "exec sleep 1000", kind="service"))
        wait_until(lambda: statuses(node, "runs") == ["running"], what="it runs")
        fill(disk / "filler")

        node.run(a_raw_job("later", "exit 7"))
        wait_until(lambda: TROUBLE in messages(node), what="the node tells of its disk")
        assert (statuses(node, "runs"), statuses(node, "later")) == (["running"], ["pending"])

        (disk / "filler").unlink()
        wait_until(lambda: statuses(node, "later") == ["failed"], what="it ran, and failed as it should")
        wait_until(lambda: OVER in messages(node), what="the node tells that it is well")
        assert (statuses(node, "runs"), node.agent()) == (["running"], agent)


@pytest.mark.needs("namespaces")
def test_an_end_that_cannot_be_stored_on_a_full_disk_survives_the_agent(tmp_path: Path, disk: Path) -> None:
    with a_server(tmp_path / "server") as server, a_node(server, disk / "node") as node:
        node.run(a_raw_job("ends", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 7"))
        wait_until(lambda: statuses(node, "ends") == ["running"], what="it runs")
        os.kill(node.agent(), signal.SIGSTOP)  # Its supervisor hears of the end, and it does not.
        (tmp_path / "go").touch()
        runs = disk / "node" / "node" / "runs"
        wait_until(lambda: list(runs.glob("*/outcome")), what="the shim has written the outcome")
        fill(disk / "filler")

        node.kill_agent()
        wait_until(lambda: TROUBLE in messages(node), what="the next agent tells of its disk")
        node.asked("/v1/client/stats")
        (disk / "filler").unlink()
        node.kill_agent()

        wait_until(lambda: statuses(node, "ends") == ["failed"], what="its end is told")
        assert "7" == ended(node.allocations("ends")[0])["exit_code"]


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as filler:
        for size in (1 << 20, 512):
            with suppress(OSError):
                while filler.write(b"x" * size) == size:
                    pass


class ADiskThatBreaks:
    """A file system in a file. Once its kernel has found an error in it, it may only be read, whatever is open in it."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "breaking"
        self._image = folder / "breaking.image"
        self.place.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(128 << 20)
        run("mkfs.ext4", "-q", "-O", "^has_journal", self._image)
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", self._image, self.place)

    def break_(self) -> None:
        run("sync", "--file-system", self.place)
        (device,) = [line.split()[0] for line in MOUNTS.read_text().splitlines() if f" {self.place} " in line]
        (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("broken by a test")

    def mend(self) -> None:
        """As a person does it: what is on it is checked, and mounted at the same place."""
        run("umount", "--lazy", self.place)
        mended = self._image.with_suffix(".mended")
        shutil.copyfile(self._image, mended)
        subprocess.run(["fsck.ext4", "-f", "-y", str(mended)], check=False, capture_output=True)
        self._image = mended
        self._mount()

    def close(self) -> None:
        run("umount", "--lazy", self.place)


def run(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


@pytest.fixture
def breaking(tmp_path: Path) -> Iterator[ADiskThatBreaks]:
    disk = ADiskThatBreaks(tmp_path)
    try:
        yield disk
    finally:
        disk.close()


@pytest.mark.faults
@pytest.mark.needs("breaking_disks")
@pytest.mark.needs_program("mkfs.ext4")
def test_on_a_read_only_disk_running_tasks_continue_and_the_node_recovers_with_the_disk(
    tmp_path: Path, breaking: ADiskThatBreaks
) -> None:
    with a_server(tmp_path / "server") as server, a_node(server, breaking.place / "node") as node:
        node.run(a_raw_job("runs", "exec sleep 1000", kind="service"))
        wait_until(lambda: statuses(node, "runs") == ["running"], what="it runs")
        agent, keeper = node.agent(), node.supervisor()
        breaking.break_()

        node.run(a_raw_job("later", "exit 7"))
        wait_until(lambda: TROUBLE in messages(node), what="the node tells of its disk")
        assert (statuses(node, "runs"), statuses(node, "later")) == (["running"], ["pending"])

        breaking.mend()
        wait_until(lambda: OVER in messages(node), what="the node tells that it is well")
        wait_until(lambda: statuses(node, "later") == ["failed"], what="it ran, and failed as it should")
        assert (statuses(node, "runs"), node.agent(), node.supervisor()) == (["running"], agent, keeper)


def test_a_node_starts_with_an_unreadable_journal_and_reports_it(tmp_path: Path) -> None:
    with a_server(tmp_path / "server") as server:
        folder = tmp_path / "node"
        with a_node(server, folder) as node:
            node.run(a_raw_job("runs", "exec sleep 1000", kind="service"))
            wait_until(lambda: statuses(node, "runs") == ["running"], what="it runs")
            journal = folder / "node" / "journal"
            data = journal.read_bytes()
            node.damage(data[: len(data) // 2] + b"\0" * 20 + data[len(data) // 2 + 20 :])
            wait_until(
                lambda: any("are damaged and were skipped" in each for each in messages(node)),
                what="the damage is told",
            )
            node.run(a_raw_job("works", "exit 0"))
            wait_until(lambda: statuses(node, "works") == ["complete"], what="it works")
