"""The data that a node retains about ended allocations, and the data that it removes."""

import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, running
from tests.file_search import find_folders
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until
from wharf.node.agent.allocations.journal import SettledAllocation, decode_entries
from wharf.node.tasks.folders import AllocationFolders

SETTINGS = """\
data_dir = "{folder}/data"
[server]
enabled = true
[client]
enabled = true
gc_max_allocs = 2
gc_interval = "200ms"
gc_disk_usage_threshold = 100
gc_inode_usage_threshold = 100
stop_on_shutdown = true
[client.drivers.raw_exec]
enabled = true
bounds_memory = false
[ports]
http = 0
"""
CGROUPS = Path("/sys/fs/cgroup")


def list_allocations(server: RunningAgent, job: str) -> list[dict[str, Any]]:
    allocations: Any = server.get(f"/v1/job/{job}/allocations")
    return list(allocations)


def statuses(server: RunningAgent, job: str) -> set[str]:
    return {allocation["ClientStatus"] for allocation in list_allocations(server, job)}


def test_only_gc_max_allocs_ended_allocations_keep_their_folders_and_all_keep_their_log_tails(
    tmp_path: Path,
) -> None:
    (tmp_path / "wharf.toml").write_text(SETTINGS.format(folder=tmp_path))
    with running(tmp_path, "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        server.put("/v1/jobs", {"Job": build_raw_job("runs", "exec sleep 1000", kind="service")})
        server.put("/v1/jobs", {"Job": build_raw_job("ends", "echo output", count=5)})
        wait_until(lambda: statuses(server, "runs") == {"running"}, what="the service runs", within_s=30)
        wait_until(lambda: statuses(server, "ends") == {"complete"}, what="five allocations end", within_s=30)
        folders = tmp_path / "data" / "alloc"
        wait_until(
            lambda: len(list(folders.glob("*-*"))) == 2, what="only two ended allocations have folders", within_s=30
        )

        (runs,) = list_allocations(server, "runs")
        assert (folders / runs["ID"]).exists()
        assert "memory" not in read_attributes(server, runs["NodeID"])["driver.raw_exec.bounds"]
        assert 5 == sum(read_log(server, a["ID"]) == b"output\n" for a in list_allocations(server, "ends"))


@pytest.mark.needs("memory_bounds")
def test_an_agent_that_stops_its_tasks_leaves_no_trace_of_them(tmp_path: Path) -> None:
    (tmp_path / "wharf.toml").write_text(SETTINGS.format(folder=tmp_path))
    with running(tmp_path, "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        server.put("/v1/jobs", {"Job": build_raw_job("runs", "exec sleep 1000", kind="service", count=3)})
        wait_until(
            lambda: [a["ClientStatus"] for a in list_allocations(server, "runs")] == ["running"] * 3, what="three run"
        )
        node_id = list_allocations(server, "runs")[0]["NodeID"]
        assert list_control_groups(node_id) != []

        server.signal(signal.SIGTERM)
        server.wait_end()

        wait_until(
            lambda: not list_control_groups(node_id), what="the supervisor has ended and no control group is left"
        )
        assert [] == list((tmp_path / "data" / "node" / "runs").iterdir())


def list_control_groups(name: str) -> list[str]:
    return [str(path) for path in find_folders(CGROUPS, name)]


def read_attributes(server: RunningAgent, node_id: str) -> dict[str, str]:
    node: Any = server.get(f"/v1/node/{node_id}")
    return dict(node["Attributes"])


def read_log(server: RunningAgent, alloc: str) -> bytes:
    path = f"{server.address}/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true"
    with urllib.request.urlopen(path, timeout=10) as reply:
        log: bytes = reply.read()
        return log


def list_settled(node: NodeProcess) -> set[str]:
    entries, _ = decode_entries((node.folder / "node" / "journal").read_bytes())
    return {entry.record.id for entry in entries if isinstance(entry, SettledAllocation)}


def test_a_restarted_node_knows_ended_allocations_without_their_assignments(
    tmp_path: Path,
) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, tmp_path / "node") as node:
        node.run(build_raw_job("ends", "echo output", Templates=[{"EmbeddedTmpl": "x", "DestPath": "secrets/x"}]))
        wait_until(lambda: statuses(server, "ends") == {"complete"}, what="the task ends", within_s=30)
        (ended,) = node.allocations("ends")
        wait_until(lambda: ended["ID"] in list_settled(node), what="the assignment is deleted", within_s=30)

        node.kill_agent()
        node.wait_ready()
        node.run(build_raw_job("next", "true"))
        wait_until(lambda: statuses(server, "next") == {"complete"}, what="the node runs tasks again", within_s=30)

        (allocation,) = node.allocations("ends")
        assert ("complete", ended["TaskStates"]) == (allocation["ClientStatus"], allocation["TaskStates"])
        assert b"output\n" == read_log(server, ended["ID"])

        request = urllib.request.Request(f"{server.address}/v1/client/allocation/{ended['ID']}/gc", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        wait_until(lambda: not list_remains(node, ended["ID"]), what="nothing of the allocation is left", within_s=30)
        assert b"output\n" == read_log(server, ended["ID"])


def list_remains(node: NodeProcess, alloc: str) -> list[str]:
    """Return the remaining folders, runs, mounts and control groups of an allocation."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [
        *map(str, find_folders(node.folder / "alloc", alloc)),
        *(str(path) for path in (node.folder / "node" / "runs").glob(f"{alloc}.*")),
        *(line for line in mounts if alloc in line),
        *list_control_groups(f"{alloc}.*"),
    ]


@pytest.mark.needs("namespaces")
def test_files_mounted_in_a_removed_folder_are_not_deleted(tmp_path: Path) -> None:
    folders, host = AllocationFolders(tmp_path / "alloc"), tmp_path / "host"
    host.mkdir()
    (host / "precious").write_text("content")
    mount_point = folders.create_task_folders("a", "t").task / "mounted"
    mount_point.mkdir()
    subprocess.run(["mount", "--bind", str(host), str(mount_point)], check=True)

    folders.remove_folder("a")

    wait_until(lambda: not list((tmp_path / "alloc" / ".removed").iterdir()), what="the folder is removed")
    assert "content" == (host / "precious").read_text()
    assert [] == [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line]
