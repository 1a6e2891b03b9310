"""Drivers by an entry point: offered by the node, given tasks, and no danger to it."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import ANode, a_node, a_raw_job, a_server, find_termination
from tests.waiting import wait_until

ENTRIES = """\
[wharf.drivers]
kites = tests.node.drivers.kites:Kites
copycat = tests.node.drivers.kites:Copycat
nameless = tests.node.drivers.kites:nameless
missing = tests.node.drivers.kites:Nowhere
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("drivers")
    about = folder / "node" / "installed" / "kites-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kites\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        yield it


def told(node: ANode) -> dict[str, Any]:
    nodes: Any = node.server.get("/v1/nodes")
    found: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return dict(found)


def fly(node: ANode, id: str, *, until: str, **config: Any) -> dict[str, Any]:
    node.run(a_raw_job(id, "", Driver="kite", Config=config))
    return status(node, id, until)


def status(node: ANode, id: str, wanted: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        return next((each for each in node.allocations(id) if each["ClientStatus"] == wanted), None)

    return wait_until(look, what=f"{id} is {wanted}")


def events(allocation: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["Type"], each["DisplayMessage"]) for each in allocation["TaskStates"]["t"]["Events"]]


def test_a_node_offers_the_drivers_of_others_and_tells_of_those_that_it_cannot_use(node: ANode) -> None:
    found = told(node)
    driver = found["Drivers"]["kite"]
    refused = {event["Details"]["plugin"] for event in found["Events"] if "plugin" in (event["Details"] or {})}

    assert (True, True, {"driver.kite.wind": "west"}) == (driver["Detected"], driver["Healthy"], driver["Attributes"])
    assert ("1", "west") == (found["Attributes"]["driver.kite"], found["Attributes"]["driver.kite.wind"])
    assert {"copycat", "nameless", "missing"} == refused


def test_a_task_of_such_a_driver_ends_as_it_says(node: ANode) -> None:
    assert "3" == find_termination(fly(node, "lands", until="failed", lands=3))["exit_code"]


def test_what_it_refuses_and_what_it_does_wrong_fails_the_task_alone(node: ANode) -> None:
    torn, knotted = fly(node, "torn", until="failed", torn=True), fly(node, "knotted", until="failed", knotted=True)

    assert ("Driver Failure", "the kite is torn") in events(torn)
    assert ("Driver Failure", "the driver kite failed: KeyError: 'string'") in events(knotted)
    assert "complete" == fly(node, "another", until="complete", lands=0)["ClientStatus"]


def test_its_tasks_are_taken_up_again_by_the_next_agent_and_stopped_when_they_are_to_end(node: ANode) -> None:
    flying = fly(node, "stays", until="running")
    # A kite cannot be measured, and fails when it is asked to.
    assert node.server.get(f"/v1/client/allocation/{flying['ID']}/stats")
    node.kill_agent()
    node.wait_ready()
    again = status(node, "stays", "running")
    node.server.put("/v1/jobs", {"Job": {**a_raw_job("stays", "", Driver="kite", Config={}), "Stop": True}})

    landed = status(node, "stays", "complete")

    assert 1 == [kind for kind, _ in events(again)].count("Started")
    assert (flying["ID"], "0") == (landed["ID"], find_termination(landed)["exit_code"])


def test_a_driver_that_falls_ill_and_is_well_again_is_told_by_events_of_the_node(node: ANode) -> None:
    calm = next((node.folder / "node").glob("**/kites")) / "calm"

    def health() -> list[str]:
        """When its metadata change, a node looks at itself at once."""
        body = json.dumps({"Meta": {"looked": str(len(told(node)["Events"]))}}).encode()
        path = f"{node.server.address}/v1/client/metadata?node_id={told(node)['ID']}"
        urllib.request.urlopen(urllib.request.Request(path, body, method="POST"), timeout=ANSWERED_WITHIN_S).close()
        return [e["Message"] for e in told(node)["Events"] if (e["Details"] or {}).get("driver") == "kite"]

    calm.touch()
    wait_until(lambda: health() == ["there is no wind"], what="it is told as ill")
    assert "driver.kite" not in told(node)["Attributes"]
    calm.unlink()
    wait_until(lambda: health() == ["there is no wind", "Healthy"], what="it is told as well")
