"""Jobs in containers, from the API to the engine and back, on an agent whose parts are killed."""

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


class Place:
    """An agent that is everything, and its engine."""

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
        """`volumes`: of the host, each mounted at `/NAME`."""
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
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("docker-jobs")
    with running_podman() as (podman, registry):
        for name in ("plain", "frozen"):
            (folder / name).mkdir()
            (folder / name / "told").write_text(f"{name}\n")
        (folder / "wharf.toml").write_text(CONFIGURATION.format(socket=podman.socket, folder=folder))
        with running(folder, "dev", "--port", "0", "--config", "wharf.toml") as agent:
            agent.wait_ready()
            yield Place(agent, podman, registry, folder)
            agent.signal(signal.SIGTERM)
            agent.wait_end()


def test_the_node_tells_of_its_engine(place: Place) -> None:
    def attributes() -> dict[str, str]:
        nodes: Any = place.agent.get("/v1/nodes")
        node: Any = place.agent.get(f"/v1/node/{nodes[0]['ID']}") if nodes else {}
        return dict(node.get("Attributes") or {})

    wait_until(lambda: "driver.docker" in attributes(), what="the engine is told of")
    found = attributes()
    assert ("1", True) == (found["driver.docker"], "driver.docker.version" in found)


def test_volumes_of_the_host_are_in_the_container_and_one_that_is_only_to_be_read_is_not_written(place: Place) -> None:
    script = "cat /plain/told /frozen/told; echo new >/plain/new; echo new >/frozen/new || echo refused"
    place.run("mounts", script, volumes=("plain", "frozen"))
    wait_until(lambda: place.status("mounts") == "complete", what="it has ended")
    assert "plain\nfrozen\nrefused\n" == place.output("mounts")
    assert ["new", "told"] == sorted(path.name for path in (place.folder / "plain").iterdir())


def test_a_container_ends_as_its_program_does(place: Place) -> None:
    place.run("ends", "echo in $WHARF_JOB_ID at $WHARF_TASK_DIR; exit 7")
    wait_until(lambda: place.status("ends") == "failed", what="it has ended")
    assert ["Exit Code: 7"] == place.events("ends", "Terminated")
    assert "in ends at /local\n" == place.output("ends")


def test_a_killed_node_finds_its_container_running_and_loses_no_line(place: Place) -> None:
    script = "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 5"
    place.run("goes-on", script)
    wait_until(lambda: place.status("goes-on") == "running" and "20\n" in place.output("goes-on"), what="it runs")
    place.kill_node()
    wait_until(lambda: place.status("goes-on") == "failed", what="it has ended", within_s=40.0)
    assert ["Exit Code: 5"] == place.events("goes-on", "Terminated")
    assert 1 == len(place.events("goes-on", "Started"))
    assert "".join(f"{number}\n" for number in range(400)) == place.output("goes-on")


def test_an_image_that_is_nowhere_fails_its_task_with_the_images_name(place: Place) -> None:
    image = f"{place.registry.address}/missing:1"
    place.run("nowhere", "true", image=image)
    wait_until(lambda: place.status("nowhere") == "failed", what="it is given up")
    assert f"the image {image} cannot be pulled" in place.events("nowhere", "Driver Failure")[0]


def test_a_container_that_a_person_removed_is_started_again_by_its_policy(place: Place) -> None:
    place.run("removed", "while true; do sleep 0.1; done", kind="service", attempts=1)
    wait_until(lambda: place.status("removed") == "running", what="it runs")
    # While the engine does not answer: else the node may see the moment between its death and its removal.
    place.podman.kill()
    place.podman.remove(f"t-{place.allocation('removed')['ID']}")
    place.podman.start()
    wait_until(lambda: len(place.events("removed", "Started")) == 2, what="it runs again")
    assert "something else than this node removed it" in place.events("removed", "Terminated")[0]
    place.stop("removed")
    wait_until(lambda: place.status("removed") == "complete", what="it is stopped")


def test_a_task_that_is_stopped_leaves_no_container(place: Place) -> None:
    place.run("leaves", "trap 'exit 0' TERM; while true; do sleep 0.1; done", kind="service")
    wait_until(lambda: place.status("leaves") == "running", what="it runs")
    name = f"t-{place.allocation('leaves')['ID']}"
    assert name in place.podman.names()
    place.stop("leaves")
    wait_until(lambda: place.status("leaves") == "complete", what="it is stopped")
    wait_until(lambda: name not in place.podman.names(), what="its container is gone")
