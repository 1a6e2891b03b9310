"""What a node stores about ended allocations, and what it removes."""

import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, running
from tests.looking import folders_named
from tests.node.nodes import ANode, a_node, a_raw_job, a_server
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
stop_on_shutdown = true
[client.drivers.raw_exec]
enabled = true
bounds_memory = false
[ports]
http = 0
"""
CGROUPS = Path("/sys/fs/cgroup")


def of(server: RunningAgent, job: str) -> list[dict[str, Any]]:
    found: Any = server.get(f"/v1/job/{job}/allocations")
    return list(found)


def statuses(server: RunningAgent, job: str) -> set[str]:
    return {each["ClientStatus"] for each in of(server, job)}


def test_only_gc_max_allocs_ended_allocations_keep_their_folders_and_all_keep_their_log_tails(
    tmp_path: Path,
) -> None:
    (tmp_path / "wharf.toml").write_text(SETTINGS.format(folder=tmp_path))
    with running(tmp_path, "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        server.put("/v1/jobs", {"Job": a_raw_job("runs", "exec sleep 1000", kind="service")})
        server.put("/v1/jobs", {"Job": a_raw_job("ends", "echo said", count=5)})
        wait_until(lambda: statuses(server, "runs") == {"running"}, what="one runs", within_s=30)
        wait_until(lambda: statuses(server, "ends") == {"complete"}, what="five end", within_s=30)
        folders = tmp_path / "data" / "alloc"
        wait_until(lambda: len(list(folders.glob("*-*"))) == 2, what="only as many as may be have folders", within_s=30)

        (runs,) = of(server, "runs")
        assert (folders / runs["ID"]).exists()
        assert "memory" not in attributes(server, runs["NodeID"])["driver.raw_exec.bounds"]
        assert 5 == sum(log_of(server, each["ID"]) == b"said\n" for each in of(server, "ends"))


@pytest.mark.needs("memory_bounds")
def test_an_agent_that_stops_its_tasks_leaves_no_trace_of_them(tmp_path: Path) -> None:
    (tmp_path / "wharf.toml").write_text(SETTINGS.format(folder=tmp_path))
    with running(tmp_path, "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        server.put("/v1/jobs", {"Job": a_raw_job("runs", "exec sleep 1000", kind="service", count=3)})
        wait_until(lambda: [each["ClientStatus"] for each in of(server, "runs")] == ["running"] * 3, what="three run")
        node = of(server, "runs")[0]["NodeID"]
        assert groups_of(node) != []

        server.signal(signal.SIGTERM)
        server.wait_end()

        wait_until(lambda: not groups_of(node), what="its supervisor has ended, and no control group is left")
        assert [] == list((tmp_path / "data" / "node" / "runs").iterdir())


def groups_of(name: str) -> list[str]:
    return [str(path) for path in folders_named(CGROUPS, name)]


def attributes(server: RunningAgent, node_id: str) -> dict[str, str]:
    node: Any = server.get(f"/v1/node/{node_id}")
    return dict(node["Attributes"])


def log_of(server: RunningAgent, alloc: str) -> bytes:
    path = f"{server.address}/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true"
    with urllib.request.urlopen(path, timeout=10) as reply:
        found: bytes = reply.read()
        return found


def settled(node: ANode) -> set[str]:
    entries, _ = decode_entries((node.folder / "node" / "journal").read_bytes())
    return {entry.record.id for entry in entries if isinstance(entry, SettledAllocation)}


def test_a_restarted_node_knows_ended_allocations_without_their_assignments(
    tmp_path: Path,
) -> None:
    with a_server(tmp_path / "server") as server, a_node(server, tmp_path / "node") as node:
        node.run(a_raw_job("ends", "echo said", Templates=[{"EmbeddedTmpl": "x", "DestPath": "secrets/x"}]))
        wait_until(lambda: statuses(server, "ends") == {"complete"}, what="it ends", within_s=30)
        (ended,) = node.allocations("ends")
        wait_until(lambda: ended["ID"] in settled(node), what="its orders are forgotten", within_s=30)

        node.kill_agent()
        node.wait_ready()
        node.run(a_raw_job("next", "true"))
        wait_until(lambda: statuses(server, "next") == {"complete"}, what="the node works again", within_s=30)

        (told,) = node.allocations("ends")
        assert ("complete", ended["TaskStates"]) == (told["ClientStatus"], told["TaskStates"])
        assert b"said\n" == log_of(server, ended["ID"])

        gone = urllib.request.Request(f"{server.address}/v1/client/allocation/{ended['ID']}/gc", method="PUT")
        urllib.request.urlopen(gone, timeout=10).close()
        wait_until(lambda: not left_of(node, ended["ID"]), what="nothing of it is left", within_s=30)
        assert b"said\n" == log_of(server, ended["ID"])


def left_of(node: ANode, alloc: str) -> list[str]:
    """Folders, mounts, control groups, runs."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [
        *map(str, folders_named(node.folder / "alloc", alloc)),
        *(str(path) for path in (node.folder / "node" / "runs").glob(f"{alloc}.*")),
        *(line for line in mounts if alloc in line),
        *groups_of(f"{alloc}.*"),
    ]


@pytest.mark.needs("namespaces")
def test_files_mounted_in_a_removed_folder_are_not_deleted(tmp_path: Path) -> None:
    folders, host = AllocationFolders(tmp_path / "alloc"), tmp_path / "host"
    host.mkdir()
    (host / "precious").write_text("kept")
    place = folders.create_task_folders("a", "t").task / "a folder of the machine"
    place.mkdir()
    subprocess.run(["mount", "--bind", str(host), str(place)], check=True)

    folders.remove_folder("a")

    wait_until(lambda: not list((tmp_path / "alloc" / ".removed").iterdir()), what="it is removed")
    assert "kept" == (host / "precious").read_text()
    assert [] == [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line]
