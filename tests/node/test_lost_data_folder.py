"""A new agent after the data folder of its machine was deleted: what the former node left is reported, and ended on request.

The agents run in a process namespace of their own, so that they find nothing of other tests on this machine.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, children_of, is_alive
from tests.node.docker.podman import Podman, Registry, running_podman
from tests.node.networks.declared_network import declare
from tests.node.nodes import ROOT, NodeProcess, build_raw_job, run_server
from tests.waiting import wait_until
from wharf.agent.node_identities import read_own_node_id
from wharf.node.networks.manager import ADDRESSES_FOLDER, STATE_ROOT

FOUND_TEXT = "Found remains of a lost data folder"
ENDED_TEXT = "Ended remains of a lost data folder"


HIDE_NETWORKS = (
    'mkdir -p "$2" && mount -t tmpfs none /mnt && mkdir /mnt/a && mount --bind "$2" /mnt/a && mount -t tmpfs none "$1"'
    ' && mkdir "$2" && mount --move /mnt/a "$2" && umount /mnt'
)
"""Hides the networks of other agents. The addresses in use remain visible, because all agents share one bridge."""


class NamespacedNode(NodeProcess):
    """A node whose agents run in one process namespace, which lives as long as the node.

    The agents see only their own networks.
    """

    def __init__(self, server: RunningAgent, folder: Path) -> None:
        super().__init__(server, folder)
        self._namespace = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
        )
        self._first = wait_until(lambda: children_of(self._namespace.pid), what="the namespace exists")[0]
        self._run(["sh", "-c", HIDE_NETWORKS, "sh", str(STATE_ROOT), str(STATE_ROOT / ADDRESSES_FOLDER)])
        self.networks = Path(f"/proc/{self._first}/root") / STATE_ROOT.relative_to("/")
        """The networks of the agents."""

    def _run(self, command: list[str]) -> None:
        """Run a command among the mounts of the namespace."""
        subprocess.run(["nsenter", f"--target={self._first}", "--mount", f"--wdns={ROOT}", "--", *command], check=True)

    def start(self) -> None:
        """Start an agent inside the namespace."""
        enter = ["nsenter", f"--target={self._first}", "--pid", "--mount", f"--wdns={ROOT}"]
        command = [*enter, sys.executable, "-m", self.module, self.server.address, str(self.folder), "auto"]
        with open(self.folder / "node.txt", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def agent(self) -> int:
        """Return the process id of the agent, which is a child of `nsenter`."""
        assert self._process is not None
        parent = self._process.pid
        return wait_until(lambda: children_of(parent), what="the agent has started")[0]

    def lose_data_folder(self) -> None:
        """Kill the agent and delete its state and its allocations, but not its configuration."""
        assert self._process is not None
        os.kill(self.agent(), signal.SIGKILL)
        self._process.wait()
        for name in ("node", "alloc"):
            path = self.folder / name
            for mounted in sorted(find_mounts(self._first, path), reverse=True):
                self._run(["umount", "--lazy", mounted])
            shutil.rmtree(path)

    def end(self) -> None:
        """End the namespace with all its processes. Networks of the last agent are removed first."""
        for pid in [self.agent(), *self.supervisors()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node_ids = [path.name for path in self.networks.iterdir() if path.name != ADDRESSES_FOLDER]
        self._run([sys.executable, "-m", "tests.node.networks.remove_networks", *node_ids])
        self._namespace.kill()
        self._namespace.wait()
        wait_until(lambda: not is_alive(self._first), what="the namespace has ended")
        super().end()


def find_mounts(pid: int, folder: Path) -> list[str]:
    """Return what a process has mounted below a folder."""
    mounted = [line.split(" ")[1] for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    return [path for path in mounted if path.startswith(f"{folder}/")]


@contextmanager
def run_namespaced_node(server: RunningAgent, folder: Path) -> Iterator[NamespacedNode]:
    folder.mkdir(exist_ok=True)
    node = NamespacedNode(server, folder)
    try:
        node.start()
        node.wait_ready()
        yield node
    finally:
        node.end()


@contextmanager
def run_reaping_node(folder: Path) -> Iterator[tuple[Podman, Registry, NamespacedNode]]:
    """Run a node with `client.reap_foreign`, a container engine and a network plugin."""
    node_folder = folder / "node"
    node_folder.mkdir()
    (node_folder / "reap").touch()
    declare(node_folder)
    with running_podman() as (podman, registry), run_server(folder / "server") as server:
        (node_folder / "engine").write_text(str(podman.socket))
        with run_namespaced_node(server, node_folder) as node:
            yield podman, registry, node


def list_messages(node: NodeProcess, node_id: str) -> list[str]:
    description: Any = node.server.get(f"/v1/node/{node_id}")
    return [event["Message"] for event in description["Events"]]


def wait_for_message(node: NodeProcess, node_id: str, begin: str) -> str:
    """Return the first message of the node that begins like this."""

    def find() -> str:
        return next((each for each in list_messages(node, node_id) if each.startswith(begin)), "")

    return wait_until(find, what=f"a message: {begin}", within_s=90.0)


def start_service(node: NodeProcess, job: dict[str, Any]) -> str:
    """Run a job. Return the id of its allocation once it runs."""
    node.run(job)
    wait_until(
        lambda: [each["ClientStatus"] for each in node.allocations(job["ID"])] == ["running"],
        what=f"{job['ID']} runs",
        within_s=90.0,
    )
    return str(node.allocations(job["ID"])[0]["ID"])


def start_next_agent(node: NodeProcess, former_id: str) -> str:
    """Start an agent after the data folder was lost. Return its node id."""
    node.start()
    state = node.folder / "node"

    def read_new_id() -> str:
        with suppress(OSError, ValueError):
            found = read_own_node_id(state)
            return found if found != former_id else ""
        return ""

    new_id = wait_until(read_new_id, what="the next agent has an id")
    node.wait_ready()
    return new_id


@pytest.mark.faults
@pytest.mark.needs("namespaces")
def test_remains_of_a_lost_data_folder_are_reported_and_continue(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server, run_namespaced_node(server, tmp_path / "node") as node:
        former_id = read_own_node_id(node.folder / "node")
        allocation = start_service(node, build_raw_job("runs", "exec sleep 1000", kind="service"))
        processes = node.list_processes([allocation])
        node.lose_data_folder()

        new_id = start_next_agent(node, former_id)

        message = wait_for_message(node, new_id, FOUND_TEXT)
        assert "1 task" in message
        assert message.endswith("; end them, or set client.reap_foreign")
        assert "found remains of a lost data folder" in node.read_log()
        assert processes == [pid for pid in processes if is_alive(pid)]


@pytest.mark.faults
@pytest.mark.needs("namespaces")
@pytest.mark.needs("bridges")
@pytest.mark.needs("containers")
@pytest.mark.needs_program("podman")
@pytest.mark.needs_program("iptables")
def test_processes_networks_and_containers_of_a_lost_data_folder_are_ended_if_configured(tmp_path: Path) -> None:
    with run_reaping_node(tmp_path) as (podman, registry, node):
        former_id = read_own_node_id(node.folder / "node")
        plain = start_service(node, build_raw_job("plain", "exec sleep 1000", kind="service"))
        bridged = start_service(node, build_bridged_job())
        start_service(node, build_container_job(registry))
        processes = node.list_processes([plain, bridged])
        network = node.networks / former_id
        former_rules = [rule for rule in list_nat_rules() if bridged in rule]
        assert (True, True, 1) == (bool(former_rules), network.exists(), len(podman.names()))
        former_container = podman.names()
        node.lose_data_folder()

        new_id = start_next_agent(node, former_id)

        message = wait_for_message(node, new_id, FOUND_TEXT)
        assert message.endswith("2 tasks, 1 network, 1 container; ending them"), message
        wait_for_message(node, new_id, ENDED_TEXT)
        wait_until(lambda: not any(map(is_alive, processes)), what="the tasks have ended")
        wait_until(lambda: not set(former_container) & set(podman.names()), what="the container is gone")
        wait_until(lambda: not list(network.glob("*")), what="the network is released")
        assert not [rule for rule in list_nat_rules() if bridged in rule]
        assert not [name for name in Path("/run/netns").glob("*") if bridged in name.name]


@pytest.mark.faults
@pytest.mark.needs("namespaces")
@pytest.mark.needs("bridges")
@pytest.mark.needs("containers")
@pytest.mark.needs_program("podman")
@pytest.mark.needs_program("iptables")
def test_a_network_and_a_container_of_a_lost_data_folder_are_ended_without_a_process_of_the_former_node(
    tmp_path: Path,
) -> None:
    with run_reaping_node(tmp_path) as (podman, registry, node):
        former_id = read_own_node_id(node.folder / "node")
        bridged = start_service(node, build_bridged_job())
        start_service(node, build_container_job(registry))
        former_container = podman.names()
        assert [rule for rule in list_nat_rules() if bridged in rule]
        processes = [*node.supervisors(), *node.list_processes([bridged])]
        node.lose_data_folder()
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, processes)), what="no process of the former node is left")

        new_id = start_next_agent(node, former_id)

        message = wait_for_message(node, new_id, FOUND_TEXT)
        assert message == f"{FOUND_TEXT}: 1 network, 1 container; ending them"
        wait_until(lambda: not set(former_container) & set(podman.names()), what="the container is gone")
        wait_until(lambda: not (node.networks / former_id).exists(), what="the network is released")
        assert not [rule for rule in list_nat_rules() if bridged in rule]


def build_bridged_job() -> dict[str, Any]:
    job = build_raw_job("bridged", "exec sleep 1000", kind="service")
    job["TaskGroups"][0]["Networks"] = [{"Mode": "bridge", "DynamicPorts": [{"Label": "web", "To": 80}]}]
    return job


def build_container_job(registry: Registry) -> dict[str, Any]:
    job = build_raw_job("contained", "", kind="service")
    (task,) = job["TaskGroups"][0]["Tasks"]
    config = {"image": f"{registry.address}/box:1", "command": "sleep", "args": ["1000"], "network_mode": "none"}
    task.update({"Driver": "docker", "Config": config, "Resources": {"CPU": 1, "MemoryMB": 32}})
    return job


def list_nat_rules() -> list[str]:
    rules = subprocess.run(["iptables-save", "-t", "nat"], check=True, capture_output=True, text=True)
    return rules.stdout.splitlines()
