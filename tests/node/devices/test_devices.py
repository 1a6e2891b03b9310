"""Devices by plugins: told of by the node, given to one task at a time, measured."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.nodes import CHANNEL_CLOSED_TEXT, ANode, a_node, a_raw_job, a_server, find_termination
from tests.waiting import wait_until
from wharf.contract.client import ClientSettings, Unreachable, run_command_blocking
from wharf.contract.model.refusal import Refusal

ENTRIES = """\
[wharf.devices]
lamps = tests.node.devices.lamps:Lamps
broken = tests.node.devices.lamps:Broken
missing = tests.node.devices.lamps:Nowhere
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("devices")
    lamps = folder / "node" / "lamps"
    lamps.mkdir(parents=True)
    for name, state in (("one", "well"), ("two", "well"), ("three", "ill")):
        (lamps / name).write_text(state)
    about = folder / "node" / "installed" / "lamps-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        yield it


def told(node: ANode) -> dict[str, Any]:
    nodes: Any = node.server.get("/v1/nodes")
    found: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return dict(found)


def a_job(id: str, count: int, script: str = 'echo "$LAMPS"', **ask: Any) -> dict[str, Any]:
    devices = [{"Name": "acme/lamp", "Count": count, **ask}]
    return a_raw_job(id, script, Resources={"CPU": 1, "MemoryMB": 10, "Devices": devices}, KillSignal="SIGKILL")


def over(node: ANode, job: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = node.allocations(job)
        return found[0] if found and found[0]["ClientStatus"] in ("complete", "failed") else None

    return wait_until(look, what=f"{job} is over")


def said(node: ANode, allocation: dict[str, Any]) -> str:
    file = node.folder / "alloc" / str(allocation["ID"]) / "alloc/logs/t.stdout.0"
    return file.read_text() if file.exists() else ""


def test_a_node_tells_of_the_devices_of_its_plugins_and_of_plugins_that_fail(node: ANode) -> None:
    found = told(node)
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


def test_a_task_gets_what_it_needs_for_its_own_devices_and_nobody_else_gets_these(node: ANode) -> None:
    constraint = {"LTarget": "${device.attr.light}", "Operand": ">=", "RTarget": "0.4 GHz"}
    node.run(a_job("both", 2, 'echo "$LAMPS"; while true; do sleep 0.05; done', Constraints=[constraint]))
    first = wait_until(lambda: next(iter(node.allocations("both")), None), what="it is placed")
    lit = wait_until(lambda: said(node, first).strip(), what="it has said which it has")
    node.run(a_job("waits", 1))

    def are_done() -> bool:
        evaluations: Any = node.server.get("/v1/job/waits/evaluations")
        return "complete" in [each["Status"] for each in evaluations]

    wait_until(are_done, what="it was looked at")
    waits = node.allocations("waits")
    node.server.put("/v1/jobs", {"Job": {**a_job("both", 2), "Stop": True}})

    second = over(node, "waits")

    assert (["one", "two"], []) == (sorted(lit.split(",")), waits)
    assert ("0", True) == (find_termination(second)["exit_code"], said(node, second).strip() in ("one", "two"))


def test_a_command_beside_a_task_finds_its_devices_also_after_the_agent_was_killed(node: ANode) -> None:
    node.run(a_job("goes-on", 1, 'echo "$LAMPS"; while true; do sleep 0.05; done'))
    allocation = wait_until(lambda: next(iter(node.allocations("goes-on")), None), what="it is placed")
    lit = wait_until(lambda: said(node, allocation).strip(), what="it has said which it has")
    node.kill_agent()

    def asked() -> str | None:
        try:
            beside = run_command_blocking(
                str(allocation["ID"]),
                "t",
                ["sh", "-c", "echo $LAMPS"],
                settings=ClientSettings(addresses=(node.server.address,)),
            )
        except Refusal:
            return None  # The agent is not back yet.
        except Unreachable as error:
            if str(error) != CHANNEL_CLOSED_TEXT:
                raise
            return None  # It was asked of the one that was only just killed.
        return beside.stdout.decode().strip() or None

    assert lit == wait_until(asked, what="a command is run")
    node.server.put("/v1/jobs", {"Job": {**a_job("goes-on", 1), "Stop": True}})


def test_figures_of_devices_are_told_with_those_of_the_machine(node: ANode) -> None:
    figures: Any = node.query("/v1/client/stats")
    (lamps,) = figures["DeviceStats"]

    assert ("acme", {"one", "two", "three"}) == (lamps["Vendor"], set(lamps["InstanceStats"]))
    one = lamps["InstanceStats"]["one"]
    assert {"IntNumeratorVal": 30, "IntDenominatorVal": 100, "Unit": "lm", "Desc": "light"} == one["Summary"]
    assert {"FloatNumeratorVal": 2.5} == one["Stats"]["Attributes"]["warmth"]


def test_a_task_whose_device_cannot_be_used_fails_and_says_so(node: ANode) -> None:
    node.run(a_job("stuck", 1, Name="torch"))

    stuck = over(node, "stuck")

    failures = [e["DisplayMessage"] for e in stuck["TaskStates"]["t"]["Events"] if e["Type"] == "Setup Failure"]
    assert ["devices acme/torch/stuck: its switch is stuck"] == failures
