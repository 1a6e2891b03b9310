"""Devices of plugins: reported by the node, allocated to one task at a time, measured."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.nodes import CHANNEL_CLOSED_TEXTS, NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until
from wharf.contract.client import ClientSettings, Unreachable, run_command_blocking
from wharf.contract.model.refusal import Refusal

ENTRIES = """\
[wharf.devices]
lamps = tests.node.devices.example_plugin:LampPlugin
broken = tests.node.devices.example_plugin:BrokenPlugin
missing = tests.node.devices.example_plugin:NoSuchClass
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("devices")
    lamps = folder / "node" / "lamps"
    lamps.mkdir(parents=True)
    for name, state in (("one", "healthy"), ("two", "healthy"), ("three", "unhealthy")):
        (lamps / name).write_text(state)
    metadata = folder / "node" / "installed" / "lamps-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    with run_server(folder / "server") as server, run_node(server, folder / "node") as running_node:
        yield running_node


def read_node(node: NodeProcess) -> dict[str, Any]:
    nodes: Any = node.server.get("/v1/nodes")
    found: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return dict(found)


def build_job(id: str, count: int, script: str = 'echo "$LAMPS"', **request: Any) -> dict[str, Any]:
    devices = [{"Name": "acme/lamp", "Count": count, **request}]
    return build_raw_job(id, script, Resources={"CPU": 1, "MemoryMB": 10, "Devices": devices}, KillSignal="SIGKILL")


def wait_ended(node: NodeProcess, job: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        found = node.allocations(job)
        return found[0] if found and found[0]["ClientStatus"] in ("complete", "failed") else None

    return wait_until(find, what=f"{job} has ended")


def read_output(node: NodeProcess, allocation: dict[str, Any]) -> str:
    file = node.folder / "alloc" / str(allocation["ID"]) / "alloc/logs/t.stdout.0"
    return file.read_text() if file.exists() else ""


def test_a_node_reports_devices_and_failed_plugins(node: NodeProcess) -> None:
    found = read_node(node)
    lamps, torches = found["NodeResources"]["Devices"]
    events = {event["Details"]["plugin"] for event in found["Events"] if event["Subsystem"] == "Driver"}

    assert ("acme", "lamp", "desk") == (lamps["Vendor"], lamps["Type"], lamps["Name"])
    assert [("one", True, ""), ("three", False, "it flickers"), ("two", True, "")] == [
        (each["ID"], each["Healthy"], each["HealthDescription"]) for each in lamps["Instances"]
    ]
    assert (400, "MHz", True) == (
        lamps["Attributes"]["light"]["Int"],
        lamps["Attributes"]["light"]["Unit"],
        lamps["Attributes"]["dims"]["Bool"],
    )
    assert ("stuck", {"broken", "missing"}) == (torches["Name"], events)


def test_devices_are_allocated_to_one_task_at_a_time(node: NodeProcess) -> None:
    constraint = {"LTarget": "${device.attr.light}", "Operand": ">=", "RTarget": "0.4 GHz"}
    node.run(build_job("both", 2, 'echo "$LAMPS"; while true; do sleep 0.05; done', Constraints=[constraint]))
    first = wait_until(lambda: next(iter(node.allocations("both")), None), what="the allocation is placed")
    lamps = wait_until(lambda: read_output(node, first).strip(), what="the task has printed its lamps")
    node.run(build_job("waits", 1))

    def is_evaluated() -> bool:
        evaluations: Any = node.server.get("/v1/job/waits/evaluations")
        return "complete" in [each["Status"] for each in evaluations]

    wait_until(is_evaluated, what="the job is evaluated")
    waiting = node.allocations("waits")
    node.server.put("/v1/jobs", {"Job": {**build_job("both", 2), "Stop": True}})

    second = wait_ended(node, "waits")

    assert (["one", "two"], []) == (sorted(lamps.split(",")), waiting)
    assert ("0", True) == (find_termination(second)["exit_code"], read_output(node, second).strip() in ("one", "two"))


def test_a_command_in_a_task_has_its_devices_after_a_restart_of_the_agent(node: NodeProcess) -> None:
    node.run(build_job("survives", 1, 'echo "$LAMPS"; while true; do sleep 0.05; done'))
    allocation = wait_until(lambda: next(iter(node.allocations("survives")), None), what="the allocation is placed")
    lamps = wait_until(lambda: read_output(node, allocation).strip(), what="the task has printed its lamps")
    node.kill_agent()

    def read_lamps() -> str | None:
        try:
            result = run_command_blocking(
                str(allocation["ID"]),
                "t",
                ["sh", "-c", "echo $LAMPS"],
                settings=ClientSettings(addresses=(node.server.address,)),
            )
        except Refusal:
            return None  # The agent is not ready yet.
        except Unreachable as error:
            if not str(error).endswith(CHANNEL_CLOSED_TEXTS):
                raise
            return None  # The request was sent to the killed agent.
        return result.stdout.decode().strip() or None

    assert lamps == wait_until(read_lamps, what="a command runs")
    node.server.put("/v1/jobs", {"Job": {**build_job("survives", 1), "Stop": True}})


def test_device_statistics_are_part_of_the_machine_statistics(node: NodeProcess) -> None:
    statistics: Any = node.query("/v1/client/stats")
    (lamps,) = statistics["DeviceStats"]

    assert ("acme", {"one", "two", "three"}) == (lamps["Vendor"], set(lamps["InstanceStats"]))
    first_lamp = lamps["InstanceStats"]["one"]
    assert {"IntNumeratorVal": 30, "IntDenominatorVal": 100, "Unit": "lm", "Desc": "light"} == first_lamp["Summary"]
    assert {"FloatNumeratorVal": 2.5} == first_lamp["Stats"]["Attributes"]["warmth"]


def test_a_task_fails_if_its_device_cannot_be_reserved(node: NodeProcess) -> None:
    node.run(build_job("stuck", 1, Name="torch"))

    stuck = wait_ended(node, "stuck")

    failures = [e["DisplayMessage"] for e in stuck["TaskStates"]["t"]["Events"] if e["Type"] == "Setup Failure"]
    assert ["devices acme/torch/stuck: its switch is stuck"] == failures
