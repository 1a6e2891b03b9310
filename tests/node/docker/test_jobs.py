"""Jobs in containers, from the API to the engine, on an agent whose node process is killed."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.node.docker.podman import Podman, Registry, running_podman
from tests.waiting import wait_until

pytestmark = [pytest.mark.needs_program("podman"), pytest.mark.needs("containers")]
CONFIGURATION = """\
[client.drivers.docker]
socket = "{socket}"
[client.host_volume]
plain = {{path = "{folder}/plain"}}
frozen = {{path = "{folder}/frozen", read_only = true}}
"""


class DockerCluster:
    """An agent with all roles, and its container engine."""

    def __init__(self, agent: RunningAgent, podman: Podman, registry: Registry, folder: Path) -> None:
        self.agent = agent
        self.podman = podman
        self.registry = registry
        self.folder = folder

    def run(
        self,
        id: str,
        script: str,
        *,
        kind: str = "batch",
        attempts: int = 0,
        volumes: tuple[str, ...] = (),
        **config: object,
    ) -> None:
        """Run a job with one task. `volumes`: host volumes, each mounted at `/NAME`."""
        image = f"{self.registry.address}/box:1"
        config = {"image": image, "command": "sh", "args": ["-c", script], "network_mode": "none", **config}
        task = {
            "Name": "t",
            "Driver": "docker",
            "Config": config,
            "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 1},
            "Resources": {"CPU": 10, "MemoryMB": 32},
            "VolumeMounts": [{"Volume": name, "Destination": f"/{name}"} for name in volumes],
        }
        group = {
            "Name": "g",
            "Volumes": {
                name: {"Type": "host", "Source": name, "ReadOnly": name.startswith("frozen")} for name in volumes
            },
            "RestartPolicy": {"Attempts": attempts, "Mode": "fail", "Delay": 1, "Interval": 60_000_000_000},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
            "EphemeralDisk": {"SizeMB": 30},
            "Tasks": [task],
        }
        self.agent.put("/v1/jobs", {"Job": {"ID": id, "Type": kind, "TaskGroups": [group]}})

    def allocation(self, job: str) -> dict[str, Any]:
        found: Any = self.agent.get(f"/v1/job/{job}/allocations")
        return dict(found[0]) if found and found[0]["TaskStates"] else {}

    def status(self, job: str) -> str:
        return str(self.allocation(job).get("ClientStatus", ""))

    def events(self, job: str, kind: str) -> list[str]:
        states = self.allocation(job).get("TaskStates") or {"t": {"Events": []}}
        return [event["DisplayMessage"] for event in states["t"]["Events"] if event["Type"] == kind]

    def output(self, job: str) -> str:
        files = self.folder.glob(f".wharf/alloc/{self.allocation(job)['ID']}/alloc/logs/t.stdout.*")
        return "".join(path.read_text() for path in sorted(files))

    def stop(self, job: str) -> None:
        request = urllib.request.Request(f"{self.agent.address}/v1/job/{job}", method="DELETE")
        urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()

    def kill_node(self) -> None:
        pid = self.agent.child("node")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.agent.child("node") not in (None, pid), what="the node is started again")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    folder = tmp_path_factory.mktemp("docker-jobs")
    with running_podman() as (podman, registry):
        for name in ("plain", "frozen"):
            (folder / name).mkdir()
            (folder / name / "content").write_text(f"{name}\n")
        (folder / "wharf.toml").write_text(CONFIGURATION.format(socket=podman.socket, folder=folder))
        with running(folder, "dev", "--port", "0", "--config", "wharf.toml") as agent:
            agent.wait_ready()
            yield DockerCluster(agent, podman, registry, folder)
            agent.signal(signal.SIGTERM)
            agent.wait_end()


def test_the_node_reports_its_engine(cluster: DockerCluster) -> None:
    def attributes() -> dict[str, str]:
        nodes: Any = cluster.agent.get("/v1/nodes")
        node: Any = cluster.agent.get(f"/v1/node/{nodes[0]['ID']}") if nodes else {}
        return dict(node.get("Attributes") or {})

    wait_until(lambda: "driver.docker" in attributes(), what="the node reports its engine")
    found = attributes()
    assert ("1", True) == (found["driver.docker"], "driver.docker.version" in found)


def test_host_volumes_are_mounted_in_the_container_and_a_read_only_one_cannot_be_written(
    cluster: DockerCluster,
) -> None:
    script = "cat /plain/content /frozen/content; echo new >/plain/new; echo new >/frozen/new || echo refused"
    cluster.run("mounts", script, volumes=("plain", "frozen"))
    wait_until(lambda: cluster.status("mounts") == "complete", what="the task has ended")
    assert "plain\nfrozen\nrefused\n" == cluster.output("mounts")
    assert ["content", "new"] == sorted(path.name for path in (cluster.folder / "plain").iterdir())


def test_the_exit_code_and_output_of_a_container_are_reported(cluster: DockerCluster) -> None:
    cluster.run("ends", "echo in $WHARF_JOB_ID at $WHARF_TASK_DIR; exit 7")
    wait_until(lambda: cluster.status("ends") == "failed", what="the task has ended")
    assert ["Exit Code: 7"] == cluster.events("ends", "Terminated")
    assert "in ends at /local\n" == cluster.output("ends")


def test_a_container_survives_a_killed_node_process_without_loss_of_output(cluster: DockerCluster) -> None:
    script = "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 5"
    cluster.run("survives", script)
    wait_until(
        lambda: cluster.status("survives") == "running" and "20\n" in cluster.output("survives"), what="the task runs"
    )
    cluster.kill_node()
    wait_until(lambda: cluster.status("survives") == "failed", what="the task has ended", within_s=40.0)
    assert ["Exit Code: 5"] == cluster.events("survives", "Terminated")
    assert 1 == len(cluster.events("survives", "Started"))
    assert "".join(f"{number}\n" for number in range(400)) == cluster.output("survives")


def test_a_missing_image_fails_the_task_with_the_name_of_the_image(cluster: DockerCluster) -> None:
    image = f"{cluster.registry.address}/missing:1"
    cluster.run("no-image", "true", image=image)
    wait_until(lambda: cluster.status("no-image") == "failed", what="the task has failed")
    assert f"image {image} cannot be pulled" in cluster.events("no-image", "Driver Failure")[0]


def test_a_container_that_an_operator_removed_is_restarted_by_the_restart_policy(cluster: DockerCluster) -> None:
    cluster.run("removed", "while true; do sleep 0.1; done", kind="service", attempts=1)
    wait_until(lambda: cluster.status("removed") == "running", what="the task runs")
    # Removed while the engine is down, so that the node cannot see the container between its end and its removal.
    cluster.podman.kill()
    cluster.podman.remove(f"t-{cluster.allocation('removed')['ID']}")
    cluster.podman.start()
    wait_until(lambda: len(cluster.events("removed", "Started")) == 2, what="the task runs again")
    assert "it was removed by something other than this node" in cluster.events("removed", "Terminated")[0]
    cluster.stop("removed")
    wait_until(lambda: cluster.status("removed") == "complete", what="the task is stopped")


def test_the_container_of_a_stopped_task_is_removed(cluster: DockerCluster) -> None:
    cluster.run("stopped", "trap 'exit 0' TERM; while true; do sleep 0.1; done", kind="service")
    wait_until(lambda: cluster.status("stopped") == "running", what="the task runs")
    name = f"t-{cluster.allocation('stopped')['ID']}"
    assert name in cluster.podman.names()
    cluster.stop("stopped")
    wait_until(lambda: cluster.status("stopped") == "complete", what="the task is stopped")
    wait_until(lambda: name not in cluster.podman.names(), what="the container is removed")
