"""Driver plugins: reported by the node, used for tasks, and isolated from the agent."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until

ENTRIES = """\
[wharf.drivers]
file = tests.node.drivers.example_plugin:FileDriver
duplicate = tests.node.drivers.example_plugin:DuplicateDriver
nameless = tests.node.drivers.example_plugin:build_nameless_driver
missing = tests.node.drivers.example_plugin:NoSuchClass
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("drivers")
    metadata = folder / "node" / "installed" / "example-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    with run_server(folder / "server") as server, run_node(server, folder / "node") as running_node:
        yield running_node


def read_node(node: NodeProcess) -> dict[str, Any]:
    nodes: Any = node.server.get("/v1/nodes")
    found: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return dict(found)


def run_job(node: NodeProcess, id: str, *, until: str, **config: Any) -> dict[str, Any]:
    node.run(build_raw_job(id, "", Driver="file", Config=config))
    return wait_status(node, id, until)


def wait_status(node: NodeProcess, id: str, status: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        return next((each for each in node.allocations(id) if each["ClientStatus"] == status), None)

    return wait_until(find, what=f"{id} is {status}")


def events(allocation: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["Type"], each["DisplayMessage"]) for each in allocation["TaskStates"]["t"]["Events"]]


def test_a_node_reports_usable_and_unusable_plugin_drivers(node: NodeProcess) -> None:
    found = read_node(node)
    driver = found["Drivers"]["file"]
    failed_plugins = {event["Details"]["plugin"] for event in found["Events"] if "plugin" in (event["Details"] or {})}

    assert (True, True, {"driver.file.mode": "plain"}) == (driver["Detected"], driver["Healthy"], driver["Attributes"])
    assert ("1", "plain") == (found["Attributes"]["driver.file"], found["Attributes"]["driver.file.mode"])
    assert {"duplicate", "nameless", "missing"} == failed_plugins


def test_the_exit_code_of_a_plugin_driver_is_reported(node: NodeProcess) -> None:
    assert "3" == find_termination(run_job(node, "ends", until="failed", exit_code=3))["exit_code"]


def test_refusals_and_faults_of_a_plugin_fail_only_the_task(node: NodeProcess) -> None:
    refused = run_job(node, "refused", until="failed", refused=True)
    faulty = run_job(node, "faulty", until="failed", faulty=True)

    assert ("Driver Failure", "the task is refused") in events(refused)
    assert ("Driver Failure", "the driver file failed: KeyError: 'missing'") in events(faulty)
    assert "complete" == run_job(node, "another", until="complete", exit_code=0)["ClientStatus"]


def test_a_restarted_agent_recovers_and_stops_tasks_of_a_plugin(node: NodeProcess) -> None:
    running = run_job(node, "stays", until="running")
    # Tasks of this driver cannot be measured: the plugin raises an exception.
    assert node.server.get(f"/v1/client/allocation/{running['ID']}/stats")
    node.kill_agent()
    node.wait_ready()
    recovered = wait_status(node, "stays", "running")
    node.server.put("/v1/jobs", {"Job": {**build_raw_job("stays", "", Driver="file", Config={}), "Stop": True}})

    stopped = wait_status(node, "stays", "complete")

    assert 1 == [kind for kind, _ in events(recovered)].count("Started")
    assert (running["ID"], "0") == (stopped["ID"], find_termination(stopped)["exit_code"])


def test_changes_of_a_drivers_health_are_events_of_the_node(node: NodeProcess) -> None:
    marker = next((node.folder / "node").glob("**/drivers/file")) / "unhealthy"

    def health() -> list[str]:
        """Return the health events of the driver. A change of metadata makes the node probe its drivers at once."""
        body = json.dumps({"Meta": {"probe": str(len(read_node(node)["Events"]))}}).encode()
        path = f"{node.server.address}/v1/client/metadata?node_id={read_node(node)['ID']}"
        urllib.request.urlopen(urllib.request.Request(path, body, method="POST"), timeout=ANSWERED_WITHIN_S).close()
        return [e["Message"] for e in read_node(node)["Events"] if (e["Details"] or {}).get("driver") == "file"]

    marker.touch()
    wait_until(lambda: health() == ["the file server is down"], what="the driver is unhealthy")
    assert "driver.file" not in read_node(node)["Attributes"]
    marker.unlink()
    wait_until(lambda: health() == ["the file server is down", "Healthy"], what="the driver is healthy again")
